//! The machine: it carries operations to the kernel and back, and knows no single operation.

mod buf;
mod config;
mod diagnose;
mod entry;
mod error;
mod facts;
mod opcode;
mod registry;
pub(crate) mod ring;

pub use buf::{Fill, IoBuf, IoBufMut, Slice};
pub use config::{Config, RingMode};
pub use diagnose::{Diagnosis, diagnose, is_supported};
pub use entry::Entry;
pub use error::BuildError;
pub use opcode::Opcode;
pub use registry::{Counts, FixedBuf, Lease, Registry};
pub use ring::setup::Setup;
