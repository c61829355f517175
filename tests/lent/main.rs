//! Lent pages on the kernel's own ring: receives that hold no memory while they wait, streams of them, and what is left
//! when pages run out, consumers are late, and futures are dropped.
//!
//! A kernel without a part of it skips a test loudly: each says on its output what it could not try.

#![forbid(unsafe_code)]

#[path = "../rings/mod.rs"]
mod rings;
#[path = "../turns/mod.rs"]
mod turns;

mod endings;
mod exhaustion;
mod kinds;
mod messages;
mod reports;

use std::io::Write;

use futures::stream::StreamExt;
use ringmain::{Config, FixedBuf, Registry, Runtime};

/// Under every ring configuration of the table, with these sizes of lent buffers, in a registry of so many pages.
fn each(sizes: &'static [(u32, u16)], pages: u32, test: impl FnMut(Runtime)) {
    rings::each_with(|config| config.pages(pages).lent(sizes), test);
}

/// One runtime, with these sizes of lent buffers, in a registry of so many pages.
fn runtime(sizes: &[(u32, u16)], pages: u32) -> Runtime {
    Runtime::builder().config(Config::default().pages(pages).lent(sizes)).build().unwrap()
}

/// All that a stream brings, as one text.
async fn all<S>(mut stream: S) -> Vec<u8>
where
    S: futures::Stream<Item = std::io::Result<FixedBuf>> + Unpin,
{
    let mut text = Vec::new();
    while let Some(piece) = stream.next().await {
        let piece = piece.unwrap();
        assert!(!piece.is_empty(), "an item has at least one byte");
        text.extend_from_slice(&piece);
    }
    text
}

/// Bytes that tell each place from its neighbours.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / 251) as u8).collect()
}

/// Write all of it from a thread of its own, then close the end.
fn feed(mut end: impl Write + Send + 'static, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || end.write_all(&bytes).unwrap())
}

/// Nobody holds a page any more.
fn all_free(registry: &Registry) -> bool {
    let counts = registry.snapshot();
    counts.pages_free == counts.pages_total
}
