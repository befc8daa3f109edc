//! A server of a pair is killed: what the router sends to both in vain, and again in new rooms, is one row all the same.

use std::net::SocketAddr;
use std::sync::Arc;

use queuescope::config::proxy::Worker;
use queuescope::request::ServerRole;

use super::joined;
use crate::support::admin::ask;
use crate::support::listening::Listening;
use crate::support::pair::traced;
use crate::support::proxy::{Front, Row, assert_cells, known_workers, rows};
use crate::support::router::free_port;
use crate::support::upstream::{Step, Upstream};
use crate::support::wire::{Client, until};

/// The killed server refuses connections, or closes them at once; it prefilled, or decoded; and in the end the router passes its hop's
/// error on, or answers for itself. It may send again under the room that it had, as one does that its client named.
#[derive(Clone, Copy, Debug)]
struct Killed {
    refuses: bool,
    prefilled: bool,
    is_passed_on: bool,
    keeps_room: bool,
}

const SENDINGS: usize = 3;

impl Killed {
    fn all() -> impl Iterator<Item = Killed> {
        (0..16).map(|number| Killed {
            refuses: number & 1 == 0,
            prefilled: number & 2 == 0,
            is_passed_on: number & 4 == 0,
            keeps_room: number & 8 != 0,
        })
    }

    fn outcome(self) -> &'static str {
        match self.refuses {
            true => "proxy_error",
            false => "upstream_died",
        }
    }

    /// The server that prefills and the one that decodes, of these two.
    fn in_order<T>(self, killed: T, alive: T) -> [T; 2] {
        match self.prefilled {
            true => [killed, alive],
            false => [alive, killed],
        }
    }

    /// Hops of both, by name and role.
    fn workers(self, killed: SocketAddr, alive: SocketAddr) -> ([SocketAddr; 2], Vec<Worker>) {
        let (hops, mut workers) = known_workers(&[killed, alive]);
        let roles = self.in_order(0, 1).into_iter();
        for (place, role) in roles.zip([ServerRole::Prefill, ServerRole::Decode]) {
            workers[place].role = Some(role);
        }
        ([hops[0], hops[1]], workers)
    }

    /// A router before hops of both, as smg 1.13.0 and sglang-router 0.3.2 are: it sends to both, leaves the other at the error, sends
    /// again in a new room, and gives up.
    async fn route(self, mut client: Client, hops: [SocketAddr; 2], alive: &Upstream) {
        let [killed, other] = hops;
        let asked = client.read_until(|reader| reader.is_whole(0)).await;
        let kept = format!("{}connection: close\r\n", traced(&asked.head));
        let mut error = Vec::new();
        for sending in 1..=SENDINGS {
            let room = if self.keeps_room { SENDINGS } else { sending };
            let body = format!("{{\"text\":\"a\",\"stream\":true,\"bootstrap_room\":{room}}}");
            let mut left = Client::connect(other).await;
            left.post("/generate", &kept, body.as_bytes()).await;
            until("the other leg", || alive.seen().len() == sending).await;
            let mut failed = Client::connect(killed).await;
            failed.post("/generate", &kept, body.as_bytes()).await;
            error = failed.read_to_close().await;
        }
        let own = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}".to_vec();
        client
            .send(if self.is_passed_on { error } else { own })
            .await;
        assert!(client.is_closed().await);
    }
}

/// Who serves.
struct Pair {
    killed: SocketAddr,
    alive: Arc<Upstream>,
    _closing: Listening,
}

impl Pair {
    async fn new(given: Killed) -> Pair {
        let alive = Upstream::playing(vec![Step::Silence]).await;
        let closing = Listening::start(|_, stream| async move { drop(stream) }).await;
        Pair {
            killed: if given.refuses {
                free_port()
            } else {
                closing.addr
            },
            alive: Arc::new(alive),
            _closing: closing,
        }
    }

    /// A router before these hops.
    async fn router(&self, given: Killed, hops: [SocketAddr; 2]) -> Listening {
        let alive = self.alive.clone();
        let router = Listening::start(move |_, client| {
            let alive = alive.clone();
            async move { given.route(Client::from_stream(client), hops, &alive).await }
        });
        router.await
    }

    /// With a router before hops that are to be made.
    async fn routed(given: Killed) -> (Pair, Listening, Vec<Worker>) {
        let pair = Pair::new(given).await;
        let (hops, workers) = given.workers(pair.killed, pair.alive.addr);
        let router = pair.router(given, hops).await;
        (pair, router, workers)
    }

    /// Both servers are named, the killed one as the one that failed, once a sending.
    fn check(&self, given: Killed, row: &Row) {
        let [prefill, decode] = given.in_order(self.killed, self.alive.addr);
        let (prefill, decode) = (prefill.to_string(), decode.to_string());
        let cells = [
            ("host", &*decode),
            ("prefill_host", &prefill),
            ("disaggregated", "True"),
            ("bootstrap_room", "3"),
            ("inconsistency", ""),
        ];
        assert_cells(row, cells);
        self.check_sendings(given, row, SENDINGS - 1);
        self.check_error(given, row);
        if !given.is_passed_on {
            assert_eq!(row["ended_in"], "router", "{given:?}: {row:?}");
        }
    }

    /// The error says which server was lost.
    fn check_error(&self, given: Killed, row: &Row) {
        let role = if given.prefilled { "prefill" } else { "decode" };
        let lost = format!("({role} server {}: {})", self.killed, given.outcome());
        assert!(row["error"].ends_with(&lost), "{given:?}: {row:?}");
    }

    fn check_sendings(&self, given: Killed, row: &Row, failed: usize) {
        assert_eq!(row["attempts"], SENDINGS.to_string(), "{given:?}: {row:?}");
        let told: Vec<&str> = row["failed_attempts"].split("; ").collect();
        let outcome = given.outcome();
        let is_of_killed = |told: &&str| told.contains(&format!(" {outcome} 502 after "));
        assert_eq!(told.len(), failed, "{given:?}: {told:?}");
        assert!(told.iter().all(is_of_killed), "{given:?}: {told:?}");
    }
}

/// Asks a front once; the status, and the row.
async fn asked(front: Front) -> (u16, Row) {
    let answer = front.ask("/generate", ASKS, b"{\"text\":\"a\",\"stream\":true}");
    (answer.await.status(), front.only_row().await)
}

const ASKS: &str =
    "x-request-id: a\r\ntraceparent: 00-000000000000000000000000000000aa-00000000000000bb-01\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_sending_is_one_attempt_and_both_servers_are_named() {
    for given in Killed::all() {
        let (pair, router, workers) = Pair::routed(given).await;
        let front = Front::with(&[router.addr], |config| config.workers = workers).await;
        let (status, row) = asked(front).await;
        assert_eq!(status, if given.is_passed_on { 502 } else { 503 });
        pair.check(given, &row);
    }
}

/// Its hop breaks the connection before it has read which sending it is of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leg_that_a_fault_ends_is_of_its_sending() {
    let given = Killed::all().find(|given| !given.is_passed_on).unwrap();
    let (pair, router, workers) = Pair::routed(given).await;
    let front = Front::with(&[router.addr], |config| {
        config.workers = workers;
        config.fault_injection = true;
    })
    .await;
    let admin = front.proxy.address("admin").unwrap();
    let set = ask(admin, "PUT", "/faults/w0", "", r#"{"kind":"reset"}"#).await;
    assert_eq!(set.status(), 200, "{}", set.text());
    let (status, row) = asked(front).await;
    assert_eq!(status, 503);
    let cells = [
        ("attempts", "3"),
        ("bootstrap_room", "3"),
        ("host", &*pair.alive.addr.to_string()),
        ("ended_in", "router"),
    ];
    assert_cells(&row, cells);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_front_each_sending_has_one_row() {
    for given in Killed::all().filter(|given| !given.keeps_room) {
        let (pair, router, workers) = Pair::routed(given).await;
        let hops = Front::with(&[], |config| config.workers = workers).await;
        let mut client = Client::connect(router.addr).await;
        client.ask("/generate", ASKS, b"{}").await;
        let rows = hops.rows().await;
        let mut rooms: Vec<&str> = rows.iter().map(|row| &*row["bootstrap_room"]).collect();
        rooms.sort_unstable();
        assert_eq!(rooms, ["1", "2", "3"], "{given:?}: {rows:#?}");
        let [prefill, decode] = given.in_order(pair.killed, pair.alive.addr);
        let host = match given.refuses && !given.prefilled {
            true => String::new(),
            false => decode.to_string(),
        };
        for row in &rows {
            let hosts = [("host", &*host), ("prefill_host", &prefill.to_string())];
            assert_cells(row, hosts);
            if given.prefilled {
                pair.check_error(given, row);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joined_files_tell_each_sending_once() {
    for given in Killed::all().filter(|given| !given.is_passed_on) {
        let pair = Pair::new(given).await;
        let [killed, alive] = [pair.killed, pair.alive.addr].map(Front::hop);
        let hops = [killed.await, alive.await];
        let addrs = hops.each_ref().map(Front::hop_addr);
        let router = pair.router(given, addrs).await;
        let front = Front::start(router.addr).await;
        let answer = front.ask("/generate", ASKS, b"{\"text\":\"a\",\"stream\":true}");
        assert_eq!(answer.await.status(), 503);
        let (_folder, path) = joined(&front, &hops, SENDINGS).await;
        let [row] = &rows(&path)[..] else {
            panic!("{given:?}");
        };
        // Which of them answered, if any, no file says.
        pair.check_sendings(given, row, SENDINGS);
        assert_eq!(row["ended_in"], "router", "{given:?}");
    }
}
