//! Where to listen and where to connect: `HOST:PORT` or `unix:PATH`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// An address as it was written, and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    text: String,
    pub(crate) place: Place,
}

/// What an address stands for. Names are resolved once, when the program starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The addresses of a host, at least one, in the order in which to try them.
    Tcp(Vec<SocketAddr>),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = match text.strip_prefix("unix:") {
            Some("") => return Err("the path after `unix:` is missing".to_owned()),
            Some(path) => Place::Unix(path.into()),
            None => Place::Tcp(resolve(text)?),
        };
        Ok(Self { text: text.to_owned(), place })
    }
}

fn resolve(text: &str) -> Result<Vec<SocketAddr>, String> {
    let form = "write HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080, or unix:PATH";
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("this has no port; {form}"));
    };
    if host.is_empty() {
        return Err(format!("this has no host; {form}"));
    }
    if port.parse::<u16>().is_err() {
        return Err(format!("`{port}` is not a port, which is a number up to 65535; {form}"));
    }
    match text.to_socket_addrs() {
        Ok(found) => {
            let addresses: Vec<SocketAddr> = found.collect();
            if addresses.is_empty() { Err(format!("the host {host} has no address")) } else { Ok(addresses) }
        }
        Err(error) => Err(format!("the host {host} cannot be found: {error}; {form}")),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
