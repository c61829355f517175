//! The machine: it carries operations to the kernel and back, and knows no single operation.
//!
//! In the order of an operation's way through it: a task runs in the [`Runtime`]'s loop (`block_on`, `executor`,
//! `context`, `time`) and awaits a [`Submission`], which moves an [`Operation`] into a slot (`inflight`, `body`); the
//! operation describes its entry through an [`Sqe`]; the [`Driver`] pushes it to the `ring`, reaps the
//! [`Completion`] and settles it. `registry` and `buf` are the memory, `lent` what of it the kernel may take from, `fd` the descriptors, `unpark` the only thing
//! that other threads touch; `config`, `error`, `facts`, `opcode` and `diagnose` are about what a machine allows.

mod block_on;
mod builder;
mod context;
mod executor;
#[cfg(all(test, not(loom)))]
mod fake_park;
mod time;

mod abi;
mod body;
mod completion;
mod driver;
mod entry;
mod frame;
mod inflight;
mod lent;
mod metrics;
mod operation;
pub(crate) mod ring;
mod sqe;
mod submission;
mod waking;

mod buf;
mod fd;
mod registry;
mod unpark;
mod zero_copy;

mod config;
mod diagnose;
mod error;
mod facts;
mod opcode;

pub use block_on::Runtime;
pub use buf::{Fill, IoBuf, IoBufMut, Slice};
pub use builder::Builder;
pub use completion::Completion;
pub use config::{Config, RingMode};
pub use context::spawn;
pub use diagnose::{Diagnosis, diagnose, is_supported};
pub use driver::{Driver, Entered};
pub use entry::Entry;
pub use error::BuildError;
pub use executor::{JoinError, JoinHandle};
pub use fd::{Fd, FdHold};
pub use lent::BufferGroup;
pub use metrics::{Counter, Metrics};
pub use opcode::Opcode;
pub use operation::{MultishotOperation, Operation};
pub use registry::{FixedBuf, Holder, InFlightPages, Lease, LeaseMany, Registry, SharedBuf, Snapshot};
pub use ring::setup::Setup;
pub use ring::{Pending, Script, Wait};
pub use rustix::event::PollFlags;
pub use rustix::fs::{Mode, OFlags};
pub use rustix::pipe::SpliceFlags;
pub use sqe::{Destination, Encoded, EncodedMultishot, MultishotSqe, Sqe};
pub use submission::{Answer, Multishot, Submission};
pub use time::{Elapsed, Interval, Sleep, Tick, Timeout, interval, sleep, sleep_until, timeout};
