//! Upstreams that speak TLS.

use queuescope::upstream::Address;

use super::*;

fn https(host: &str, addr: SocketAddr) -> Address {
    Address::parse(&format!("https://{host}:{}", addr.port())).unwrap()
}

/// A front before `https://host:port`, which trusts `ca`.
async fn front(host: &str, addr: SocketAddr, ca: Option<&Authority>) -> Front {
    let change = |config: &mut Config| {
        config.upstream = vec![https(host, addr)];
        config.rules.upstream_ca = ca.map(Authority::file);
    };
    Front::with(&[], change).await
}

/// An upstream of the front, and the server of a hop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_right_certificate_serves() {
    let server = Upstream::playing([begun(), done()].concat()).await;
    let ca = Authority::new("ours");
    let face = ca.face(&["localhost", "127.0.0.1"], server.addr).await;
    // A name is asked for; a number is only verified (RFC 6066, section 3).
    for (host, asked_for, is_hop) in [
        ("localhost", Some("localhost"), false),
        ("127.0.0.1", None, true),
    ] {
        let front = Front::with(&[], |config| {
            config.rules.upstream_ca = Some(ca.file());
            if is_hop {
                config.workers = workers(&[face.addr]);
                config.workers[0].upstream = https(host, face.addr);
            } else {
                config.upstream = vec![https(host, face.addr)];
            }
        })
        .await;
        let mut client = front.client().await;
        for _ in 0..3 {
            let response = client.ask("/generate", "", b"{\"stream\":true}").await;
            assert!(response.whole && response.body.ends_with(b"data: [DONE]\n\n"));
        }
        drop(client);
        assert_eq!(face.asked_for().last().unwrap().as_deref(), asked_for);
        let rows = front.rows().await;
        assert!(rows.iter().all(|row| row["outcome"] == "ok"));
        // Pingora's pool drops a kept one now and then (see `limits`).
        assert!(rows.iter().any(|row| row["upstream_reused"] == "True"));
    }
    let seen = server.seen();
    assert!(seen.iter().all(|seen| seen.header("host").unwrap() == "h"));
    // Where one speaks no TLS, another may try.
    let plain = plain().await;
    let both = Front::with(&[], |config| {
        config.upstream = [plain.addr, face.addr]
            .map(|to| https("localhost", to))
            .into();
        config.rules.upstream_ca = Some(ca.file());
    })
    .await;
    for _ in 0..4 {
        assert_eq!(both.ask("/generate", "", b"{}").await.status(), 200);
    }
    let name = format!("localhost:{}", plain.addr.port());
    let healthy = format!("queuescope_upstream_healthy{{upstream=\"{name}\"}} 0\n");
    assert_says(&both.proxy.metrics().text(), &healthy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_certificate_is_a_502_and_its_record_says_so() {
    let server = Upstream::ok().await;
    let (ca, other) = (Authority::new("right"), Authority::new("other"));
    let right = ca.face(&["localhost"], server.addr).await;
    let named_else = ca.face(&["elsewhere"], server.addr).await;
    let itself = Authority::of_a_server("itself", &["localhost"]);
    let own = itself.own_face(server.addr).await;
    let plain = plain().await;
    for (face, trusted, reason) in [
        (own.addr, Some(&itself), "CaUsedAsEndEntity"),
        (right.addr, Some(&other), "UnknownIssuer"),
        (right.addr, None, "UnknownIssuer"),
        (named_else.addr, Some(&ca), "not valid for name"),
        (plain.addr, Some(&ca), "corrupt message"),
    ] {
        let front = front("localhost", face, trusted).await;
        let response = front.ask("/generate", "", b"{}").await;
        assert_eq!(response.status(), 502);
        let error = &response.json()["error"];
        assert_eq!(error["message"], "upstream: the TLS connection failed");
        let row = front.only_row().await;
        for piece in [
            "localhost:",
            "the TLS connection failed",
            reason,
            "SNI: localhost",
        ] {
            assert_outcome(&row, "proxy_error", piece);
        }
        assert_eq!(row["attempts"], "0");
    }
    assert!(server.seen().is_empty());
}

/// What answers a TLS greeting as a plain server does.
async fn plain() -> Listening {
    let speaks = |_, mut stream: TcpStream| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    };
    Listening::start(speaks).await
}
