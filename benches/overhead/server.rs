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
/// The request's headers that say what to stream.
pub const EVENTS: &str = "x-events";
/// Microseconds from event to event; 0: as fast as they can be written.
pub const PACE: &str = "x-pace-us";

const HEAD: &str = "HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
const LAST: &str = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

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
        let (events, pace) = request(&mut reader)?;
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

/// Reads a request; gives how many events it wants, and how far apart.
fn request(reader: &mut impl BufRead) -> Option<(usize, Duration)> {
    let (mut events, mut pace, mut length) = (None, None, 0);
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
        let Some((name, value)) = line.split_once(": ") else {
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            EVENTS => events = value.parse().ok(),
            PACE => pace = value.parse().ok().map(Duration::from_micros),
            "content-length" => length = value.parse().ok()?,
            _ => {}
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink()).ok()?;
    events.zip(pace)
}
