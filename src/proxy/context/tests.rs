//! What a request's context promises.

use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::{Clock, ManualClock};
use crate::edge::limits::Limits;
use crate::offset::OffsetTable;
use crate::proxy::hop_key::HopKey;
use crate::proxy::join::Joins;
use crate::proxy::shared::{Settings, StampsPolicy};
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::Metrics;

use super::*;

pub(in crate::proxy::context) fn shared() -> (Arc<Shared>, ManualClock) {
    let (clock, manual) = Clock::manual(Stamp::from_nanos(1_000));
    let metrics = Metrics::new().unwrap();
    let limit = Duration::from_secs(1);
    let limits = Limits {
        drain: limit,
        client_idle_s: 1,
        client_read: limit,
        client_write: limit,
        client_head: limit,
        client_body: limit,
        client_stall: limit,
        request_head_bytes: 65_536,
        request_body_bytes: 65_536,
        connections: 1,
    };
    let shared = Shared {
        started: clock.now(),
        clock_name: "ours".into(),
        clock,
        hop_key: HopKey::of_process(),
        unsigned_stamps: std::sync::Once::new(),
        joins: Joins::new(true, metrics.clone()),
        telemetry: Arc::new(Telemetry::new(None, metrics.clone(), true)),
        engine: None,
        settings: ArcSwap::from_pointee(Settings {
            limits,
            upstream_read: limit,
            stamps: StampsPolicy::Never,
            stamps_token: None,
            admin_hosts: Vec::new(),
            ready_needs_upstream: false,
            hosts: Default::default(),
        }),
        admin_token: None,
        faults: None,
        tls: None,
        upstream_kind: UpstreamKind::Router,
        clocks: Arc::new(Mutex::new(OffsetTable::with_capacity(4))),
        phase: watch::channel(Phase::Serving).0,
        metrics,
    };
    (Arc::new(shared), manual)
}

fn context() -> (Context, ManualClock) {
    let (shared, manual) = shared();
    let mut context = Context::new(shared.clone(), Role::Front, shared.clock.now());
    context.watch(Endpoint::Generate, "id".into());
    (context, manual)
}

#[test]
fn a_hop_of_another_process_is_put_on_our_clock() {
    let theirs = |nanos: i64| Some(Stamp::from_nanos(5_000_000_000 + nanos));
    let hop = Stamps {
        clock: "theirs".into(),
        arrival: theirs(2_000),
        forwarded: theirs(2_500),
        now: theirs(8_000),
        ..Stamps::default()
    };
    let (mut context, manual) = context();
    context.attempt_began();
    manual.set(Stamp::from_nanos(9_000));
    context.served_by(Some(hop), None);
    context.response_head(200, None, false, context.shared.clock.now());
    let shared = context.shared.clone();
    context.ended(End::Complete);
    let clocks = shared.clocks.lock();
    let offset = clocks.get("theirs", Stamp::from_nanos(9_000)).unwrap();
    let off_by = (offset.nanos - 5_000_000_000).abs();
    assert!(
        off_by <= offset.error_nanos && offset.error_nanos < 20_000,
        "{offset:?}"
    );
}

#[test]
fn every_request_ends_once_whatever_ends_it() {
    let (mut context, _) = context();
    let metrics = context.shared.metrics.clone();
    assert_eq!(metrics.in_flight(), 1);
    context.ended(End::Complete);
    context.ended(End::Complete);
    drop(context);
    assert_eq!(metrics.in_flight(), 0);
    let (context, _) = self::context();
    let metrics = context.shared.metrics.clone();
    drop(context);
    assert_eq!(metrics.in_flight(), 0);
    let text = metrics.text();
    assert!(
        text.contains("outcome=\"proxy_error\",worker=\"\"} 1"),
        "{text}"
    );
}
