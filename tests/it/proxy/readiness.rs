//! `/readyz`, and an admin listener that the silent keep nobody from.

use queuescope::clock::ManualClock;

use super::*;

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
