//! The relays of tokio: `copy_bidirectional` on its current-thread runtime, single-threaded as the others are. Their
//! system calls are not counted.

use std::io;

use tokio::io::{copy_bidirectional, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::BUFFER_BYTES;
use crate::process::{Meter, Moved, Pair};

/// With the buffers it comes with.
pub(crate) fn as_shipped(pairs: Vec<Pair>, _: &mut Meter) -> io::Result<Moved> {
    relay(pairs, |mut client, mut upstream| async move { copy_bidirectional(&mut client, &mut upstream).await })
}

/// With buffers as large as those of the epoll loop that reads and writes.
pub(crate) fn with_large_buffers(pairs: Vec<Pair>, _: &mut Meter) -> io::Result<Moved> {
    relay(pairs, |mut client, mut upstream| async move {
        copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER_BYTES, BUFFER_BYTES).await
    })
}

fn relay<F>(pairs: Vec<Pair>, copy: impl Fn(TcpStream, TcpStream) -> F) -> io::Result<Moved>
where
    F: Future<Output = io::Result<(u64, u64)>> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut streams = Vec::with_capacity(pairs.len());
        for Pair { client, upstream } in pairs {
            client.set_nonblocking(true)?;
            upstream.set_nonblocking(true)?;
            streams.push((TcpStream::from_std(client)?, TcpStream::from_std(upstream)?));
        }
        let mut copies: JoinSet<io::Result<(u64, u64)>> =
            streams.into_iter().map(|(client, upstream)| copy(client, upstream)).collect();
        let mut moved = Moved { forward: 0, backward: 0 };
        while let Some(copied) = copies.join_next().await {
            let (forward, backward) = copied.map_err(io::Error::other)??;
            moved.forward += forward;
            moved.backward += backward;
        }
        Ok(moved)
    })
}
