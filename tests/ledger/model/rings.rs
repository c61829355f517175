//! A driver on a played kernel, and what the model knows of its ring. Several have the pages of one registry.

use std::rc::Rc;

use ringmain::{Config, Driver, Registry, Runtime, Script};
use rustix::io::Errno;

use super::ASYNC_CANCEL;
use super::kernel::Posted;

pub(super) struct Ring {
    pub(super) driver: Rc<Driver>,
    pub(super) script: Script,
    _runtime: Runtime,
    /// Flights that are queued, in order.
    pub(super) backlog: Vec<usize>,
    pub(super) posted: Vec<Posted>,
    pub(super) orders_seen: u64,
    /// Whether it has each chunk in its table.
    pub(super) registered: [bool; 2],
    /// What the registry has grown by stays until this ring, which has or may have it in its table, has let go of it.
    pub(super) is_pinning: bool,
    /// The kernel keeps cleared memory for now, and does not say that it has let go of any.
    pub(super) holds: bool,
    /// It has cleared its entry for what the registry has grown by, and the kernel has not said that it has let go.
    pub(super) is_cleared: bool,
    pub(super) is_closed: bool,
}

impl Ring {
    /// A ring on these pages, whose kernel registers no more if it `refuses`.
    pub(super) fn new(config: &Config, registry: Option<Registry>, registers: bool, refuses: bool) -> Self {
        let builder = Runtime::builder().config(config.clone());
        let builder = match registry {
            Some(registry) => builder.registry(registry),
            None => builder,
        };
        let (runtime, script) = builder.build_scripted().expect("a scripted runtime needs no kernel");
        if refuses {
            script.refuse_memory(Some(Errno::NOMEM.raw_os_error()));
        }
        Self {
            driver: Rc::clone(runtime.driver()),
            script,
            _runtime: runtime,
            backlog: Vec::new(),
            posted: Vec::new(),
            orders_seen: 0,
            registered: [registers, false],
            is_pinning: false,
            holds: false,
            is_cleared: false,
            is_closed: false,
        }
    }

    /// Follow what a turn does to the entry for what the registry has grown by.
    pub(super) fn follow(&mut self, is_grown: bool, is_draining: bool, refuses: bool) {
        if self.is_cleared || is_draining {
            let had = self.is_cleared || self.registered[1];
            self.registered[1] = false;
            self.is_cleared = had && self.holds;
            self.is_pinning = self.is_cleared;
        } else if is_grown {
            self.is_pinning = self.registered[0];
            self.registered[1] = self.is_pinning && !refuses;
        }
    }

    pub(super) fn hold(&mut self, holds: bool) {
        self.holds = holds;
        self.script.hold_memory(holds);
    }

    /// Shut down, with a kernel that ends what is cancelled.
    pub(super) fn shut_down(&mut self) {
        self.script.play(|kernel| {
            for pending in kernel.pending() {
                let result = if pending.entry.opcode == ASYNC_CANCEL { 0 } else { -Errno::CANCELED.raw_os_error() };
                kernel.complete(pending.entry.user_data, result);
            }
        });
        self.driver.shutdown();
        self.script.play(|_| {});
        self.backlog.clear();
        (self.registered, self.is_pinning, self.is_cleared, self.is_closed) = ([false; 2], false, false, true);
    }
}
