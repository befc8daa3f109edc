//! HTTP/1.1 as it is on the wire: a reader that keeps what it saw, and a client that does what it is told.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// No test waits longer for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Takes a message apart as it comes, and strictly: what is wrongly framed never ends.
#[derive(Default)]
pub struct Reader {
    raw: Vec<u8>,
    /// The head with its blank line.
    pub head: Option<String>,
    /// The body so far, chunk framing taken off.
    pub body: Vec<u8>,
    /// The chunks of that body, as they were framed.
    chunks: Vec<Vec<u8>>,
    /// The last chunk has come.
    ended: bool,
    /// It answers a HEAD, and has no body.
    is_to_head: bool,
}

/// A client that sends bytes as it is told, on raw TCP unless something lies between.
pub struct Client<S = TcpStream> {
    pub stream: S,
}

/// A response as it was on the wire.
#[derive(Clone, Debug)]
pub struct Response {
    pub head: String,
    pub body: Vec<u8>,
    /// Its chunks, or its body in one piece once it is whole.
    pub chunks: Vec<Vec<u8>>,
    /// It came to the end of its framing.
    pub whole: bool,
}

/// Names in lower case and values.
pub fn headers(head: &str) -> Vec<(String, String)> {
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let lines = lines.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    lines.collect()
}

/// A header's value; there must be at most one.
pub fn only_header(head: &str, name: &str) -> Option<String> {
    let mut found = headers(head).into_iter().filter(|(key, _)| key == name);
    let first = found.next();
    assert!(found.next().is_none(), "{name} twice in {head}");
    first.map(|(_, value)| value)
}

impl Reader {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.raw.extend_from_slice(bytes);
        if self.head.is_none() {
            let Some(end) = self.raw.windows(4).position(|w| w == b"\r\n\r\n") else {
                return;
            };
            let head: Vec<u8> = self.raw.drain(..end + 4).collect();
            self.head = Some(String::from_utf8_lossy(&head).into());
        }
        if !self.is_chunked() {
            let left = self.length().unwrap_or(usize::MAX) - self.body.len();
            let left = left.min(self.raw.len());
            self.body.extend(self.raw.drain(..left));
            return;
        }
        while !self.ended
            && let Some(end) = self.raw.windows(2).position(|w| w == b"\r\n")
        {
            let size = std::str::from_utf8(&self.raw[..end]).ok();
            let size = size.and_then(|size| usize::from_str_radix(size, 16).ok());
            let piece = size.and_then(|size| self.raw[end + 2..].get(..size));
            let Some(piece) = piece.map(<[u8]>::to_vec) else {
                return;
            };
            let length = end + 2 + piece.len() + 2;
            if self.raw.len() < length {
                return;
            }
            self.raw.drain(..length);
            self.body.extend_from_slice(&piece);
            self.ended = piece.is_empty();
            self.chunks.extend((!self.ended).then_some(piece));
        }
    }

    /// What takes the next message apart, of which some may have come with this one.
    pub fn next(self, is_to_head: bool) -> Reader {
        let mut next = Reader {
            is_to_head,
            ..Reader::default()
        };
        next.feed(&self.raw);
        next
    }

    /// Whether no part of a chunk has come without the rest.
    pub fn is_between_chunks(&self) -> bool {
        self.raw.is_empty()
    }

    /// The chunks so far, or a body of another framing once it is whole.
    pub fn pieces(&self) -> Vec<Vec<u8>> {
        match self.is_chunked() || self.body.is_empty() || !self.is_whole(usize::MAX) {
            true => self.chunks.clone(),
            false => vec![self.body.clone()],
        }
    }

    /// What has come of a response.
    pub fn response(&self) -> Response {
        Response {
            head: self.head.clone().unwrap_or_default(),
            body: self.body.clone(),
            chunks: self.pieces(),
            whole: self.is_whole(usize::MAX),
        }
    }

    fn header(&self, name: &str) -> Option<String> {
        let all = headers(self.head.as_deref()?);
        all.into_iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding").is_some() && !self.is_bodiless()
    }

    fn is_bodiless(&self) -> bool {
        let head = self.head.as_deref().unwrap_or_default();
        let has_no_body = ["1", "204", "304"].map(|status| format!("HTTP/1.1 {status}"));
        self.is_to_head || has_no_body.iter().any(|begins| head.starts_with(begins))
    }

    /// The length of a body without chunks; `None` of a response that ends with its connection.
    fn length(&self) -> Option<usize> {
        let length = self.header("content-length");
        // It may be told twice.
        let length = length.map(|n| n.split(',').next().unwrap_or_default().parse());
        match length {
            _ if self.is_bodiless() => Some(0),
            Some(length) => Some(length.unwrap_or(usize::MAX)),
            None => {
                let head = self.head.as_deref().unwrap_or_default();
                (!head.starts_with("HTTP/")).then_some(0)
            }
        }
    }

    /// Whether the message is complete; `without` is the length of a body that ends with its connection.
    pub fn is_whole(&self, without: usize) -> bool {
        match self.is_chunked() {
            true => self.ended,
            false => {
                let length = self.length().unwrap_or(without);
                self.head.is_some() && self.body.len() >= length
            }
        }
    }
}

impl Client {
    pub async fn connect(addr: SocketAddr) -> Client {
        Client::from_stream(TcpStream::connect(addr).await.unwrap())
    }

    /// A client on a connection that there is.
    pub fn from_stream(stream: TcpStream) -> Client {
        // One that was reset already has no such option.
        let _ = stream.set_nodelay(true);
        Client { stream }
    }

    /// A client whose kernel takes little that it has not read.
    pub async fn with_small_buffer(addr: SocketAddr) -> Client {
        Client::with_buffer(addr, 4096).await
    }

    pub async fn with_buffer(addr: SocketAddr, size: u32) -> Client {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(size).unwrap();
        Client {
            stream: socket.connect(addr).await.unwrap(),
        }
    }

    /// Sends what the sockets on the way take, until nothing has gone out for a while; how much that was.
    pub async fn send_until_still(&mut self, bytes: &[u8]) -> usize {
        let (mut sent, mut still) = (0, 0);
        while still < 40 && sent < bytes.len() {
            match self.stream.try_write(&bytes[sent..]) {
                Ok(written) => (sent, still) = (sent + written, 0),
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    still += 1;
                }
            }
        }
        sent
    }

    /// Leaves with a reset, as a killed process may.
    pub fn reset(self) {
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends a POST with these extra header lines, each ended by CRLF.
    pub async fn post(&mut self, path: &str, extra: &str, body: &[u8]) {
        self.send(post(path, extra, body)).await;
    }

    /// Asks for a stream, and reads what it begins with.
    pub async fn begin_stream(&mut self) {
        self.post("/generate", "", b"{\"stream\":true}").await;
        let begun = self.read_until(|reader| !reader.body.is_empty()).await;
        assert_eq!(begun.status(), 200);
        assert!(!begun.body.is_empty(), "the stream has begun");
    }

    /// Sends a POST and reads the response to its end or the connection's.
    pub async fn ask(&mut self, path: &str, extra: &str, body: &[u8]) -> Response {
        self.post(path, extra, body).await;
        self.response().await
    }

    /// Reads a response to its end or the connection's.
    pub async fn response(&mut self) -> Response {
        self.read_until(|reader| reader.is_whole(usize::MAX)).await
    }

    /// Reads a response until `enough` or its connection's end.
    pub async fn read_until(&mut self, enough: impl Fn(&Reader) -> bool) -> Response {
        self.read(65_536, enough, |_| false).await
    }

    /// Reads a response `size` bytes at a time, with a pause after each read that `pauses` picks.
    pub async fn read_slowly(
        &mut self,
        size: usize,
        pauses: impl FnMut(usize) -> bool,
    ) -> Response {
        let is_whole = |reader: &Reader| reader.is_whole(usize::MAX);
        self.read(size, is_whole, pauses).await
    }

    async fn read(
        &mut self,
        size: usize,
        enough: impl Fn(&Reader) -> bool,
        mut pauses: impl FnMut(usize) -> bool,
    ) -> Response {
        let mut reader = Reader::default();
        let mut buffer = vec![0; size];
        while !enough(&reader) {
            let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut buffer)).await;
            match read.expect("the response came in time").unwrap_or(0) {
                0 => break,
                read => {
                    reader.feed(&buffer[..read]);
                    if pauses(read) {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                }
            }
        }
        reader.response()
    }

    /// All that comes until the other side closes, as it is on the wire.
    pub async fn read_to_close(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let end = tokio::time::timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await;
        // A reset ends it too.
        let _ = end.expect("the connection closed in time");
        rest
    }

    /// Whether the other side has closed; waits for it, and takes a reset for it too.
    pub async fn is_closed(&mut self) -> bool {
        let rest = self.read_to_close().await;
        assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
        true
    }
}

impl Response {
    pub fn status(&self) -> u16 {
        let status = self.head.split(' ').nth(1);
        status.unwrap_or_else(|| panic!("no head")).parse().unwrap()
    }

    /// A header's value; there must be at most one.
    pub fn header(&self, name: &str) -> Option<String> {
        only_header(&self.head, name)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// All responses of a connection that closed then; the first one may be to a HEAD.
pub fn responses(bytes: &[u8], mut is_to_head: bool) -> Vec<Response> {
    let mut reader = Reader::default().next(is_to_head);
    reader.feed(bytes);
    let mut all = Vec::new();
    while reader.head.is_some() {
        // Its body may end with the connection.
        let whole = reader.is_whole(0);
        let response = Response {
            whole,
            ..reader.response()
        };
        is_to_head &= response.status() / 100 == 1 && response.status() != 101;
        all.push(response);
        if !whole {
            break;
        }
        reader = reader.next(is_to_head);
    }
    all
}

/// The bytes of a POST.
pub fn post(path: &str, extra: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: h\r\n{extra}content-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// The same with its body in chunks of so many bytes.
pub fn post_chunked(path: &str, body: &[u8], size: usize) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut all = head.into_bytes();
    body.chunks(size).for_each(|piece| all.extend(chunk(piece)));
    all.extend(chunk(""));
    all
}

/// A whole response with a JSON body.
pub fn json_response(body: &str) -> Vec<u8> {
    answer("200 OK", body)
}

/// The same with another status.
pub fn answer(status: &str, body: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json");
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// The head of an SSE stream.
pub fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        .to_vec()
}

/// A chunk.
pub fn chunk(body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat()
}

/// How often a condition is asked for, with a rest of 5 ms after each time.
const POLLS: u32 = 12_000;

/// Polls `condition` until it holds.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..POLLS {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never came: {what}");
}

/// The same of a condition that must be asked for.
pub async fn until_async(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..POLLS {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never came: {what}");
}
