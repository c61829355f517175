//! The proxy example as a real process: what a user of it would see, and what its host would.
//!
//! Bounds on time are there to catch hangs, and bounds on CPU time to catch loops: both are far from what is usual.

#![forbid(unsafe_code)]

mod endings;
#[path = "../example/mod.rs"]
mod example;
mod limits;
mod newcomer;
mod process;
mod sentences;
mod transfers;
