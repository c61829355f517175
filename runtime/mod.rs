//! The machine: it carries operations to the kernel and back, and knows no single operation.

mod entry;
pub(crate) mod ring;

pub use entry::Entry;
