//! Connections: listeners and streams, over TCP and over Unix sockets.
//!
//! Both families are one [`Listener`] and one [`Stream`]; the names to use are [`TcpListener`], [`TcpStream`],
//! [`UnixListener`] and [`UnixStream`]. All sockets are close-on-exec and, once connected, non-blocking: no operation
//! of the ring minds, and `splice` must never meet a blocking one.
//!
//! Sends on one stream never overlap, for a short one would tear what follows it: sending takes `&mut self`, and its
//! future borrows the stream until it is over. Receiving takes `&self`. To do both in two tasks,
//! [`split`](Stream::split) the stream.
//!
//! Dropping the last handle of a stream cancels what is pending on it and shuts the connection down, so that the peer
//! sees it at once.
//!
//! What a proxy needs before it relays is here too: [`Stream::peek_client_hello`] looks at what a TLS client wants and
//! leaves it there, as [`ops::peek`](super::peek()) does with any bytes; [`proxy_protocol`] says who the client of another
//! proxy is; [`TcpStream::original_destination`](Stream::original_destination) says where a redirected one wanted to go;
//! [`inherited_listeners`] and [`UnixStream::recv_descriptors`](Stream::recv_descriptors) take listeners over from
//! elsewhere.
//!
//! # Examples
//! ```
//! use ringmain::net::{TcpListener, TcpStream};
//!
//! ringmain::Runtime::new()?.block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap())?;
//!     let mut client = TcpStream::connect(listener.local_addr()?).await?;
//!     let server = listener.accept().await?;
//!
//!     client.send_all("hello").await.0?;
//!     let (count, greeting) = server.recv(Vec::with_capacity(64)).await;
//!     assert_eq!((count?, &greeting[..]), (5, &b"hello"[..]));
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client_hello;
mod connect;
mod descriptors;
mod fields;
mod halves;
mod inherited;
mod listener;
mod options;
mod parsed;
pub mod proxy_protocol;
mod sending;
mod stream;
mod tcp;
mod unix;

pub use client_hello::ClientHello;
pub use connect::Connecting;
pub use descriptors::ReceivedDescriptors;
pub use halves::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
pub use inherited::{Inherited, InheritedSocket, inherited_listeners};
pub use listener::Listener;
pub use options::{ListenOptions, TcpOptions};
pub use parsed::Parsed;
pub use sending::Sending;
pub use socket2::TcpKeepalive;
pub use stream::Stream;
pub use tcp::{Tcp, TcpListener, TcpStream};
pub use unix::{Unix, UnixListener, UnixStream};

use std::os::fd::OwnedFd;

/// A family of sockets: [`Tcp`] or [`Unix`]. Sealed.
pub trait Family: sealed::Family {
    /// Where such a socket is, or whom it is connected to.
    type Address;
    /// The standard library's stream.
    type StdStream: From<OwnedFd>;
    /// The standard library's listener.
    type StdListener: From<OwnedFd>;
}

mod sealed {
    use std::fmt::Debug;
    use std::io;

    use socket2::{SockAddr, Socket};

    pub trait Family: Sized + 'static {
        /// What can be chosen before a connect.
        type Options: Debug + Default + 'static;

        /// What its handles are called when they are printed.
        const STREAM: &str;
        const LISTENER: &str;

        fn address(address: SockAddr) -> io::Result<<Self as super::Family>::Address>
        where
            Self: super::Family;

        /// A socket that is about to be connected to an address.
        fn socket(address: &SockAddr, options: &Self::Options) -> io::Result<Socket>;
    }
}
