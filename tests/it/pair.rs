//! Prefill and decode on two servers: the recorded requests of a real pair, played again behind each of the three routers. Each
//! is one row, whose stages add up to its time, with both servers named and every wait as the servers told it.

use std::net::SocketAddr;

use queuescope::proxy::shared::ServerRole;
use queuescope::request::stages::{Breakdown, Spent};
use queuescope::table::Table;
use queuescope::table::join::{join, tell_pairs};
use serde_json::Value;

use crate::support::pair::{self, Dispatch, PlayedRouter, Router, took};
use crate::support::proxy::{Front, Row, assert_cells, known_workers, number, rows};
use crate::support::router::free_port;
use crate::support::spans;
use crate::support::upstream::Upstream;
use crate::support::wire::{Client, until};

mod killed;

/// Seconds that a wait may be told wrong.
const TOLERANCE: f64 = 1e-3;

/// A request that was played again.
struct Played {
    rows: Vec<Row>,
    /// The parts of each row's time, by name, seconds.
    parts: Vec<Vec<(String, f64)>>,
    /// What the servers told by their spans.
    spans: Vec<Value>,
    prefill: SocketAddr,
    decode: SocketAddr,
}

/// Whether to play it with a front. Behind a router that passes on no header also with hops alone.
fn fronts(dispatch: &Dispatch) -> &'static [bool] {
    match dispatch.router {
        Router::MiniLb => &[false, true],
        _ => &[true],
    }
}

/// Plays it, with responses in pieces of at most so many bytes.
async fn play(dispatch: &Dispatch, has_front: bool, split: usize, with_spans: bool) -> Played {
    let [prefill, decode] = [&dispatch.prefill, &dispatch.decode].map(|leg| leg.server(split));
    let (prefill, decode) = (prefill.await, decode.await);
    let (hops, mut workers) = known_workers(&[prefill.addr, decode.addr]);
    let router = PlayedRouter::start(dispatch, hops[0], hops[1]).await;
    if !has_front || dispatch.rooms.is_empty() {
        // Nobody says which of two streams of chat is the client's.
        let roles = [ServerRole::Prefill, ServerRole::Decode];
        let roles = workers.iter_mut().zip(roles);
        roles.for_each(|(worker, role)| worker.role = Some(role));
    }
    let upstream: Vec<SocketAddr> = has_front.then_some(router.addr).into_iter().collect();
    let engine = with_spans.then(free_port);
    let front = Front::with(&upstream, |config| {
        config.workers = workers;
        config.engine.traces.listen = engine;
    })
    .await;
    let client = if has_front { front.addr() } else { router.addr };
    let mut client = Client::connect(client).await;
    let answer = client.ask(&dispatch.path, &dispatch.headers, &dispatch.body);
    let answer = answer.await;
    assert_eq!(answer.status(), 200, "{}", dispatch.name());
    let mut told = Vec::new();
    if let Some(engine) = engine {
        let parents = [&prefill, &decode].map(parent);
        told = pair::spans(dispatch.rooms[0], [&parents[0], &parents[1]]);
        send(engine, &told).await;
    }
    let path = front.records();
    until("the row", || !rows(&path).is_empty()).await;
    front.proxy.drain().await;
    let (prefill, decode) = (prefill.addr, decode.addr);
    Played {
        rows: rows(&path),
        parts: parts(&path),
        spans: told,
        prefill,
        decode,
    }
}

fn parent(server: &Upstream) -> String {
    server.seen()[0].header("traceparent").unwrap()
}

async fn send(engine: SocketAddr, told: &[Value]) {
    let head = "content-type: application/x-protobuf\r\n";
    let mut client = Client::connect(engine).await;
    let answer = client.ask("/v1/traces", head, &spans::message(told)).await;
    assert_eq!(answer.status(), 200);
}

/// The parts of the rows that were read back; they add up to each row's time.
fn parts(path: &std::path::Path) -> Vec<Vec<(String, f64)>> {
    let table = Table::read(path).unwrap();
    let mut all = Vec::new();
    for at in 0..table.len() {
        let Some(breakdown) = Breakdown::of(&table.row(at)) else {
            all.push(Vec::new());
            continue;
        };
        let sum: i64 = breakdown.parts.iter().map(|part| part.nanos).sum();
        assert_eq!(sum, breakdown.total_nanos);
        let part = |spent: Spent, nanos: i64| (spent.name(), nanos as f64 / 1e9);
        let parts = breakdown.parts.iter();
        all.push(parts.map(|of| part(of.spent, of.nanos)).collect());
    }
    all
}

#[track_caller]
fn near(row: &Row, column: &str, expected: f64, name: &str) {
    let is = number(row, column);
    assert!(
        (is - expected).abs() < TOLERANCE,
        "{name}: {column} is {is}, not {expected}"
    );
}

impl Played {
    fn check(&self, dispatch: &Dispatch, split: usize) {
        let name = format!("{} in pieces of {split}", dispatch.name());
        let is_right = match dispatch.rooms.len() {
            rooms @ 2.. => dispatch.path != "/generate" || self.rows.len() == rooms,
            _ => self.rows.len() == 1,
        };
        assert!(is_right, "{name}: {:?}", self.rows);
        let room = dispatch.rooms[0].to_string();
        self.rows.iter().for_each(|row| self.check_row(row, &room));
        match self.spans.is_empty() {
            true => self.check_replies(dispatch, &name),
            false => self.check_spans(dispatch, &name),
        }
    }

    /// One sending to both servers.
    fn check_row(&self, row: &Row, room: &str) {
        let cells = [
            ("disaggregated", "True"),
            ("host", &*self.decode.to_string()),
            ("prefill_host", &self.prefill.to_string()),
            ("bootstrap_room", room),
            ("attempts", "1"),
            ("failed_attempts", ""),
            ("inconsistency", ""),
        ];
        assert_cells(row, cells);
    }

    /// What the replies alone tell: prefill's queue and forward, and decode's wait for a slot.
    fn check_replies(&self, dispatch: &Dispatch, name: &str) {
        let row = &self.rows[0];
        for (leg, column) in [
            (&dispatch.prefill, "prefill_queue_time"),
            (&dispatch.decode, "decode_queue_time"),
        ] {
            match leg.number("queue_time") {
                Some(told) => near(row, column, told, name),
                None => assert_eq!(row[column], "", "{name}"),
            }
        }
        for column in [
            "pure_queue_time",
            "decode_bootstrap_time",
            "kv_transfer_time",
            "tokenize_time",
        ] {
            assert_eq!(row[column], "", "{name}: nobody told {column}");
        }
        if let Some(end) = dispatch.prefill.number("prefill_finished_time") {
            let entry = dispatch.prefill.number("forward_entry_time").unwrap();
            near(row, "prefill_time", end - entry, name);
        }
    }

    /// All that the spans tell.
    fn check_spans(&self, dispatch: &Dispatch, name: &str) {
        let (row, parts) = (&self.rows[0], &self.parts[0]);
        let took = |name: &str| took(&self.spans, name);
        let [memory, queue, slot] =
            ["decode_bootstrap", "prefill_waiting", "decode_waiting"].map(took);
        let forward = took("prefill_forward");
        let rest = took("decode_transferred") - queue - forward;
        for (column, stage, expected) in [
            ("decode_bootstrap_time", "decode memory", memory),
            ("prefill_queue_time", "prefill queue", queue),
            ("prefill_time", "prefill", forward),
            ("kv_transfer_time", "KV transfer", rest),
            ("decode_queue_time", "decode slot", slot),
        ] {
            near(row, column, expected, name);
            let (_, part) = parts.iter().find(|(name, _)| name == stage).unwrap();
            assert!(
                (part - expected).abs() < TOLERANCE,
                "{name}: {stage}: {parts:?}"
            );
        }
        near(row, "pure_queue_time", memory + queue + slot, name);
        near(row, "kv_send_time", took("prefill_transfer_kv_cache"), name);
        let streamed = row["stream"] == "True" && dispatch.path == "/generate";
        assert!(!streamed || row["unseen"].is_empty(), "{name}: {row:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_recorded_request_is_one_row_that_names_both_servers() {
    let all = pair::all();
    let is_given = std::env::var_os("PD_RECORDINGS").is_some();
    assert!(is_given || all.len() >= 27, "the recordings are there");
    for split in [usize::MAX, 7] {
        for dispatch in &all {
            for has_front in fronts(dispatch) {
                let played = play(dispatch, *has_front, split, false).await;
                played.check(dispatch, split);
            }
        }
    }
}

/// Plays it with hops in processes of their own, each of which writes rows; `report --join` makes one of them.
async fn play_apart(dispatch: &Dispatch) -> Played {
    let [prefill, decode] = [&dispatch.prefill, &dispatch.decode].map(|leg| leg.server(61));
    let (prefill, decode) = (prefill.await, decode.await);
    let hops = [
        Front::hop(prefill.addr).await,
        Front::hop(decode.addr).await,
    ];
    let [to_prefill, to_decode] = hops.each_ref().map(Front::hop_addr);
    let router = PlayedRouter::start(dispatch, to_prefill, to_decode).await;
    let front = Front::with(&[router.addr], |_| ()).await;
    let answer = front.ask(&dispatch.path, &dispatch.headers, &dispatch.body);
    assert_eq!(answer.await.status(), 200, "{}", dispatch.name());
    let of_front = front.records();
    until("the front's row", || !rows(&of_front).is_empty()).await;
    let mut files = vec![of_front];
    for hop in &hops {
        until("the hop's row", || !rows(&hop.records()).is_empty()).await;
        files.push(hop.records());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("joined.csv");
    join(&files, &path).unwrap();
    Played {
        rows: rows(&path),
        parts: parts(&path),
        spans: Vec::new(),
        prefill: prefill.addr,
        decode: decode.addr,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_in_processes_of_their_own_are_joined_to_one_row() {
    let all = pair::all().into_iter();
    // By nothing else: the mini load balancer passes on no header.
    for dispatch in all.filter(|dispatch| dispatch.router != Router::MiniLb) {
        play_apart(&dispatch).await.check(&dispatch, 61);
    }
}

/// Nothing but the spans of the servers says what they are: streamed chat, through a router that passes on no header, with hops alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_learn_of_spans_what_their_servers_are() {
    let no_parents = ["00-0-0-1"; 2];
    let mut all = pair::all().into_iter();
    let mut first = all
        .find(|one| {
            let is_stream = one.decode.text().contains("event-stream");
            let has_spans = !pair::spans(one.rooms[0], no_parents).is_empty();
            one.path == "/v1/chat/completions" && is_stream && has_spans
        })
        .unwrap();
    first.router = Router::MiniLb;
    let mut second = first.clone();
    for leg in [&mut second.prefill, &mut second.decode] {
        let body = String::from_utf8(leg.body.clone()).unwrap();
        let body = body.replace(&first.rooms[0].to_string(), "4711");
        leg.body = body.into_bytes();
    }
    let [prefill, decode] = [&first.prefill, &first.decode].map(|leg| leg.server(usize::MAX));
    let (prefill, decode) = (prefill.await, decode.await);
    let (hops, workers) = known_workers(&[prefill.addr, decode.addr]);
    let engine = free_port();
    let front = Front::with(&[], |config| {
        config.workers = workers;
        config.engine.traces.listen = Some(engine);
    })
    .await;
    let path = front.records();
    for dispatch in [&first, &second] {
        let router = PlayedRouter::start(dispatch, hops[0], hops[1]).await;
        let mut client = Client::connect(router.addr).await;
        let answer = client.ask(&dispatch.path, &dispatch.headers, &dispatch.body);
        assert_eq!(answer.await.status(), 200);
        let parents = [&prefill, &decode].map(parent);
        let told = pair::spans(first.rooms[0], [&parents[0], &parents[1]]);
        send(engine, &told).await;
        let is_told = |row: &Row| !row["decode_bootstrap_time"].is_empty();
        until("a row with spans", || rows(&path).iter().any(is_told)).await;
    }
    front.proxy.drain().await;
    let mut of_second = rows(&path);
    of_second.retain(|row| row["bootstrap_room"] == "4711");
    let [row] = &of_second[..] else {
        panic!("{of_second:?}");
    };
    let (prefill, decode) = (prefill.addr.to_string(), decode.addr.to_string());
    assert_cells(row, [("host", &decode), ("prefill_host", &prefill)]);
}

/// Bodies that tell no room: the trace joins both legs where it is known what their servers do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legs_without_a_room_are_one_row_by_their_trace() {
    let all = pair::all().into_iter();
    let streams = all.filter(|one| {
        let is_stream = one.decode.text().contains("event-stream");
        one.path == "/generate" && one.router != Router::MiniLb && is_stream
    });
    let mut count = 0;
    for mut dispatch in streams {
        dispatch.prefill.body.clone_from(&dispatch.body);
        dispatch.decode.body.clone_from(&dispatch.body);
        dispatch.rooms.clear();
        let played = play(&dispatch, true, usize::MAX, false).await;
        let [row] = &played.rows[..] else {
            panic!("{:?}", played.rows);
        };
        played.check_row(row, "");
        played.check_replies(&dispatch, &dispatch.name());
        count += 1;
    }
    assert!(count >= 4, "{count}");
}

/// A row that cannot be read is not lost: a generator's file keeps it, and stays as it is; of the front's it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_pair_that_cannot_be_read_stay_and_are_told() {
    let dispatch = late_prefill(Router::Smg);
    let [prefill, decode] = [&dispatch.prefill, &dispatch.decode].map(|leg| leg.server(61));
    let (hops, workers) = known_workers(&[prefill.await.addr, decode.await.addr]);
    let router = PlayedRouter::start(&dispatch, hops[0], hops[1]).await;
    let front = Front::with(&[router.addr], |config| config.workers = workers).await;
    front
        .ask(&dispatch.path, &dispatch.headers, &dispatch.body)
        .await;
    until("the row", || !rows(&front.records()).is_empty()).await;
    let whole = std::fs::read(front.records()).unwrap();
    let broken = [&whole[..], b"not a row\n"].concat();
    let folder = tempfile::tempdir().unwrap();
    let [own, of_front] = ["requests.csv", "proxy.csv"].map(|name| folder.path().join(name));
    for (own_bytes, front_bytes) in [(&broken, &whole), (&whole, &broken)] {
        std::fs::write(&own, own_bytes).unwrap();
        std::fs::write(&of_front, front_bytes).unwrap();
        let told = match tell_pairs(&own, &of_front, None) {
            Ok(left_out) => left_out.unwrap(),
            Err(error) => {
                assert_eq!(&std::fs::read(&own).unwrap(), own_bytes);
                error.to_string()
            }
        };
        assert!(told.contains("1 of 2 rows cannot be read"), "{told}");
    }
    assert_eq!(rows(&own).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_spans_every_wait_is_known_and_the_stages_are_told_apart() {
    let (all, mut played) = (pair::all(), 0);
    let parents = ["00-0-0-1"; 2];
    for dispatch in &all {
        if pair::spans(dispatch.rooms[0], parents).is_empty() {
            continue;
        }
        for (router, split) in [
            (dispatch.router, usize::MAX),
            (Router::Smg, 61),
            (Router::Old, usize::MAX),
            (Router::MiniLb, 7),
        ] {
            let dispatch = Dispatch {
                router,
                ..dispatch.clone()
            };
            for has_front in fronts(&dispatch) {
                let played = play(&dispatch, *has_front, split, true).await;
                played.check(&dispatch, split);
            }
            played += 1;
        }
    }
    assert!(played >= 4);
}

/// A streamed request of the recordings whose prefill ended half a second after decode's first token, behind `router`.
fn late_prefill(router: Router) -> Dispatch {
    let mut all = pair::all().into_iter();
    let mut dispatch = all
        .find(|one| one.path == "/generate" && one.decode.text().contains("event-stream"))
        .unwrap();
    dispatch.router = router;
    let first_token = dispatch.decode.reply[1].0;
    dispatch.prefill.reply.last_mut().unwrap().0 = first_token + 0.5;
    dispatch.decode.reply.last_mut().unwrap().0 = first_token + 1.0;
    dispatch
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_holds_the_first_token_for_prefills_reply_is_told_so() {
    for (router, is_held) in [(Router::Old, true), (Router::Smg, false)] {
        let dispatch = late_prefill(router);
        let played = play(&dispatch, true, usize::MAX, false).await;
        played.check(&dispatch, usize::MAX);
        let mut parts = played.parts[0].iter();
        let has_part = parts.any(|(name, _)| name == "router hold");
        let is_told = !played.rows[0]["router_hold_time"].is_empty();
        assert_eq!((is_told, has_part), (is_held, is_held), "{:?}", played.rows);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_failed_is_a_servers_error_which_says_whose() {
    let killed = pair::read("client_prefill_killed.json");
    let killed = killed.as_array().unwrap().iter();
    let mut events = killed.filter_map(|one| one["chunks"][0][1].as_str());
    let event = events.find(|event| event.contains("Decode transfer failed"));
    let mut dispatch = late_prefill(Router::Smg);
    let head = dispatch.decode.reply[0].clone();
    let body = [event.unwrap(), "data: [DONE]\n\n"].concat();
    let body = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    dispatch.decode.reply = vec![head, (0.1, body.into_bytes())];
    let here = play(&dispatch, true, usize::MAX, false).await;
    for played in [here, play_apart(&dispatch).await] {
        assert_eq!(played.rows.len(), 1, "{:?}", played.rows);
        let error = format!(
            "500 Decode transfer failed: Lost connection with prefill instance ({})",
            played.prefill
        );
        let told = [
            ("outcome", "server_error"),
            ("status", "200"),
            ("error", &error),
        ];
        assert_cells(&played.rows[0], told);
    }
}
