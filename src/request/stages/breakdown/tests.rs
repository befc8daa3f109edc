use proptest::prelude::*;

use super::*;
use crate::request::attempt::BodyTiming;
use crate::request::cell::{Cell, Value};
use crate::request::columns::COLUMNS;
use crate::request::sample::{Sample, at, ms};
use crate::request::stages::place;
use crate::request::timeline::Moment::*;
use crate::request::timeline::{ClockOf, ENGINE, ENGINE_OF_PAIR, PrefillTimes};
use crate::request::unseen::Unseens;

/// A request with the moments of the bits `seen`, each these milliseconds after the one before, and the times of a pair if it
/// was one.
fn of_moments(seen: u32, apart: &[i64], pair: Option<PrefillTimes>) -> Row {
    let with_pair = |row: &mut Row| {
        let [mut worker, mut here] = [BodyTiming::default(); 2];
        (worker.first, here.first) = (Some(at(1)), Some(at(9)));
        row.set_body_timings(here, worker);
        if let Some(times) = pair {
            row.timeline.set_pair(times);
        }
    };
    let own = pair.map_or(&ENGINE[..], |_| &ENGINE_OF_PAIR);
    let (mut sample, mut now) = (Sample::whole().without(&Moment::ALL).with(with_pair), 0);
    for (moment, apart) in Moment::ALL.into_iter().zip(apart) {
        now += apart;
        // One server has no moments of a pair, nor a pair those of one server.
        let is_own = match moment {
            Moment::PrefillReplied => pair.is_some(),
            moment => moment.clock(Side::Traffic) != ClockOf::Engine || own.contains(&moment),
        };
        // Every row of a successful request has its send and its end.
        let is_sure = matches!(moment, Moment::Sent | Moment::Finish);
        if is_sure || is_own && seen & 1 << moment as u32 != 0 {
            sample = sample.at(moment, now);
        }
    }
    sample.row()
}

proptest! {
    #[test]
    fn the_columns_of_stages_are_parts_of_its_time_and_add_up_to_it(
        seen in prop_oneof![any::<u32>(), (0..32_u32).prop_map(|bit: u32| !(1_u32 << bit)), Just(u32::MAX)],
        apart in proptest::collection::vec(0..50_i64, Moment::COUNT),
        pair in proptest::option::of((proptest::option::of(0..9_i64), proptest::option::of(0..9_i64))),
    ) {
        let pair = pair.map(|(queue, forward)| PrefillTimes { queue: queue.map(ms), forward: forward.map(ms), sending: None });
        let row = of_moments(seen, &apart, pair);
        let Some(Breakdown { total_nanos, parts }) = Breakdown::of(&row) else { return Ok(()) };
        let mut sum = Some(0);
        for stage in &STAGES {
            let column = COLUMNS.iter().find(|column| column.label == stage.label);
            let took = match column.map(|column| (column.get)(&row)) {
                Some(Value::Nanos(nanos)) => Some(nanos),
                Some(_) => None,
                // `to proxy` has no column.
                None => row.timeline.nanos(stage.period),
            };
            if row.timeline.period_of(stage).is_none() {
                // For a pair, that column is the sum of its three waits.
                prop_assert!(took.is_none() || stage.period == Period::PURE_QUEUE, "{}: {took:?}", stage.name);
                continue;
            }
            let alone = StageSet::of(stage.period);
            let is_it = |part: &&Part| part.spent == alone || part.spent == StageSet::PROXY && alone.holds(Period::QUEUE_IN_ROUTER);
            let part = parts.iter().find(is_it).map(|part| part.nanos);
            // Without a router there is no part, and it took no time; one part may be known only as the remainder.
            let is_nothing = part.is_none() && took == Some(0);
            prop_assert!(took.is_none() || took == part || is_nothing, "{}: {took:?}, not {part:?}", stage.name);
            let is_in_total = parts.iter().any(|part| part.spent.holds(stage.period));
            if took.is_some() || is_in_total {
                sum = sum.zip(took).map(|(sum, took)| sum + took);
            }
        }
        prop_assert!(sum.is_none_or(|sum| sum == total_nanos), "{sum:?}, not {total_nanos}: {parts:?}");
    }
}

const HOP: [Moment; 2] = [WorkerArrival, WorkerForwarded];

/// The parts of a row, in milliseconds.
fn parts(row: &Row) -> String {
    let Breakdown { total_nanos, parts } = Breakdown::of(row).unwrap();
    let sum: i64 = parts.iter().map(|part| part.nanos).sum();
    assert_eq!(sum, total_nanos, "parts add up");
    let part = |part: &Part| format!("{} {}", part.spent.name(), part.nanos / ms(1));
    Vec::from_iter(parts.iter().map(part)).join(", ")
}

/// Checks that each row has the parts of its line among its own, and that what stands behind `|` was not measured.
fn assert_parts<const N: usize>(samples: [Sample; N], lines: &str) {
    assert_eq!(lines.lines().count(), N);
    for (sample, line) in samples.into_iter().zip(lines.lines()) {
        let (expected, lacking) = line.split_once(" | ").unwrap_or((line, ""));
        let row = sample.row();
        let shown = parts(&row);
        assert!(shown.contains(expected), "{expected}: {shown}");
        let unseen: Vec<&str> = Unseens::of(&row).iter().map(|one| one.name()).collect();
        assert_eq!(unseen.join(";"), lacking, "{expected}");
    }
}

fn straight(sample: Sample) -> Sample {
    let sample = sample.without(&HOP);
    sample.with(|row| row.timeline.upstream_is_server(true))
}

#[test]
fn stages_are_joined_if_the_moment_between_them_is_missing() {
    let seen_back = || Sample::whole().at(WorkerFirstToken, 203);
    let samples = [
        Sample::whole(),
        // The router's part of the return path is known if a hop saw the token, whatever the engine's clock.
        seen_back(),
        seen_back().engine_unknown(),
        seen_back().without(&[ServerFirstToken]),
        Sample::whole().without(&[WorkerArrival]),
        Sample::whole().without(&ENGINE),
        Sample::whole().engine_unknown(),
        Sample::whole().without(&[FirstToken, LastToken]),
    ];
    let expected = "\
client lag 1, to proxy 1, router 3, network 5, tokenize 10, queue 80, prefill 100, return 10, decode 290
prefill 100, return 3, router return 7, decode 290
router 3, network+return 8, tokenize 10, queue 80, prefill 100, router return 7 | engine_clock
queue 80, prefill+return 103, router return 7 | engine_no_meta_info
to proxy 1, router+network 8, tokenize | router
router 3, network+tokenize+queue+prefill+return 205, decode | engine_no_meta_info
client lag 1, to proxy 1, router 3, network+return 15, tokenize 10, queue 80, prefill 100, decode 290 | engine_clock
prefill 100, return+decode 300 | first_token";
    assert_parts(samples, expected);
    let pair = |row: &mut Row| {
        row.timeline.set_pair(PrefillTimes::default());
        row.timeline.forget_engine();
    };
    let no_hop = Sample::whole().without(&[Moment::WorkerArrival]);
    let anywhere = "in the router queue, on the way into the server or on the way back";
    for (sample, at, place) in [
        (Sample::whole().without(&ENGINE), 3, "unseen in the server"),
        (Sample::whole().with(pair), 3, "unseen in the server"),
        (no_hop.engine_unknown(), 2, anywhere),
    ] {
        let breakdown = Breakdown::of(&sample.row()).unwrap();
        assert_eq!(breakdown.parts[at].spent.place(), place);
    }
    let endless = Sample::whole().without(&[Moment::Finish]).row();
    assert_eq!(Breakdown::of(&endless), None);
}

#[test]
fn without_a_router_no_part_is_called_so_and_waits_for_the_client_are_split_off() {
    let no_proxy = Sample::whole().without(&[Moment::Arrival, Moment::Forwarded]);
    let stalled = Sample::whole().with(|row| {
        row.client_stall_until_finish = Some(ms(200));
        // A stall after the last byte was read delayed nothing in decode.
        row.client_stall = Some(ms(900));
    });
    let waited = |sample: Sample| sample.with(|row| row.prompt_wait = Some(ms(2)));
    let whole = Sample::whole;
    let slow = waited(straight(whole().at(Moment::Forwarded, 5)));
    let [whole, split] = [straight(whole()), waited(whole())];
    let samples = [whole, straight(no_proxy), stalled, split, slow];
    let expected = "\
client lag 1, to proxy 1, proxy 1, network 7
client lag 1, network 9, tokenize 10
return 10, decode 90, client_stall 200
to proxy 1, prompt_wait 2, router 1
to proxy 1, prompt_wait 2, proxy 1, network 5";
    assert_parts(samples, expected);
    let own = Sample::whole().without(&[Moment::Scheduled, Moment::Sent]);
    assert!(parts(&own.row()).starts_with("router 3, "));
}

#[test]
fn a_failed_request_is_broken_down_to_its_end() {
    let cut = Sample::whole().at(Finish, 300).at(End, 350);
    // The server reports when it received a request with its last event.
    let cut = cut.without(&[ServerCreated, ServerFinish, LastToken]);
    let cut = cut.ended(Outcome::ClientAbort, "left");
    let waited = Sample::whole().without(&ENGINE);
    let waited = waited.without(&[FirstEvent, FirstToken, LastToken, Finish]);
    let waited = waited.at(End, 905).ended(Outcome::Timeout, "");
    let refused_by_server = waited.clone().without(&[WorkerForwarded]);
    let unseen = waited.clone().without(&HOP);
    let unsent = unseen.clone().without(&[Sent, Arrival, Forwarded]);
    let unsent = unsent.at(End, 7).ended(Outcome::ClientAbort, "");
    let refused = unsent.clone().ended(Outcome::ConnectError, "refused");
    let pair = (waited.clone()).with(|row| row.timeline.set_pair(PrefillTimes::default()));
    let samples = [
        cut.clone(),
        cut.engine_unknown(),
        waited,
        refused_by_server.clone(),
        unseen.clone(),
        unseen.without(&[Forwarded]),
        unsent,
        refused.clone(),
        pair,
    ];
    let expected = "\
client lag 1, to proxy 1, router 3, network+tokenize 15, queue 80, prefill 100, return 10, decode 140
client lag 1, to proxy 1, router 3, network+tokenize+return 25, queue 80, prefill 100, decode 140
client lag 1, to proxy 1, router 3, network+tokenize+queue+prefill+return 900
client lag 1, to proxy 1, router 3, network 900
client lag 1, to proxy 1, router+network+tokenize+queue+prefill+return 903
client lag 1, to proxy 1, proxy 903
client lag 7
connecting 7
client lag 1, to proxy 1, router 3, network+tokenize+decode memory+prefill queue+prefill+KV transfer+decode slot+return 900";
    let parts = samples.map(|sample| {
        let mut row = sample.row();
        let by_moments = row.find_ended_in();
        // As the cell of a file says it; one that cannot be is not heeded.
        let told = row.ended_in.and_then(|of| Cell::of(of.value()));
        assert!(told.is_some());
        let of_pair = StageSet::of(Period::DECODE_MEMORY);
        let impossible = row.timeline.prefill().is_none().then_some(of_pair);
        for told in [told, None, impossible, Some(StageSet::DONE)] {
            row.ended_in = told;
            assert_eq!(row.last_seen(), by_moments, "{told:?}");
        }
        parts(&row)
    });
    assert_eq!(parts.join("\n"), expected);
    let last_seen = refused.row().last_seen().unwrap();
    assert_eq!(last_seen, StageSet::CONNECTING);
    assert_eq!(place(last_seen), "connecting to the target");
    let of_network = Some(StageSet::of(Period::NETWORK));
    assert_eq!(refused_by_server.row().ended_in, of_network);
}

#[test]
fn a_request_was_before_the_server_if_all_places_where_it_may_have_ended_are() {
    for (name, is_before) in [
        ("connecting", true),
        ("client lag", true),
        ("to proxy", true),
        ("proxy", true),
        ("router", true),
        ("network", true),
        ("to proxy+router+network", true),
        ("router+server", false),
        ("server", false),
        ("decode", false),
        ("done", false),
    ] {
        let told = StageSet::named(name).unwrap();
        assert_eq!(told.is_before_server(), is_before, "{name}");
    }
    assert!(!StageSet::default().is_before_server());
    // What is no place where a request ends, or is none with others.
    for name in ["prompt_wait", "client_stall", "router+done", "client", ""] {
        assert_eq!(StageSet::named(name), None, "{name}");
    }
}
