//! Faults injected at a hop: each does what it says, to the requests it says, and is written down.

use std::net::SocketAddr;
use std::sync::Arc;

use queuescope::fault::Fault;
use serde_json::{Value, json};

use crate::support::admin::{ask, get};
use crate::support::assert_says;
use crate::support::proxy::{Front, answering, workers};
use crate::support::upstream::{Gate, Step, Upstream};
use crate::support::wire::{
    Client, Response, chunk, json_response, post, stream_head, until, until_async,
};

/// Two hops before one server.
struct Hops {
    front: Front,
    server: Upstream,
}

impl Hops {
    async fn start(steps: Vec<Step>) -> Hops {
        let server = Upstream::start(move |_, _| steps.clone()).await;
        let front = Front::with(&[server.addr], |config| {
            config.workers = workers(&[server.addr, server.addr]);
            config.fault_injection = true;
        })
        .await;
        Hops { front, server }
    }

    fn addr(&self, worker: usize) -> SocketAddr {
        let worker = format!("worker w{worker}");
        self.front.proxy.address(&worker).unwrap()
    }

    async fn set(&self, fault: Value) {
        let admin = self.front.proxy.address("admin").unwrap();
        let set = ask(admin, "PUT", "/faults/w0", "", &fault.to_string()).await;
        assert_eq!(set.status(), 200, "{}", set.text());
        assert_eq!(set.json()["workers"]["w0"]["fault"]["kind"], fault["kind"]);
        assert_eq!(set.json()["workers"]["w1"], Value::Null);
    }

    async fn clear(&self) {
        let admin = self.front.proxy.address("admin").unwrap();
        let cleared = ask(admin, "DELETE", "/faults/w0", "", "").await;
        assert_eq!(cleared.json()["workers"]["w0"], Value::Null);
    }

    /// The entries of the log, once there are so many.
    async fn log(&self, entries: usize) -> Vec<Value> {
        let mut found = Vec::new();
        until_async("so many entries", async || {
            let admin = self.front.proxy.address("admin").unwrap();
            let log = get(admin, "/faults/log").await.json();
            assert_eq!(log["dropped"], 0, "{log}");
            found = log["entries"].as_array().unwrap().clone();
            found.len() >= entries
        })
        .await;
        assert_eq!(found.len(), entries, "{found:?}");
        found
    }

    fn injected(&self, kind: &str) -> u64 {
        let labels = format!("{{kind=\"{kind}\",worker=\"w0\"}} ");
        self.front
            .counter(&format!("queuescope_faults_injected_total{labels}"))
    }

    /// How the hops say that their requests ended; they have rows, as there is no front that saw them.
    async fn outcomes(self) -> Vec<String> {
        let rows = self.front.rows().await;
        for row in rows.iter().filter(|row| row["outcome"] == "proxy_error") {
            assert!(row["error"].contains("an injected fault"), "{row:?}");
        }
        rows.iter().map(|row| row["outcome"].clone()).collect()
    }

    /// One request of this id on a connection of its own.
    async fn request(&self, worker: usize, id: &str) -> Response {
        let mut client = Client::connect(self.addr(worker)).await;
        let id = format!("x-request-id: {id}\r\n");
        client.ask("/generate", &id, b"{}").await
    }
}

fn answer() -> Vec<Step> {
    vec![Step::Send(json_response("{}"))]
}

/// Whether the other side reset the connection before any byte.
async fn is_reset(client: &mut Client) -> bool {
    use tokio::io::AsyncReadExt;
    let read = client.stream.read(&mut [0; 16]).await;
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

/// Whether a new connection is reset, be it before it is told of or after.
async fn is_refused(addr: SocketAddr) -> bool {
    match tokio::net::TcpStream::connect(addr).await {
        Ok(stream) => is_reset(&mut Client::from_stream(stream)).await,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_refuses_resets_connections_unread() {
    let hops = Hops::start(answer()).await;
    let mut kept = Client::connect(hops.addr(0)).await;
    assert_eq!(kept.ask("/generate", "", b"{}").await.status(), 200);
    hops.set(json!({"kind": "refuse"})).await;
    assert!(is_refused(hops.addr(0)).await);
    kept.post("/generate", "x-request-id: kept\r\n", b"{}")
        .await;
    assert!(is_reset(&mut kept).await);
    assert_eq!(hops.request(1, "other").await.status(), 200);
    let log = hops.log(2).await;
    assert_eq!(log[0]["request_id"], Value::Null);
    assert_eq!(log[0]["kind"], "refuse");
    assert!(log[0]["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert_eq!(log[1]["request_id"], "kept");
    assert_eq!(hops.injected("refuse"), 2);
    hops.clear().await;
    assert_eq!(hops.request(0, "after").await.status(), 200);
    assert_eq!(hops.server.seen().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_spared_serves_its_first_request() {
    let hops = Hops::start(answer()).await;
    hops.set(json!({"kind": "refuse", "probability": 0.5, "seed": 3}))
        .await;
    let mut refused = 0;
    for _ in 0..60 {
        // The reset may be told of at once, or after the request was sent, or while it was.
        let Ok(stream) = tokio::net::TcpStream::connect(hops.addr(0)).await else {
            refused += 1;
            continue;
        };
        let mut client = Client::from_stream(stream);
        use tokio::io::AsyncWriteExt;
        let request = post("/generate", "", b"{}");
        let _ = client.stream.write_all(&request).await;
        let response = client
            .read_until(|reader| reader.is_whole(usize::MAX))
            .await;
        refused += u64::from(response.head.is_empty());
    }
    // The seed is fixed: so many chances, and the share that is right for it.
    let fault = Fault::parse(br#"{"kind":"refuse","probability":0.5,"seed":3}"#).unwrap();
    assert_eq!(refused, (0..60).filter(|n| fault.takes(*n)).count() as u64);
    assert_eq!(hops.injected("refuse"), refused);
    let admin = hops.front.proxy.address("admin").unwrap();
    let shown = get(admin, "/faults").await.json();
    assert_eq!(shown["workers"]["w0"]["chances"], 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_at_the_health_use_nothing_up() {
    let hops = Hops::start(answer()).await;
    hops.set(json!({"kind": "reset", "count": 1})).await;
    let mut client = Client::connect(hops.addr(0)).await;
    for path in ["/health", "/get_model_info", "/generate"] {
        // A GET of `/generate` generates nothing.
        client
            .send(format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n"))
            .await;
        assert_eq!(client.response().await.status(), 200);
    }
    client.post("/generate", "", b"{}").await;
    assert!(is_reset(&mut client).await);
    assert_eq!(hops.log(1).await[0]["chance"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_comes_after_the_head_and_before_the_server() {
    let hops = Hops::start(answer()).await;
    hops.set(json!({"kind": "reset", "count": 2})).await;
    for n in 0..3 {
        let mut client = Client::connect(hops.addr(0)).await;
        let id = format!("x-request-id: r{n}\r\n");
        client.post("/generate", &id, b"{}").await;
        if n < 2 {
            assert!(is_reset(&mut client).await, "{n}");
        } else {
            assert_eq!(client.response().await.status(), 200);
        }
    }
    let log = hops.log(2).await;
    let ids: Vec<_> = log.iter().map(|entry| &entry["request_id"]).collect();
    assert_eq!(ids, ["r0", "r1"]);
    assert_eq!((hops.server.seen().len(), hops.injected("reset")), (1, 2));
    let outcomes = hops.outcomes().await;
    assert_eq!(outcomes, ["proxy_error", "proxy_error", "ok"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_holds_requests_for_its_time_or_until_it_is_taken_away() {
    let hops = Arc::new(Hops::start(answer()).await);
    hops.set(json!({"kind": "stall", "ms": 60})).await;
    assert_eq!(hops.request(0, "timed").await.status(), 200);
    let entry = &hops.log(1).await[0];
    let held = entry["ended_ns"].as_i64().unwrap() - entry["began_ns"].as_i64().unwrap();
    assert!(held >= 59_000_000, "{entry}");
    hops.set(json!({"kind": "stall"})).await;
    let held = (0..3).map(|n| {
        let hops = hops.clone();
        tokio::spawn(async move { hops.request(0, &format!("h{n}")).await.status() })
    });
    let held: Vec<_> = held.collect();
    until("all are held", || hops.injected("stall") == 4).await;
    assert_eq!(hops.server.seen().len(), 1, "nothing was sent on");
    let admin = hops.front.proxy.address("admin").unwrap();
    let shown = get(admin, "/faults").await.json();
    assert_eq!(shown["workers"]["w0"]["under_way"], 3, "{shown}");
    hops.clear().await;
    for held in held {
        assert_eq!(held.await.unwrap(), 200);
    }
    assert_eq!(hops.log(4).await.len(), 4);
    assert_eq!(hops.server.seen().len(), 4);
}

/// Ten events of 20 bytes, each sent alone when the gate is open.
fn stream(gate: &Gate) -> Vec<Step> {
    let mut steps = vec![Step::Send(stream_head())];
    for n in 0..10 {
        steps.push(Step::Send(chunk(format!("data: {:012}\n\n", n))));
        steps.push(Step::Pause(std::time::Duration::from_millis(15)));
    }
    steps.extend([Step::Gate(gate.clone()), Step::Send(chunk(""))]);
    steps
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_response_is_whole_and_late() {
    let gate = Gate::new();
    gate.open();
    let hops = Hops::start(stream(&gate)).await;
    for (fault, a_piece, in_all) in [
        (json!({"kind": "slow", "ms": 10}), 10, 0),
        (json!({"kind": "slow", "bytes_per_s": 2000}), 0, 100),
        (
            json!({"kind": "slow", "ms": 10, "bytes_per_s": 2000}),
            10,
            100,
        ),
    ] {
        hops.set(fault.clone()).await;
        let response = hops.request(0, "slow").await;
        assert!(response.whole && response.body.len() == 200, "{fault}");
        let log = hops.log(hops.injected("slow") as usize).await;
        let entry = log.last().unwrap();
        assert_eq!(entry["bytes"], 200);
        let pieces = entry["pieces"].as_i64().unwrap();
        let took = entry["ended_ns"].as_i64().unwrap() - entry["began_ns"].as_i64().unwrap();
        let least = a_piece * pieces + in_all;
        assert!(took >= (least - 1) * 1_000_000, "{entry}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_goes_on_when_its_fault_is_removed_and_ends_when_its_client_leaves() {
    for kind in ["stall", "slow"] {
        let gate = Gate::new();
        gate.open();
        let hops = Arc::new(Hops::start(stream(&gate)).await);
        hops.set(json!({"kind": kind, "ms": 3_600_000})).await;
        let mut leaves = Client::connect(hops.addr(0)).await;
        leaves.post("/generate", "", b"{}").await;
        until("it is held", || hops.injected(kind) == 1).await;
        if kind == "slow" {
            leaves.read_until(|reader| reader.head.is_some()).await;
        }
        drop(leaves);
        hops.log(1).await;
        assert_eq!(hops.server.seen().len(), usize::from(kind == "slow"));
        let stays = hops.clone();
        let stays = tokio::spawn(async move { stays.request(0, "stays").await });
        until("it is held", || hops.injected(kind) == 2).await;
        hops.clear().await;
        let response = stays.await.unwrap();
        assert!(response.whole && response.body.len() == 200);
        drop(response);
        let hops = Arc::into_inner(hops).unwrap();
        assert_eq!(hops.outcomes().await[0], "client_abort", "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_comes_after_just_so_many_bytes_or_pieces() {
    // The server still has something to say, or has said it all at once.
    for at_once in [false, true] {
        let gate = Gate::new();
        let mut steps = stream(&gate);
        if at_once {
            let sends = steps.iter().filter_map(|step| match step {
                Step::Send(bytes) => Some(bytes.clone()),
                _ => None,
            });
            steps = vec![Step::Send(sends.collect::<Vec<_>>().concat())];
        }
        let hops = Hops::start(steps).await;
        for after in [0, 1, 50, 60, 199] {
            hops.set(json!({"kind": "cut", "after_bytes": after})).await;
            let response = hops.request(0, "cut").await;
            assert_eq!(response.body.len(), after, "at once: {at_once}");
            assert!(!response.whole && response.status() == 200);
        }
        if !at_once {
            for (entry, pieces, passed) in [(5, 0, 1), (6, 3, 3)] {
                hops.set(json!({"kind": "cut", "after_pieces": pieces}))
                    .await;
                let response = hops.request(0, "pieces").await;
                assert!(!response.whole && response.body.len() % 20 == 0);
                let entry = hops.log(entry + 1).await.pop().unwrap();
                let told = (&entry["pieces"], &entry["request_id"], &entry["bytes"]);
                let bytes = response.body.len().into();
                assert_eq!(told, (&passed.into(), &"pieces".into(), &bytes));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_after_a_time_ends_a_silent_stream() {
    let hops = Hops::start(stream(&Gate::new())).await;
    hops.set(json!({"kind": "cut", "after_ms": 80})).await;
    let response = hops.request(0, "cut").await;
    assert!(!response.whole && response.body.len() <= 200);
    assert_eq!(hops.log(1).await[0]["request_id"], "cut");
    assert_eq!(hops.outcomes().await, ["proxy_error"]);
    // Before the response's head too.
    let hops = Hops::start(vec![Step::Silence]).await;
    hops.set(json!({"kind": "cut", "after_ms": 10})).await;
    let mut client = Client::connect(hops.addr(0)).await;
    client.post("/generate", "", b"{}").await;
    assert!(client.is_closed().await);
    until("the server was let go", || hops.server.gone() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_are_off_unless_they_are_turned_on_and_none_is_that_large() {
    let (_server, front) = answering("").await;
    let admin = front.proxy.address("admin").unwrap();
    for (method, path) in [
        ("GET", "/faults"),
        ("PUT", "/faults/w0"),
        ("GET", "/faults/log"),
    ] {
        let off = ask(admin, method, path, "", r#"{"kind":"reset"}"#).await;
        assert_eq!(off.status(), 403);
        assert_says(&off.text(), "fault_injection = true");
    }
    let hops = Hops::start(answer()).await;
    let admin = hops.front.proxy.address("admin").unwrap();
    let huge = format!("{{\"kind\":\"{}\"}}", "x".repeat(20_000));
    let refused = ask(admin, "PUT", "/faults/w0", "", &huge).await;
    assert_eq!(refused.status(), 400);
}
