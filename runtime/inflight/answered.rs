//! Between two completions: the result of a zero-copy send is out, and the kernel still reads its memory.
//!
//! The first completion has the result and says that another will come, whether it succeeded or not; the second, the
//! notification, says that the kernel has let go, and in its result whether it copied: a bit, never an errno. The kernel
//! posts them in this order (`io_send_zc`, `io_uring/net.c`), which is how it is made and no promise: a notification that
//! comes first is kept for the result, and that one is the last. Nothing can hurry a notification: it comes when the last
//! packet that shares the memory is gone, so no cancel is sent for one.

use super::{Settled, Slot, State, is_interrupted};
use crate::runtime::abi;
use crate::runtime::frame::Retry;
use crate::runtime::metrics::Metrics;
use crate::runtime::ring::Cqe;

impl Slot {
    /// The result of an operation that is answered, as its completion will have it. None while it is not, and for one
    /// that is not to be told: it is tried again after the notification, or was cancelled before that.
    pub(crate) fn early_result(&self) -> Option<i32> {
        let result = self.result.get();
        (self.state.get() == State::Answered && self.is_result(result)).then_some(result)
    }

    /// Waiting -> answered. From here on the kernel only reads, and the registry's pages wait for the notification.
    pub(super) fn answer_early(&self, cqe: Cqe) -> Settled {
        self.body.await_notification();
        self.result.set(cqe.result);
        self.flags.set(cqe.flags);
        self.state.set(State::Answered);
        self.forget_failure(cqe);
        let waking = if self.is_result(cqe.result) { self.take_waking() } else { None };
        waking.map_or(Settled::Nothing, Settled::Wake)
    }

    /// Whether this is the notification of a zero-copy send that has no result yet.
    pub(super) fn is_notified_first(&self, cqe: Cqe) -> bool {
        cqe.flags & (abi::NOTIFICATION | abi::MORE) == abi::NOTIFICATION
            && self.body.is_held()
            && !self.is_answered()
            && !self.is_notified()
            && matches!(self.body.entry().opcode, abi::SEND_ZC | abi::SENDMSG_ZC)
    }

    /// Waiting -> notified; an orphan stays one. The kernel has let go of the memory, and works on the operation still.
    pub(super) fn notify_early(&self, cqe: Cqe) -> Settled {
        self.notice.set(Some(cqe.result));
        if self.state.get() == State::Waiting {
            self.state.set(State::Notified);
        }
        Settled::Nothing
    }

    /// Whether only its result is to come, be it for an orphan.
    pub(super) fn is_notified(&self) -> bool {
        self.notice.get().is_some()
    }

    /// The result of an operation that may have been notified before it.
    pub(super) fn learn_late(&self, cqe: Cqe, metrics: &Metrics) {
        if let Some(report) = self.notice.take() {
            self.forget_failure(cqe);
            self.learn(report, metrics);
        }
    }

    /// An orphan has one more completion to come. If it is answered now, which it is once, it stays an orphan.
    pub(super) fn answer_orphan(&self, cqe: Cqe) {
        if self.body.is_held() && !self.is_multishot.get() && !self.is_answered() {
            self.body.await_notification();
            self.forget_failure(cqe);
        }
    }

    /// Whether only its notification is to come, be it for an orphan.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.state.get(), State::Answered | State::Orphaned) && self.body.is_notifying()
    }

    /// What the notification of an operation that has sent something says: whoever waits to learn from it, learns.
    pub(super) fn learn(&self, report: i32, metrics: &Metrics) {
        let Some(zero_copy) = self.body.take_zero_copy() else {
            return;
        };
        let was_copied = report & abi::ZC_COPIED != 0;
        zero_copy.learn(was_copied);
        let sends = if was_copied { &metrics.sends_copied } else { &metrics.sends_zero_copy };
        sends.add(1);
    }

    /// A notification says "copied" also when nothing was sent, and nobody is to learn from that.
    fn forget_failure(&self, cqe: Cqe) {
        if cqe.result <= 0 {
            let _nothing_to_learn = self.body.take_zero_copy();
        }
    }

    /// Whether this is what the operation came to, and no reason to try it again.
    fn is_result(&self, result: i32) -> bool {
        let waits = matches!(self.body.retry(), Retry::Readable | Retry::Writable);
        !(waits && (result == -libc::EAGAIN || is_interrupted(result)))
    }
}
