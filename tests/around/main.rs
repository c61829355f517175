//! What a proxy needs around its relay: a look before it routes, who the client is, where it wanted to go, and
//! descriptors from elsewhere. Against the real kernel.

#[path = "../rings/mod.rs"]
mod rings;

#[path = "../turns/mod.rs"]
mod turns;

mod peeks;

use std::time::Duration;

use ringmain::net::{TcpListener, TcpStream};

/// A hang is a failure, not an endless run; nothing here takes a tenth of this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Wait for a future that ends by itself unless something is wrong.
async fn patiently<F: Future>(what: &str, future: F) -> F::Output {
    match ringmain::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} does not come to its end"),
    }
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap())
}
