//! What relays cost that have nothing to do: no thread, no pipe, no page, no time, little memory.
//!
//! The two peers are processes of their own, since a process may not have descriptors for all three: the test's binary
//! runs itself again, as `clients` and as `servers`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringmain::ops::{self, RelayRoute, net};
use ringmain::{Config, Runtime};

use crate::alone;
use crate::peers::{turn, turns, without_hanging_for};
use crate::process::{anonymous_kib, pipe_ends, raise_descriptor_limit, thread_cpu_time, threads};

/// Whom to connect to, or nothing for who is connected to; set for the processes that are peers.
const PEER: &str = "RINGMAIN_IDLE_PEER";
const COUNT: &str = "RINGMAIN_IDLE_COUNT";

/// The clients: connect, and at each line of standard input let one in the middle ask, and say how long that took.
#[test]
#[ignore = "a part of the others"]
fn clients() {
    let Ok(address) = std::env::var(PEER) else { return };
    let count: usize = std::env::var(COUNT).unwrap().parse().unwrap();
    assert!(raise_descriptor_limit(count as u64 + 50));
    let mut streams: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(&address).unwrap()).collect();
    println!("\nconnected");
    for line in std::io::stdin().lines() {
        assert_eq!(line.unwrap(), "speak");
        let stream = &mut streams[count / 2];
        let begin = Instant::now();
        stream.write_all(&[7; 64]).unwrap();
        stream.read_exact(&mut [0; 64]).unwrap();
        println!("\nanswered {}", begin.elapsed().as_micros());
    }
}

/// The servers: take as many connections, and answer whoever asks.
#[test]
#[ignore = "a part of the others"]
fn servers() {
    let Ok(_) = std::env::var(PEER) else { return };
    let count: usize = std::env::var(COUNT).unwrap().parse().unwrap();
    assert!(raise_descriptor_limit(count as u64 + 50));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nlistening {}", listener.local_addr().unwrap());
    let poll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let streams: Vec<TcpStream> = (0..count)
        .map(|index| {
            let stream = listener.accept().unwrap().0;
            let data = rustix::event::epoll::EventData::new_u64(index as u64);
            rustix::event::epoll::add(&poll, &stream, data, rustix::event::epoll::EventFlags::IN).unwrap();
            stream
        })
        .collect();
    let mut open = count;
    while open > 0 {
        let mut events = Vec::with_capacity(64);
        rustix::event::epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None).unwrap();
        for event in events {
            let mut stream = &streams[event.data.u64() as usize];
            let mut message = [0; 64];
            match stream.read(&mut message).unwrap() {
                0 => {
                    rustix::event::epoll::delete(&poll, stream).unwrap();
                    stream.shutdown(std::net::Shutdown::Both).unwrap();
                    open -= 1;
                }
                size => stream.write_all(&message[..size]).unwrap(),
            }
        }
    }
}

struct Peers {
    process: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Peers {
    fn start(role: &str, count: usize, address: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", role, "--ignored", "--nocapture", "--test-threads=1"])
            .env(PEER, address)
            .env(COUNT, count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap());
        Self { process, said }
    }

    /// The rest of the next line that begins with this word.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.said.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the peers have ended without a word of `{word}`");
    }

    fn end(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

fn relay_idle(connections: usize, route: RelayRoute) {
    if !raise_descriptor_limit(2 * connections as u64 + 100) {
        eprintln!("SKIPPED: {connections} relayed connections need {} descriptors", 2 * connections + 100);
        return;
    }
    let mut servers = Peers::start("idle::servers", connections, "");
    let upstream = servers.hear("listening");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut clients = Peers::start("idle::clients", connections, &listener.local_addr().unwrap().to_string());
    let streams: Vec<_> = (0..connections)
        .map(|_| {
            let (client, server) = (listener.accept().unwrap().0, TcpStream::connect(&upstream).unwrap());
            (net::TcpStream::from(client), net::TcpStream::from(server))
        })
        .collect();
    clients.hear("connected");

    let config = Config::default().operations(2 * connections as u32 + 16);
    let runtime = Runtime::builder().config(config).build().unwrap();
    let (threads_before, pipes_before) = (threads(), pipe_ends());
    runtime.block_on(async {
        turns(2).await;
        let before = anonymous_kib();
        let relays: Vec<_> = streams
            .into_iter()
            .map(|(a, b)| ringmain::spawn(async move { ops::relay(&a, &b).route(route).await }))
            .collect();
        // Until both polls of each are with the kernel.
        while runtime.driver().operations_active() < 2 * connections {
            turn().await;
        }
        turns(2).await;
        let each = anonymous_kib().saturating_sub(before) as f64 / connections as f64;
        let (cpu, enters) = (thread_cpu_time(), runtime.driver().metrics().enters.get());
        ringmain::sleep(Duration::from_secs(1)).await;
        let (busy, entered) = (thread_cpu_time() - cpu, runtime.driver().metrics().enters.get() - enters);
        println!(
            "{connections} idle relays: {each:.2} KiB each, {} threads more, {} pipe ends more, {busy:?} of CPU and \
             {entered} enters in a second",
            threads() - threads_before,
            pipe_ends() - pipes_before
        );
        assert!(each <= 8.0, "{each:.2} KiB for each idle connection");
        assert!(threads() <= threads_before + 2, "threads wait for idle connections");
        assert_eq!(pipe_ends(), pipes_before, "an idle connection has a pipe");
        let pages = runtime.driver().registry().snapshot();
        assert_eq!((pages.pages_leased, pages.pages_in_flight), (0, 0), "an idle connection has a page");
        assert!(entered < 20 && busy < Duration::from_millis(50), "it is not idle: {entered} enters, {busy:?}");

        // One of them speaks, and is answered.
        let talk = std::thread::spawn(move || {
            let mut fastest = u64::MAX;
            for _ in 0..5 {
                clients.process.stdin.as_mut().unwrap().write_all(b"speak\n").unwrap();
                fastest = fastest.min(clients.hear("answered").parse().unwrap());
            }
            (clients, fastest)
        });
        while !talk.is_finished() {
            ringmain::sleep(Duration::from_millis(1)).await;
        }
        let (clients, fastest) = talk.join().unwrap();
        println!("one of them was answered after {fastest} us");
        assert!(fastest < 10_000, "answered after {fastest} us");
        let ending = std::thread::spawn(move || clients.end());
        for relay in relays {
            relay.await.unwrap().result.unwrap();
        }
        ending.join().unwrap();
    });
    servers.end();
}

#[test]
fn x01_idle_relays_hold_no_thread_no_pipe_and_no_page() {
    let _alone = alone();
    without_hanging_for(Duration::from_secs(120), || {
        for route in [RelayRoute::Auto, RelayRoute::Ring] {
            relay_idle(1_000, route);
        }
    });
}

#[test]
#[ignore = "the long form: 9,000 connections, 18,000 descriptors in each of three processes"]
fn x01_idle_relays_hold_no_thread_no_pipe_and_no_page_long() {
    let _alone = alone();
    without_hanging_for(Duration::from_secs(300), || relay_idle(9_000, RelayRoute::Auto));
}

#[test]
fn x05_an_idle_runtime_takes_no_time() {
    let _alone = alone();
    Runtime::new().unwrap().block_on(async {
        turns(10).await;
        let cpu = thread_cpu_time();
        ringmain::sleep(Duration::from_millis(500)).await;
        let busy = thread_cpu_time() - cpu;
        assert!(busy < Duration::from_millis(20), "{busy:?} in half a second");
    });
}
