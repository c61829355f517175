//! Many connections, and too many.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::process::{Proxy, Rig, listener, patient, until};

/// Lets this process have as many descriptors as it may.
fn raise_descriptor_limit(needed: u64) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .expect("the soft limit can be raised to the hard one");
    assert!(
        limit.maximum.is_none_or(|maximum| maximum >= needed),
        "this test needs {needed} descriptors, and the hard limit is {:?}: raise it with `ulimit -Hn`",
        limit.maximum
    );
}

#[test]
fn idle_connections_cost_no_thread_and_no_cpu() {
    raise_descriptor_limit(3200);
    let rig = Rig::new(&[]);
    let pairs: Vec<_> = (0..1500).map(|_| rig.pair()).collect();
    let cpu = rig.proxy.cpu_during(Duration::from_secs(2));
    assert!(cpu < Duration::from_millis(100), "{cpu:?} of CPU time in 2 s for connections that are idle");
    let threads = rig.proxy.threads();
    assert!(threads <= 8, "{threads} threads");
    // They are still relayed, the first and the last of them.
    for (client, server) in [&pairs[0], &pairs[1499]] {
        let (mut client, mut server) = (client, server);
        client.write_all(b"awake?").expect("an open stream");
        let mut question = [0; 6];
        server.read_exact(&mut question).expect("the question");
        assert_eq!(&question, b"awake?");
    }
}

#[test]
fn connections_leave_no_descriptor_behind() {
    let rig = Rig::new(&[]);
    let settled = || {
        let (mut client, mut server) = rig.pair();
        client.write_all(b"a question").expect("an open stream");
        server.write_all(b"an answer").expect("an open stream");
        client.read_exact(&mut [0; 9]).expect("the answer");
        drop((client, server));
    };
    // The first connection makes the pipes, which are kept.
    settled();
    until("the first connection is closed", || rig.proxy.descriptors() <= 20);
    let before = rig.proxy.descriptors();
    for _ in 0..400 {
        settled();
    }
    // Of pipes there may be a few more, as connections overlap a little: two for each direction, two ends each.
    until("400 connections are closed", || rig.proxy.descriptors() <= before + 8);
    assert_eq!(rig.proxy.complaints(), Vec::<String>::new());
}

/// More clients than it has descriptors for: those that fit are served, the others wait without costing anything, and
/// are served when there is room again.
#[test]
fn out_of_descriptors_it_neither_spins_nor_dies_and_recovers() {
    let upstream = listener();
    let proxy = Proxy::with_descriptors(40, &upstream.local_addr().expect("an address").to_string());
    let clients: Vec<TcpStream> = (0..40).map(|_| proxy.connect()).collect();
    let complaint = proxy.complaint("no connection can be taken now");
    assert!(complaint.contains("ulimit -n"), "the sentence says what to do: {complaint}");

    let cpu = proxy.cpu_during(Duration::from_secs(2));
    assert!(cpu < Duration::from_millis(200), "{cpu:?} of CPU time in 2 s in which nothing can be taken");
    upstream.set_nonblocking(true).expect("an open listener");
    let mut served = Vec::new();
    while let Ok((stream, _)) = upstream.accept() {
        stream.set_nonblocking(false).expect("an open stream");
        served.push(stream);
    }
    assert!(served.len() >= 5 && served.len() < 20, "{} of 40 fit into 40 descriptors", served.len());

    upstream.set_nonblocking(false).expect("an open listener");
    thread::scope(|scope| {
        // Hears every client, those first that were served first, and ends its side.
        let (upstream, first) = (&upstream, served.len());
        let hearing = scope.spawn(move || {
            let later = (first..40).map(|_| upstream.accept().expect("one more client is served").0);
            for stream in served.into_iter().chain(later) {
                let mut word = [0; 3];
                patient(stream).read_exact(&mut word).expect("its client's word");
                assert_eq!(&word, b"me!");
            }
        });
        // Each client that has been heard makes room for another when it goes.
        for mut client in clients {
            client.write_all(b"me!").expect("the backlog takes it");
            assert_eq!(client.read(&mut [0; 8]).expect("its upstream's end"), 0);
        }
        hearing.join().expect("every client is heard in the end");
    });
}

#[test]
fn one_connection_more_than_allowed_waits_for_another_to_end() {
    let rig = Rig::new(&["--max-connections", "2"]);
    let (first, second) = (rig.pair(), rig.pair());
    let mut third = rig.proxy.connect();
    third.write_all(b"me too").expect("the backlog takes it");
    // The second connection goes through the whole proxy, and meanwhile the third has not.
    (&second.0).write_all(b"ping").expect("an open stream");
    (&second.1).read_exact(&mut [0; 4]).expect("the ping");
    rig.upstream.set_nonblocking(true).expect("an open listener");
    assert_eq!(rig.upstream.accept().expect_err("nobody has come").kind(), ErrorKind::WouldBlock);
    rig.upstream.set_nonblocking(false).expect("an open listener");
    drop(first);
    let mut word = [0; 6];
    rig.accept().read_exact(&mut word).expect("the third client's word");
    assert_eq!(&word, b"me too");
}
