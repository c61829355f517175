//! `ringmain`: a completion-driven io_uring runtime whose speciality is moving bytes without touching them.

pub mod runtime;

pub mod ops;

pub use runtime::*;
