//! Tests of a request's context.

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::client::listener::Phase;
use crate::clock::{Clock, ManualClock, NANOS};
use crate::config::proxy::Config;
use crate::proxy::hop_key::HopKey;
use crate::proxy::join::Joins;
use crate::request::ServerRole;
use crate::request::{ClockOf, Period, Relation, Row, UpstreamKind};
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::Metrics;
use crate::upstream::Address;

use super::*;

fn shared() -> (Arc<Shared>, ManualClock) {
    let (clock, manual) = Clock::manual(Stamp::from_nanos(1_000));
    let metrics = Metrics::new().unwrap();
    let shared = Shared {
        started: clock.now(),
        clock_name: "ours".into(),
        clock: clock.clone(),
        hop_key: HopKey::of_process(),
        joins: Joins::new(true, metrics.clone()),
        roles: Default::default(),
        telemetry: Arc::new(Telemetry::new(None, metrics.clone(), true, clock)),
        engine: None,
        config: ArcSwap::from_pointee(Config {
            workers: vec!["w0=127.0.0.1:1=127.0.0.1:2".parse().unwrap()],
            ..Config::default()
        }),
        admin_token: None,
        faults: None,
        tls: None,
        clocks: Arc::default(),
        phase: watch::channel(Phase::Serving).0,
        metrics,
    };
    (Arc::new(shared), manual)
}

/// A generation request that has just arrived.
fn arrived(shared: &Arc<Shared>, role: Role) -> Context {
    let mut context = Context::new(shared.clone(), role, shared.clock.now());
    context.start_recording(Endpoint::Generate, Some("id"), &HeaderMap::new());
    context
}

fn ok() -> ResponseHeader {
    let mut head = ResponseHeader::build(200, None).unwrap();
    let stream = "text/event-stream";
    head.insert_header("content-type", stream).unwrap();
    head
}

/// A name, the events with their microseconds (arrival is at 1), the end, and the proxy's own time in its parts. Events: reading
/// the prompt begins and ends; a sending begins; the body of a request whose server failed is read for its room from then until then;
/// the response is read; a write to the client is pending and over.
const OVERHEAD: &str = "\
before and after the upstream | 31 send, 500 read | 507 | 30 + 7
not the wait for a prompt | 3 prompt, 903 prompt_read, 910 send, 2000 read | 2000 | 2 + 7
not the wait for a room | 3 send, 9 prompt, 509 room_read | 510 | 2 + 1
it reached no upstream | | 701 | 700
an upstream has it at the end | 21 send | 9000 | 20
not what the client delays | 2 send, 10 pending, 60 over, 100 read, 104 pending, 304 over | 306 | 1 + 4 + 2";

/// Also where nothing but its drop ends it. When the process cuts requests off, the connection of a client of HTTP/2 may go before its
/// streams: that is no leaving.
#[test]
fn every_request_ends_once_whatever_ends_it() {
    use Phase::{Aborting, Closing};
    let rejected = End::Failed(Outcome::Rejected, String::new());
    for (phase, end, outcome) in [
        (Closing, None, "proxy_error"),
        (Closing, Some(End::Complete), "upstream_died"),
        (Closing, Some(End::ClientGone), "client_abort"),
        (Aborting, None, "proxy_error"),
        (Aborting, Some(End::ClientGone), "proxy_error"),
        (Aborting, Some(rejected), "rejected"),
        (Aborting, Some(End::Complete), "upstream_died"),
    ] {
        let (shared, _) = shared();
        let (mut context, metrics) = (arrived(&shared, Role::Front), &shared.metrics);
        assert_eq!(metrics.in_flight(), 1);
        shared.phase.send_replace(phase);
        for end in [end.clone(), end].into_iter().flatten() {
            context.end(end);
        }
        drop(context);
        assert_eq!(metrics.in_flight(), 0);
        let counted = metrics.requests.sets();
        let [(labels, count)] = &counted[..] else {
            panic!("{counted:?}")
        };
        assert_eq!((&*labels[1], count.get()), (outcome, 1));
    }
}

#[test]
fn overhead_is_the_time_that_neither_upstream_nor_client_took() {
    for line in OVERHEAD.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [name, events, end, parts] = cells.try_into().unwrap();
        let (shared, manual) = shared();
        let mut context = arrived(&shared, Role::Front);
        let at = |micros: &str| Stamp::from_nanos(micros.parse::<i64>().unwrap() * 1_000);
        let mut prompt = at("0");
        for event in events.split_terminator(", ") {
            let (micros, event) = event.split_once(' ').unwrap();
            let now = at(micros);
            manual.set(now);
            match event {
                "prompt" => prompt = now,
                "prompt_read" => context.prompt_read(prompt),
                "send" => drop(context.begin_sending()),
                "room_read" => context.room_wait_ended(prompt),
                "pending" => context.timing.write_pending_since = Some(now),
                "over" => context.timing.write_over(now),
                _ => {
                    context.response_head(&ok(), None, now);
                    context.response_body(b"{}", true, now);
                }
            }
        }
        context.timing.upstream_ended(at(end));
        let overhead = context.timing.overhead(context.arrival, at(end));
        let parts = parts.split(" + ").map(|part| at(part).nanos());
        assert_eq!(overhead, parts.sum::<i64>(), "{name}");
        if events.contains("prompt_read") {
            let row = context.observer.as_mut().unwrap().row_mut();
            assert_eq!(row.prompt_wait, Some(900_000));
        }
    }
}

const MS: i64 = 1_000_000;
const EVENT: &[u8] = b"data: {\"text\":\"a\",\"meta_info\":{\"completion_tokens\":1}}\n\n";

/// The rows of a request whose pieces the hop reads at 95 ms (if there is a first one) and 100 ms; the front reads them 12 ms
/// later, or, unless `is_split`, both with the second.
fn rows([first, second]: [&[u8]; 2], is_split: bool, is_whole: bool) -> Vec<Row> {
    let (shared, manual) = shared();
    let at = |ms: i64| manual.set(Stamp::from_nanos(ms * MS));
    let now = || shared.clock.now();
    at(1);
    let mut front = arrived(&shared, Role::Front);
    let _ = front.begin_sending();
    let mut hop = arrived(&shared, Role::Hop("w0".into()));
    let _ = hop.begin_sending();
    hop.response_head(&ok(), None, now());
    front.response_head(&ok(), Some(hop.stamps()), now());

    at(95);
    hop.response_body(first, false, now());
    at(100);
    hop.response_body(second, false, now());
    at(107);
    if is_split && !first.is_empty() {
        front.response_body(first, false, now());
    }
    at(112);
    let both = [first, second].concat();
    front.response_body(if is_split { second } else { &both }, false, now());
    at(150);
    hop.response_body(b"data: [DONE]\n\n", false, now());
    if is_whole {
        hop.response_body(b"", true, now());
    }
    at(152);
    front.response_body(b"data: [DONE]\n\n", true, now());

    let request = front.request.take().unwrap();
    let attempts = shared.joins.close(&request, true, shared.clock.now());
    let observer = front.observer.take().unwrap();
    let now = shared.clock.now();
    Row::ended(front.rows(observer, Some(attempts), &End::Complete, now))
}

#[test]
fn what_the_router_held_back_is_found_to_the_nanosecond() {
    let later = b"data: {\"text\":\"\",\"meta_info\":{}}\n\n";
    // The stage is known only if the first bytes brought the token, the rest only if the hop has seen the end.
    for (first, is_whole) in [(&b""[..], true), (&later[..], true), (b"", false)] {
        let row = rows([first, EVENT], true, is_whole).remove(0);
        assert_eq!(row.router_return, Some(12 * MS));
        assert_eq!(row.inconsistency, None);
        assert_eq!(row.router_return_last, is_whole.then_some(2 * MS));
        let token = row.timeline.mark(Moment::WorkerFirstToken);
        assert_eq!(token.is_some(), first.is_empty());
        if first.is_empty() {
            let stage = row.timeline.nanos(Period::ROUTER_RETURN);
            assert_eq!(stage, Some(12 * MS));
            assert_eq!(row.worker_longest_gap, is_whole.then_some(50 * MS));
            assert_eq!(row.router_gap_added, is_whole.then_some(-10 * MS));
        }
    }
}

/// The hop reads the first tokens of two sequences one after the other. Only its first piece has a time in the front's rows: that
/// of the first event.
#[test]
fn only_a_first_token_in_the_first_event_has_a_time_at_the_hop() {
    let [first, second] = [0, 1].map(|index| {
        let meta_info = format!("{{\"id\":\"{index}\",\"completion_tokens\":1}}");
        format!("data: {{\"text\":\"a\",\"meta_info\":{meta_info},\"index\":{index}}}\n\n")
    });
    // The first event has no token; the front reads it together with the one that has.
    let no_token = b"data: {\"text\":\"\",\"meta_info\":{}}\n\n";
    let without = rows([no_token, EVENT], false, true);
    assert_eq!(without[0].timeline.mark(Moment::WorkerFirstToken), None);
    let at = |ms: i64| Some(Stamp::from_nanos(ms * MS));
    for is_split in [true, false] {
        let rows = rows([first.as_bytes(), second.as_bytes()], is_split, true);
        let token = |row: &Row| row.timeline.mark(Moment::WorkerFirstToken);
        assert_eq!(
            [0, 1].map(|at| token(&rows[at])),
            [at(95), None],
            "{is_split}"
        );
    }
}

/// Clocks of hop and engine that are far from ours. `src/traffic/rows/tests.rs` has any delays, offsets and drifts.
#[test]
fn the_moments_of_hop_and_engine_are_right_within_their_errors() {
    let (shared, manual) = shared();
    // A hop reads the request and sends it on; the engine receives it and makes the first token; hop and front read the head.
    for [at_hop, sent, created, token, hop_head, head] in [
        [3_000, 3_001, 3_005, 9_000, 9_004, 9_010],
        [20_007, 20_008, 20_008, 20_300, 20_301, 20_301],
    ] {
        let at = |ms: i64| Stamp::from_nanos(1_795_000_000 * NANOS + ms * MS);
        let hop = |ms: i64| at(ms - 1_800_000);
        manual.set(at(at_hop - 3));
        let mut front = arrived(&shared, Role::Front);
        let _ = front.begin_sending();
        let stamps = Stamps {
            clock: "hop".into(),
            now: Some(hop(hop_head)),
            arrival: Some(hop(at_hop)),
            forwarded: Some(hop(sent)),
            host: Some("engine:1".into()),
            ..Stamps::default()
        };
        front.response_head(&ok(), Some(stamps), at(head));
        let engine = |ms: i64| {
            let nanos = at(ms + 3_600_000).nanos();
            format!("{}.{:09}", nanos / NANOS, nanos % NANOS)
        };
        let body = format!(
            "data: {{\"text\":\"a\",\"meta_info\":{{\"id\":\"e\",\"completion_tokens\":1,\"prefill_finished_time\":{},\
             \"request_received_ts\":{},\"response_sent_to_client_ts\":{}}}}}\n\n",
            engine(token),
            engine(created),
            engine(token),
        );
        front.response_body(body.as_bytes(), false, at(head));
        let observer = front.observer.take().unwrap();
        let row = front
            .rows(observer, None, &End::Complete, at(head))
            .remove(0);
        let timeline = &row.timeline;
        let error = |clock| match timeline.relation(clock) {
            Relation::Apart(offset) => offset.error_nanos + 500,
            other => panic!("{other:?}"),
        };
        let (by_hop, by_engine) = (error(ClockOf::Hop), error(ClockOf::Engine));
        for (moment, ms, error) in [
            (Moment::WorkerArrival, at_hop, by_hop),
            (Moment::WorkerForwarded, sent, by_hop),
            (Moment::ServerCreated, created, by_engine),
            (Moment::ServerFirstToken, token, by_engine),
        ] {
            let stated = timeline.on_own_clock(moment).unwrap();
            let off_by = stated.nanos_since(at(ms)).abs();
            assert!(off_by <= error, "{moment:?}: {off_by} > {error}");
        }
        // The errors of both clocks add up.
        let off_by = timeline.nanos(Period::NETWORK).unwrap() - (created - at_hop) * MS;
        assert!(off_by.abs() <= by_hop + by_engine, "{off_by}");
    }
}

/// A leg's server refused it before its body had arrived: the time in which the hop reads that for its room is neither the
/// attempt's nor the proxy's own.
#[test]
fn the_wait_for_a_legs_room_is_not_the_attempts() {
    let (shared, manual) = shared();
    let at = |ms: i64| Stamp::from_nanos(ms * MS);
    manual.set(at(1));
    let mut hop = arrived(&shared, Role::Hop("w0".into()));
    manual.set(at(501));
    hop.request_body(b"{\"bootstrap_room\":7}", true);
    hop.room_wait_ended(at(3));
    let end = End::Failed(Outcome::ProxyError, "refused".to_owned());
    hop.answer(502, Outcome::ProxyError);
    let attempt = hop.attempt_data().unwrap().clone();
    assert_eq!((attempt.room, attempt.ended), (Some(7), Some(at(3))));
    assert_eq!(attempt.failed().nanos, Some(2 * MS));
    let observer = hop.observer.take().unwrap();
    let row = Row::ended(hop.rows(observer, None, &end, at(501))).remove(0);
    assert_eq!((row.elapsed, row.overhead), (Some(2 * MS), Some(2 * MS)));
}

/// An upstream that refuses, and another, to which the client leaves before it is connected or which gets the request.
#[test]
fn who_could_not_be_connected_to_is_a_failed_attempt_unless_the_row_is_of_it() {
    const REFUSED: &str = "127.0.0.1:1 proxy_error after 0.000000 s";
    let [refuses, other] = ["127.0.0.1:1", "127.0.0.1:2"];
    for (others, failed, host) in [
        ("", None, Some(refuses)),
        ("chosen", Some(REFUSED), None),
        ("chosen, sent", Some(REFUSED), Some(other)),
    ] {
        let (shared, _) = shared();
        let mut config = Config::clone(&shared.config.load());
        config.upstream_kind = UpstreamKind::Server;
        shared.config.store(Arc::new(config));
        let (mut front, now) = (arrived(&shared, Role::Front), shared.clock.now());
        front.set_upstream(refuses, &Address::parse(refuses).unwrap());
        front.upstream_unreachable(now, Outcome::ProxyError);
        let is_sent = others.contains("sent");
        if others.contains("chosen") {
            front.set_upstream(other, &Address::parse(other).unwrap());
        }
        if is_sent {
            front.begin_sending();
        }
        let observer = front.observer.take().unwrap();
        let row = front.rows(observer, None, &End::ClientGone, now).remove(0);
        assert_eq!(row.attempts, Some(1 + u64::from(is_sent)));
        let json = row.to_json();
        let cells = ["failed_attempts", "host"].map(|name| json[name].as_str());
        assert_eq!(cells, [failed, host], "{others}");
    }
}

#[test]
fn a_servers_role_is_in_its_server_info() {
    let nested = "\"a\":{\"disaggregation_mode\":\"decode\"}";
    let is = |role| Some(Some(role));
    for (path, mode, role) in [
        ("/server_info", "\"prefill\"", is(ServerRole::Prefill)),
        ("/get_server_info", "\"decode\"", is(ServerRole::Decode)),
        ("/server_info", "\"null\"", Some(None)),
        ("/server_info", "null", None),
        ("/model_info", "\"decode\"", None),
    ] {
        let (shared, _) = shared();
        let now = shared.clock.now();
        let mut hop = Context::new(shared.clone(), Role::Hop("w0".into()), now);
        hop.expect_server_info(path);
        let body = format!("{{{nested},\"disaggregation_mode\":{mode}}}");
        let (last, rest) = body.as_bytes().split_last().unwrap();
        rest.chunks(1)
            .for_each(|byte| hop.response_body(byte, false, now));
        hop.response_body(&[*last], true, now);
        assert_eq!(shared.role("w0"), role, "{path} {mode}");
    }
}
