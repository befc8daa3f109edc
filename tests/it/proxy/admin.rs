//! Who may ask the admin listener for what.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::*;

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
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(addr, path).await.status(), 200, "{path}");
    }
    let bearer = format!("bearer {TOKEN}");
    let basic = |password: &str| format!("Basic {}", BASE64_STANDARD.encode(password));
    let wrong = [
        "Bearer correct-horse".into(),
        format!("Bearer {TOKEN}x"),
        format!("Basic {TOKEN}"),
        basic(&format!("a:{TOKEN}x")),
        format!("Digest {TOKEN}"),
        "Bearer ".into(),
        "x".into(),
    ];
    for path in "/ /live.json /requests/1.json /metrics /faults".split(' ') {
        let ask = async |authorization: &str| {
            let header = format!("authorization: {authorization}\r\n");
            ask(addr, "GET", path, &header, "").await
        };
        assert_eq!(get(addr, path).await.status(), 401, "{path}");
        for wrong in &wrong {
            let refused = ask(wrong).await;
            assert_eq!(refused.status(), 401, "{path} {wrong}");
            for scheme in ["Bearer\r\n", "Basic realm="] {
                let asks = format!("\r\nwww-authenticate: {scheme}");
                assert_says(&refused.head, &asks);
            }
            assert!(refused.text().contains("admin_token") && !refused.text().contains(TOKEN));
        }
        for right in [&bearer, &basic(&format!("anybody:{TOKEN}"))] {
            let given = ask(right).await;
            assert_ne!(given.status(), 401, "{path}");
            assert_eq!(given.header("cache-control").unwrap(), "no-store");
        }
    }
    // Which workers there are is nobody's business without the token.
    let right = format!("authorization: {bearer}\r\n");
    for (header, status) in [("", 401), (&*right, 404)] {
        let refused = ask(addr, "PUT", "/faults/w0", header, r#"{"kind":"reset"}"#).await;
        assert_eq!(refused.status(), status);
    }
}

/// Names that nobody else can give us.
const OURS: &str = "localhost LocalHost:8801 localhost. 127.0.0.1:8801 10.0.0.7 [::1]:8801 [fe80::1] PROXY.example:80";
/// Header lines; those of no name, and of what is none, say as little.
const THEIRS: &str = "host: rebound.example:8801|host: localhost.evil.example|host: 127.0.0.1.evil.example|\
    host: proxy|host:|host: local host|x-host: localhost";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_another_sites_name_gets_nothing_of_requests() {
    let (_front, addr) = front(|config| {
        config.fault_injection = true;
        config.admin_hosts = vec!["proxy.example".into()];
    })
    .await;
    let ask = async |asks: &str, line: &str| {
        let mut client = Client::connect(addr).await;
        let head = format!("{asks} HTTP/1.1\r\n{line}\r\n\r\n");
        client.send(head).await;
        client.response().await
    };
    let asks =
        "GET /|GET /live.json|GET /requests/1.json|GET /faults|PUT /faults/w0|DELETE /faults/w0";
    for asks in asks.split('|') {
        for line in THEIRS.split('|') {
            let refused = ask(asks, line).await;
            assert_eq!(refused.status(), 421, "{asks} {line}");
            assert_says(&refused.text(), "admin_hosts");
        }
        for host in OURS.split(' ') {
            let given = ask(asks, &format!("host: {host}")).await;
            assert_ne!(given.status(), 421, "{asks} {host}");
        }
    }
    // A service's name, as probes and scrapers use it.
    for asks in ["GET /healthz", "GET /readyz", "GET /metrics"] {
        let given = ask(asks, "host: queuescope.svc").await;
        assert_eq!(given.status(), 200, "{asks}");
    }
    // A body that never ends is not waited for.
    let refused = ask("PUT /healthz", "host: h\r\ncontent-length: 9").await;
    assert_eq!(refused.status(), 405);
    assert_eq!(refused.header("allow").unwrap(), "GET, HEAD");
}
