//! What the check of a config refuses, and in what words.

use crate::config::proxy::Worker;
use crate::upstream::Address;

use super::*;

fn address(text: &str) -> Address {
    Address::parse(text).unwrap()
}

fn wrong(change: impl FnOnce(&mut Config)) -> String {
    let mut config = Config {
        upstream: vec![address("127.0.0.1:1")],
        ..Config::default()
    };
    assert!(config.check().is_ok());
    change(&mut config);
    config.check().unwrap_err().to_string()
}

#[test]
fn a_listener_everywhere_has_its_port_on_every_address() {
    for (listen, admin, is_clash) in [
        ("0.0.0.0:7", "127.0.0.1:7", true),
        ("127.0.0.1:7", "0.0.0.0:7", true),
        ("[::]:7", "127.0.0.1:7", true),
        ("[::]:7", "0.0.0.0:7", true),
        ("[::]:7", "[::1]:7", true),
        ("[::ffff:127.0.0.1]:7", "127.0.0.1:7", true),
        ("0.0.0.0:7", "[::1]:7", false),
        ("0.0.0.0:7", "127.0.0.1:8", false),
        ("127.0.0.1:7", "127.0.0.2:7", false),
        ("0.0.0.0:0", "0.0.0.0:0", false),
    ] {
        let config = Config {
            listen: listen.parse().unwrap(),
            admin: admin.parse().unwrap(),
            upstream: vec![address("127.0.0.1:1")],
            ..Config::default()
        };
        assert_eq!(config.check().is_err(), is_clash, "{listen} {admin}");
    }
    // Where there is no front, nothing listens at its address.
    let hops = Config {
        workers: vec!["w=127.0.0.1:8800=127.0.0.1:1".parse().unwrap()],
        ..Config::default()
    };
    assert!(hops.check().is_ok());
}

#[test]
fn a_loop_is_refused_however_it_is_written() {
    for (listen, upstream) in [
        ("127.0.0.1:7", "127.0.0.1:7"),
        ("127.0.0.1:7", "http://localhost:7/"),
        ("0.0.0.0:7", "127.0.0.1:7"),
        ("[::]:7", "[::1]:7"),
    ] {
        let message = wrong(|c| {
            c.listen = listen.parse().unwrap();
            c.upstream = vec![address("a:7"), address(upstream)];
        });
        assert!(message.starts_with("upstream = "), "{message}");
        assert!(message.contains("own listener"), "{message}");
    }
    let worker = |text: &str| text.parse::<Worker>().unwrap();
    for workers in [
        &["w=127.0.0.1:8=127.0.0.1:8"][..],
        &["w=127.0.0.1:8=127.0.0.1:7"],
        &["w=127.0.0.1:8=127.0.0.1:9", "v=127.0.0.1:9=127.0.0.1:8"],
    ] {
        let message = wrong(|c| {
            c.listen = "127.0.0.1:7".parse().unwrap();
            c.workers = workers.iter().map(|text| worker(text)).collect();
        });
        assert!(message.starts_with("worker w: upstream = "), "{message}");
    }
    // Another machine, another port, a free port, and our own hop in a router's place.
    for (listen, upstream) in [
        ("127.0.0.1:7", "10.0.0.1:7"),
        ("0.0.0.0:7", "10.0.0.1:7"),
        ("127.0.0.1:7", "127.0.0.1:8"),
        ("127.0.0.1:0", "127.0.0.1:1"),
    ] {
        let config = Config {
            listen: listen.parse().unwrap(),
            upstream: vec![address(upstream)],
            workers: vec![worker("w=127.0.0.1:8=127.0.0.1:9")],
            ..Config::default()
        };
        assert!(config.check().is_ok(), "{listen} {upstream}");
    }
}
