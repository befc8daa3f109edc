//! The admin listener: who may ask it for what, every answer word for word (`UPDATE_GOLDEN=1` writes the file anew), `/readyz`, that the
//! silent keep nobody from it, and `queuescope health`, by which a container's image asks after the proxy in it.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use queuescope::clock::ManualClock;

use super::*;
use crate::golden::assert_golden;

const TOKEN: &str = "correct-horse-battery-staple";

async fn front(change: impl FnOnce(&mut Config)) -> (Front, SocketAddr) {
    let server = Upstream::ok().await;
    let front = Front::with(&[server.addr], change).await;
    let addr = front.proxy.address("admin").unwrap();
    (front, addr)
}

/// What requests with one of these header lines are answered: status, some fields, and why they are refused.
async fn answers(admin: SocketAddr, asks: &str, lines: &[String]) -> String {
    let mut text = String::new();
    for asks in asks.split('|') {
        for line in lines {
            let mut client = Client::connect(admin).await;
            client
                .send(format!("{asks} HTTP/1.1\r\n{line}\r\n\r\n"))
                .await;
            let answer = client.response().await;
            let is_refused = answer.status() > 400;
            let why = if is_refused {
                answer.text()
            } else {
                String::new()
            };
            assert!(!why.contains(TOKEN), "{why}");
            let told = ["www-authenticate", "cache-control", "allow"];
            let fields = headers(&answer.head).into_iter();
            let fields = fields.filter(|(name, _)| told.contains(&&**name));
            let fields: String = fields
                .map(|(name, value)| format!("; {name}: {value}"))
                .collect();
            let status = answer.status();
            text += &format!("{asks} {}\n{status}{fields}\n{why}", line.escape_debug());
        }
        text.push('\n');
    }
    text
}

/// What tells of requests, or changes them.
const ASKED: &str =
    "GET /|GET /live.json|GET /requests/1.json|GET /faults|PUT /faults/w0|DELETE /faults/w0";
/// Names that nobody else can give us, and such as another site's page may have.
const NAMES: &str = "localhost|LocalHost:8801|localhost.|127.0.0.1:8801|10.0.0.7|[::1]:8801|[fe80::1]|PROXY.example:80|\
    rebound.example:8801|localhost.evil.example|127.0.0.1.evil.example|proxy||local host";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_ask_for_what_is_as_ever() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{TOKEN}\n")).unwrap();
    let (_front, addr) = front(|config| {
        config.admin_token_file = Some(file.path().to_owned());
        config.fault_injection = true;
    })
    .await;
    let basic = |password: &str| format!("Basic {}", BASE64_STANDARD.encode(password));
    let given = [
        String::new(),
        "Bearer correct-horse".into(),
        format!("Bearer {TOKEN}x"),
        format!("Basic {TOKEN}"),
        basic(&format!("a:{TOKEN}x")),
        format!("Digest {TOKEN}"),
        "Bearer ".into(),
        "x".into(),
        format!("bearer {TOKEN}"),
        basic(&format!("anybody:{TOKEN}")),
    ];
    let given = given.map(|given| format!("host: any\r\nauthorization: {given}"));
    let asks = format!("GET /healthz|GET /readyz|GET /metrics|{ASKED}");
    let mut text = answers(addr, &asks, &given).await;
    let (_front, addr) = front(|config| {
        config.fault_injection = true;
        config.admin_hosts = vec!["proxy.example".into()];
    })
    .await;
    let names = NAMES.split('|').map(|name| format!("host: {name}"));
    let names: Vec<String> = names.chain(["x-host: localhost".into()]).collect();
    text += &answers(addr, ASKED, &names).await;
    // A service's name, as probes and scrapers use it; a body that never ends is not waited for.
    let asks = "GET /healthz|GET /readyz|GET /metrics|PUT /healthz";
    let service = "host: queuescope.svc\r\ncontent-length: 9".to_owned();
    text += &answers(addr, asks, &[service]).await;
    // Faults are off unless they are turned on.
    let (_front, addr) = front(|_| {}).await;
    let asks = "GET /faults|PUT /faults/w0";
    text += &answers(addr, asks, &["host: localhost".to_owned()]).await;
    assert_golden("admin_access.txt", &text);
}

/// A proxy that is ready once one of these is there, on a clock that stands.
async fn with_manual_clock(
    upstream: &[SocketAddr],
    servers: &[SocketAddr],
) -> (Proxy, ManualClock) {
    let (clock, manual) = Clock::manual(Stamp::from_nanos(0));
    let mut config = config(upstream);
    config.ready_needs_upstream = true;
    config.workers = workers(servers);
    (started(config, clock).await, manual)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_means_that_an_upstream_is_there_only_where_that_is_asked_for() {
    let absent = [free_port(), free_port()];
    let front = Front::keyed(&absent, "").await;
    assert_eq!(front.get("/readyz").await.status(), 200);

    let (proxy, manual) = with_manual_clock(&absent, &[]).await;
    let (hops, its_clock) = with_manual_clock(&[], &absent).await;
    let [admin, of_hops] = [&proxy, &hops].map(|proxy| proxy.address("admin").unwrap());
    let ready = async |admin| get(admin, "/readyz").await.status();
    let not_yet = get(admin, "/readyz").await;
    assert_eq!(not_yet.status(), 503);
    assert_eq!(not_yet.text(), "no upstream can be connected to\n");
    assert_eq!(get(admin, "/healthz").await.status(), 200);
    // Of a process of hops the servers count.
    assert_eq!(ready(of_hops).await, 503);
    // One of them is enough.
    let server = TcpListener::bind(absent[1]).await.unwrap();
    assert_eq!(ready(admin).await, 503);
    manual.advance(Duration::from_secs(1));
    for _ in 0..50 {
        assert_eq!(ready(admin).await, 200);
    }
    server.accept().await.unwrap();
    let again = tokio::time::timeout(Duration::ZERO, server.accept()).await;
    assert!(again.is_err(), "one connect a second, however many ask");
    its_clock.advance(Duration::from_secs(1));
    assert_eq!(ready(of_hops).await, 200);
    drop(server);
    manual.advance(Duration::from_secs(1));
    assert_eq!(ready(admin).await, 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_keep_nobody_from_the_health_checks() {
    let server = Upstream::ok().await;
    let front = Front::start(server.addr).await;
    let admin = front.proxy.address("admin").unwrap();
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(Client::connect(admin).await);
        // As Slowloris does.
        silent.last_mut().unwrap().send("GET /heal").await;
    }
    assert_eq!(get(admin, "/healthz").await.status(), 200);
    assert!(silent[0].is_closed().await, "the oldest makes room");
}

/// An answer without what differs from process to process (names of clocks, versions, ports).
fn lasting(value: &mut Value) {
    match value {
        Value::Array(all) => {
            // Nearly every connection is used again: Pingora's pool drops one now and then.
            all.retain(|one| one["name"] != "upstream_reused");
            all.iter_mut().for_each(lasting);
        }
        Value::Object(members) => {
            for (key, value) in members {
                match key.as_str() {
                    "process" | "version" | "help" => *value = "*".into(),
                    _ => lasting(value),
                }
            }
        }
        // A clock, and a span.
        Value::String(text) if text.starts_with("manual-") => *text = "*".into(),
        Value::String(text) if text.len() == 16 && text.bytes().all(|c| c.is_ascii_hexdigit()) => {
            *text = "*".into();
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_as_ever() {
    let start = Stamp::from_nanos(1_795_168_000_000_000_000);
    let (clock, manual) = Clock::manual(start);
    let server = Upstream::start(move |n, _| {
        manual.advance(Duration::from_millis(40));
        let status = ["200 OK", "500 Internal Server Error"][n];
        vec![Step::Send(wire::answer(status, "{\"text\":\"a\"}"))]
    })
    .await;
    let config = Config {
        fault_injection: true,
        workers: workers(&[server.addr]),
        ..config(&[server.addr])
    };
    let proxy = started(config, clock).await;
    let addr = |of| proxy.address(of).unwrap();
    let [front, admin, hop] = ["listen", "admin", "worker"].map(addr);
    let get = async |path: &str| ask(admin, "GET", path, "", "").await;
    for (id, number) in [("one", 1), ("two", 2)] {
        let mut client = Client::connect(front).await;
        let trace = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let head = format!("x-request-id: {id}\r\n{trace}\r\n");
        client.ask("/generate", &head, b"{\"text\":\"x\"}").await;
        let has_ended = async || get("/live.json").await.json()["last"] == number;
        until_async("its end", has_ended).await;
    }
    let stall = r#"{"kind":"stall"}"#;
    let mut text = String::new();
    for (method, path, body) in [
        ("GET", "/live.json", ""),
        ("GET", "/live.json?after=1", ""),
        ("GET", "/requests/1.json", ""),
        ("GET", "/requests/2.json", ""),
        ("GET", "/requests/3.json", ""),
        ("GET", "/healthz", ""),
        ("GET", "/readyz", ""),
        ("GET", "/faults", ""),
        ("PUT", "/faults/w0", stall),
        ("PUT", "/faults/w0", "{}"),
        ("PUT", "/faults/w1", stall),
        ("DELETE", "/faults/w0", ""),
        ("POST", "/faults/w0", ""),
        ("POST", "/live.json", ""),
        ("GET", "/nothing", ""),
    ] {
        let answer = ask(admin, method, path, "", body).await;
        let said = match serde_json::from_str(&answer.text()) {
            Ok(mut json) => {
                lasting(&mut json);
                format!("{json:#}\n")
            }
            Err(_) => answer.text(),
        };
        let kind = answer.header("content-type").unwrap();
        let allow = answer.header("allow").unwrap_or_default();
        let status = answer.status();
        text += &format!("{method} {path} {body}\n{status} {kind} {allow}\n{said}\n");
    }
    for addr in [front, admin, hop, server.addr] {
        text = text.replace(&addr.to_string(), "127.0.0.1:*");
    }
    assert_golden("admin.txt", &text);
}

async fn health(admin: SocketAddr) -> Done {
    run_aside(queuescope(&["health", &admin.to_string()])).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_the_exit_code() {
    let upstream = Upstream::ok().await;
    let mut proxy = Process::start(upstream.addr, &[]);
    let asked = health(proxy.admin).await;
    assert_eq!((asked.code, asked.err.as_str()), (Some(0), ""));
    proxy.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(proxy.exit().await.success());
    let other = Upstream::always("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
    // Connections are taken, and nothing is ever said.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    for (admin, wrong) in [
        (proxy.admin, "no answer ("),
        (other.addr, "/healthz answers 404, not 200;"),
        (silent, "no answer ("),
    ] {
        let asked = health(admin).await;
        assert_eq!(asked.code, Some(1));
        assert_says(&asked.err, &format!("error: IP:PORT {admin}: {wrong}"));
        assert_says(&asked.err, "; give the admin listener (key admin)");
    }
}
