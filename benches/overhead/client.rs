//! Clients that read streams, and how long each event took from the server's write to their read.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use queuescope::clock::{Clock, Stamp};

use crate::server::{ASKS, BEFORE_DIGITS, DIGITS};

/// So many clients, each with a connection of its own and one stream after another on it.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub clients: usize,
    pub events: usize,
    pub pace: Duration,
    pub seconds: f64,
}

/// What a load found.
#[derive(Default)]
pub struct Found {
    /// How long each request took, microseconds.
    pub requests: Vec<f64>,
    /// From write to read, microseconds.
    pub took: Vec<f64>,
    /// From the first request to the last end, seconds.
    pub seconds: f64,
}

/// A connection, and what was read of it and not used yet.
struct Client<'a> {
    stream: TcpStream,
    clock: &'a Clock,
    raw: Vec<u8>,
    text: Vec<u8>,
}

/// Behind what it asks for.
const BODY: &str = r#" Tell me where a request waits, in the router or in the server?","sampling_params":{"max_new_tokens":64,"temperature":0},"stream":true}"#;

impl Load {
    /// Loads what listens at `entry`.
    pub fn run(self, entry: SocketAddr, clock: &Clock) -> Found {
        let start = clock.now();
        let end = start.plus_seconds(self.seconds);
        let one = |number: usize| {
            let mut client = Client {
                stream: TcpStream::connect(entry).unwrap(),
                clock,
                raw: Vec::new(),
                text: Vec::new(),
            };
            client.stream.set_nodelay(true).unwrap();
            // Streams of real users do not begin, and so beat, together.
            let stream = self.pace.as_secs_f64() * self.events as f64;
            clock.sleep_until(start.plus_seconds(stream * number as f64 / self.clients as f64));
            let mut found = Found::default();
            while clock.now() < end {
                let took = client.request(self, &mut found.took);
                found.requests.push(took);
            }
            found
        };
        let one = &one;
        let mut sum = Found::default();
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..self.clients)
                .map(|number| scope.spawn(move || one(number)))
                .collect();
            for client in all {
                let found = client.join().unwrap();
                sum.requests.extend(found.requests);
                sum.took.extend(found.took);
            }
        });
        sum.seconds = clock.now().since(start);
        sum.took.sort_by(f64::total_cmp);
        sum.requests.sort_by(f64::total_cmp);
        sum
    }
}

impl Client<'_> {
    /// Gives how long it took, microseconds.
    fn request(&mut self, load: Load, took: &mut Vec<f64>) -> f64 {
        let began = self.clock.now();
        let body = format!("{ASKS}{} {}{BODY}", load.events, load.pace.as_micros());
        let request = format!(
            "POST /generate HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).unwrap();
        let before = took.len();
        let head = loop {
            if let Some(head) = position(&self.raw, b"\r\n\r\n") {
                break head;
            }
            self.read();
        };
        assert!(self.raw.starts_with(b"HTTP/1.1 200"), "not a 200");
        self.raw.drain(..head + 4);
        let mut at = self.clock.now();
        loop {
            let is_whole = self.unchunk();
            self.events(at, took);
            if is_whole {
                break;
            }
            at = self.read();
        }
        assert_eq!(took.len() - before, load.events, "events of a stream");
        self.clock.now().since(began) * 1e6
    }

    /// Gives the moment at which it returned.
    fn read(&mut self) -> Stamp {
        let mut piece = [0; 16 * 1024];
        let read = self.stream.read(&mut piece).unwrap();
        let at = self.clock.now();
        assert!(read > 0, "the connection ended within a stream");
        self.raw.extend_from_slice(&piece[..read]);
        at
    }

    /// Takes whole chunks off what was read; true after the last.
    fn unchunk(&mut self) -> bool {
        let mut used = 0;
        let is_whole = loop {
            let rest = &self.raw[used..];
            let Some(line) = position(rest, b"\r\n") else {
                break false;
            };
            let size = std::str::from_utf8(&rest[..line]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            let end = line + 2 + size + 2;
            if rest.len() < end {
                break false;
            }
            self.text.extend_from_slice(&rest[line + 2..end - 2]);
            used += end;
            if size == 0 {
                break true;
            }
        };
        self.raw.drain(..used);
        is_whole
    }

    /// Takes the whole events, which were read by `at`.
    fn events(&mut self, at: Stamp, took: &mut Vec<f64>) {
        while let Some(end) = position(&self.text, b"\n\n") {
            let event = &self.text[..end];
            if let Some(rest) = event.strip_prefix(BEFORE_DIGITS.as_bytes()) {
                let sent = std::str::from_utf8(&rest[..DIGITS]).unwrap();
                let sent = Stamp::from_nanos(sent.parse().unwrap());
                took.push(at.since(sent) * 1e6);
            } else {
                assert_eq!(event, b"data: [DONE]");
            }
            self.text.drain(..end + 2);
        }
    }
}

fn position(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
