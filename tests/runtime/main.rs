//! The runtime on the kernel's own ring: what went wrong for others, by the names of the reports, under every ring
//! configuration of the table where the configuration can matter.

#[path = "../parked/mod.rs"]
mod parked;
#[path = "../rings/mod.rs"]
mod rings;
#[path = "../turns/mod.rs"]
mod turns;

mod cancellation;
mod descriptors;
mod embedding;
mod limits;
mod pages;
mod pressure;
mod shutdown;

use std::io;

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&result.expect_err("it should have failed")).expect("the kernel's errno is there")
}
