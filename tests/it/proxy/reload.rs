//! A changed config taken on at SIGHUP, with clients who must not notice.

use queuescope::config::proxy::StampsPolicy;

use super::restart::{FREE, Service, reloaded, text};
use super::tls::{self, Certificate};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_move_and_go() {
    let one = Upstream::always(json_response("{\"is\":1}")).await;
    let two = Upstream::always(json_response("{\"is\":2}")).await;
    let is = async |client: &mut Client| {
        let response = client.ask("/generate", "", b"{}").await;
        let closes = response.header("connection").unwrap() == "close";
        (response.json()["is"].as_i64().unwrap(), closes)
    };
    let config = |workers: &[(&str, &str, SocketAddr)]| text(&[one.addr], "", workers);
    let service = Service::start(&config(&[]));
    let process = &service.first;
    let hop = free_port();
    let reloads = |name: &str, listen: SocketAddr, server: &Upstream, piece: &str| {
        let workers = [(name, &*listen.to_string(), server.addr)];
        let said = reloaded(&service, &config(&workers));
        assert_says(&said, piece);
        said
    };
    reloads("w", hop, &one, "worker w on");
    // Before its first request.
    let told = get(process.admin, "/metrics").await.text();
    assert_says(
        &told,
        "queuescope_attempts_total{outcome=\"ok\",worker=\"w\"} 0\n",
    );
    let mut kept = Client::connect(hop).await;
    assert_eq!(is(&mut kept).await, (1, false));
    // Another server behind the same hop: a connection that is kept goes there with its next request.
    reloads("w", hop, &two, "reloaded: changed workers; worker w to");
    assert_eq!(is(&mut kept).await, (2, false));
    // Neither another name nor another address can have the socket while it listens.
    reloads("v", hop, &two, "is another process");
    let everywhere = SocketAddr::from(([0; 4], hop.port()));
    reloads("w", everywhere, &two, "is another process");
    // Nor can another worker have one, also where the system chose its port.
    let at = hop.to_string();
    let (w, free) = (("w", &*at, two.addr), ("free", FREE, two.addr));
    let said = reloaded(&service, &config(&[w, free]));
    let (_, taken) = said.split_once("worker free on http://").unwrap();
    let taken = taken.split([';', ' ']).next().unwrap();
    let third = ("third", taken, two.addr);
    let said = reloaded(&service, &config(&[w, free, third]));
    assert_says(&said, &format!("worker third: listen = \"{taken}\": "));
    assert_says(&said, "is another process or listener of this proxy there?");
    let live = async || get(process.admin, "/live.json").await.json()["present"]["workers"].take();
    let names = async || {
        let live = live().await;
        let names = live.as_array().unwrap().iter();
        names.map(|one| one["name"].to_string()).collect::<String>()
    };
    assert_eq!(names().await, "\"free\"\"w\"");
    reloads("w", hop, &two, "worker free gone");
    assert_eq!(names().await, "\"w\"");
    // Gone: no new connections, and those that are kept close with their next response.
    let said = reloaded(&service, &config(&[]));
    assert_says(&said, "reloaded: changed workers; worker w gone");
    let refuses = || std::net::TcpStream::connect(hop).is_err();
    until("the listener closes", refuses).await;
    assert_eq!(is(&mut kept).await, (2, true));
    assert!(kept.is_closed().await);
    until_async("none in flight", async || names().await.is_empty()).await;
    assert_eq!(process.ready().await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_that_is_refused_changes_nothing() {
    let one = Upstream::always(json_response("{\"is\":1}")).await;
    let two = Upstream::always(json_response("{\"is\":2}")).await;
    let service = Service::start(&text(&[one.addr], "", &[]));
    let process = &service.first;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let (other, threads) = (&[two.addr][..], "threads = 3\nrecord_queue = 7");
    let free = ("w", FREE, two.addr);
    let nowhere = ("v", "nowhere", two.addr);
    let taken = ("v", &*taken, two.addr);
    let invalid = "line 10: listen = \"nowhere\": not an address";
    for (upstreams, keys, workers, why) in [
        (other, "", &[free, nowhere][..], invalid),
        (other, "", &[free, taken], "is another process"),
        (
            other,
            threads,
            &[free],
            "threads, record_queue: needs a restart",
        ),
        // A front does not go.
        (&[], "", &[free], "upstream: needs a restart"),
    ] {
        let said = reloaded(&service, &text(upstreams, keys, workers));
        assert!(said.contains("refused") && said.contains(why), "{said}");
        let mut client = Client::connect(process.front).await;
        let response = client.ask("/generate", "", b"{}").await;
        assert_eq!(response.json()["is"], 1, "{why}");
    }
    // A line a fault, each time that it is asked.
    service.write_config(&text(&[two.addr], "threads = 0\nname = \"w0\"", &[]));
    for _ in 0..2 {
        process.signal(Signal::SIGHUP);
        for told in [
            "threads = 0: must be a whole number from 1 to 1024",
            "name: belongs under `[[worker]]`",
        ] {
            assert_says(&process.says("reload refused, nothing has changed: "), told);
        }
    }
    let refused = "queuescope_reloads_total{result=\"refused\"}";
    assert_eq!(process.metric(refused).await, 4 + 2);
    assert!(two.seen().is_empty());
    // A front does not come either.
    let hops = Front::hop(two.addr).await;
    let refused = hops.reload(config(&[two.addr])).await.unwrap_err();
    assert_says(&refused.concat(), "upstream: needs a restart");
    // The flags of the command line stand over the file, then as now: it listens where it did.
    let listens = text(&[two.addr], "listen = \"127.0.0.1:1\"", &[]);
    let said = reloaded(&service, &listens);
    assert_says(&said, "reloaded: changed upstream; listen to");
}

#[tokio::test]
async fn limits_are_those_of_the_last_reload_also_of_a_kept_connection_from_its_next_request_on() {
    let upstream = Upstream::start(|n, _| match n {
        0..2 => vec![Step::ok()],
        _ => vec![Step::Silence],
    });
    let upstream = upstream.await;
    let front = Front::keyed(&[upstream.addr], "client_idle_timeout_s = 3600").await;
    let mut client = front.client().await;
    assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
    let mut new = Config {
        records: Some(front.records()),
        ..config(&[upstream.addr])
    };
    new.limits.client_idle_timeout_s = setting(1);
    new.rules.upstream_read_timeout_s = setting(0.3);
    let said = front.reload(new.clone()).await.unwrap();
    assert_eq!(
        said,
        "changed upstream_read_timeout_s, client_idle_timeout_s"
    );
    let said = front.reload(new.clone()).await.unwrap();
    assert_eq!(said, "every key is as before");
    assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
    assert!(client.is_closed().await);
    assert_eq!(front.ask("/generate", "", b"{}").await.status(), 504);
    // The limit on draining too: the request that is stuck does not hold up the end for a minute.
    new.rules.upstream_read_timeout_s = setting(3600.0);
    new.drain_timeout_s = setting(0.05);
    front.reload(new).await.unwrap();
    let _client = front.asked("/generate", "", b"{}").await;
    until("the request", || front.proxy.metrics().in_flight() == 1).await;
    let drained = tokio::time::timeout(Duration::from_secs(20), front.proxy.drain()).await;
    assert!(drained.is_ok());
}

/// Status, and whether there were stamps, of a request of 50 bytes to a front under TLS.
async fn asked(front: &Front, trusts: &tls::Der, token: &str) -> (u16, bool) {
    let mut client = tls::connect(front.addr(), trusts).await;
    let extra =
        format!("x-queuescope-stamps: 1\r\nx-queuescope-token: the {token} token of mine\r\n");
    let response = client.ask("/generate", &extra, &[b' '; 50]).await;
    let has_stamps = response.header("x-queuescope-stamps").is_some();
    (response.status(), has_stamps)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_takes_all_on_or_nothing_of_what_one_file_changes() {
    let one = Upstream::ok().await;
    let certificate = Certificate::new();
    let mut old = config(&[one.addr]);
    let front = Front::with(&[one.addr], |config| {
        certificate.put(config);
        config.fault_injection = true;
        config.stamps = StampsPolicy::Token;
        config.stamps_token = Some("the old token of mine".into());
        config.workers = vec![worker("w", FREE, one.addr)];
        old = config.clone();
    })
    .await;
    let faults = async || front.get("/faults").await.text();
    let before = &certificate.der;
    let holds = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holds.local_addr().unwrap();
    let mut new = Config {
        stamps_token: Some("the new token of mine".into()),
        workers: vec![worker("v", FREE, one.addr), worker("u", taken, one.addr)],
        ..old.clone()
    };
    new.limits.request_body_max_bytes = setting(49);
    let after = &tls::write(certificate.folder.path());
    let refused = front.reload(new.clone()).await.unwrap_err();
    assert!(refused[0].contains("worker u: listen"), "{refused:?}");
    assert!(tls::try_connect(front.addr(), after).await.is_err());
    assert_eq!(asked(&front, before, "old").await, (200, true));
    assert_eq!(asked(&front, before, "new").await, (200, false));
    assert_eq!(faults().await, "{\"workers\":{\"w\":null}}\n");
    // The same without the one thing that was wrong.
    new.workers.pop();
    front.reload(new.clone()).await.unwrap();
    assert!(tls::try_connect(front.addr(), before).await.is_err());
    assert_eq!(asked(&front, after, "old").await, (413, false));
    assert_eq!(asked(&front, after, "new").await, (413, true));
    assert_eq!(faults().await, "{\"workers\":{\"v\":null}}\n");
    let said = front.reload(new.clone()).await.unwrap();
    assert_eq!(said, "certificate read again");
    new.stamps = StampsPolicy::Loopback;
    front.reload(new.clone()).await.unwrap();
    assert_eq!(asked(&front, after, "old").await, (413, true));
    // A key of another certificate.
    new.stamps = StampsPolicy::Token;
    new.stamps_token = Some("the newer token of mine".into());
    let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
    std::fs::write(certificate.key(), other).unwrap();
    let wrong = front.reload(new).await.unwrap_err().concat();
    assert_says(&wrong, "cannot be used with tls_cert");
    assert_eq!(asked(&front, after, "old").await, (413, true));
}
