//! Faults injected at a hop: each does what it says, to the requests it says, and is counted.

use super::*;

/// Two hops before one server.
struct Hops {
    front: Front,
    server: Upstream,
}

impl Hops {
    async fn without_fault(steps: Vec<Step>) -> Hops {
        let server = Upstream::playing(steps).await;
        let front = Front::hops(&[server.addr; 2], "fault_injection = true").await;
        Hops { front, server }
    }

    /// The first of them with this fault.
    async fn start(steps: Vec<Step>, fault: Value) -> Hops {
        let hops = Hops::without_fault(steps).await;
        hops.set(fault).await;
        hops
    }

    async fn admin(&self, method: &str, path: &str, body: &str) -> Response {
        let admin = self.front.proxy.address("admin").unwrap();
        ask(admin, method, path, "", body).await
    }

    async fn set(&self, fault: Value) {
        let set = self.admin("PUT", "/faults/w0", &fault.to_string()).await;
        assert_eq!(set.status(), 200, "{}", set.text());
        assert_eq!(set.json()["workers"]["w0"]["fault"]["kind"], fault["kind"]);
        assert_eq!(set.json()["workers"]["w1"], Value::Null);
    }

    async fn clear(&self) {
        let cleared = self.admin("DELETE", "/faults/w0", "").await;
        assert_eq!(cleared.json()["workers"]["w0"], Value::Null);
    }

    /// A figure of the fault that is in force.
    async fn shown(&self, figure: &str) -> Value {
        let shown = self.admin("GET", "/faults", "").await.json();
        shown["workers"]["w0"][figure].clone()
    }

    fn injected(&self, kind: &str) -> u64 {
        let name = "queuescope_faults_injected_total";
        let labels = format!("{{kind=\"{kind}\",worker=\"w0\"}} ");
        self.front.counter(&(name.to_owned() + &labels))
    }

    /// How the hops say that their requests ended.
    async fn outcomes(self) -> Vec<String> {
        let rows = self.front.rows().await;
        for row in rows.iter().filter(|row| row["outcome"] == "proxy_error") {
            assert_says(&row["error"], "an injected fault");
        }
        rows.iter().map(|row| row["outcome"].clone()).collect()
    }

    /// A client of the first hop with a request of this id under way.
    async fn asking(&self, id: &str) -> Client {
        let id = format!("x-request-id: {id}\r\n");
        self.front.asked("/generate", &id, b"{}").await
    }

    /// The response to one request.
    async fn request(&self) -> Response {
        self.asking("one").await.response().await
    }
}

/// Whether the other side reset the connection before any byte.
async fn is_reset(client: &mut Client) -> bool {
    let read = client.stream.read(&mut [0; 16]).await;
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

/// Whether a new connection is reset, be it before it is told of or after.
async fn is_refused(addr: SocketAddr) -> bool {
    match TcpStream::connect(addr).await {
        Ok(stream) => is_reset(&mut Client::from_stream(stream)).await,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_refuses_resets_connections_unread() {
    let hops = Hops::without_fault(vec![Step::ok()]).await;
    let mut kept = hops.front.client().await;
    assert_eq!(kept.ask("/generate", "", b"{}").await.status(), 200);
    let huge = format!("{{\"kind\":\"{}\"}}", "x".repeat(20_000));
    let refused = hops.admin("PUT", "/faults/w0", &huge).await;
    assert_eq!(refused.status(), 400, "no fault is that large");
    hops.set(json!({"kind": "refuse"})).await;
    assert!(is_refused(hops.front.addr()).await);
    kept.post("/generate", "", b"{}").await;
    assert!(is_reset(&mut kept).await);
    let other = hops.front.proxy.address("worker w1").unwrap();
    let mut other = Client::connect(other).await;
    assert_eq!(other.ask("/generate", "", b"{}").await.status(), 200);
    assert_eq!(hops.injected("refuse"), 2);
    hops.clear().await;
    assert_eq!(hops.request().await.status(), 200);
    assert_eq!(hops.server.seen().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_comes_after_the_head_and_before_the_server_and_takes_generations_alone() {
    let hops = Hops::start(vec![Step::ok()], json!({"kind": "reset", "count": 2})).await;
    let mut client = hops.front.client().await;
    for path in ["/health", "/get_model_info", "/generate"] {
        // A GET of `/generate` generates nothing.
        let head = format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n");
        client.send(head).await;
        assert_eq!(client.response().await.status(), 200);
    }
    for id in ["r0", "r1"] {
        assert!(is_reset(&mut hops.asking(id).await).await, "{id}");
    }
    assert_eq!(hops.request().await.status(), 200);
    assert_eq!((hops.server.seen().len(), hops.injected("reset")), (4, 2));
    let outcomes = hops.outcomes().await;
    assert_eq!(outcomes, ["proxy_error", "proxy_error", "ok"]);
}

/// Ten events of 20 bytes, each sent alone, and the end when the gate is open.
fn stream(gate: &Gate) -> Vec<Step> {
    let mut steps = vec![Step::Send(stream_head())];
    for n in 0..10 {
        steps.push(Step::Send(chunk(format!("data: {:012}\n\n", n))));
        steps.push(Step::Pause(std::time::Duration::from_millis(15)));
    }
    steps.extend([Step::Gate(gate.clone()), Step::Send(chunk(""))]);
    steps
}

/// The same that comes to its end by itself.
fn open_stream() -> Vec<Step> {
    let gate = Gate::new();
    gate.open();
    stream(&gate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_or_stalled_response_is_whole_and_late() {
    // The stream takes 0.15 s by itself.
    for fault in [
        json!({"kind": "stall", "ms": 300}),
        json!({"kind": "slow", "ms": 300}),
    ] {
        let hops = Hops::start(open_stream(), fault.clone()).await;
        let response = hops.request().await;
        assert!(response.whole && response.body.len() == 200, "{fault}");
        let rows = hops.front.rows().await;
        assert!(number(&rows[0], "elapsed") >= 0.29, "{fault}: {rows:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_goes_on_when_its_fault_is_removed_and_ends_when_its_client_leaves() {
    for kind in ["stall", "slow"] {
        // Until it is removed, or for an hour.
        let fault = match kind {
            "stall" => json!({"kind": kind}),
            _ => json!({"kind": kind, "ms": 3_600_000}),
        };
        let hops = Arc::new(Hops::start(open_stream(), fault).await);
        let mut leaves = hops.asking("leaves").await;
        until("it is held", || hops.injected(kind) == 1).await;
        if kind == "slow" {
            leaves.read_until(|reader| reader.head.is_some()).await;
        }
        drop(leaves);
        let is_held = async || hops.shown("under_way").await == 1;
        until_async("it has left", async || !is_held().await).await;
        assert_eq!(hops.server.seen().len(), usize::from(kind == "slow"));
        let stay = hops.clone();
        let stays = tokio::spawn(async move { stay.request().await });
        until("it is held", || hops.injected(kind) == 2).await;
        assert_eq!(hops.shown("under_way").await, 1);
        hops.clear().await;
        let response = stays.await.unwrap();
        assert!(response.whole && response.body.len() == 200);
        let hops = Arc::into_inner(hops).unwrap();
        assert_eq!(hops.outcomes().await[0], "client_abort", "{kind}");
    }
}

/// For the client, in the row, and for the server, whose connection closes: also where the hop reads the response whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_comes_after_just_so_many_bytes() {
    // The server still has something to say, or has said it all at once, in chunks or with its length.
    let all = open_stream().into_iter().filter_map(|step| match step {
        Step::Send(bytes) => Some(bytes),
        _ => None,
    });
    let at_once = vec![Step::Send(all.collect::<Vec<_>>().concat())];
    let with_length = vec![Step::Send(json_response(&"x".repeat(200)))];
    let fault = |after: usize| json!({"kind": "cut", "after_bytes": after});
    let goes_on = stream(&Gate::new());
    for (steps, is_over) in [(at_once, true), (with_length, true), (goes_on, false)] {
        let hops = Hops::start(steps, fault(0)).await;
        for after in [0, 1, 50, 60, 199] {
            hops.set(fault(after)).await;
            let response = hops.request().await;
            assert_eq!(response.body.len(), after);
            assert!(!response.whole && response.status() == 200);
        }
        if is_over {
            until("the server was let go", || hops.server.gone() == 5).await;
        }
        assert_eq!(hops.outcomes().await, ["proxy_error"; 5]);
    }
}
