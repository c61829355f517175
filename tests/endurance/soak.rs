//! A soak: connections that send, stall, half-close, break off and are cancelled, for a minute; every byte that arrives
//! is the one that was sent, and at the end everything is back.
//!
//! `cargo test --release -- --ignored soak`; `RINGMAIN_SOAK_SECONDS` says how long, 60 if it is not set.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use ringmain::ops::{self, HalfClose, Limits, Relay, RelayRoute, Relayed, net};
use ringmain::{Config, Runtime, spawn};

use crate::alone;
use crate::peers::{Random, is_gone, tcp_pair, turn, without_hanging_for};
use crate::process::{descriptors, pipe_ends, raise_descriptor_limit};

const CONNECTIONS: usize = 200;

/// What the runs of all connections came to.
#[derive(Debug, Default)]
struct Tally {
    runs: Cell<u64>,
    whole: Cell<u64>,
    broken: Cell<u64>,
    resumed: Cell<u64>,
    bytes: Cell<u64>,
}

fn add(cell: &Cell<u64>, count: u64) {
    cell.set(cell.get() + count);
}

/// The byte at this place of the stream of this seed.
fn byte_at(seed: u64, at: u64) -> u8 {
    ((seed ^ (at >> 3)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (8 * (at & 7))) as u8
}

/// Send `len` bytes of a stream in pieces, with stalls between them, and half-close. An error ends it early.
async fn send(stream: Rc<net::TcpStream>, seed: u64, len: u64, random: &mut Random) -> io::Result<()> {
    let mut at = 0;
    while at < len {
        let most = 1 << (6 + random.below(14));
        let piece = (1 + random.below(most)).min(len - at);
        let bytes: Vec<u8> = (at..at + piece).map(|at| byte_at(seed, at)).collect();
        ops::send_all(&*stream, bytes).await.0?;
        at += piece;
        if random.below(20) == 0 {
            ringmain::sleep(Duration::from_millis(random.below(20))).await;
        }
    }
    ops::shutdown(&*stream, std::net::Shutdown::Write).await
}

/// Receive until the end, now and then slowly. Returns how many bytes came, each of them the right one.
async fn receive(stream: Rc<net::TcpStream>, seed: u64, random: &mut Random) -> (u64, io::Result<()>) {
    let mut at = 0;
    let mut buffer = Vec::with_capacity(64 * 1024);
    loop {
        let (count, bytes) = ops::recv(&*stream, buffer).await;
        match count {
            Ok(0) => return (at, Ok(())),
            Ok(_) => {}
            Err(error) => return (at, Err(error)),
        }
        for byte in &bytes {
            assert_eq!(*byte, byte_at(seed, at), "byte {at} of stream {seed} is another one");
            at += 1;
        }
        buffer = bytes;
        if random.below(50) == 0 {
            ringmain::sleep(Duration::from_millis(random.below(30))).await;
        }
    }
}

/// Poll a relay until it ends, or until a moment has come.
async fn until(relay: &mut Relay, moment: Duration) -> Option<Relayed> {
    let mut timer = ringmain::sleep(moment);
    poll_fn(|cx| {
        if let Poll::Ready(ended) = Pin::new(&mut *relay).poll(cx) {
            return Poll::Ready(Some(ended));
        }
        Pin::new(&mut timer).poll(cx).map(|()| None)
    })
    .await
}

/// One relayed connection from its beginning to its end, whatever that is.
async fn run(random: &mut Random, tally: &Tally) {
    let ((client, a), (server, b)) = (tcp_pair(), tcp_pair());
    let stream = |stream| Rc::new(net::TcpStream::from(stream));
    let (client, server, a, b) = (stream(client), stream(server), stream(a), stream(b));
    let seed = random.next();
    let magnitudes = [1 + random.below(22), 1 + random.below(20)];
    let lens = magnitudes.map(|magnitude| random.below(1 << magnitude));
    let breaks_off = random.below(6) == 0;
    let is_dropped = random.below(10) == 0;
    let ends_both = random.below(10) == 0;

    let peers = [(client.clone(), server.clone(), lens[0], 1), (server.clone(), client.clone(), lens[1], 2)];
    let peers: Vec<_> = peers
        .into_iter()
        .map(|(from, to, len, side)| {
            let mut randoms = (Random::new(random.next()), Random::new(random.next()));
            let sender = spawn(async move { send(from, seed ^ side, len, &mut randoms.0).await });
            let receiver = spawn(async move { receive(to, seed ^ side, &mut randoms.1).await });
            (sender, receiver, len)
        })
        .collect();
    drop(server);

    let routes = [RelayRoute::Auto, RelayRoute::Auto, RelayRoute::Inline, RelayRoute::Copy, RelayRoute::Ring];
    let mut relay = ops::relay(&*a, &*b).route(routes[random.below(5) as usize]).idle_timeout(Duration::from_secs(20));
    if random.below(8) == 0 {
        relay = relay.limit_a_to_b(Limits::new().rate(4 << 20));
    }
    if ends_both {
        relay = relay.half_close(HalfClose::EndBoth);
    }
    let mut is_cut = false;
    let ended = loop {
        let patience = Duration::from_micros(random.below(50_000));
        if let Some(ended) = until(&mut relay, patience).await {
            break Some(ended);
        }
        match random.below(12) {
            0 if breaks_off => {
                // The client's machine has gone.
                socket2::SockRef::from(&*client).set_linger(Some(Duration::ZERO)).unwrap();
                rustix::net::connect_unspec(&*client).unwrap();
                is_cut = true;
            }
            1 if is_dropped => {
                drop(relay);
                is_cut = true;
                break None;
            }
            2..5 => {
                relay = if random.below(2) == 0 { relay.cancel() } else { relay.drain() };
                let before = relay.flows();
                let stopped = relay.await;
                assert!(stopped.a_to_b.bytes_out >= before.0.bytes_out);
                let Some(rest) = stopped.stopped else { break Some(Relayed { stopped: None, ..stopped }) };
                if stopped.result.as_ref().is_err_and(|error| error.raw_os_error() != Some(125)) {
                    break Some(Relayed { stopped: Some(rest), ..stopped });
                }
                add(&tally.resumed, 1);
                relay = rest.resume(&*a, &*b);
            }
            _ => {}
        }
    };
    let flows = ended.as_ref().map(|ended| [ended.a_to_b, ended.b_to_a]);
    if let Some(Err(error)) = ended.as_ref().map(|ended| &ended.result) {
        assert!(is_cut && (is_gone(error) || error.kind() == ErrorKind::NotConnected), "{error}: {flows:?}");
    }
    let is_whole = !is_cut && !ends_both;
    drop(ended);
    drop((a, b));
    for (side, (sender, receiver, len)) in peers.into_iter().enumerate() {
        let (received, end) = receiver.await.unwrap();
        let sent = sender.await.unwrap();
        if is_whole {
            sent.unwrap();
            end.unwrap();
            assert_eq!((received, flows.map(|flows| flows[side].bytes_out)), (len, Some(len)));
        } else {
            assert!(received <= len);
        }
        add(&tally.bytes, received);
    }
    drop(client);
    add(if is_whole { &tally.whole } else { &tally.broken }, 1);
    add(&tally.runs, 1);
}

fn soak(length: Duration, connections: usize, seed: u64) {
    println!("seed {seed}");
    let _enough = raise_descriptor_limit(8 * connections as u64 + 100);
    let before = (descriptors().len(), pipe_ends());
    {
        let runtime = Runtime::builder().config(Config::default().pipes(32).pages(256)).build().unwrap();
        let idle = (runtime.driver().slots_used(), descriptors().len());
        let tally = Rc::new(Tally::default());
        runtime.block_on(async {
            let end = Instant::now() + length;
            let tasks: Vec<_> = (0..connections)
                .map(|task| {
                    let (tally, mut random) = (Rc::clone(&tally), Random::new(seed ^ task as u64));
                    spawn(async move {
                        while Instant::now() < end {
                            run(&mut random, &tally).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            while runtime.driver().slots_used() > idle.0 {
                turn().await;
            }
        });
        println!("{tally:?}");
        assert!(tally.whole.get() > 0 && tally.resumed.get() > 0, "{tally:?}");
        let pages = runtime.driver().registry().snapshot();
        assert_eq!(pages.pages_free, pages.pages_total, "a page is missing");
        assert!(pipe_ends() <= before.1 + 2 * 8, "{} pipe ends are kept", pipe_ends() - before.1);
        let kept = pipe_ends() - before.1;
        assert_eq!(descriptors().len() - kept, idle.1, "a descriptor is missing, or one too many: {:?}", descriptors());
    }
    assert_eq!((descriptors().len(), pipe_ends()), before, "the runtime has kept something");
}

fn seed() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    std::env::var("RINGMAIN_SOAK_SEED").map_or(since_epoch.as_nanos() as u64, |seed| seed.parse().unwrap())
}

#[test]
fn a_short_soak_loses_nothing() {
    let _alone = alone();
    without_hanging_for(Duration::from_secs(120), || soak(Duration::from_secs(2), 20, seed()));
}

#[test]
#[ignore = "takes a minute, or as long as RINGMAIN_SOAK_SECONDS says"]
fn soak_of_two_hundred_connections() {
    let seconds = std::env::var("RINGMAIN_SOAK_SECONDS").map_or(60, |seconds| seconds.parse().unwrap());
    let _alone = alone();
    without_hanging_for(Duration::from_secs(seconds + 240), move || {
        soak(Duration::from_secs(seconds), CONNECTIONS, seed())
    });
}
