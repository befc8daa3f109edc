//! Prefill and decode on two servers: the recorded requests of a real pair, played again behind each of the three routers. Each
//! is one row, whose stages add up to its time, with both servers named and every wait as the servers told it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use queuescope::request::Breakdown;
use queuescope::request::ServerRole;
use queuescope::table::join::{add_front_reports, join};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::listening::Listening;
use crate::support::pair::{self, Dispatch, Router, took};
use crate::support::proxy::{Front, Row, assert_cells, known_workers, number, rows};
use crate::support::read_rows;
use crate::support::spans;
use crate::support::upstream::{DONE, Upstream};
use crate::support::wire::{Client, until};

mod killed;

/// Seconds that a wait may be told wrong.
const TOLERANCE: f64 = 1e-3;
/// A trace and a parent, where none matters.
const NO_PARENTS: [&str; 2] = ["00-0-0-1"; 2];

/// How a request is played.
#[derive(Clone, Copy, Default)]
struct How {
    has_no_front: bool,
    /// Responses come in pieces of at most so many bytes.
    split: Option<usize>,
    /// The servers tell spans.
    has_spans: bool,
    /// The config says which server prefills.
    has_roles: bool,
}

const ROLES: How = How {
    has_no_front: false,
    split: None,
    has_spans: false,
    has_roles: true,
};

/// A request that was played again.
struct Played {
    rows: Vec<Row>,
    /// The parts of each row's time, by name, seconds.
    parts: Vec<Vec<(String, f64)>>,
    /// What the servers told by their spans.
    spans: Vec<Value>,
    /// What prefills and what decodes.
    servers: [SocketAddr; 2],
}

/// Servers that answer as they did, hops before them, the router, and a front.
struct Pair {
    servers: [Upstream; 2],
    hops: [SocketAddr; 2],
    router: Listening,
    front: Front,
}

async fn servers(dispatch: &Dispatch, split: Option<usize>) -> [Upstream; 2] {
    let split = split.unwrap_or(usize::MAX);
    let [prefill, decode] = [&dispatch.prefill, &dispatch.decode].map(|leg| leg.server(split));
    [prefill.await, decode.await]
}

impl Pair {
    async fn start(dispatch: &Dispatch, how: How) -> Pair {
        let servers = servers(dispatch, how.split).await;
        let (hops, mut workers) = known_workers(&servers.each_ref().map(|server| server.addr));
        let hops = [hops[0], hops[1]];
        let router = pair::router_of(dispatch, hops).await;
        if how.has_roles {
            workers[0].role = Some(ServerRole::Prefill);
            workers[1].role = Some(ServerRole::Decode);
        }
        let upstream = [router.addr];
        let upstream = if how.has_no_front { &[][..] } else { &upstream };
        let free = "127.0.0.1:0".parse().unwrap();
        let front = Front::with(upstream, |config| {
            config.workers = workers;
            config.engine.traces.listen = how.has_spans.then_some(free);
        });
        Pair {
            servers,
            hops,
            router,
            front: front.await,
        }
    }

    /// The servers tell the spans of their first request.
    async fn tell(&self, room: u64) -> Vec<Value> {
        let parent = |server: &Upstream| server.seen()[0].header("traceparent").unwrap();
        let parents = self.servers.each_ref().map(parent);
        let told = pair::spans(room, parents.each_ref().map(String::as_str));
        let engine = self.front.proxy.address("engine.traces").unwrap();
        crate::engine::send(engine, &spans::message(&told)).await;
        told
    }
}

async fn ask(addr: SocketAddr, dispatch: &Dispatch) {
    let mut client = Client::connect(addr).await;
    let answer = client.ask(&dispatch.path, &dispatch.headers, &dispatch.body);
    assert_eq!(answer.await.status(), 200, "{}", dispatch.name());
}

async fn play(dispatch: &Dispatch, how: How) -> Played {
    let pair = Pair::start(dispatch, how).await;
    let client = match how.has_no_front {
        true => pair.router.addr,
        false => pair.front.addr(),
    };
    ask(client, dispatch).await;
    let spans = match how.has_spans {
        true => pair.tell(dispatch.rooms[0]).await,
        false => Vec::new(),
    };
    let path = pair.front.records();
    until("the row", || !rows(&path).is_empty()).await;
    pair.front.proxy.drain().await;
    Played::read(&path, &pair.servers, spans)
}

/// Plays it with a front, or behind a router that passes on no header also with hops alone.
async fn check_played(dispatch: &Dispatch, how: How) {
    play(dispatch, how).await.check(dispatch);
    if dispatch.router == Router::MiniLb {
        let alone = How {
            has_no_front: true,
            // Nobody says which of two streams of chat is the client's.
            has_roles: true,
            ..how
        };
        play(dispatch, alone).await.check(dispatch);
    }
}

/// The parts of the rows that were read back; they add up to each row's time.
fn parts(path: &Path) -> Vec<Vec<(String, f64)>> {
    let table = read_rows(path);
    let of = |at| {
        let Some(breakdown) = Breakdown::of(&table.row(at)) else {
            return Vec::new();
        };
        let parts = breakdown.parts.iter();
        let sum: i64 = parts.clone().map(|part| part.nanos).sum();
        assert_eq!(sum, breakdown.total_nanos);
        let seconds = parts.map(|part| (part.spent.name(), part.nanos as f64 / 1e9));
        seconds.collect()
    };
    (0..table.len()).map(of).collect()
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
    fn read(path: &Path, servers: &[Upstream; 2], spans: Vec<Value>) -> Played {
        Played {
            rows: rows(path),
            parts: parts(path),
            spans,
            servers: servers.each_ref().map(|server| server.addr),
        }
    }

    fn check(&self, dispatch: &Dispatch) {
        let name = dispatch.name();
        let is_right = match dispatch.rooms.len() {
            rooms @ 2.. => dispatch.path != "/generate" || self.rows.len() == rooms,
            _ => self.rows.len() == 1,
        };
        assert!(is_right, "{name}: {:?}", self.rows);
        // One sending to both servers.
        let [prefill, decode] = self.servers.map(|server| server.to_string());
        let room = dispatch.rooms.first().map(u64::to_string);
        for row in &self.rows {
            let cells = [
                ("disaggregated", "True"),
                ("host", &decode),
                ("prefill_host", &prefill),
                ("bootstrap_room", room.as_deref().unwrap_or("")),
                ("attempts", "1"),
                ("failed_attempts", ""),
                ("inconsistency", ""),
            ];
            assert_cells(row, cells);
        }
        match self.spans.is_empty() {
            true => self.check_replies(dispatch, &name),
            false => self.check_spans(dispatch, &name),
        }
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
        let not_told = [
            ("pure_queue_time", ""),
            ("decode_bootstrap_time", ""),
            ("kv_transfer_time", ""),
            ("tokenize_time", ""),
        ];
        assert_cells(row, not_told);
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
            let is_near = (part - expected).abs() < TOLERANCE;
            assert!(is_near, "{name}: {stage}: {parts:?}");
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
    for split in [None, Some(7)] {
        let how = How { split, ..ROLES };
        join_all(all.iter().map(|of| check_played(of, how))).await;
    }
}

/// What joining makes of the file of a front and those of two hops, each of which has so many rows at least.
async fn joined(front: &Front, hops: &[Front; 2], sendings: usize) -> (TempDir, PathBuf) {
    let files = [front, &hops[0], &hops[1]].map(Front::records);
    for (file, count) in files.iter().zip([1, sendings, sendings]) {
        until("the rows", || rows(file).len() >= count).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("joined.csv");
    join(&files, &path).unwrap();
    (folder, path)
}

/// Plays it with hops in processes of their own, each of which writes rows; `report --join` makes one of them.
async fn play_apart(dispatch: &Dispatch) -> Played {
    let servers = servers(dispatch, Some(61)).await;
    let [prefill, decode] = servers.each_ref().map(|server| Front::hop(server.addr));
    let hops = [prefill.await, decode.await];
    let router = pair::router_of(dispatch, hops.each_ref().map(Front::hop_addr)).await;
    let front = Front::start(router.addr).await;
    ask(front.addr(), dispatch).await;
    let (_folder, path) = joined(&front, &hops, 1).await;
    Played::read(&path, &servers, Vec::new())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_in_processes_of_their_own_are_joined_to_one_row() {
    // By nothing else: the mini load balancer passes on no header.
    for dispatch in those(|dispatch| dispatch.router != Router::MiniLb) {
        play_apart(&dispatch).await.check(&dispatch);
    }
}

fn those(are: impl Fn(&Dispatch) -> bool) -> Vec<Dispatch> {
    pair::all().into_iter().filter(are).collect()
}

fn is_stream(dispatch: &Dispatch, path: &str) -> bool {
    dispatch.path == path && dispatch.decode.text().contains("event-stream")
}

fn has_spans(dispatch: &Dispatch) -> bool {
    !pair::spans(dispatch.rooms[0], NO_PARENTS).is_empty()
}

/// Nothing but the spans of the servers says what they are: streamed chat, through a router that passes on no header, with hops alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_learn_of_spans_what_their_servers_are() {
    let mut first = those(|one| is_stream(one, "/v1/chat/completions") && has_spans(one)).remove(0);
    first.router = Router::MiniLb;
    let mut second = first.clone();
    for leg in [&mut second.prefill, &mut second.decode] {
        let body = String::from_utf8(leg.body.clone()).unwrap();
        let body = body.replace(&first.rooms[0].to_string(), "4711");
        leg.body = body.into_bytes();
    }
    let how = How {
        has_no_front: true,
        has_spans: true,
        ..How::default()
    };
    let pair = Pair::start(&first, how).await;
    let path = pair.front.records();
    ask(pair.router.addr, &first).await;
    pair.tell(first.rooms[0]).await;
    let is_told = |row: &Row| !row["decode_bootstrap_time"].is_empty();
    until("a row with spans", || rows(&path).iter().any(is_told)).await;
    let router = pair::router_of(&second, pair.hops).await;
    ask(router.addr, &second).await;
    pair.front.proxy.drain().await;
    let mut of_second = rows(&path);
    of_second.retain(|row| row["bootstrap_room"] == "4711");
    assert_eq!(of_second.len(), 1, "{of_second:?}");
    let [prefill, decode] = pair.servers.map(|server| server.addr.to_string());
    let cells = [("host", &*decode), ("prefill_host", &prefill)];
    assert_cells(&of_second[0], cells);
}

/// Bodies that tell no room: the trace joins both legs where it is known what their servers do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legs_without_a_room_are_one_row_by_their_trace() {
    let mut streams = those(|one| one.router != Router::MiniLb && is_stream(one, "/generate"));
    assert!(streams.len() >= 4);
    for dispatch in &mut streams {
        dispatch.prefill.body.clone_from(&dispatch.body);
        dispatch.decode.body.clone_from(&dispatch.body);
        dispatch.rooms.clear();
        play(dispatch, ROLES).await.check(dispatch);
    }
}

/// A row that cannot be read is not lost: a generator's file keeps it, and stays as it is; of the front's it is told.
#[test]
fn rows_of_a_pair_that_cannot_be_read_stay_and_are_told() {
    let whole = "req_id,arrival_time,outcome,disaggregated\na,1,ok,True\n".to_owned();
    let broken = format!("{whole}not a row\n");
    let folder = tempfile::tempdir().unwrap();
    let [own, of_front] = ["requests.csv", "proxy.csv"].map(|name| folder.path().join(name));
    for (own_bytes, front_bytes) in [(&broken, &whole), (&whole, &broken)] {
        std::fs::write(&own, own_bytes).unwrap();
        std::fs::write(&of_front, front_bytes).unwrap();
        let told = match add_front_reports(&own, &of_front, None) {
            Ok(left_out) => left_out.unwrap(),
            Err(error) => {
                assert_eq!(&std::fs::read_to_string(&own).unwrap(), own_bytes);
                error.to_string()
            }
        };
        assert!(told.contains("1 of 2 rows cannot be read"), "{told}");
    }
    assert_eq!(rows(&own).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_spans_every_wait_is_known_and_the_stages_are_told_apart() {
    let with_spans = those(has_spans);
    assert!(!with_spans.is_empty());
    for dispatch in with_spans {
        for (router, split) in [
            (dispatch.router, None),
            (Router::Smg, Some(61)),
            (Router::Old, None),
            (Router::MiniLb, Some(7)),
        ] {
            let dispatch = dispatch.clone();
            let behind = Dispatch { router, ..dispatch };
            let how = How {
                split,
                has_spans: true,
                has_roles: router == Router::MiniLb,
                ..How::default()
            };
            check_played(&behind, how).await;
        }
    }
}

/// A streamed request of the recordings whose prefill ended half a second after decode's first token, behind `router`.
fn late_prefill(router: Router) -> Dispatch {
    let mut dispatch = those(|one| is_stream(one, "/generate")).remove(0);
    dispatch.router = router;
    let first_token = dispatch.decode.reply[1].0;
    // Its last event, and behind that the end of its chunks.
    for (at, _) in dispatch.prefill.reply.iter_mut().rev().take(2) {
        *at = first_token + 0.5;
    }
    dispatch.decode.reply.last_mut().unwrap().0 = first_token + 1.0;
    dispatch
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_holds_the_first_token_for_prefills_reply_is_told_so() {
    for (router, is_held) in [(Router::Old, true), (Router::Smg, false)] {
        let dispatch = late_prefill(router);
        let played = play(&dispatch, ROLES).await;
        played.check(&dispatch);
        let mut parts = played.parts[0].iter();
        let has_part = parts.any(|(name, _)| name == "router hold");
        let is_told = !played.rows[0]["router_hold_time"].is_empty();
        assert_eq!((is_told, has_part), (is_held, is_held), "{:?}", played.rows);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_failed_is_a_servers_error_which_says_whose() {
    let mut dispatch = late_prefill(Router::Smg);
    let head = dispatch.decode.reply[0].clone();
    let body = pair::failed_transfer() + DONE;
    let body = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    dispatch.decode.reply = vec![head, (0.1, body.into_bytes())];
    let here = play(&dispatch, How::default()).await;
    for played in [here, play_apart(&dispatch).await] {
        assert_eq!(played.rows.len(), 1, "{:?}", played.rows);
        let [prefill, _] = played.servers;
        let error = "500 Decode transfer failed: Lost connection with prefill instance";
        let told = [
            ("outcome", "server_error"),
            ("status", "200"),
            ("error", &format!("{error} (prefill server {prefill})")),
        ];
        assert_cells(&played.rows[0], told);
    }
}
