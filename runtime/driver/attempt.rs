//! One operation tried at once, past the slots: what does not have to wait needs none.
//!
//! `encode` is foreign code here as well. It runs on a frame of the driver's own, while nothing else is borrowed, and may
//! come back for another attempt.

use super::Driver;
use crate::runtime::completion::Completion;
use crate::runtime::frame::Frame;
use crate::runtime::opcode::Opcode;
use crate::runtime::operation::Operation;
use crate::runtime::sqe::Sqe;

impl Driver {
    /// Try one operation at once, as a system call that does not wait. `Err` gives the operation back where it would
    /// have had to wait.
    pub fn attempt<O: Operation>(&self, mut operation: O) -> Result<O::Output, O> {
        let ticket = self.core.borrow_mut().slots.ticket();
        // Foreign code may attempt something else from inside `encode`; that one gets a frame of its own.
        let mut spare;
        let mut shared = self.frame.try_borrow_mut();
        let frame = match &mut shared {
            Ok(frame) => &mut **frame,
            Err(_) => {
                spare = Frame::new(self.id, self.pages.clone(), self.setup.supports(Opcode::ReadvFixed));
                &mut spare
            }
        };
        frame.begin(ticket.sequence, 0);
        let borrowed = Borrowed(frame);
        let attempted = operation.encode(Sqe::new(borrowed.0)).map(|encoded| {
            let result = self.core.borrow_mut().ring.attempt(&encoded);
            (result, encoded.frame().creates())
        });
        drop(borrowed);
        drop(shared);
        let (result, creates) = match attempted {
            Ok(answer) => answer,
            Err(error) => return Ok(operation.decode(Completion::refused(ticket, error))),
        };
        self.metrics.attempts.add(1);
        if result == -libc::EAGAIN {
            return Err(operation);
        }
        Ok(operation.decode(Completion::answered(ticket, result, 0, creates)))
    }
}

/// A frame for the length of one attempt. Only the ring takes a CLOSE: the descriptor of one that was attempted, or
/// refused, or that panicked, is closed at the end and not when the frame is next used.
struct Borrowed<'a>(&'a mut Frame);

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        drop(self.0.take_closing());
    }
}
