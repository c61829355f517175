//! The other ends: a thread that sends what can be told apart, and one that receives it; each hashes what it moves, and
//! asks for its memory before the transfer begins.

use std::io::{Read, Write};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest, Sha256};

/// What a peer moved: its hash, and what that cost the peer's own thread.
pub(crate) struct Moved {
    pub(crate) hash: [u8; 32],
    pub(crate) cpu: Duration,
}

/// Send so many bytes in blocks of this length, no two of which are alike.
pub(crate) fn source(mut to: impl Write + Send + 'static, bytes: usize, block: usize) -> JoinHandle<Moved> {
    let mut pattern: Vec<u8> = (0..block).map(|at| (at % 251) as u8).collect();
    thread::spawn(move || {
        let mut hash = Sha256::new();
        for number in 0..bytes / block {
            pattern[..8].copy_from_slice(&number.to_le_bytes());
            pattern[block / 2..block / 2 + 8].copy_from_slice(&number.to_be_bytes());
            hash.update(&pattern);
            to.write_all(&pattern).expect("the other end reads");
        }
        Moved { hash: hash.finalize().into(), cpu: cpu(ClockId::ThreadCPUTime) }
    })
}

/// Receive to the end.
pub(crate) fn sink(mut from: impl Read + Send + 'static) -> JoinHandle<Moved> {
    let mut block = vec![0; 1 << 20];
    thread::spawn(move || {
        let mut hash = Sha256::new();
        loop {
            match from.read(&mut block).expect("the other end writes") {
                0 => return Moved { hash: hash.finalize().into(), cpu: cpu(ClockId::ThreadCPUTime) },
                count => hash.update(&block[..count]),
            }
        }
    })
}

/// CPU time so far, of this thread or of the process. The kernel's workers for a ring are threads of the process.
pub(crate) fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
