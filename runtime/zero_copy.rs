//! Whether zero-copy sends pay on one socket: what its notifications have told.
//!
//! A zero-copy send costs a second completion and a page reference for each page. Where the kernel copies all the same
//! (loopback, a device without scatter-gather) it costs that for nothing, and only the notification tells. So each socket
//! has a memory of its own: a copied send turns the next ones into plain sends, and after [`PROBE_BYTES`] of those one
//! more asks again, since a route may change under a connection.

use std::cell::Cell;

/// How many bytes are sent plainly after a copied send before one more asks again.
const PROBE_BYTES: u64 = 64 << 20;

/// The memory of one socket. All its handles share it.
#[derive(Debug, Default)]
pub(crate) struct ZeroCopy {
    /// Bytes to be sent plainly before the next send asks; `u64::MAX` is for ever.
    plain: Cell<u64>,
}

impl ZeroCopy {
    /// Whether to ask for zero copy for a send of this many bytes.
    pub(crate) fn asks(&self, bytes: usize) -> bool {
        match self.plain.get() {
            0 => true,
            u64::MAX => false,
            plain => {
                self.plain.set(plain.saturating_sub(bytes as u64));
                false
            }
        }
    }

    /// What a notification said. A socket that cannot stays one.
    pub(crate) fn learn(&self, was_copied: bool) {
        if self.plain.get() != u64::MAX {
            self.plain.set(if was_copied { PROBE_BYTES } else { 0 });
        }
    }

    /// This kernel or this kind of socket does not do it at all.
    pub(crate) fn refuse(&self) {
        self.plain.set(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_socket_asks() {
        assert!(ZeroCopy::default().asks(1));
    }

    #[test]
    fn a_copied_send_makes_the_next_ones_plain_until_enough_bytes_went() {
        let zero_copy = ZeroCopy::default();
        zero_copy.learn(true);
        for _ in 0..PROBE_BYTES >> 20 {
            assert!(!zero_copy.asks(1 << 20));
        }
        assert!(zero_copy.asks(1 << 20), "the route may have changed");
        zero_copy.learn(false);
        assert!(zero_copy.asks(1));
    }

    #[test]
    fn a_socket_that_cannot_is_never_asked_again() {
        let zero_copy = ZeroCopy::default();
        zero_copy.refuse();
        zero_copy.learn(false);
        assert!(!zero_copy.asks(usize::MAX));
        assert!(!zero_copy.asks(usize::MAX));
    }
}
