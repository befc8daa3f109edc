//! The clients that disconnect: HTTP/1.1 and HTTP/2, plain and under TLS, each on a blocking socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http1,
    /// It leaves by resetting its stream, and keeps the connection.
    Http2,
}

/// Where a client connects, and how.
pub struct Entry {
    pub address: SocketAddr,
    pub version: Version,
    /// Under TLS: whom it trusts.
    pub trusts: Option<RootCertStore>,
}

/// A client with a request under way.
pub struct Client {
    stream: Box<dyn Wire>,
    version: Version,
}

trait Wire: Read + Write {}

impl<T: Read + Write> Wire for T {}

/// Types of frames, and of their flags: RFC 9113, section 6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

impl Client {
    pub fn connect(entry: &Entry) -> Client {
        let stream = TcpStream::connect(entry.address).unwrap();
        stream.set_nodelay(true).unwrap();
        let version = entry.version;
        let stream: Box<dyn Wire> = match &entry.trusts {
            None => Box::new(stream),
            Some(trusts) => Box::new(StreamOwned::new(session(trusts, version), stream)),
        };
        let mut client = Client { stream, version };
        if version == Version::Http2 {
            let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
            client.stream.write_all(preface).unwrap();
            client.frame(SETTINGS, 0, 0, &[]);
        }
        client
    }

    /// Sends a POST of a JSON body with these further headers.
    pub fn post(&mut self, headers: &[(&str, &str)], body: &str) {
        let length = body.len().to_string();
        let own = [
            ("content-type", "application/json"),
            ("content-length", &length),
        ];
        let headers = own.iter().chain(headers);
        if self.version == Version::Http1 {
            let lines: String = headers
                .map(|(name, value)| format!("{name}: {value}\r\n"))
                .collect();
            let request = format!("POST /generate HTTP/1.1\r\nhost: bench\r\n{lines}\r\n{body}");
            return self.stream.write_all(request.as_bytes()).unwrap();
        }
        let pseudo = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "bench"),
            (":path", "/generate"),
        ];
        let mut fields = Vec::new();
        for (name, value) in pseudo.iter().chain(headers) {
            // Neither indexed nor compressed: RFC 7541, section 6.2.2.
            fields.push(0);
            for text in [name, value] {
                fields.push(u8::try_from(text.len()).unwrap());
                fields.extend_from_slice(text.as_bytes());
            }
        }
        self.frame(HEADERS, END_HEADERS, 1, &fields);
        self.frame(DATA, END_STREAM, 1, body.as_bytes());
    }

    /// Reads until `last` has come.
    pub fn read_until(&mut self, last: &str) {
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        while !all.windows(last.len()).any(|part| part == last.as_bytes()) {
            let read = self.stream.read(&mut piece).unwrap();
            assert!(read > 0, "the event comes to the client");
            all.extend_from_slice(&piece[..read]);
        }
    }

    /// Leaves: closes the connection, or resets the stream. Gives what is still to be closed.
    pub fn leave(mut self) -> Option<Client> {
        if self.version == Version::Http1 {
            return None;
        }
        self.frame(RST_STREAM, 0, 1, &CANCEL);
        Some(self)
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u8, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags, 0, 0, 0, stream]].concat();
        self.stream.write_all(&[&head, payload].concat()).unwrap();
        self.stream.flush().unwrap();
    }
}

fn session(trusts: &RootCertStore, version: Version) -> ClientConnection {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusts.clone())
        .with_no_client_auth();
    config.alpn_protocols = match version {
        Version::Http1 => vec![b"http/1.1".to_vec()],
        Version::Http2 => vec![b"h2".to_vec()],
    };
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}
