//! Pipes: the size that was asked for, and the size that was got.

use std::io::Write;
use std::os::unix::net::UnixStream;

use futures::future::join;
use ringmain::ops::{self, End, RouteReason};
use ringmain::{Config, Runtime};

use crate::child;
use crate::peers::{pattern, read_to_end, without_hanging, write_and_close};

#[test]
fn l06_a_refused_pipe_size_leaves_a_transfer_that_works() {
    child::below(&child::unprivileged(6, 8192), || {
        without_hanging(|| {
            let limit = std::fs::read_to_string("/proc/sys/fs/pipe-max-size").unwrap();
            let limit: usize = limit.trim().parse().unwrap();
            let (reader, writer) = ops::pipe_sized(2 * limit).unwrap();
            let got = reader.size().unwrap();
            assert!(got <= limit, "without rights a pipe of {got} bytes was had, and {limit} are allowed");
            assert_eq!(got, writer.size().unwrap());
            sends_a_file(&reader, &writer);
        });
    });
}

#[test]
fn l06_a_user_who_has_used_up_all_pipe_pages_still_relays() {
    child::below(&child::unprivileged(7, 8192), || {
        without_hanging(|| {
            // Sixty-four pipes of 1 MiB are what a user is allowed; the ones after that get what is left, down to two
            // slots.
            let hoard: Vec<_> = (0..70).map(|_| ops::pipe_sized(1 << 20).unwrap()).collect();
            let (reader, writer) = hoard.last().unwrap();
            let got = reader.size().unwrap();
            if rustix::process::geteuid().is_root() {
                eprintln!("SKIPPED in part: this user has rights that the limit does not bind");
            } else {
                assert!(got < 1 << 20, "the limit of pipe pages does not bind: {got}");
            }
            sends_a_file(reader, writer);
            relays(Config::default());
        });
    });
}

/// Through this pipe, whatever its size is.
fn sends_a_file(reader: &ops::PipeReader, writer: &ops::PipeWriter) {
    let content = pattern(6, 300_000);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content).unwrap();
    let file = ops::fs::File::from(file);
    let (sink, peer) = UnixStream::pair().unwrap();
    let (sink, peer) = (ops::net::UnixStream::from(sink), read_to_end(peer));
    Runtime::new().unwrap().block_on(async {
        let into = ops::splice_exact(End::at(&file, 0), writer, 300_000);
        let out = ops::splice_exact(reader, &sink, 300_000);
        let (into, out) = join(into, out).await;
        into.0.unwrap();
        out.0.unwrap();
    });
    drop(sink);
    assert!(peer.join().unwrap() == content);
}

/// Through a pipe of the pool.
fn relays(config: Config) {
    let content = pattern(7, 300_000);
    let ((source, from), (to, sink)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let (writer, reader) = (write_and_close(source, content.clone()), read_to_end(sink));
    let (from, to) = (ops::net::UnixStream::from(from), ops::net::UnixStream::from(to));
    let runtime = Runtime::builder().config(config).build().unwrap();
    let ended = runtime.block_on(ops::forward(&from, &to));
    ended.result.unwrap();
    // A user who has used up all pages has pipes of two slots, through which a copy is the better way.
    let (spliced, reason) = (ended.flow.hops_spliced > 0, ended.flow.reason);
    assert!(spliced || reason == RouteReason::NoPipe, "it has copied: {:?}", ended.flow);
    writer.join().unwrap();
    drop(to);
    assert!(reader.join().unwrap() == content);
}
