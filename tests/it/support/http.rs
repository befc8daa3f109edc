//! HTTP/1.1 by hand: a client that sees the chunks as they were framed.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt;

use super::wire::{Client, Reader, Response};

/// A connection that is used for one request after another.
pub struct Connection {
    client: Client,
    reader: Reader,
    /// Pieces of the body that were given out.
    given: usize,
}

impl Connection {
    pub async fn open(addr: SocketAddr) -> Connection {
        Connection {
            client: Client::connect(addr).await,
            reader: Reader::default(),
            given: 0,
        }
    }

    /// Sends a request with `body` and these further headers, given as whole lines without line ends.
    pub async fn send(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) {
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\n{headers}content-length: {length}\r\n\r\n"
        );
        self.write(&[head.as_bytes(), body].concat()).await;
    }

    /// Sends bytes as they are.
    pub async fn write(&mut self, bytes: &[u8]) {
        self.client.send(bytes).await;
    }

    /// Reads everything up to the peer's close or reset.
    pub async fn rest(&mut self) -> Vec<u8> {
        self.client.read_to_close().await
    }

    /// Reads the head of the next response.
    pub async fn head(&mut self) -> Response {
        (self.reader, self.given) = (Reader::default(), 0);
        while self.reader.head.is_none() {
            self.more().await.unwrap();
        }
        self.reader.response()
    }

    /// Reads the next chunk of the body (a body with a length is one piece); `None` at its end.
    ///
    /// # Errors
    /// The connection ended before the body did.
    pub async fn chunk(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            let is_whole = self.reader.is_whole(usize::MAX);
            let mut pieces = self.reader.pieces();
            if pieces.len() > self.given {
                self.given += 1;
                return Ok(Some(pieces.swap_remove(self.given - 1)));
            }
            if is_whole {
                return Ok(None);
            }
            self.more().await?;
        }
    }

    /// Reads a whole response.
    ///
    /// # Errors
    /// The connection ended before the body did.
    pub async fn response(&mut self) -> Result<Response, String> {
        self.head().await;
        while !self.reader.is_whole(usize::MAX) {
            self.more().await?;
        }
        Ok(self.reader.response())
    }

    async fn more(&mut self) -> Result<(), String> {
        let mut buffer = vec![0; 65_536];
        let read = self.client.stream.read(&mut buffer).await;
        match read.map_err(|error| error.to_string())? {
            0 => return Err("closed within the response".to_owned()),
            read => self.reader.feed(&buffer[..read]),
        }
        Ok(())
    }
}

/// One request on a connection of its own, answered whole.
pub async fn exchange(addr: SocketAddr, method: &str, path: &str, body: &[u8]) -> Response {
    let mut connection = Connection::open(addr).await;
    connection.send(method, path, &[], body).await;
    connection.response().await.unwrap()
}
