//! What the check of a config refuses, and in what words.

use crate::config::proxy::Worker;

use super::*;

fn wrong(change: impl FnOnce(&mut Config)) -> String {
    let mut config = Config {
        upstream: vec!["127.0.0.1:1".into()],
        ..Config::default()
    };
    assert!(config.check().is_ok());
    change(&mut config);
    config.check().unwrap_err().to_string()
}

#[test]
fn an_error_names_the_key_the_value_and_what_is_right() {
    assert_eq!(
        wrong(|c| c.upstream = vec!["https://a:x".into()]),
        "upstream = \"https://a:x\": the port must be a number from 1 to 65535, as in \
         http://127.0.0.1:30000"
    );
    assert!(wrong(|c| c.upstream.clear()).contains("--upstream http://"));
    assert!(wrong(|c| c.listen = "8800".into()).starts_with("listen = \"8800\": not an"));
    let message = wrong(|c| c.drain_timeout_s = -1.0);
    assert_eq!(
        message,
        "drain_timeout_s = -1: must be from 0 to 86400 seconds"
    );
    assert!(wrong(|c| c.upstream_read_timeout_s = f64::NAN).contains("NaN"));
    assert!(wrong(|c| c.stamps = StampsPolicy::Token).contains("stamps_token"));
    assert!(wrong(|c| c.upstream_out_s = 0.0).starts_with("upstream_out_s = 0: must"));
    assert!(wrong(|c| c.threads = 0).starts_with("threads = 0"));
    let message = wrong(|c| c.records_rotate_mb = -1.0);
    assert_eq!(
        message,
        "records_rotate_mb = -1: must be 0 (no limit), or from 0.001 to 1000000 MB"
    );
    assert!(wrong(|c| c.records_rotate_hours = 1e9).contains("to 87600 hours"));
}

#[test]
fn all_faults_are_told() {
    let config = Config {
        listen: "8800".into(),
        admin: "x".into(),
        upstream: vec!["a".into(), "b:1".into(), "c".into()],
        workers: vec![
            "w=1=a:1".parse().unwrap(),
            "w=127.0.0.1:0=a".parse().unwrap(),
        ],
        threads: 0,
        upstream_read_timeout_s: -1.0,
        client_idle_timeout_s: 0,
        ..Config::default()
    };
    let faults = config.check_all().unwrap_err();
    let mut keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "admin",
            "client_idle_timeout_s",
            "listen",
            "threads",
            "upstream",
            "upstream",
            "upstream_read_timeout_s",
            "worker w: listen",
            "worker w: upstream",
            "worker.name"
        ]
    );
}

#[test]
fn two_listeners_at_one_address_are_refused() {
    let message = wrong(|c| c.admin = c.listen.clone());
    assert!(message.starts_with("admin = \"127.0.0.1:8800\": `listen` has this"));
}

#[test]
fn a_listener_everywhere_has_its_port_on_every_address() {
    for (listen, admin, is_clash) in [
        ("0.0.0.0:7", "127.0.0.1:7", true),
        ("127.0.0.1:7", "0.0.0.0:7", true),
        ("localhost:7", "127.0.0.1:7", true),
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
            listen: listen.into(),
            admin: admin.into(),
            upstream: vec!["127.0.0.1:1".into()],
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
    assert!(wrong(|c| c.listen = "xlocalhost:7".into()).contains("\"xlocalhost:7\": not an"));
}

#[test]
fn a_workers_name_can_stand_in_a_header_and_in_a_path() {
    let named = |name: &str| Config {
        upstream: vec!["127.0.0.1:1".into()],
        workers: vec![Worker {
            name: name.into(),
            listen: "127.0.0.1:0".into(),
            upstream: "127.0.0.1:1".into(),
            host: None,
        }],
        ..Config::default()
    };
    for name in ["w0", "a.b_c:d-E9", "logs", &"x".repeat(64)] {
        assert!(named(name).check().is_ok(), "{name}");
    }
    for name in ["a\nb", "", "größe;x", "a b", "a/b", &"x".repeat(65)] {
        let wrong = named(name).check().unwrap_err().to_string();
        let start = format!("worker.name = {name:?}: must be 1 to 64 of");
        assert!(wrong.starts_with(&start), "{wrong}");
    }
    let wrong = named("log").check().unwrap_err().to_string();
    assert!(wrong.contains("\"log\": is taken"), "{wrong}");
}

#[test]
fn a_loop_is_refused_however_it_is_written() {
    for (listen, upstream) in [
        ("127.0.0.1:7", "127.0.0.1:7"),
        ("127.0.0.1:7", "http://localhost:7/"),
        ("localhost:7", "127.0.0.1:7"),
        ("0.0.0.0:7", "127.0.0.1:7"),
        ("[::]:7", "[::1]:7"),
    ] {
        let message = wrong(|c| {
            c.listen = listen.into();
            c.upstream = vec!["a:7".into(), upstream.into()];
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
            c.listen = "127.0.0.1:7".into();
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
            listen: listen.into(),
            upstream: vec![upstream.into()],
            workers: vec![worker("w=127.0.0.1:8=127.0.0.1:9")],
            ..Config::default()
        };
        assert!(config.check().is_ok(), "{listen} {upstream}");
    }
}

#[test]
fn a_worker_is_three_parts() {
    let worker: Worker = "w=127.0.0.1:1=http://b:2".parse().unwrap();
    assert_eq!(worker.upstream, "http://b:2");
    assert!("w=127.0.0.1:1".parse::<Worker>().is_err());
    let twice = vec![worker.clone(), worker];
    assert!(wrong(|c| c.workers = twice).contains("two workers"));
}

#[test]
fn a_workers_host_is_one_word() {
    for (host, is_right) in [
        ("gpu1:30000", true),
        ("[::1]:30000", true),
        ("", false),
        ("a;clock=b", false),
        ("a b", false),
        ("gr\u{f6}\u{df}e", false),
    ] {
        let mut worker: Worker = "w=127.0.0.1:8=127.0.0.1:9".parse().unwrap();
        worker.host = Some(host.into());
        let config = Config {
            upstream: vec!["127.0.0.1:1".into()],
            workers: vec![worker],
            ..Config::default()
        };
        let wrong = config.check().err().map(|wrong| wrong.to_string());
        assert_eq!(wrong.is_none(), is_right, "{host}");
        assert!(wrong.is_none_or(|wrong| wrong.starts_with("worker w: host = ")));
    }
}

#[test]
fn two_servers_are_not_called_by_one_host() {
    let worker = |text: &str, host: Option<&str>| Worker {
        host: host.map(str::to_owned),
        ..text.parse().unwrap()
    };
    let workers = vec![
        worker("a=127.0.0.1:7=127.0.0.1:9", Some("gpu")),
        worker("b=127.0.0.1:8=127.0.0.1:10", Some("gpu")),
    ];
    let message = wrong(|c| c.workers = workers);
    assert!(
        message.starts_with("worker b: host = \"gpu\": worker a calls"),
        "{message}"
    );
}
