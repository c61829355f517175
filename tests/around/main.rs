//! What a proxy needs around its relay: a look before it routes, who the client is, where it wanted to go, and
//! descriptors from elsewhere. Against the real kernel.

#[path = "../rings/mod.rs"]
mod rings;

#[path = "../turns/mod.rs"]
mod turns;

#[path = "../first_bytes/mod.rs"]
mod first_bytes;

mod client_hellos;
mod descriptors;
mod options;
mod peeks;
mod proxy_headers;
mod redirected;
mod routing;

use std::path::Path;
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

/// Every file that a fuzzer has kept, and those that it began with.
fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut played = 0;
    for file in std::fs::read_dir(&corpus).expect("there is a corpus") {
        let path = file.unwrap().path();
        println!("{}", path.display());
        check(&std::fs::read(&path).unwrap());
        played += 1;
    }
    assert!(played > 0, "the corpus of {target} is empty");
}
