//! The proxy as a process: starts the threads, says where it listens, waits for the end, reports.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::address::Place;
use crate::options::{Endpoints, Options};
use crate::peer::ClosedDoor;
use crate::totals::Totals;
use crate::worker::{Job, work};
use crate::{complain, demo, peer, say, signals};

/// What the main thread waits for.
#[derive(Clone, Copy, Debug)]
enum Event {
    Ready,
    /// A thread has ended, well or not.
    Ended,
    Signal(&'static str),
}

/// Relays until a signal asks for the end.
///
/// # Errors
/// A sentence that says what to do, when the proxy cannot start or a thread of it has failed.
pub(crate) fn serve(options: &Options, endpoints: Endpoints) -> io::Result<()> {
    if options.threads > options.max_connections {
        return Err(io::Error::other(format!(
            "--max-connections {} is fewer than --threads {}: each thread needs one at least",
            options.max_connections, options.threads
        )));
    }
    let level = if options.verbose { tracing::Level::INFO } else { tracing::Level::WARN };
    let ansi = io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(ansi)
        .with_max_level(level)
        .log_internal_errors(false)
        .init();
    raise_descriptor_limit()?;

    let (events, inbox) = mpsc::channel();
    let signalled = events.clone();
    signals::watch(move |name| {
        // A signal that the main thread does not wait for any more finds the program at its end.
        let _unheard = signalled.send(Event::Signal(name));
    })?;
    if options.json {
        end_with_stdin(events.clone())?;
    }
    let totals = Arc::new(Totals::default());
    let (at, doors) = peer::listen(&endpoints.listen, options.threads)?;

    let mut workers = Workers::default();
    let supervised = workers
        .start(options, &endpoints, doors, &totals, &events)
        .and_then(|()| supervise(&inbox, options, &at, &totals));
    workers.tell_to_stop();
    if let Ok(Run { asked: Some(signal), .. }) = &supervised
        && !options.json
    {
        let (open, limit) = (totals.open(), options.drain.as_secs_f64());
        complain(&format!("{signal}: taking no more connections; {open} still open, with {limit} s to end"));
    }
    // Whatever went wrong, the threads end before the program does, and theirs is the first cause.
    let stopped = workers.join();
    let removed = remove_socket(&endpoints.listen.place);
    stopped?;
    let run = supervised?;
    removed?;
    if run.asked.is_none() {
        return Err(io::Error::other("a thread of the proxy has ended by itself; this is a bug"));
    }
    report(options, &totals, cpu_time().saturating_sub(run.cpu_at_start))
}

/// What the main thread has seen.
#[derive(Debug)]
struct Run {
    /// The signal that asked for the end, or none if a thread has ended by itself.
    asked: Option<&'static str>,
    cpu_at_start: Duration,
}

/// Waits until all threads are ready, says so, and waits for the end.
fn supervise(inbox: &mpsc::Receiver<Event>, options: &Options, at: &str, totals: &Totals) -> io::Result<Run> {
    let mut run = Run { asked: None, cpu_at_start: cpu_time() };
    for _ in 0..options.threads {
        match inbox.recv().map_err(io::Error::other)? {
            Event::Ready => {}
            Event::Ended => return Ok(run),
            Event::Signal(name) => return Ok(Run { asked: Some(name), ..run }),
        }
    }
    run.cpu_at_start = cpu_time();
    let ready = format!("listening on {at}");
    if options.json {
        demo::tell(&ready)?
    } else {
        say(&ready)?
    }
    let period = options.metrics_period(io::stdout().is_terminal());
    let mut ticker = period.map(|period| Ticker { period, at: Instant::now(), bytes: 0 });
    loop {
        let event = match &mut ticker {
            None => inbox.recv().map_err(io::Error::other)?,
            Some(ticker) => match inbox.recv_timeout(ticker.left()) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => {
                    ticker.tick(totals)?;
                    continue;
                }
                Err(error) => return Err(io::Error::other(error)),
            },
        };
        match event {
            Event::Ready => {}
            Event::Ended => return Ok(run),
            Event::Signal(name) => return Ok(Run { asked: Some(name), ..run }),
        }
    }
}

/// A line now and then: connections, how fast bytes move, and by which routes.
#[derive(Debug)]
struct Ticker {
    period: Duration,
    at: Instant,
    bytes: u64,
}

impl Ticker {
    fn left(&self) -> Duration {
        self.period.saturating_sub(self.at.elapsed())
    }

    fn tick(&mut self, totals: &Totals) -> io::Result<()> {
        let bytes = totals.bytes();
        let rate = (bytes - self.bytes) as f64 / 1e6 / self.at.elapsed().as_secs_f64();
        (self.at, self.bytes) = (Instant::now(), bytes);
        say(&format!("{:6} connections  {rate:8.1} MB/s  {}", totals.open(), totals.routes()))
    }
}

/// The threads, and what makes them stop.
#[derive(Debug, Default)]
struct Workers {
    stops: Vec<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Workers {
    fn start(
        &mut self,
        options: &Options,
        endpoints: &Endpoints,
        doors: Vec<ClosedDoor>,
        totals: &Arc<Totals>,
        events: &mpsc::Sender<Event>,
    ) -> io::Result<()> {
        for (number, door) in (0..options.threads).zip(doors) {
            let (stop, stopped) = oneshot::channel();
            // Shares that differ by one at most, and sum up to the limit.
            let connections_max = (options.max_connections + number) / options.threads;
            let (upstream, totals) = (endpoints.to.clone(), totals.clone());
            let job = Job { door, upstream, connections_max, totals, stop: stopped };
            let (options, ended) = (options.clone(), Ended(events.clone()));
            let thread = Builder::new()
                .name("ring".to_owned())
                .spawn(move || work(&options, job, || ended.tell(Event::Ready)))?;
            self.stops.push(stop);
            self.threads.push(thread);
        }
        Ok(())
    }

    /// Makes every thread take no more connections, and end when those that are open have ended or had their time.
    fn tell_to_stop(&mut self) {
        self.stops.clear();
    }

    /// Waits for all threads, and returns the first error.
    fn join(self) -> io::Result<()> {
        let mut outcome = Ok(());
        for thread in self.threads {
            let ended = thread
                .join()
                .unwrap_or_else(|_panic| Err(io::Error::other("a thread of the proxy panicked; its message is above")));
            outcome = outcome.and(ended);
        }
        outcome
    }
}

/// Tells the main thread when a thread has ended, by a panic too.
#[derive(Debug)]
struct Ended(mpsc::Sender<Event>);

impl Ended {
    fn tell(&self, event: Event) {
        // The main thread stops listening only to join this one, and needs to be told nothing then.
        let _unheard = self.0.send(event);
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.tell(Event::Ended);
    }
}

/// The demonstration holds the other end of a relay's standard input, and a process that is gone holds nothing.
fn end_with_stdin(events: mpsc::Sender<Event>) -> io::Result<()> {
    Builder::new().name("stdin".to_owned()).spawn(move || {
        // An input that cannot be read has ended as well.
        let _read = io::copy(&mut io::stdin().lock(), &mut io::sink());
        // As with a signal, the main thread may be at its end already.
        let _unheard = events.send(Event::Signal("end of standard input"));
    })?;
    Ok(())
}

fn report(options: &Options, totals: &Totals, cpu: Duration) -> io::Result<()> {
    if !options.json {
        return say(&format!("{}\n{:.3} s of CPU time", totals.summary(), cpu.as_secs_f64()));
    }
    let mut json = totals.json();
    json["cpu_ns"] = (cpu.as_nanos() as u64).into();
    json["pipe_bytes"] = ringmain::ops::pipe_sized(options.pipe_size as usize)?.0.size()?.into();
    demo::tell(&json.to_string())
}

/// Each connection needs two descriptors, and the usual soft limit of 1,024 is there for the sake of `select(2)` only.
fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}

fn remove_socket(place: &Place) -> io::Result<()> {
    match place {
        Place::Tcp(_) => Ok(()),
        Place::Unix(path) => match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        },
    }
}

/// CPU time of all threads of this process so far, the kernel's workers for its rings included.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
