#![doc = include_str!("README.md")]

// In the order of the layers: the machine, then the vocabulary that is spoken through it.
pub mod runtime;

pub mod ops;

pub use ops::{BufResult, fs, net};
pub use runtime::*;
