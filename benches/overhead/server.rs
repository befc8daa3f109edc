//! A server that streams events in the shape of a recorded SGLang, each with the moment of its sending.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use queuescope::clock::Clock;

/// The recording that the events are taken from: SGLang with incremental output, about 455 bytes an event.
const RECORDED: &str = include_str!("../../tests/data/sglang-0.5.23/incr_generate_stream.body");
/// An event's text begins with the moment of its sending: so many digits, nanoseconds.
pub const DIGITS: usize = 19;
/// What stands before that.
pub const BEFORE_DIGITS: &str = "data: {\"text\":\"";
/// What stands before what a request asks for: how many events, and how many microseconds from one to the next (0: as fast
/// as they can be written). In its prompt, since routers let no header of ours pass.
pub const ASKS: &str = "{\"text\":\"";

const HEAD: &str = "HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
const LAST: &str = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

/// What a router hears that asks about the server.
const PLAIN: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// Serves for as long as the process lives, a thread a connection.
pub fn start(listener: TcpListener, clock: Clock) {
    let recorded: Arc<Recorded> = Arc::new(Recorded::read());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (recorded, clock) = (recorded.clone(), clock.clone());
            // The end of a connection ends its thread.
            std::thread::spawn(move || serve(stream, &recorded, &clock));
        }
    });
}

/// The events of the recording, each without what stands before its text.
struct Recorded {
    first: &'static str,
    middle: Vec<&'static str>,
    last: &'static str,
}

impl Recorded {
    fn read() -> Recorded {
        let events = RECORDED.split("\n\n");
        let mut events: Vec<&str> = events
            .filter_map(|event| event.strip_prefix(BEFORE_DIGITS))
            .collect();
        let last = events.pop().unwrap();
        Recorded {
            first: events.remove(0),
            middle: events,
            last,
        }
    }

    /// Number `index` of a stream of `count`, as an HTTP chunk with room for the moment; and where that is.
    fn chunk(&self, index: usize, count: usize) -> (Vec<u8>, usize) {
        let rest = if index + 1 == count {
            self.last
        } else if index == 0 {
            self.first
        } else {
            self.middle[index % self.middle.len()]
        };
        let (before, after) = rest.split_once("\"completion_tokens\":").unwrap();
        let after = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let tokens = index + 1;
        let zeros = "0".repeat(DIGITS);
        let event =
            format!("{BEFORE_DIGITS}{zeros}{before}\"completion_tokens\":{tokens}{after}\n\n");
        let size = format!("{:x}\r\n", event.len());
        let at = size.len() + BEFORE_DIGITS.len();
        (format!("{size}{event}\r\n").into_bytes(), at)
    }
}

/// Request after request, until the connection ends.
fn serve(stream: TcpStream, recorded: &Recorded, clock: &Clock) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let Some((events, pace)) = request(&mut reader)? else {
            writer.write_all(PLAIN.as_bytes()).ok()?;
            continue;
        };
        let chunks: Vec<_> = (0..events).map(|i| recorded.chunk(i, events)).collect();
        writer.write_all(HEAD.as_bytes()).ok()?;
        let mut next = clock.now();
        for (mut chunk, at) in chunks {
            if !pace.is_zero() {
                next = next.plus_seconds(pace.as_secs_f64());
                clock.sleep_until(next);
            }
            let now = format!("{:0width$}", clock.now().nanos(), width = DIGITS);
            chunk[at..at + DIGITS].copy_from_slice(now.as_bytes());
            writer.write_all(&chunk).ok()?;
        }
        writer.write_all(LAST.as_bytes()).ok()?;
    }
}

/// Reads a request; gives how many events it wants, and how far apart. A router asks for none, but whether there is a server.
fn request(reader: &mut impl BufRead) -> Option<Option<(usize, Duration)>> {
    let mut length = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let header = line.split_once(": ");
        if let Some((_, value)) =
            header.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            length = value.parse().ok()?;
        }
    }
    let mut body = String::new();
    reader.take(length).read_to_string(&mut body).ok()?;
    let asks = || {
        let (_, asks) = body.split_once(ASKS.trim_start_matches('{'))?;
        let mut words = asks.split(' ');
        let events = words.next()?.parse().ok()?;
        Some((events, Duration::from_micros(words.next()?.parse().ok()?)))
    };
    Some(asks())
}
