//! The file copier example as a real process: what a user of it would see, and what is on the disk afterwards.
//!
//! Bounds on time are there to catch hangs, and far from what is usual.

#![forbid(unsafe_code)]

mod contents;
mod endings;
#[path = "../example/mod.rs"]
mod example;
mod folder;
mod newcomer;
mod sentences;
