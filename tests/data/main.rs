//! The data path against the real kernel: what others' users reported, each report a test by its number, and a
//! differential of the ring against the plain system calls.
//!
//! The letters and numbers are those of the table of field reports in `CONTRIBUTING.md`. Peers are plain threads with
//! plain sockets, so that nothing of the crate tests itself. Bounds on time catch hangs and nothing else.

#[path = "../rings/mod.rs"]
mod rings;

mod child;
mod differential;
mod direct;
mod files;
mod fixed;
mod peers;
mod pipes;
mod relay_ends;
mod relay_flow;
mod relay_pipes;
mod sockets;
mod transfers;
mod waiting;
