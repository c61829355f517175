use std::io;

use crate::runtime::{Completion, Encoded, Operation, Sqe, Submission};

/// `nop()`: goes to the kernel and back, and does nothing there.
///
/// What it measures is the runtime itself.
///
/// # Cancel safety
/// Dropping it loses nothing.
///
/// # Kernel
/// `IORING_OP_NOP`, Linux 5.1.
///
/// # Examples
/// ```
/// ringmain::Runtime::new()?.block_on(ringmain::ops::nop())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_NOP")]
pub fn nop() -> Submission<Nop> {
    Submission::new(Nop { _private: () })
}

/// The operation of [`nop()`].
#[derive(Debug)]
pub struct Nop {
    _private: (),
}

impl Operation for Nop {
    type Output = io::Result<()>;

    #[inline]
    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.nop()
    }

    #[inline]
    fn decode(self, mut completion: Completion) -> io::Result<()> {
        completion.result().map(drop)
    }
}
