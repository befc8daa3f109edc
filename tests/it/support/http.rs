//! HTTP/1.1 by hand: a client that takes a response chunk by chunk, as it was framed.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt;

use super::wire::{Client, Reader, Response};

/// A connection that is used for one request after another; only the first one's response can be taken in pieces.
pub struct Connection {
    pub client: Client,
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

    /// Reads the head of the response.
    pub async fn head(&mut self) -> Response {
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
    pub async fn response(&mut self) -> Response {
        let response = self.client.response().await;
        assert!(response.whole, "cut short: {response:?}");
        response
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
