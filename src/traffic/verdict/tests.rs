use super::*;

/// A minute at 20 a second, seen well.
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
        gaps: Some(Gaps { stretch: 1.0001 }),
        ..Evidence::default()
    }
}

fn with(change: impl FnOnce(&mut Evidence)) -> Verdict {
    let mut evidence = good();
    change(&mut evidence);
    judge(&evidence)
}

/// Each alone, on either side of its limits: what is changed, what is said, and values that are valid, degraded, invalid.
const LIMITS: &str = "\
late           | late       | 0.009 0.05 0.12
very_late      | late       | 0.001 0.005 0.02
loop_late      | event loop | 0.01 0.1 0.3
loop_very_late | event loop | 0.005 0.03 0.1
stretch        | longer     | 0.01 0.05 0.5
dropped        | never sent | 0.0 0.005 0.02
failed         | failed     | 0.02 0.9";

fn set(evidence: &mut Evidence, what: &str, share: f64) {
    let requests = (share * 1200.0) as u64;
    match what {
        "late" => evidence.late = requests,
        "very_late" => evidence.very_late = requests,
        "loop_late" => evidence.loop_late = share,
        "loop_very_late" => evidence.loop_very_late = share,
        "stretch" => {
            evidence.gaps = Some(Gaps {
                stretch: 1.0 + share,
            })
        }
        "dropped" => evidence.dropped = requests,
        other => {
            evidence.failed = if other == "failed" {
                requests
            } else {
                panic!("{other}")
            }
        }
    }
}

#[test]
fn each_limit_makes_its_grade() {
    use Grade::{Degraded, Invalid, Valid};
    for line in LIMITS.lines() {
        let [what, said, values] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let values = values.split(' ').map(|value| value.parse().unwrap());
        for (grade, value) in [Valid, Degraded, Invalid].into_iter().zip(values) {
            let verdict = with(|evidence| set(evidence, what, value));
            assert_eq!(verdict.grade, grade, "{said} {value}: {verdict:?}");
            let reason = verdict.reasons.first();
            let named = reason.is_some_and(|reason| reason.contains(said));
            assert_eq!(named, grade != Valid, "{said}: {verdict:?}");
        }
    }
}

/// One late request is no fault, nor are waits for slots.
#[test]
fn a_run_that_was_sent_and_seen_in_time_is_valid() {
    let some = with(|evidence| (evidence.waited_for_slot, evidence.very_late) = (1000, 1));
    assert_eq!(some, Verdict::default());
    assert_eq!(judge(&Evidence::default()), Verdict::default());
}

#[test]
fn a_run_that_was_stopped_is_not_all_that_was_asked() {
    let verdict = with(|evidence| {
        evidence.scheduled = 1559;
        (evidence.unsent, evidence.given_up) = (359, 2);
    });
    assert_eq!(verdict.grade, Grade::Degraded);
    let said = "the run was stopped: 359 of 1559 requests were never sent and 2 given up, so the figures are of its beginning";
    assert_eq!(verdict.reasons[0], said);
}

/// Of a thousand that wait for a slot until the run is stopped, none was sent in time.
#[test]
fn late_sends_are_a_share_of_what_was_sent() {
    let verdict = with(|evidence| (evidence.sent, evidence.late) = (100, 11));
    assert_eq!(verdict.grade, Grade::Invalid);
    let said = "11 of 100 requests (11 %) were sent more than";
    assert!(verdict.reasons[0].starts_with(said), "{verdict:?}");
}

#[test]
fn the_worst_comes_first() {
    let verdict = with(|evidence| (evidence.late, evidence.loop_late) = (60, 0.5));
    assert_eq!(verdict.grade, Grade::Invalid);
    let said = ["50 % of the run", "60 of 1200 requests (5.0 %)"];
    let are_said = verdict.reasons.iter().zip(said);
    assert!(are_said.clone().count() == 2, "{verdict:?}");
    are_said.for_each(|(reason, said)| assert!(reason.contains(said), "{reason}"));
}

#[test]
fn late_is_late_beside_what_is_measured_within_limits() {
    for (typical, at_once, slight, gross) in [
        (None, None, 0.01, 0.05),
        (Some(0.4), None, 0.04, 0.2),
        // A starved client measures long times: they do not excuse it.
        (Some(60.0), None, 0.1, 0.5),
        // Nobody sends a thousand requests in no time.
        (Some(1.0), Some(30.0), 3.0, 15.0),
    ] {
        let bounds = Bounds::of(typical, at_once);
        let off = (bounds.slight - slight).abs() + (bounds.gross - gross).abs();
        assert!(off < 1e-9, "{bounds:?} of {typical:?}, {at_once:?}");
    }
}

#[test]
fn invalid_figures_are_marked_block_by_block() {
    let text = "10 requests\nrates\n\nms  p50\nTTFT  3\n\nmost time went\n";
    let of = |grade| Verdict {
        grade,
        reasons: Vec::new(),
    };
    assert_eq!(of(Grade::Valid).marked(text), text);
    let marked = of(Grade::Invalid).marked(text);
    let line = "INVALID: these figures are not the server's\n";
    assert_eq!(marked.matches(line).count(), 3, "{marked}");
    assert_eq!(marked.replace(line, ""), text);
    assert!(of(Grade::Degraded).marked(text).starts_with("DEGRADED: "));
}

#[test]
fn the_terminal_says_what_was_judged() {
    let mut evidence = good();
    let text = judge(&evidence).to_text(&evidence);
    let said = "verdict       VALID: sends p99 4.0 ms late, event loop p99 4.0 ms late\n";
    assert_eq!(text, said);
    evidence.loop_late = 0.5;
    let text = judge(&evidence).to_text(&evidence);
    assert!(text.starts_with("verdict       INVALID: "), "{text}");
    assert!(
        text.contains("\n              the generator's event loop"),
        "{text}"
    );
}
