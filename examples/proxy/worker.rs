//! One thread and its ring: takes connections, spawns a task for each, and at the end waits for them.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, select};
use ringmain::{Config, Runtime, spawn};
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::address::Address;
use crate::connection::Service;
use crate::gate::Gate;
use crate::options::Options;
use crate::peer::{ClosedDoor, Door, Peer};
use crate::totals::Totals;

/// How long nothing is taken after an accept has failed for want of something, if no connection ends before.
const PAUSE: Duration = Duration::from_millis(200);

/// Operations that are not of a connection: the accept, the driver's own, and some to spare.
const OPERATIONS_OF_OURS: u32 = 64;

/// What a thread needs to know.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) door: ClosedDoor,
    pub(crate) upstream: Address,
    pub(crate) connections_max: u32,
    pub(crate) totals: Arc<Totals>,
    /// Sent to, or dropped, when it is time to stop.
    pub(crate) stop: oneshot::Receiver<()>,
}

/// Runs a ring until it is told to stop. `ready` is called when the ring is built.
///
/// # Errors
/// No ring can be built here; the sentence says why.
pub(crate) fn work(options: &Options, job: Job, ready: impl FnOnce()) -> io::Result<()> {
    // A relay waits with one poll for each direction, and has nothing else in flight.
    let operations = 2 * job.connections_max + OPERATIONS_OF_OURS;
    let config = Config::default().pipe_size(options.pipe_size).operations(operations);
    let runtime = Runtime::builder().config(config).build().map_err(io::Error::other)?;
    let totals = job.totals.clone();
    ready();
    runtime.block_on(serve(options, job));
    totals.add_metrics(runtime.driver().metrics());
    Ok(())
}

async fn serve(options: &Options, job: Job) {
    let (cut, when_cut) = oneshot::channel();
    let service = Rc::new(Service {
        upstream: job.upstream,
        route: options.route.into(),
        connect_limit: options.connect_limit(),
        idle_limit: options.idle_limit(),
        total_limit: options.total_limit(),
        limits: options.limits(),
        cut: when_cut.shared(),
        totals: job.totals,
    });
    let gate = Rc::new(Gate::default());
    let door = job.door.open();
    {
        let accepting = pin!(accept_all(&door, &service, &gate, job.connections_max));
        match select(accepting, job.stop).await {
            // A sender that has gone says the same as one that has sent: stop.
            Either::Right((Ok(()) | Err(oneshot::Canceled), _)) => {}
            Either::Left((never, _)) => match never {},
        }
    }
    drop(door);
    if ringmain::timeout(options.drain, gate.below(1)).await.is_err() {
        // Dropping the sender is the signal; each connection gives its peers what it can, and ends.
        drop(cut);
        gate.below(1).await;
    }
}

/// Takes connections as long as it is polled. No error ends it: what is wrong now need not be wrong later.
async fn accept_all(door: &Door, service: &Rc<Service>, gate: &Rc<Gate>, max: u32) -> std::convert::Infallible {
    loop {
        gate.below(max).await;
        match accept(door).await {
            Ok((client, reserved)) => {
                let (service, pass) = (service.clone(), gate.enter());
                spawn(async move {
                    service.serve(client, reserved).await;
                    drop(pass);
                });
            }
            Err(error) if is_of_one_connection(&error) => {
                tracing::info!(%error, "a connection ended before it was taken");
            }
            Err(error) => {
                // The connection is still in the backlog, so that accepting at once would fail at once, for ever.
                service.totals.complain(&format!("no connection can be taken now: {error}; {}", advice(&error)));
                let (pause, one_ends) = (ringmain::sleep(PAUSE), pin!(gate.one_ends()));
                select(pause, one_ends).await;
            }
        }
    }
}

/// The next connection, and a descriptor that is there to be closed when the connection's upstream needs one.
///
/// The descriptor comes first: a client whose upstream could get none would only be taken to be turned away.
async fn accept(door: &Door) -> io::Result<(Peer, OwnedFd)> {
    let reserved = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
    Ok((door.accept().await?, reserved))
}

/// Errors that `accept(2)` reports of the connection, not of itself.
fn is_of_one_connection(error: &io::Error) -> bool {
    let of_one = [
        Errno::CONNABORTED,
        Errno::PROTO,
        Errno::NETDOWN,
        Errno::NETUNREACH,
        Errno::HOSTDOWN,
        Errno::HOSTUNREACH,
        Errno::NOPROTOOPT,
        Errno::NONET,
        Errno::PERM,
    ];
    Errno::from_io_error(error).is_some_and(|errno| of_one.contains(&errno))
}

fn advice(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => "raise `ulimit -n`, or lower --max-connections; they wait until one ends",
        Some(Errno::NFILE) => "raise the sysctl fs.file-max; they wait until one ends",
        _ => "it is tried again",
    }
}
