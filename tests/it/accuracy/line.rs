//! The parts in a row, each with its delays, and what they wrote down.

use std::time::Duration;

use queuescope::clock::{Clock, NANOS, Stamp};
use queuescope::sim::{Served, Sim};
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::support::delays::{Held, Network, Piece, Router};
use crate::support::generator;
use crate::support::proxy::{Front, Row, workers};
use crate::support::wire::{Client, PATIENCE, Reader, until};

/// The delays that are laid, beside what the machine takes by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Laid {
    /// Any of [`Laid::ALL`], and `stall`: the client stops reading for so long.
    pub what: &'static str,
    /// How far the engine's clock is ahead, seconds.
    pub skew_s: f64,
}

impl Laid {
    /// `router_back`: the router holds the first event of the response; `queue`: another request holds the server's only place.
    pub const ALL: &str = "router there back router_back tokenize queue prefill decode";

    pub fn of(&self, part: &str) -> Duration {
        let is_laid = self.what.split(' ').any(|laid| laid == part);
        if is_laid { LONG } else { Duration::ZERO }
    }

    pub fn stalls(&self) -> bool {
        !self.of("stall").is_zero()
    }
}

/// All parts, and what is laid out.
pub struct Line {
    laid: Laid,
    clock: Clock,
    router: Router,
    network: Network,
    front: Front,
    sim: Sim,
}

/// What the client wrote down.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub asked: Stamp,
    pub first_got: Stamp,
    pub last_got: Stamp,
    /// It knew that all before it stood still; it was about to read on.
    pub paused: Option<(Stamp, Stamp)>,
}

/// What all injectors wrote down, on our clock.
#[derive(Clone, Debug)]
pub struct Truth {
    pub client: Asked,
    pub router: Held,
    pub net_read: Stamp,
    pub net_sent: Stamp,
    pub first_back: Stamp,
    pub last_back: Stamp,
    pub received: Stamp,
    pub queue_start: Stamp,
    pub queue_end: Stamp,
    pub first_token: Stamp,
    pub finish: Stamp,
}

/// A delay that is laid out.
const LONG: Duration = Duration::from_millis(120);
/// Requests without any delay before the measured one, from which the engine's clock is learned.
const WARM_UP: usize = 4;
const PROMPT: usize = 100;
const TOKENS: u32 = 12;
/// Enough bytes to fill every buffer between server and client: the simulated text grows from event to event.
const MANY_TOKENS: u32 = 2_500;

impl Line {
    pub async fn start(laid: Laid) -> Line {
        let clock = Clock::system();
        let decode_step_ms = 1e3 * laid.of("decode").as_secs_f64() / f64::from(TOKENS - 1);
        let sim = generator::sim(|config| {
            config.clock_skew_s = laid.skew_s;
            let profile = &mut config.profile;
            profile.max_running_requests = 1;
            profile.prefill_tokens_per_s = match laid.of("prefill").as_secs_f64() {
                0.0 => 1e6,
                seconds => PROMPT as f64 / seconds,
            };
            profile.decode_step_ms = match laid.stalls() {
                true => 2e-2,
                false => decode_step_ms.max(2.0),
            };
            profile.decode_step_per_seq_ms = 0.0;
            profile.tokenize_ms = laid.of("tokenize").as_secs_f64() * 1e3;
        });
        let network = Network::start(sim.addr(), clock.clone()).await;
        let router = Router::start(clock.clone()).await;
        let workers = workers(&[network.addr]);
        let front = Front::with(&[router.addr], |config| config.workers = workers).await;
        router.sends_to(front.hop_addr());
        Line {
            laid,
            clock,
            router,
            network,
            front,
            sim,
        }
    }

    async fn ask(&self, id: &str, prompt: usize, tokens: u32) -> Asked {
        let mut client = Client::with_small_buffer(self.front.addr()).await;
        let body = json!({
            "text": "w ".repeat(prompt), "stream": true,
            "sampling_params": { "max_new_tokens": tokens, "ignore_eos": true }
        });
        let body = body.to_string();
        let asked = self.clock.now();
        let id_header = format!("x-request-id: {id}\r\n");
        client.post("/generate", &id_header, body.as_bytes()).await;
        let mut reader = Reader::default();
        let mut first_got = None;
        let mut paused = None;
        let mut buffer = vec![0; 65_536];
        while !reader.is_whole(usize::MAX) {
            let read = tokio::time::timeout(PATIENCE, client.stream.read(&mut buffer)).await;
            let read = read.expect("the response came in time").unwrap();
            assert!(read > 0, "the response came whole");
            reader.feed(&buffer[..read]);
            if first_got.is_none() && has_first_token(&reader.body) {
                first_got = Some(self.clock.now());
                if id == "measured" && self.laid.stalls() {
                    paused = Some(self.pause(10 * LONG).await);
                }
            }
        }
        Asked {
            asked,
            first_got: first_got.expect("a token"),
            last_got: self.clock.now(),
            paused,
        }
    }

    /// Reads nothing until all that the kernels and the proxy take is full, and then for `pause` more.
    async fn pause(&self, pause: Duration) -> (Stamp, Stamp) {
        let (mut passed, mut still) = (0, 0);
        while still < 40 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = self.router.passed_back();
            still = if now == passed { still + 1 } else { 0 };
            passed = now;
        }
        let stands = self.clock.now();
        tokio::time::sleep(pause).await;
        (stands, self.clock.now())
    }

    /// Learns the engine's clock without delays, then lays them and sends the request that is measured. Its
    /// row, what the injectors say, and the widest that the engine's clock may be known, nanoseconds.
    pub async fn run(self) -> (Row, Truth, i64) {
        let mut known = Vec::new();
        for n in 0..WARM_UP {
            let id = format!("warm-up-{n}");
            let asked = self.ask(&id, 1, 2).await;
            // The bounds of one request are no wider than what lies between the router's sending and the
            // server's receipt, and between the first token and the client's reading it.
            let served = self.served(&id).await;
            let sent = self.router.last().sent;
            let there = self.ours(Some(served.received)).nanos_since(sent);
            let back = asked
                .first_got
                .nanos_since(self.ours(served.moments.first_token));
            known.push((asked.asked, there + back));
        }
        // What passed so far is forgotten.
        self.network.passed();
        let of = |part| self.laid.of(part);
        self.router.holds(of("router"), of("router_back"));
        self.network.delays([of("there"), of("back")]);
        if !of("queue").is_zero() {
            self.occupy().await;
        }
        let tokens = match self.laid.stalls() {
            true => MANY_TOKENS,
            false => TOKENS,
        };
        let client = self.ask("measured", PROMPT, tokens).await;
        let served = self.served("measured").await;
        let [there, back] = self.network.passed();
        let truth = Truth {
            client,
            router: self.router.last(),
            net_read: there.first().unwrap().read,
            // The server stamps a request when it has its head: the body may come in a later piece.
            net_sent: there.first().unwrap().sent,
            first_back: back[first_piece(&back)].sent,
            last_back: back.last().unwrap().sent,
            received: self.ours(Some(served.received)),
            queue_start: self.ours(served.moments.queue_start),
            queue_end: self.ours(served.moments.queue_end),
            first_token: self.ours(served.moments.first_token),
            finish: self.ours(served.moments.finish),
        };
        let mut rows = self.front.rows().await;
        let row = rows.pop().unwrap();
        let now = self.clock.now();
        // Half the width, and what both sides are widened by: drift since then (100 ppm), 5 µs and rounding.
        let widened = |(at, width): (Stamp, i64)| width / 2 + now.nanos_since(at) / 10_000 + 5_010;
        let known = known.into_iter().map(widened).min().unwrap();
        assert_eq!(row["req_id"], "measured");
        (row, truth, known)
    }

    /// Another request takes the server's only place, straight, and leaves when ours has waited for it.
    async fn occupy(&self) {
        let mut other = Client::connect(self.sim.addr()).await;
        // Not streamed: it costs nothing while it goes on.
        let body =
            b"{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":30000,\"ignore_eos\":true}}";
        other.post("/generate", "", body).await;
        let mut observer = Client::connect(self.sim.addr()).await;
        let runs = shows(&mut observer, "sglang:num_running_reqs{");
        tokio::time::timeout(PATIENCE, runs).await.unwrap();
        let hold = LONG + self.laid.of("tokenize");
        tokio::spawn(async move {
            shows(&mut observer, "sglang:num_queue_reqs{").await;
            // What is being tokenized counts as waiting.
            tokio::time::sleep(hold).await;
            // Its connection closes: the server takes it out.
            drop(other);
        });
    }

    /// The server's own account of a request.
    async fn served(&self, id: &str) -> Served {
        let is_it = |one: &Served| one.x_request_id.as_deref() == Some(id);
        let find = || self.sim.served().into_iter().find(is_it);
        until("the server's account", || find().is_some()).await;
        find().unwrap()
    }

    fn ours(&self, theirs: Option<Stamp>) -> Stamp {
        let skew = (self.laid.skew_s * NANOS as f64) as i64;
        theirs.unwrap().plus_nanos(-skew)
    }
}

/// Waits until one of the server's gauges is 1.
async fn shows(observer: &mut Client, gauge: &str) {
    loop {
        let get = "GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n";
        observer.send(get).await;
        let shown = observer.response().await.text();
        let mut lines = shown.lines().filter(|line| line.starts_with(gauge));
        if lines.any(|line| line.ends_with(" 1")) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Whether the first event is there to its end.
fn has_first_token(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let event = text.split_once("\n\n");
    event.is_some_and(|(event, _)| event.contains("\"completion_tokens\":1,"))
}

/// The piece with which the first event is complete.
fn first_piece(pieces: &[Piece]) -> usize {
    let mut all = Vec::new();
    let whole = pieces.iter().position(|piece| {
        all.extend_from_slice(&piece.bytes);
        has_first_token(&all)
    });
    whole.unwrap()
}
