use super::*;
use crate::clock::Stamp;
use crate::request::{End, Endpoint, Observer, Side};

/// A minute at 20 requests per second, without problems.
fn good() -> Evidence {
    let delay = Delay {
        p50: 0.0002,
        p99: 0.004,
        max: 0.03,
    };
    Evidence {
        scheduled: 1200,
        due: 1200,
        sent: 1200,
        lag: Some(delay),
        late: 6,
        event_loop: Some(delay),
        loop_late: 0.005,
        ..Evidence::default()
    }
}

fn with(change: impl FnOnce(&mut Evidence)) -> Verdict {
    let mut evidence = good();
    change(&mut evidence);
    judge(&evidence)
}

/// This share of the requests.
fn of(share: f64) -> u64 {
    (share * 1200.0) as u64
}

/// What is changed; a part of the reason, and values that are valid, degraded, invalid.
type Case = (fn(&mut Evidence, f64), &'static str);

/// Each figure alone, on either side of its limits.
const CASES: [Case; 8] = [
    (|e, x| e.late = of(x), "late: 0.009 0.05 0.12"),
    (|e, x| e.very_late = of(x), "late: 0.001 0.005 0.02"),
    (|e, x| e.loop_late = x, "event loop: 0.01 0.1 0.3"),
    (|e, x| e.loop_very_late = x, "event loop: 0.005 0.03 0.1"),
    (|e, x| e.dropped = of(x), "never sent: 0 0.005 0.02"),
    (|e, x| e.failed = of(x), "failed: 0.02 0.9"),
    (|e, x| e.unwritten = of(x), "have no row: 0 0.9"),
    // Of two that went well.
    (
        |e, x| (e.ok, e.empty) = (2, x as u64),
        "without text or tokens: 1 2",
    ),
];

#[test]
fn each_limit_makes_its_grade() {
    for (change, row) in CASES {
        let (part, values) = row.split_once(": ").unwrap();
        let grades = [Grade::Valid, Grade::Degraded, Grade::Invalid];
        for (grade, value) in grades.into_iter().zip(values.split(' ')) {
            let verdict = with(|evidence| change(evidence, value.parse().unwrap()));
            assert_eq!(verdict.grade, grade, "{part} {value}: {verdict:?}");
            let reason = verdict.reasons.first();
            let is_named = reason.is_some_and(|reason| reason.contains(part));
            assert_eq!(is_named, grade != Grade::Valid, "{part}: {verdict:?}");
        }
    }
}

/// One late request of any number is no fault, nor are waits for slots.
#[test]
fn a_run_that_was_sent_and_read_in_time_is_valid() {
    let some = with(|e| (e.sent, e.late, e.very_late, e.waited_for_slot) = (5, 1, 1, 1000));
    assert_eq!(some, Verdict::default());
    assert_eq!(judge(&Evidence::default()), Verdict::default());
}

#[test]
fn reasons_give_counts_and_the_worst_comes_first() {
    let stopped = with(|e| (e.scheduled, e.unsent, e.given_up) = (1559, 359, 2));
    let unsent = "359 of 1559 requests were never sent and 2 given up, so";
    // Of a thousand that wait for a slot until the run is stopped, none was sent in time.
    let of_sent = with(|e| (e.sent, e.late) = (100, 11));
    let two = with(|e| (e.late, e.loop_late) = (60, 0.5));
    let late = "11 of 100 requests (11 %) were sent more than";
    let [most, all] = [1, 0].map(|ok| with(|e| e.failed = e.due - ok));
    let before_all = with(|e| (e.sent, e.unsent) = (0, e.scheduled));
    let grades = [&stopped, &before_all, &of_sent, &two].map(|verdict| verdict.grade);
    let expected = [
        Grade::Degraded,
        Grade::Invalid,
        Grade::Invalid,
        Grade::Invalid,
    ];
    assert_eq!(grades, expected);
    for (reason, part) in [
        (&stopped.reasons[0], unsent),
        (&of_sent.reasons[0], late),
        (&two.reasons[0], "50 % of the run"),
        (&two.reasons[1], "60 of 1200 requests (5.0 %)"),
        (&most.reasons[0], "latencies are those of the others"),
        (&all.reasons[0], "failed: there are no latencies"),
    ] {
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn limits_of_lateness_follow_the_measured_times_within_a_range() {
    for (typical, slight, gross) in [
        (None, 0.01, 0.05),
        (Some(0.4), 0.04, 0.2),
        // A starved client measures long times, which do not excuse it.
        (Some(60.0), 0.1, 0.5),
    ] {
        let bounds = Bounds::of(typical);
        let off = (bounds.slight - slight).abs() + (bounds.gross - gross).abs();
        assert!(off < 1e-9, "{bounds:?} of {typical:?}");
    }
}

#[test]
fn invalid_figures_are_marked_block_by_block() {
    let text = "10 requests\nrates\n\nms  p50\nTTFT  3\n\nmost time went\n";
    let of = |grade| Verdict {
        grade,
        ..Verdict::default()
    };
    assert_eq!(of(Grade::Valid).marked(text), text);
    let marked = of(Grade::Invalid).marked(text);
    let line = "INVALID: these figures are not the server's\n";
    assert_eq!(marked.matches(line).count(), 3, "{marked}");
    assert_eq!(marked.replace(line, ""), text);
    assert!(of(Grade::Degraded).marked(text).starts_with("DEGRADED: "));
}

#[test]
fn the_terminal_shows_grade_figures_and_reasons() {
    let mut evidence = good();
    let text = judge(&evidence).to_text(&evidence);
    let expected = "verdict       VALID: sends p99 4.0 ms late, event loop p99 4.0 ms late\n";
    assert_eq!(text, expected);
    evidence.loop_late = 0.5;
    let text = judge(&evidence).to_text(&evidence);
    assert!(text.starts_with("verdict       INVALID: "), "{text}");
    let reason = "\n              the generator's event loop";
    assert!(text.contains(reason), "{text}");
    // Stopped before its first send.
    (evidence.lag, evidence.event_loop) = (None, None);
    let text = judge(&evidence).to_text(&evidence);
    assert!(text.starts_with("verdict       INVALID\n"), "{text}");
}

const MS: i64 = 1_000_000;

/// A run of a request every 50 ms; `wait` gives how late each was, and its waits for a slot and a connection.
fn run(wait: impl Fn(i64) -> [i64; 3]) -> Lag {
    let mut lag = Lag::default();
    (0..1000).for_each(|index| add(&mut lag, index * 50 * MS, wait(index)));
    lag
}

fn add(lag: &mut Lag, due: i64, [late, slot_nanos, connect_nanos]: [i64; 3]) {
    let scheduled = Stamp::from_nanos(due);
    let sent = scheduled.plus_nanos(late + slot_nanos + connect_nanos);
    let mut observer = Observer::new(Side::Traffic, Endpoint::Generate, String::new());
    observer
        .row_mut()
        .timeline
        .set(Moment::Scheduled, scheduled);
    observer.row_mut().timeline.set(Moment::Sent, sent);
    lag.add(&Exchange {
        rows: observer.finish(End::Complete, sent),
        stamps: None,
        connect_nanos,
        slot_nanos,
    });
}

fn evidence_of(lag: &Lag) -> Evidence {
    Evidence::measured(lag, &Histogram::default(), Bounds::of(None), false)
}

#[test]
fn a_punctual_run_one_with_late_requests_and_one_of_a_lower_rate() {
    let punctual = evidence_of(&run(|_| [MS / 10, 0, 0]));
    assert_eq!((punctual.late, punctual.very_late), (0, 0));
    assert!((punctual.lag.unwrap().p50 - 1e-4).abs() < 4e-6);

    let late = |index| [60 * MS, 20 * MS].get(index as usize % 50).copied();
    let late = evidence_of(&run(|index| [late(index).unwrap_or(MS / 20), 0, 0]));
    assert_eq!((late.late, late.very_late), (40, 20));
    assert_eq!(evidence_of(&Lag::default()).lag, None);

    // A lower rate: each later than due, as the gaps are 2 % longer.
    let slow = evidence_of(&run(|index| [index * MS, 0, 0]));
    assert_eq!(judge(&slow).grade, Grade::Invalid, "{slow:?}");
}

#[test]
fn waits_for_a_slot_and_for_a_connection_are_distinguished() {
    let waiting = run(|index| [0, if index == 1 { 2_000 * MS } else { 0 }, 30 * MS]);
    let evidence = evidence_of(&waiting);
    let lag = evidence.lag.unwrap().max;
    assert_eq!((evidence.waited_for_slot, lag), (1, 0.0));
    let start = "1 requests waited for a --max-concurrency slot";
    assert!(waiting.warning().unwrap().starts_with(start));

    // A server that accepts all waiting connections every half second: sends come in bursts.
    let slow = run(|index| [0, 0, (9 - index % 10) * 50 * MS]);
    let evidence = evidence_of(&slow);
    assert_eq!(judge(&evidence).grade, Grade::Valid, "{evidence:?}");
    assert_eq!(slow.warning(), None);
}

#[test]
fn a_request_that_waits_for_a_slot_until_the_run_is_stopped_waited_and_was_not_sent() {
    let mut lag = Lag::default();
    add(&mut lag, 0, [20 * MS, 0, 0]);
    let slot_nanos = 9_000 * MS;
    let observer = Observer::new(Side::Traffic, Endpoint::Generate, String::new());
    lag.add(&Exchange {
        rows: observer.finish(End::GivenUp, Stamp::from_nanos(slot_nanos)),
        slot_nanos,
        ..Exchange::default()
    });
    let evidence = evidence_of(&lag);
    let counts = (evidence.sent, evidence.late, evidence.waited_for_slot);
    assert_eq!((counts, lag.unsent, lag.given_up), ((1, 1, 1), 1, 0));
}

#[test]
fn a_blocked_loop_is_late_for_as_long_as_it_is_blocked() {
    let mut delays = Histogram::default();
    // Nine seconds in time, one blocked.
    (0..900).for_each(|_| record_tick(&mut delays, 100_000));
    record_tick(&mut delays, 990_000_000);
    // Also where all requests are due at once, and none is late.
    let evidence = Evidence::measured(&Lag::default(), &delays, Bounds::of(None), true);
    assert_eq!(judge(&evidence).grade, Grade::Invalid);
    // Of a thousand ticks: those more than 10 ms late, and more than 50 ms.
    let near = |share: f64, wanted: f64| (share - wanted).abs() < 0.0025;
    assert!(near(evidence.loop_late, 0.098), "{evidence:?}");
    assert!(near(evidence.loop_very_late, 0.094), "{evidence:?}");
    let delay = evidence.event_loop.unwrap();
    assert_eq!(delay.max, 0.99);
    assert!(delay.p50 < 0.001 && delay.p99 > 0.8, "{delay:?}");
}

#[tokio::test]
async fn it_ticks_from_the_start_of_the_run() {
    let (clock, live) = (Clock::system(), Arc::<LiveProgress>::default());
    let delays = event_loop_delays(clock.clone(), live.clone());
    let started = clock.now().plus_nanos(5 * TICK_NANOS);
    live.began.set(started).unwrap();
    while delays.lock().count() < 3 {
        tokio::task::yield_now().await;
        let is_early = clock.now() < started;
        let has_begun = delays.lock().count() > 0 && is_early;
        assert!(!has_begun, "it ticked before the run");
    }
}
