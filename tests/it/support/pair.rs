//! The recorded exchanges of a pair of servers, one that prefills and one that decodes, behind three routers
//! (`tests/data/sglang-0.5.23-pd`), and what plays them again: the servers, and what each router does.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::listening::Listening;
use super::upstream::{Seen, Step, Upstream};
use super::wire::{Client, Reader, only_header};

/// What stands before the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// smg 1.13.0: the decode server's response passes through.
    Smg,
    /// sglang-router 0.3.2: nothing of it passes before the prefill server's is whole.
    Old,
    /// SGLang's own mini load balancer: it passes on no header, and answers with a head of its own at once.
    MiniLb,
}

/// One request that was sent to both servers.
#[derive(Clone, Debug)]
pub struct Dispatch {
    pub router: Router,
    pub path: String,
    /// Its request id and trace, as header lines.
    pub headers: String,
    /// What the client sent.
    pub body: Vec<u8>,
    /// The room, or those of its sequences.
    pub rooms: Vec<u64>,
    pub prefill: Leg,
    pub decode: Leg,
}

/// What one server was sent, and what it answered.
#[derive(Clone, Debug, Default)]
pub struct Leg {
    /// When it was sent, seconds.
    pub at: f64,
    pub body: Vec<u8>,
    /// Seconds after that, and what came then.
    pub reply: Vec<(f64, Vec<u8>)>,
}

/// The recordings: those of the repository, or of the folder that `PD_RECORDINGS` names.
pub fn folder() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sglang-0.5.23-pd");
    std::env::var_os("PD_RECORDINGS").map_or_else(own, PathBuf::from)
}

/// A file of the recordings.
pub fn read(name: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The event by which a decode server told that its prefill server was lost.
pub fn failed_transfer() -> String {
    let killed = read("client_prefill_killed.json");
    let mut events = killed.as_array().unwrap().iter();
    let event = events.find_map(|one| {
        let event = one["chunks"][0][1].as_str()?;
        event.contains("Decode transfer failed").then_some(event)
    });
    event.unwrap().to_owned()
}

/// Every request that was sent to both servers.
pub fn all() -> Vec<Dispatch> {
    let mut found: Vec<Dispatch> = Vec::new();
    for exchange in read("exchanges.json").as_array().unwrap() {
        let request = exchange["req"].as_str().unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let mut asked: Value = serde_json::from_str(body).unwrap();
        let rooms = rooms(&asked["bootstrap_room"]);
        let hop = exchange["hop"].as_str().unwrap();
        let place = found.iter().position(|one| one.rooms == rooms);
        let place = place.unwrap_or_else(|| {
            let members = asked.as_object_mut().unwrap();
            members.retain(|name, _| !name.starts_with("bootstrap_"));
            found.push(Dispatch {
                router: router(hop),
                path: head.split(' ').nth(1).unwrap().to_owned(),
                headers: traced(head),
                body: asked.to_string().into_bytes(),
                rooms,
                prefill: Leg::default(),
                decode: Leg::default(),
            });
            found.len() - 1
        });
        let leg = leg(exchange, body);
        match hop.starts_with("prefill") {
            true => found[place].prefill = leg,
            false => found[place].decode = leg,
        }
    }
    found
}

/// The header lines of a request's id and trace, which routers pass on.
pub fn traced(head: &str) -> String {
    let line = |name| Some(format!("{name}: {}\r\n", only_header(head, name)?));
    let names = ["x-request-id", "traceparent", "tracestate"];
    names.into_iter().filter_map(line).collect()
}

fn rooms(room: &Value) -> Vec<u64> {
    match room {
        Value::Array(all) => all.iter().map(|room| room.as_u64().unwrap()).collect(),
        room => vec![room.as_u64().unwrap()],
    }
}

fn router(hop: &str) -> Router {
    match hop.split_once('-') {
        Some((_, "18111" | "18112")) => Router::Old,
        Some((_, "18121" | "18122")) => Router::MiniLb,
        _ => Router::Smg,
    }
}

fn leg(exchange: &Value, body: &str) -> Leg {
    let at = exchange["t_req"].as_f64().unwrap();
    let reply = exchange["resp"].as_array().unwrap().iter();
    let reply = reply.map(|piece| {
        let after = piece[0].as_f64().unwrap() - at;
        (after, piece[1].as_str().unwrap().into())
    });
    let mut reply: Vec<(f64, Vec<u8>)> = reply.collect();
    // Some were broken off by the router, which needed no more.
    let mut words = reply[0].1.windows(8);
    let is_chunked = words.any(|word| word.eq_ignore_ascii_case(b"chunked\r"));
    let (_, last) = reply.last_mut().unwrap();
    if is_chunked && !last.ends_with(b"0\r\n\r\n") {
        last.extend_from_slice(b"0\r\n\r\n");
    }
    Leg {
        at,
        body: body.into(),
        reply,
    }
}

impl Dispatch {
    /// What the client's request is called, for messages.
    pub fn name(&self) -> String {
        format!("{:?} {} {:?}", self.router, self.path, self.rooms)
    }
}

impl Leg {
    /// A server that answers as it did, in pieces of at most so many bytes.
    pub async fn server(&self, split: usize) -> Upstream {
        let mut steps = Vec::new();
        let mut before = 0.0;
        for (at, bytes) in &self.reply {
            steps.push(Step::Pause(Duration::from_secs_f64((at - before).max(0.0))));
            steps.extend(bytes.chunks(split).map(|piece| Step::Send(piece.to_vec())));
            before = *at;
        }
        Upstream::start(move |_, request: &Seen| {
            assert!(request.head.starts_with("POST"), "{}", request.head);
            steps.clone()
        })
        .await
    }

    /// All of the reply.
    pub fn text(&self) -> String {
        let pieces: Vec<&[u8]> = self.reply.iter().map(|(_, piece)| &piece[..]).collect();
        String::from_utf8_lossy(&pieces.concat()).into_owned()
    }

    /// The first number after this name in the reply.
    pub fn number(&self, name: &str) -> Option<f64> {
        let text = self.text();
        let (_, rest) = text.split_once(&format!("\"{name}\":"))?;
        let end = rest.find([',', '}']).unwrap();
        rest[..end].parse().ok()
    }
}

/// A router before hops of what prefills and what decodes. It sends each request it gets to both, as `dispatch` was.
pub async fn router_of(dispatch: &Dispatch, hops: [SocketAddr; 2]) -> Listening {
    let dispatch = dispatch.clone();
    Listening::start(move |_, client| {
        let dispatch = dispatch.clone();
        async move { route(Client::from_stream(client), &dispatch, hops).await }
    })
    .await
}

async fn route(mut client: Client, dispatch: &Dispatch, [prefill, decode]: [SocketAddr; 2]) {
    let asked = client.read_until(|reader| reader.is_whole(0)).await;
    let kept = match dispatch.router {
        Router::MiniLb => String::new(),
        _ => traced(&asked.head),
    };
    let kept = format!("content-type: application/json\r\n{kept}connection: close\r\n");
    let first = dispatch.prefill.at.min(dispatch.decode.at);
    let send = async |leg: &Leg, to| {
        sleep(Duration::from_secs_f64(leg.at - first)).await;
        let mut there = Client::connect(to).await;
        there.post(&dispatch.path, &kept, &leg.body).await;
        there
    };
    let prefilled = async {
        let mut there = send(&dispatch.prefill, prefill).await;
        there.read_to_close().await
    };
    let decoding = send(&dispatch.decode, decode);
    let pass_on = async |mut there: Client, client: &mut Client| {
        drop(tokio::io::copy(&mut there.stream, &mut client.stream).await);
    };
    match dispatch.router {
        Router::Smg => {
            let passed = async { pass_on(decoding.await, &mut client).await };
            tokio::join!(prefilled, passed);
        }
        Router::Old => {
            let (_, there) = tokio::join!(prefilled, decoding);
            pass_on(there, &mut client).await;
        }
        Router::MiniLb => {
            let kind = match dispatch.decode.text().contains("application/json") {
                true => "application/json",
                false => "text/event-stream",
            };
            let own = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n");
            client.send(own + "connection: close\r\n\r\n").await;
            let passed = async { pass_body_on(decoding.await.stream, &mut client).await };
            tokio::join!(prefilled, passed);
        }
    }
}

async fn pass_body_on(mut from: TcpStream, to: &mut Client) {
    let (mut reply, mut buffer, mut sent) = (Reader::default(), vec![0; 65536], 0);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        reply.feed(&buffer[..read]);
        to.send(&reply.body[sent..]).await;
        sent = reply.body.len();
    }
}

/// The recorded spans of both servers for one room, as if they had been told these traces and parents.
pub fn spans(room: u64, [prefill, decode]: [&str; 2]) -> Vec<Value> {
    let all = read("spans_two_requests.json");
    let all = all.as_array().unwrap();
    let hex = format!("{room:#x}");
    let is_root = |span: &&Value| span["attrs"]["bootstrap_room"]["stringValue"] == hex.as_str();
    let mut found = Vec::new();
    for root in all.iter().filter(is_root) {
        let is_prefill = root["name"].as_str().unwrap().starts_with("prefill");
        let told = if is_prefill { prefill } else { decode };
        let part = |at: usize| Value::from(told.split('-').nth(at).unwrap());
        let mut below = vec![root["span"].clone()];
        let mut own = Vec::new();
        while let Some(id) = below.pop() {
            let children = all.iter().filter(|span| span["parent"] == id);
            below.extend(children.map(|span| span["span"].clone()));
            own.extend(all.iter().filter(|span| span["span"] == id));
        }
        found.extend(own.into_iter().map(|span| {
            let is_root = span["span"] == root["span"];
            let attributes = span["attrs"].as_object().unwrap().iter();
            let attributes = attributes.map(|(name, value)| (name.clone(), plain(value)));
            let retracted = Vec::<Value>::new();
            serde_json::json!({
                "trace_id": part(1), "span_id": span["span"],
                "parent": if is_root { part(2) } else { span["parent"].clone() },
                "name": span["name"], "kind": 1, "start_ns": span["start"], "end_ns": span["end"],
                "attrs": attributes.collect::<serde_json::Map<_, _>>(), "events": retracted,
                "status": {"code": 0}, "flags": 0,
            })
        }));
    }
    found
}

/// The value of an attribute as OTLP's JSON has it.
fn plain(value: &Value) -> Value {
    let (kind, value) = value.as_object().unwrap().iter().next().unwrap();
    match (kind.as_str(), value) {
        ("intValue", Value::String(digits)) => digits.parse::<i64>().unwrap().into(),
        _ => value.clone(),
    }
}

/// Seconds that a span of this name took.
pub fn took(spans: &[Value], name: &str) -> f64 {
    let mut named = spans.iter().filter(|span| span["name"] == name);
    let span = named.next().unwrap_or_else(|| panic!("{name}"));
    (span["end_ns"].as_u64().unwrap() - span["start_ns"].as_u64().unwrap()) as f64 / 1e9
}
