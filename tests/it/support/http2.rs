//! A client that speaks HTTP/2.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::wire::PATIENCE;

/// A connection with many requests on it. It closes when dropped.
pub struct Http2 {
    requests: SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
}

/// A request under way. Dropping it resets its stream.
pub struct Call {
    response: ResponseFuture,
    /// The request's body, if it was not sent whole.
    pub body: SendStream<Bytes>,
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: HeaderMap,
    /// Why the stream ended before its end.
    pub broken: Option<h2::Error>,
}

impl Http2 {
    /// On a plain connection, by prior knowledge.
    pub async fn connect(addr: SocketAddr) -> Http2 {
        let stream = TcpStream::connect(addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Http2::over(stream).await
    }

    pub async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Http2 {
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        Http2 {
            requests,
            driver: tokio::spawn(connection),
        }
    }

    /// Begins a POST with these headers; `body` is all of it unless `goes_on`.
    pub async fn begin(
        &mut self,
        path: &str,
        headers: HeaderMap,
        body: &[u8],
        goes_on: bool,
    ) -> Call {
        let mut request = Request::post(format!("http://h{path}")).body(()).unwrap();
        *request.headers_mut() = headers;
        self.requests = self.requests.clone().ready().await.unwrap();
        let (response, mut stream) = self.requests.send_request(request, false).unwrap();
        // One whose head was refused takes no body.
        let _ = stream.send_data(Bytes::copy_from_slice(body), !goes_on);
        Call {
            response,
            body: stream,
        }
    }

    /// Sends any request with its whole body; `None` where the stream was refused.
    pub async fn exchange(&mut self, request: Request<()>, body: &[u8]) -> Option<Answer> {
        self.requests = self.requests.clone().ready().await.ok()?;
        let sent = self.requests.send_request(request, body.is_empty());
        let (response, mut stream) = sent.ok()?;
        if !body.is_empty() {
            let _ = stream.send_data(Bytes::copy_from_slice(body), true);
        }
        let head = tokio::time::timeout(PATIENCE, response).await.unwrap();
        Some(Answer::of(head.ok()?).await)
    }

    pub async fn post(&mut self, path: &str, body: &[u8]) -> Call {
        self.begin(path, HeaderMap::new(), body, false).await
    }

    /// Ends when the connection does, and says how.
    pub async fn end(self) -> Result<(), h2::Error> {
        drop(self.requests);
        let end = tokio::time::timeout(PATIENCE, self.driver).await;
        end.unwrap().unwrap()
    }

    /// Leaves as a killed process does.
    pub fn kill(self) {
        self.driver.abort();
    }
}

impl Call {
    /// The head, and the body as it comes.
    pub async fn head(self) -> Result<http::Response<RecvStream>, h2::Error> {
        tokio::time::timeout(PATIENCE, self.response).await.unwrap()
    }

    /// The whole response.
    pub async fn answer(self) -> Answer {
        Answer::of(self.head().await.unwrap()).await
    }

    /// Takes the request back.
    pub fn reset(mut self) {
        self.body.send_reset(h2::Reason::CANCEL);
    }
}

impl Answer {
    /// Of a response whose body is read to its end.
    async fn of(response: http::Response<RecvStream>) -> Answer {
        let (head, mut stream) = response.into_parts();
        let (mut body, mut broken) = (Vec::new(), None);
        while let Some(piece) = tokio::time::timeout(PATIENCE, stream.data()).await.unwrap() {
            match piece {
                Ok(piece) => {
                    stream.flow_control().release_capacity(piece.len()).unwrap();
                    body.extend_from_slice(&piece);
                }
                Err(error) => {
                    broken = Some(error);
                    break;
                }
            }
        }
        let trailers = stream.trailers().await.ok().flatten();
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            trailers: trailers.unwrap_or_default(),
            broken,
        }
    }
}
