//! HTTP/1.1 by hand: a client that sees the chunks as they were framed.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection that is used for one request after another.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    framing: Framing,
}

/// The head of a response.
#[derive(Clone, Debug)]
pub struct Head {
    /// HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
}

/// A whole response.
#[derive(Clone, Debug)]
pub struct Response {
    /// Its head.
    pub head: Head,
    /// Its chunks, or its body in one piece.
    pub chunks: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    Chunked,
    Length(usize),
    Done,
}

impl Connection {
    /// Connects.
    pub async fn open(addr: SocketAddr) -> Connection {
        let stream = TcpStream::connect(addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Connection {
            stream,
            buffer: Vec::new(),
            framing: Framing::Done,
        }
    }

    /// Sends a request with `body` and these further headers, given as whole lines without line ends.
    pub async fn send(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
        for header in headers {
            request.push_str(header);
            request.push_str("\r\n");
        }
        request.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        self.write(&[request.as_bytes(), body].concat()).await;
    }

    /// Sends bytes as they are.
    pub async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Reads everything up to the peer's close or reset.
    pub async fn rest(&mut self) -> Vec<u8> {
        while self.more().await.unwrap_or(0) > 0 {}
        std::mem::take(&mut self.buffer)
    }

    /// Reads the head of the next response.
    pub async fn head(&mut self) -> Head {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            assert!(self.more().await.unwrap() > 0, "closed before the head");
        };
        let text = String::from_utf8(self.buffer.drain(..end + 4).collect()).unwrap();
        let mut lines = text.trim_end().split("\r\n");
        let status = lines.next().unwrap()[9..12].parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let head = Head { status, headers };
        self.framing = match head.header("content-length") {
            Some(length) => Framing::Length(length.parse().unwrap()),
            None if head.header("transfer-encoding") == Some("chunked") => Framing::Chunked,
            None => panic!("no framing: {head:?}"),
        };
        head
    }

    /// Reads the next chunk of the body (a body with a length is one piece); `None` at its end.
    ///
    /// # Errors
    /// The connection ended before the body did.
    pub async fn chunk(&mut self) -> Result<Option<Vec<u8>>, String> {
        match self.framing {
            Framing::Done | Framing::Length(0) => {
                self.framing = Framing::Done;
                Ok(None)
            }
            Framing::Length(length) => {
                self.framing = Framing::Done;
                self.take(length).await.map(Some)
            }
            Framing::Chunked => {
                let end = loop {
                    if let Some(end) = find(&self.buffer, b"\r\n") {
                        break end;
                    }
                    self.fill().await?;
                };
                let size = String::from_utf8(self.take(end + 2).await?).unwrap();
                let size = usize::from_str_radix(size.trim_end(), 16).unwrap();
                let mut chunk = self.take(size + 2).await?;
                chunk.truncate(size);
                if size == 0 {
                    self.framing = Framing::Done;
                    return Ok(None);
                }
                Ok(Some(chunk))
            }
        }
    }

    /// Reads a whole response.
    ///
    /// # Errors
    /// The connection ended before the body did.
    pub async fn response(&mut self) -> Result<Response, String> {
        let head = self.head().await;
        let mut chunks = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            chunks.push(chunk);
        }
        Ok(Response { head, chunks })
    }

    async fn take(&mut self, length: usize) -> Result<Vec<u8>, String> {
        while self.buffer.len() < length {
            self.fill().await?;
        }
        Ok(self.buffer.drain(..length).collect())
    }

    async fn fill(&mut self) -> Result<(), String> {
        match self.more().await {
            Ok(0) => Err("closed within the body".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn more(&mut self) -> std::io::Result<usize> {
        self.stream.read_buf(&mut self.buffer).await
    }
}

impl Head {
    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(key, _)| key == name);
        found.next().map(|(_, value)| value.as_str())
    }
}

impl Response {
    /// The body without its framing.
    pub fn body(&self) -> Vec<u8> {
        self.chunks.concat()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.body()).unwrap()
    }
}

/// One request on a connection of its own, answered whole.
pub async fn exchange(addr: SocketAddr, method: &str, path: &str, body: &[u8]) -> Response {
    let mut connection = Connection::open(addr).await;
    connection.send(method, path, &[], body).await;
    connection.response().await.unwrap()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|w| w == wanted)
}
