//! A set of upstreams, and the set that takes over from it.

use super::*;

fn rules(policy: Policy) -> Rules {
    let limit = Duration::from_secs(1);
    Rules {
        policy,
        affinity: AFFINITY,
        out: limit,
        trust: None,
        resend_broken: false,
        timeouts: Timeouts {
            connect: limit,
            read: limit,
            write: limit,
            idle: limit,
        },
    }
}

fn set(names: &[&str], before: Option<&Upstreams>, metrics: &Metrics) -> Upstreams {
    let addresses: Vec<Address> = names.iter().map(|n| Address::parse(n).unwrap()).collect();
    Upstreams::resolve(&addresses, rules(Policy::ShortestQueue), before, metrics).unwrap()
}

fn name(chosen: &Chosen) -> &str {
    chosen.upstream().name()
}

fn shown(metrics: &Metrics, line: &str) -> bool {
    let text = metrics.text();
    text.lines().any(|shown| shown == line)
}

const IN_FLIGHT: &str = "queuescope_upstream_in_flight{upstream=";

#[test]
fn what_is_chosen_is_in_flight_until_it_is_let_go() {
    let metrics = Metrics::new().unwrap();
    let set = set(&["127.0.0.1:1", "127.0.0.1:2"], None, &metrics);
    let first = set.choose(&[], &[]).unwrap();
    let second = set.choose(&[], &[]).unwrap();
    assert_ne!(first.index(), second.index());
    let third = set.choose(&[first.index()], &[]).unwrap();
    assert_eq!(
        third.index(),
        second.index(),
        "what was tried is not chosen"
    );
    assert!(set.choose(&[0, 1], &[]).is_none());
    drop(second);
    drop(third);
    let again = set.choose(&[], &[]).unwrap();
    assert_ne!(again.index(), first.index());
    assert!(shown(&metrics, &format!("{IN_FLIGHT}\"127.0.0.1:1\"}} 1")));
}

#[tokio::test]
async fn what_is_out_is_chosen_only_when_nothing_else_is_left() {
    let metrics = Metrics::new().unwrap();
    let set = set(&["127.0.0.1:1", "127.0.0.1:2"], None, &metrics);
    let out = set.choose(&[], &[]).unwrap();
    set.connection_failed(out.upstream());
    let index = out.index();
    drop(out);
    let others: Vec<Chosen> = (0..5).map(|_| set.choose(&[], &[]).unwrap()).collect();
    assert!(others.iter().all(|chosen| chosen.index() != index));
    assert_eq!(set.choose(&[1 - index], &[]).unwrap().index(), index);
}

#[tokio::test]
async fn a_new_set_takes_over_what_it_shares_with_the_old() {
    let metrics = Metrics::new().unwrap();
    let (a, b, c) = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3");
    let old = Arc::new(set(&[a, b], None, &metrics));
    let busy: Vec<Chosen> = (0..4).map(|_| old.choose(&[], &[]).unwrap()).collect();
    let out = busy.iter().find(|chosen| name(chosen) == b).unwrap();
    old.connection_failed(out.upstream());
    let new = set(&[b, c, a], Some(&old), &metrics);
    // One is out and one has two, so the one that came gets the next two.
    let next = [new.choose(&[], &[]).unwrap(), new.choose(&[], &[]).unwrap()];
    assert_eq!(next.each_ref().map(name), [c, c]);
    assert!(
        shown(&metrics, &format!("{IN_FLIGHT}\"{a}\"}} 2")),
        "not shown twice"
    );
    assert!(shown(
        &metrics,
        &format!("queuescope_upstream_healthy{{upstream=\"{b}\"}} 0")
    ));
    // A request that began with the old set counts in the new one until its end.
    drop(busy);
    assert!(shown(&metrics, &format!("{IN_FLIGHT}\"{a}\"}} 0")));
    assert_eq!(name(&new.choose(&[], &[]).unwrap()), a);
    // What nobody uses any more is not shown.
    let last = set(&[a], Some(&new), &metrics);
    drop((old, new, next));
    assert_eq!(last.count(), 1);
    let text = metrics.text();
    assert!(text.contains(a) && !text.contains(b), "{text}");
}

#[test]
fn the_same_name_by_another_protocol_is_another_upstream() {
    let metrics = Metrics::new().unwrap();
    let old = set(&["localhost:1"], None, &metrics);
    let _busy = old.choose(&[], &[]).unwrap();
    let new = set(&["https://localhost:1"], Some(&old), &metrics);
    assert_eq!(
        new.choose(&[], &[]).unwrap().upstream().counts.in_flight(),
        1
    );
}

#[tokio::test]
async fn a_connection_to_tls_always_has_a_name_to_verify() {
    let metrics = Metrics::new().unwrap();
    let set = set(&["https://127.0.0.1:1", "127.0.0.1:1"], None, &metrics);
    for (upstream, is_tls) in set.all.iter().zip([true, false]) {
        let peer = set.peer(upstream).await;
        assert_eq!(peer.sni, "127.0.0.1");
        assert_eq!(
            peer.scheme == pingora::upstreams::peer::Scheme::HTTPS,
            is_tls
        );
        assert!(peer.options.verify_cert && peer.options.verify_hostname);
    }
}
