//! What a reload refuses.

use super::*;

#[test]
fn a_front_that_comes_or_goes_needs_a_restart() {
    let hops = Config::default();
    let front = Config {
        upstream: vec![std::net::SocketAddr::from(([127, 0, 0, 1], 1)).into()],
        ..Config::default()
    };
    let more = Config {
        upstream: [front.upstream.clone(), front.upstream.clone()].concat(),
        workers: vec!["w=127.0.0.1:0=127.0.0.1:4".parse().unwrap()],
        ..Config::default()
    };
    assert_eq!(needs_restart(&hops, &front), ["upstream"]);
    assert_eq!(needs_restart(&front, &hops), ["upstream"]);
    assert_eq!(needs_restart(&front, &more), [""; 0]);
}
