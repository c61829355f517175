//! `ringmain`: a completion-driven io_uring runtime whose speciality is moving bytes without touching them.

pub mod runtime;

pub use runtime::{BuildError, Config, Diagnosis, Opcode, RingMode, Setup, diagnose, is_supported};
pub use runtime::{Counts, Fill, FixedBuf, IoBuf, IoBufMut, Lease, Registry, Slice};
pub use runtime::{Counts, FixedBuf, Lease, Registry};
