//! The PROXY protocol, versions 1 and 2: who a proxy's client is, said in front of its bytes.

mod crc32c;
mod stream;
mod v1;
mod v2;

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

pub use stream::{read_header, send_header};

use super::Parsed;

/// The header of the PROXY protocol: who has connected to the proxy that sends it, and to where.
///
/// A header is one of two forms, which the receiver tells from each other by their first bytes: a line of text
/// ([`Version::V1`]), or a binary form ([`Version::V2`]) that also knows datagrams, Unix sockets and [`Tlv`]s.
///
/// Believe a header only from peers that are known to send one: anybody can claim any address.
///
/// # Examples
/// ```
/// use ringmain::net::{Parsed, proxy_protocol::Header};
///
/// let header = Header::v1("192.0.2.7:4000".parse().unwrap(), "192.0.2.1:443".parse().unwrap());
/// let line = header.to_bytes()?;
/// assert_eq!(line, b"PROXY TCP4 192.0.2.7 192.0.2.1 4000 443\r\n");
/// assert_eq!(Header::parse(&line)?, Parsed::Complete(header, line.len()));
/// assert_eq!(Header::parse(b"GET / HTTP/1.1\r\n")?, Parsed::Foreign);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # References
/// "The PROXY protocol, Versions 1 & 2", <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    version: Version,
    origin: Origin,
    tlvs: Vec<Tlv>,
    has_checksum: bool,
}

/// The form of a [`Header`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A line of text of at most 107 bytes.
    V1,
    /// Binary, of at most 16 + 65,535 bytes.
    V2,
}

/// Whom a connection with a [`Header`] is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The proxy itself, which asks how its server is: the addresses are those of the connection. Version 2 only.
    Local,
    /// A client of the proxy whose addresses have no place in the protocol, or are not told.
    Unknown,
    /// A client of the proxy.
    Proxied(Transport, Addresses),
}

/// What a proxy and its client speak over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP, or a Unix socket of the stream type.
    Stream,
    /// UDP, or a Unix socket of the datagram type. Version 2 only.
    Datagram,
}

/// Where a proxy's client is (`source`), and where it connected to (`destination`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// The client.
        source: SocketAddrV4,
        /// The address that it connected to.
        destination: SocketAddrV4,
    },
    /// IPv6. Scopes and flow labels have no place in the protocol, and are 0.
    V6 {
        /// The client.
        source: SocketAddrV6,
        /// The address that it connected to.
        destination: SocketAddrV6,
    },
    /// Unix sockets, as the 108 bytes of `sun_path` (`unix(7)`). Version 2 only.
    Unix {
        /// The client.
        source: Box<[u8; UNIX_PATH_LEN]>,
        /// The address that it connected to.
        destination: Box<[u8; UNIX_PATH_LEN]>,
    },
}

/// The bytes of a Unix address in a header: those of `sun_path`, filled up with zeros.
const UNIX_PATH_LEN: usize = 108;

/// One more fact in a header of version 2: its type, and its value as the sender gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tlv {
    /// The type: [`Tlv::ALPN`] and its kin, or one of the sender's own (0xe0 to 0xef).
    pub kind: u8,
    /// The value, of at most 65,532 bytes.
    pub value: Vec<u8>,
}

impl Tlv {
    /// The protocol that the client and the proxy settled on (`PP2_TYPE_ALPN`).
    pub const ALPN: u8 = 0x01;
    /// The host that the client asked for, as UTF-8 (`PP2_TYPE_AUTHORITY`).
    pub const AUTHORITY: u8 = 0x02;
    /// Bytes to be ignored (`PP2_TYPE_NOOP`).
    pub const NOOP: u8 = 0x04;
    /// What identifies the connection, of at most 128 bytes (`PP2_TYPE_UNIQUE_ID`).
    pub const UNIQUE_ID: u8 = 0x05;
    /// What TLS the client speaks to the proxy (`PP2_TYPE_SSL`).
    pub const SSL: u8 = 0x20;
    /// The network namespace, as US-ASCII (`PP2_TYPE_NETNS`).
    pub const NETNS: u8 = 0x30;

    /// The checksum of the header. It is never among the TLVs: a header checks it, or makes it.
    const CRC32C: u8 = 0x03;

    const UNIQUE_ID_MAX: usize = 128;

    /// Whether what it says can be so.
    fn check(&self) -> Result<(), &'static str> {
        match self.kind {
            Self::CRC32C => Err("the checksum of a PROXY header is no TLV like others; ask for it by `checksum`"),
            Self::UNIQUE_ID if self.value.len() > Self::UNIQUE_ID_MAX => {
                Err("the unique id of a PROXY header has more than 128 bytes")
            }
            _ => Ok(()),
        }
    }
}

impl Header {
    /// The most bytes that a header of version 1 has.
    pub const V1_LEN_MAX: usize = 107;

    /// The most bytes that a header of version 2 has.
    pub const V2_LEN_MAX: usize = 16 + 65_535;

    /// `new(version, origin)`: a header without TLVs.
    pub fn new(version: Version, origin: Origin) -> Self {
        Self { version, origin, tlvs: Vec::new(), has_checksum: false }
    }

    /// `v1(source, destination)`: the line for a TCP connection.
    ///
    /// Of two addresses of different families, the IPv4 one is written as an IPv6 one (`::ffff:192.0.2.1`).
    pub fn v1(source: SocketAddr, destination: SocketAddr) -> Self {
        Self::new(Version::V1, Origin::Proxied(Transport::Stream, Addresses::inet(source, destination)))
    }

    /// `v2(source, destination)`: the binary header for a TCP connection. Families as [`v1`](Self::v1).
    pub fn v2(source: SocketAddr, destination: SocketAddr) -> Self {
        Self::new(Version::V2, Origin::Proxied(Transport::Stream, Addresses::inet(source, destination)))
    }

    /// `tlv(kind, value)`: with one more TLV. Only headers of version 2, and not those of [`Origin::Local`], have any.
    #[must_use]
    pub fn tlv(mut self, kind: u8, value: impl Into<Vec<u8>>) -> Self {
        self.tlvs.push(Tlv { kind, value: value.into() });
        self
    }

    /// `checksum(yes)`: whether it carries its CRC32C (`PP2_TYPE_CRC32C`), behind its other TLVs.
    #[must_use]
    pub fn checksum(mut self, yes: bool) -> Self {
        self.has_checksum = yes;
        self
    }

    /// The form it has, or is to have.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whom the connection is from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The client's address, if it has one of IP.
    pub fn source(&self) -> Option<SocketAddr> {
        self.inet().map(|(source, _)| source)
    }

    /// The address that the client connected to, if it is one of IP.
    pub fn destination(&self) -> Option<SocketAddr> {
        self.inet().map(|(_, destination)| destination)
    }

    /// All TLVs but the checksum, in the order of the header; the same type may be there more than once.
    pub fn tlvs(&self) -> &[Tlv] {
        &self.tlvs
    }

    /// The value of the first TLV of a type.
    pub fn find(&self, kind: u8) -> Option<&[u8]> {
        self.tlvs.iter().find(|tlv| tlv.kind == kind).map(|tlv| &tlv.value[..])
    }

    /// The host that the client asked for: the server name of its TLS, or the like ([`Tlv::AUTHORITY`]).
    pub fn authority(&self) -> Option<&[u8]> {
        self.find(Tlv::AUTHORITY)
    }

    /// What identifies the connection ([`Tlv::UNIQUE_ID`]).
    pub fn unique_id(&self) -> Option<&[u8]> {
        self.find(Tlv::UNIQUE_ID)
    }

    /// Whether it carried a checksum, which was right, or is to carry one.
    pub fn has_checksum(&self) -> bool {
        self.has_checksum
    }

    /// `parse(bytes)`: the header at the start of some bytes.
    ///
    /// Of a header of [`Origin::Local`], everything behind its length is skipped, as the protocol asks for.
    ///
    /// # Errors
    /// `InvalidData`, with a sentence, for what begins like a header and is none: a field that is missing, too much or
    /// not of its form, a line without an end in its first 107 bytes, a family or command that is not assigned, a TLV
    /// that ends outside the header, a checksum that is wrong.
    pub fn parse(bytes: &[u8]) -> io::Result<Parsed<Self>> {
        let v2 = v2::SIGNATURE;
        if !bytes.is_empty() && bytes.iter().zip(v2).all(|(have, want)| *have == want) {
            return v2::parse(bytes).map_err(malformed);
        }
        let v1 = v1::SIGNATURE;
        if bytes.iter().zip(v1).all(|(have, want)| have == want) {
            return v1::parse(bytes).map_err(malformed);
        }
        Ok(Parsed::Foreign)
    }

    /// `to_bytes()`: the header as it is sent.
    ///
    /// # Errors
    /// `InvalidInput`, with a sentence, for what its version has no form for: TLVs, a checksum, datagrams, Unix
    /// addresses or [`Origin::Local`] in version 1; TLVs or a checksum with [`Origin::Local`]; more than 65,535 bytes
    /// of addresses and TLVs; a checksum among the TLVs, or a unique id of more than 128 bytes.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let bytes = match self.version {
            Version::V1 => v1::to_bytes(self),
            Version::V2 => v2::to_bytes(self),
        };
        bytes.map_err(|sentence| io::Error::new(io::ErrorKind::InvalidInput, sentence))
    }

    fn inet(&self) -> Option<(SocketAddr, SocketAddr)> {
        match &self.origin {
            Origin::Proxied(_, Addresses::V4 { source, destination }) => {
                Some(((*source).into(), (*destination).into()))
            }
            Origin::Proxied(_, Addresses::V6 { source, destination }) => {
                Some(((*source).into(), (*destination).into()))
            }
            _ => None,
        }
    }
}

impl Addresses {
    /// `inet(source, destination)`: two addresses of one family. Of two families, the IPv4 one becomes an IPv6 one.
    pub fn inet(source: SocketAddr, destination: SocketAddr) -> Self {
        match (source, destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Self::V4 { source, destination },
            (source, destination) => Self::V6 { source: as_v6(source), destination: as_v6(destination) },
        }
    }
}

/// Address and port as IPv6, without what has no place in the protocol.
fn as_v6(address: SocketAddr) -> SocketAddrV6 {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    v6(ip, address.port())
}

fn v6(ip: Ipv6Addr, port: u16) -> SocketAddrV6 {
    SocketAddrV6::new(ip, port, 0, 0)
}

fn malformed(sentence: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, sentence)
}
