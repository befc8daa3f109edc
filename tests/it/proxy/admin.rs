//! Who may ask the admin listener for what.

use std::net::SocketAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use queuescope::config::proxy::Config;

use crate::support::admin::{ask, get};
use crate::support::proxy::Front;
use crate::support::upstream::Upstream;
use crate::support::wire::Client;

const TOKEN: &str = "correct-horse-battery-staple";

async fn front(change: impl FnOnce(&mut Config)) -> (Front, SocketAddr) {
    let server = Upstream::ok().await;
    let front = Front::with(&[server.addr], change).await;
    let addr = front.proxy.address("admin").unwrap();
    (front, addr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_guards_all_but_the_health_checks() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{TOKEN}\n")).unwrap();
    let (_front, addr) = front(|config| {
        config.admin_token_file = Some(file.path().to_owned());
        config.fault_injection = true;
    })
    .await;
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(addr, path).await.status(), 200, "{path}");
    }
    let basic = BASE64_STANDARD.encode(format!("anybody:{TOKEN}"));
    let basic = format!("authorization: Basic {basic}\r\n");
    for path in "/ /live.json /requests/1.json /metrics /faults /faults/log".split(' ') {
        for wrong in [
            String::new(),
            "authorization: Bearer correct-horse\r\n".into(),
            format!("authorization: Bearer {TOKEN}x\r\n"),
            format!("authorization: Basic {TOKEN}\r\n"),
            format!(
                "authorization: Basic {}\r\n",
                BASE64_STANDARD.encode(format!("a:{TOKEN}x"))
            ),
            format!("authorization: Digest {TOKEN}\r\n"),
            "authorization: Bearer \r\n".into(),
            "authorization: x\r\n".into(),
        ] {
            let refused = ask(addr, "GET", path, &wrong, "").await;
            assert_eq!(refused.status(), 401, "{path} {wrong}");
            for scheme in ["Bearer\r\n", "Basic realm="] {
                let asks = format!("\r\nwww-authenticate: {scheme}");
                assert!(refused.head.contains(&asks), "{}", refused.head);
            }
            assert!(refused.text().contains("admin_token") && !refused.text().contains(TOKEN));
        }
        for right in [&bearer, &basic] {
            let given = ask(addr, "GET", path, right, "").await;
            assert_ne!(given.status(), 401, "{path}");
            assert_eq!(given.header("cache-control").unwrap(), "no-store");
        }
    }
    let scheme = bearer.replace("Bearer", "bearer");
    let stall = r#"{"kind":"reset"}"#;
    // Which workers there are is nobody's business without the token.
    assert_eq!(
        ask(addr, "PUT", "/faults/w0", "", stall).await.status(),
        401
    );
    assert_eq!(
        ask(addr, "PUT", "/faults/w0", &scheme, stall)
            .await
            .status(),
        404
    );
}

/// Names that nobody else can give us.
const OURS: &str = "localhost LocalHost:8801 localhost. 127.0.0.1:8801 10.0.0.7 [::1]:8801 [fe80::1] PROXY.example:80";
/// Header lines; those of no name, and of what is none, say as little.
const THEIRS: [&str; 7] = [
    "host: rebound.example:8801",
    "host: localhost.evil.example",
    "host: 127.0.0.1.evil.example",
    "host: proxy",
    "host:",
    "host: local host",
    "x-host: localhost",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_another_sites_name_gets_nothing_of_requests() {
    let (_front, addr) = front(|config| {
        config.fault_injection = true;
        config.admin_hosts = vec!["proxy.example".into()];
    })
    .await;
    let status = async |method: &str, path: &str, line: &str| {
        let mut client = Client::connect(addr).await;
        let head = format!("{method} {path} HTTP/1.1\r\n{line}\r\ncontent-length: 0\r\n\r\n");
        client.send(head).await;
        let response = client.response().await;
        (response.status(), response.text())
    };
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/live.json"),
        ("GET", "/requests/1.json"),
        ("GET", "/faults"),
        ("GET", "/faults/log"),
        ("PUT", "/faults/w0"),
        ("DELETE", "/faults/w0"),
    ] {
        for line in THEIRS {
            let (refused, words) = status(method, path, line).await;
            assert_eq!(refused, 421, "{path} {line}");
            assert!(words.contains("admin_hosts"), "{words}");
        }
        for host in OURS.split(' ') {
            let (given, _) = status(method, path, &format!("host: {host}")).await;
            assert_ne!(given, 421, "{path} {host}");
        }
    }
    // A service's name, as probes and scrapers use it.
    for path in ["/healthz", "/readyz", "/metrics"] {
        let (given, _) = status("GET", path, "host: queuescope.svc").await;
        assert_eq!(given, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_never_ends_is_not_waited_for() {
    let (_front, addr) = front(|_| {}).await;
    let mut client = Client::connect(addr).await;
    client
        .send("PUT /healthz HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n")
        .await;
    let refused = client.response().await;
    assert_eq!(refused.status(), 405);
    assert_eq!(refused.header("allow").unwrap(), "GET, HEAD");
}
