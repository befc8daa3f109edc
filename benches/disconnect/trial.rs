//! One trial: a request, silence, the client disconnects, the server notices.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queuescope::clock::{Clock, Stamp};

use crate::client::{Client, Entry, Version};

/// When the server falls silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It has the request and has answered nothing.
    BeforeHead,
    /// It has sent a head and an event.
    MidStream,
}

/// A server that falls silent, and tells each trial what it sees.
pub struct Server {
    clock: Clock,
    numbers: AtomicU64,
    trials: Trials,
}

type Trials = Arc<Mutex<HashMap<u64, Sender<Seen>>>>;

enum Seen {
    /// The request is here in full, and what comes before the silence is sent.
    Silent,
    /// The connection's end, then.
    Left(Stamp),
}

/// How long everything may settle before the client disconnects: proxies wait in silence then.
const SETTLE: Duration = Duration::from_millis(2);
/// After it, a leaving counts as unnoticed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Names the trial in the request's head; every proxy passes it on.
const TRIAL: &str = "x-trial: ";
const BODY: &str =
    r#"{"text":"Where does it wait?","sampling_params":{"max_new_tokens":64},"stream":true}"#;
const EVENT: &str = "data: {\"text\":\" here\",\"meta_info\":{\"id\":\"gone\",\"finish_reason\":null,\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n";

impl Silence {
    pub fn name(self) -> &'static str {
        match self {
            Silence::BeforeHead => "before head",
            Silence::MidStream => "mid-stream",
        }
    }
}

impl Server {
    pub fn start(listener: TcpListener, clock: Clock) -> Server {
        let trials = Trials::default();
        let server = Server {
            clock: clock.clone(),
            numbers: AtomicU64::new(0),
            trials: trials.clone(),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (trials, clock) = (trials.clone(), clock.clone());
                std::thread::spawn(move || serve(stream, &trials, &clock));
            }
        });
        server
    }

    /// Milliseconds from a client's leaving to the end of the server's connection; `None` if that did not come.
    pub fn trial(&self, entry: &Entry, silence: Silence) -> Option<f64> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, seen) = channel();
        self.trials.lock().unwrap().insert(number, sender);
        let mut client = Client::connect(entry);
        let events = match silence {
            Silence::BeforeHead => "0",
            Silence::MidStream => "1",
        };
        client.post(
            &[("x-events", events), ("x-trial", &number.to_string())],
            BODY,
        );
        let silent = seen.recv_timeout(PATIENCE);
        assert!(
            matches!(silent, Ok(Seen::Silent)),
            "the request never came to the server"
        );
        if silence == Silence::MidStream {
            // What is unread would make the close a reset.
            let end = match entry.version {
                Version::Http1 => "\r\n",
                Version::Http2 => "",
            };
            client.read_until(&format!("{EVENT}{end}"));
        }
        std::thread::sleep(SETTLE);
        let disconnected = self.clock.now();
        let _kept = client.leave();
        let left = seen.recv_timeout(PATIENCE);
        self.trials.lock().unwrap().remove(&number);
        match left {
            Ok(Seen::Left(at)) => Some(at.since(disconnected) * 1e3),
            _ => None,
        }
    }
}

/// A connection: one request, at most one event, then silence until it ends. Whatever fails ends it.
fn serve(mut stream: TcpStream, trials: &Trials, clock: &Clock) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let request = read_until(&mut stream, BODY)?;
    let (_, rest) = request.split_once(TRIAL)?;
    let number = rest.split("\r\n").next()?.parse().ok()?;
    let trial = trials.lock().unwrap().get(&number)?.clone();
    if request.contains("x-events: 1\r\n") {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let event = format!("{head}{:x}\r\n{EVENT}\r\n", EVENT.len());
        stream.write_all(event.as_bytes()).ok()?;
    }
    trial.send(Seen::Silent).ok()?;
    // End or reset, both tell it.
    let read = stream.read(&mut [0; 64]);
    let at = clock.now();
    assert!(matches!(read, Ok(0) | Err(_)), "bytes after the request");
    trial.send(Seen::Left(at)).ok()
}

/// Reads until what has come ends with `last`.
fn read_until(stream: &mut TcpStream, last: &str) -> Option<String> {
    let (mut all, mut piece) = (Vec::new(), [0; 4096]);
    while !all.ends_with(last.as_bytes()) {
        let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        all.extend_from_slice(&piece[..read]);
    }
    String::from_utf8(all).ok()
}
