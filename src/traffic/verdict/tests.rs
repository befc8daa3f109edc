use super::*;

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
const CASES: [Case; 6] = [
    (|e, x| e.late = of(x), "late: 0.009 0.05 0.12"),
    (|e, x| e.very_late = of(x), "late: 0.001 0.005 0.02"),
    (|e, x| e.loop_late = x, "event loop: 0.01 0.1 0.3"),
    (|e, x| e.loop_very_late = x, "event loop: 0.005 0.03 0.1"),
    (|e, x| e.dropped = of(x), "never sent: 0 0.005 0.02"),
    (|e, x| e.failed = of(x), "failed: 0.02 0.9"),
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

/// One late request is no fault, nor are waits for slots.
#[test]
fn a_run_that_was_sent_and_read_in_time_is_valid() {
    let some = with(|evidence| (evidence.waited_for_slot, evidence.very_late) = (1000, 1));
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
}
