//! Files.
//!
//! All reads and writes name their place: a cursor that several operations in flight share would be nobody's. For what
//! has only a cursor (a terminal, a FIFO), [`read`](super::read()) and [`write`](super::write()) take any descriptor.

mod file;
mod open_options;

pub use file::File;
pub use open_options::OpenOptions;
