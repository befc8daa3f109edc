//! Tests of a set of upstreams, and of the set that replaces it.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use pingora::upstreams::peer::Peer;

use super::*;

fn rules(policy: Policy) -> Rules {
    Rules {
        policy,
        balance_abs_threshold: Whole::of::<4>(),
        upstream_connect_timeout_s: Seconds::of::<1>(),
        ..Rules::default()
    }
}

/// Upstreams of these names.
fn resolved(
    names: &[&str],
    rules: Rules,
    resolver: Resolver,
    previous: Option<&Upstreams>,
    metrics: &Metrics,
) -> Upstreams {
    let to: Vec<Address> = names.iter().map(|n| Address::parse(n).unwrap()).collect();
    Upstreams::resolve(&to, rules, None, resolver, previous, metrics).unwrap()
}

fn set(names: &[&str], previous: Option<&Upstreams>, metrics: &Metrics) -> Upstreams {
    let rules = rules(Policy::ShortestQueue);
    resolved(names, rules, system_resolver, previous, metrics)
}

/// The blocks of a prompt: those that all begin with, and its own.
fn prompt(own: u64) -> [u64; 8] {
    [1, 2, 3, 4, 5, 6, own, own + 1]
}

/// Whether a scrape shows this value of an upstream's metric.
fn shows(metrics: &Metrics, name: &str, upstream: &str, value: u64) -> bool {
    let line = format!("queuescope_upstream_{name}{{upstream=\"{upstream}\"}} {value}");
    metrics.text().lines().any(|shown| shown == line)
}

const FAILURES: &str = "connect_failures_total";

#[tokio::test]
async fn failures_of_one_name_stay_counted_when_one_of_its_upstreams_goes() {
    let metrics = Metrics::new().unwrap();
    let a = "127.0.0.1:1";
    let [front, hop] = [(); 2].map(|()| set(&[a], None, &metrics));
    for set in [&front, &hop] {
        set.connect_failed(&mut set.choose(&[], &[]).unwrap());
    }
    assert!(shows(&metrics, FAILURES, a, 2));
    drop(front);
    assert!(shows(&metrics, FAILURES, a, 2));
}

#[tokio::test]
async fn a_new_set_keeps_what_it_shares_with_the_old() {
    let metrics = Metrics::new().unwrap();
    let (a, b, c) = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3");
    let old = Arc::new(set(&[a, b], None, &metrics));
    let mut busy: Vec<Chosen> = (0..4).map(|_| old.choose(&[], &[]).unwrap()).collect();
    let out = busy
        .iter_mut()
        .find(|chosen| chosen.upstream.name() == b)
        .unwrap();
    old.connect_failed(out);
    let new = set(&[b, c, a], Some(&old), &metrics);
    // One is out and one has two requests, so the new one gets the next two.
    let next = [new.choose(&[], &[]).unwrap(), new.choose(&[], &[]).unwrap()];
    let names = next.each_ref().map(|chosen| chosen.upstream.name());
    assert_eq!(names, [c, c]);
    assert!(shows(&metrics, "in_flight", a, 2), "of both sets");
    assert!(shows(&metrics, "healthy", b, 0));
    // A request that began with the old set counts in the new one until its end.
    drop(busy);
    assert!(shows(&metrics, "in_flight", a, 0));
    assert_eq!(new.choose(&[], &[]).unwrap().upstream.name(), a);
    // Of upstreams that are used no more nothing but what was counted is shown: a counter that falls looks as if it had begun anew.
    let last = set(&[a], Some(&new), &metrics);
    drop((old, new, next));
    assert_eq!(last.all.len(), 1);
    let text = metrics.text();
    let count = |name| text.matches(name).count();
    assert_eq!((count(a), count(b)), (3, 1), "{text}");
    assert!(shows(&metrics, FAILURES, a, 0) && shows(&metrics, FAILURES, b, 1));
}

#[tokio::test]
async fn under_the_same_limit_a_new_set_keeps_the_slots_that_are_taken() {
    let metrics = Metrics::new().unwrap();
    let limited = |limit, previous: Option<&Upstreams>| {
        let rules = Rules {
            max_concurrent_requests: limit,
            ..rules(Policy::RoundRobin)
        };
        resolved(&["127.0.0.1:1"], rules, system_resolver, previous, &metrics)
    };
    let free = |set: &Upstreams| set.slots.as_ref().map(|slots| slots.available_permits());
    let old = limited(Whole::of::<2>(), None);
    let taken = old.slots.as_ref().unwrap().acquire().await.unwrap();
    let same = limited(Whole::of::<2>(), Some(&old));
    let other = limited(Whole::of::<3>(), Some(&old));
    assert_eq!((free(&same), free(&other)), (Some(1), Some(3)));
    drop(taken);
    assert_eq!(free(&same), Some(2));
    let unlimited = limited(Whole::of::<0>(), Some(&old));
    assert!(free(&unlimited).is_none());
}

#[test]
fn the_same_name_by_another_protocol_is_another_upstream() {
    let metrics = Metrics::new().unwrap();
    let old = set(&["localhost:1"], None, &metrics);
    let _busy = old.choose(&[], &[]).unwrap();
    let new = set(&["https://localhost:1"], Some(&old), &metrics);
    let chosen = new.choose(&[], &[]).unwrap();
    assert_eq!(chosen.upstream.counts.in_flight.load(Relaxed), 1);
}

#[test]
fn a_connection_that_other_roots_verified_is_not_reused() {
    let folder = tempfile::tempdir().unwrap();
    let hash = |ca: &str| {
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, ca).unwrap();
        let trust = Some(Trust::from_file(&path).unwrap());
        let rules = rules(Policy::RoundRobin);
        let to = [Address::parse("https://127.0.0.1:1").unwrap()];
        let metrics = Metrics::new().unwrap();
        let set = Upstreams::resolve(&to, rules, trust, system_resolver, None, &metrics);
        let set = set.unwrap();
        set.choose(&[], &[]).unwrap().peer.reuse_hash()
    };
    let ca = || {
        let ca = rcgen::generate_simple_self_signed(["a".into()]);
        ca.unwrap().cert.pem()
    };
    let (one, other) = (ca(), ca());
    assert_eq!(hash(&one), hash(&one), "a reload of the same roots");
    assert_ne!(hash(&one), hash(&other));
    assert_ne!(hash(&one), hash(&(one.clone() + &other)));
}

const V4: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
const V4_TOO: SocketAddr = SocketAddr::new(V4.ip(), 2);
const V6: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(std::net::Ipv6Addr::LOCALHOST), 1);

#[tokio::test]
async fn a_request_tries_each_address_of_a_name() {
    let (rules, resolver) = (rules(Policy::RoundRobin), |_: &str, _| Ok(vec![V6, V4]));
    let set = resolved(&["name:1"], rules, resolver, None, &Metrics::new().unwrap());
    let mut one = set.choose(&[], &[]).unwrap();
    assert!(set.connect_failed(&mut one));
    assert_eq!(*one.peer.address().as_inet().unwrap(), V4);
    one.upstream.restore("connected");
    assert!(!set.all[0].counts.is_out.load(Relaxed));
    // The next request begins with the address that worked.
    let mut two = set.choose(&[], &[]).unwrap();
    assert_eq!(two.at, V4);
    // All failed once, but not for this request.
    assert!(set.connect_failed(&mut two));
    assert!(!set.connect_failed(&mut two));
    assert!(set.all[0].counts.is_out.load(Relaxed));
    // Nor for the next.
    let mut three = set.choose(&[], &[]).unwrap();
    let first = three.at;
    assert!(set.connect_failed(&mut three));
    assert_ne!(three.at, first);
    three.upstream.restore("connected");
    assert!(!set.all[0].counts.is_out.load(Relaxed));
    assert_eq!(set.choose(&[], &[]).unwrap().at, three.at);
}

#[tokio::test]
async fn a_request_tries_each_address_once_and_then_another_upstream() {
    let resolver: Resolver = |host, port| match host {
        "name" => Ok(vec![V6, V4, V4_TOO]),
        _ => system_resolver(host, port),
    };
    let (metrics, rules) = (Metrics::new().unwrap(), rules(Policy::RoundRobin));
    let set = resolved(&["name:1", "127.0.0.1:9"], rules, resolver, None, &metrics);
    let mut chosen = set.choose(&[], &[]).unwrap();
    let mut tried = vec![chosen.at];
    while set.connect_failed(&mut chosen) {
        tried.push(chosen.at);
    }
    let failed = chosen.index;
    drop(chosen);
    tried.push(set.choose(&[failed], &[]).unwrap().at);
    assert_eq!(tried, [V6, V4, V4_TOO, "127.0.0.1:9".parse().unwrap()]);
    let in_flight = set.all.iter().map(|one| one.counts.in_flight.load(Relaxed));
    assert_eq!(in_flight.sum::<usize>(), 0);
    assert!(shows(&metrics, FAILURES, "name:1", 3));
}

#[tokio::test]
async fn a_name_is_looked_up_again_when_it_failed() {
    static HAS_MOVED: AtomicBool = AtomicBool::new(false);
    let resolver: Resolver = |_, _| match HAS_MOVED.load(Relaxed) {
        true => Ok(vec![V4]),
        false => Ok(vec![V6]),
    };
    let rules = Rules {
        upstream_out_s: serde_json::from_value(serde_json::json!(0.01)).unwrap(),
        ..rules(Policy::RoundRobin)
    };
    let set = resolved(&["name:1"], rules, resolver, None, &Metrics::new().unwrap());
    let mut one = set.choose(&[], &[]).unwrap();
    assert_eq!(one.at, V6);
    HAS_MOVED.store(true, Relaxed);
    assert!(!set.connect_failed(&mut one));
    while set.choose(&[], &[]).unwrap().at != V4 {
        tokio::task::yield_now().await;
    }
    assert_eq!(set.all[0].in_order(), [V4]);
}

#[test]
fn a_name_that_is_not_found_any_more_keeps_its_addresses() {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let address = Address::parse("name:1").unwrap();
    let resolver: Resolver = |_, _| match FOUND.load(Relaxed) {
        0 => Ok(vec![V6, V4]),
        1 => Ok(vec![V4_TOO, V4, V6]),
        2 => Ok(Vec::new()),
        _ => Err(std::io::Error::other("no such name")),
    };
    let upstream = Upstream::resolve(&address, resolver).unwrap();
    upstream.failed_at(V6);
    for now in 1..4 {
        FOUND.store(now, Relaxed);
        upstream.counts.is_out.store(true, Relaxed);
        upstream.look_up_again();
        assert_eq!(upstream.in_order(), [V4_TOO, V4, V6]);
    }
    let nothing = Upstream::resolve(&address, |_, _| Ok(Vec::new()));
    assert_eq!(nothing.unwrap_err(), "name:1: no address found");
    let unknown = Upstream::resolve(&address, resolver);
    assert_eq!(unknown.unwrap_err(), "name:1: no such name");
}

#[tokio::test]
async fn known_prefixes_outlive_a_reload_but_not_a_failure() {
    let metrics = Metrics::new().unwrap();
    let names = ["127.0.0.1:1", "127.0.0.1:2"];
    let rules = || rules(Policy::CacheAware);
    let old = resolved(&names, rules(), system_resolver, None, &metrics);
    let home = old.choose(&[], &prompt(10)).unwrap().index;
    let turned = [names[1], names[0]];
    let new = resolved(&turned, rules(), system_resolver, Some(&old), &metrics);
    let mut again = new.choose(&[], &prompt(20)).unwrap();
    assert_eq!((again.index, again.by), (1 - home, Some(ChosenBy::Prefix)));
    new.connect_failed(&mut again);
    let left = new.choose(&[], &prompt(30)).unwrap();
    assert_eq!(left.index, home, "the other is out");
    // It may have been restarted.
    let back = new.choose(&[home], &prompt(40)).unwrap();
    assert_eq!(back.by, Some(ChosenBy::Load));
}

const PAUSE: Duration = Duration::from_secs(1);

/// An upstream at a port of ours, where nobody listens yet.
fn upstream() -> (Arc<Upstream>, TcpSocket) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().into();
    let upstream = Upstream::resolve(&address, system_resolver);
    (Arc::new(upstream.unwrap()), socket)
}

#[tokio::test(start_paused = true)]
async fn an_upstream_is_out_until_a_probe_or_a_request_connects() {
    let (one, socket) = upstream();
    let is_out = || one.counts.is_out.load(Relaxed);
    let probing = one.mark_out(PAUSE, PAUSE).unwrap();
    assert!(is_out());
    assert!(one.mark_out(PAUSE, PAUSE).is_none(), "one probes for all");
    tokio::time::sleep(PAUSE * 4).await;
    assert!(is_out() && !probing.is_finished());
    let listener = socket.listen(8).unwrap();
    probing.await.unwrap();
    assert!(!is_out());
    listener.accept().await.unwrap();
    // The next failure starts again; after a request that connects there is no probe.
    let probing = one.mark_out(PAUSE, PAUSE).unwrap();
    one.restore("a request has connected");
    assert!(!is_out());
    probing.await.unwrap();
    let probed = tokio::time::timeout(PAUSE, listener.accept()).await;
    assert!(probed.is_err());
    assert!(one.mark_out(PAUSE, PAUSE).is_some(), "also after that");
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_used_no_more_is_not_probed() {
    let (one, socket) = upstream();
    let listener = socket.listen(8).unwrap();
    let probing = one.mark_out(PAUSE, PAUSE).unwrap();
    tokio::time::sleep(PAUSE / 2).await;
    drop(one);
    probing.await.unwrap();
    let probed = tokio::time::timeout(PAUSE, listener.accept()).await;
    assert!(probed.is_err());
}
