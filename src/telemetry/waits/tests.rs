use super::*;
use crate::table::{Cell, Table};
use crate::telemetry::counted::Counted;

/// A request of a server of two slots, whose clock is 100 s ahead of ours: when it began to wait, to run, and ended, in seconds.
fn rows(queued: f64, started: f64, ended: f64) -> Vec<Row> {
    let mut table = Table::default();
    let at = |name: &'static str, seconds| (name, Cell::Number(seconds));
    table.push([
        ("req_id", Cell::Id("a")),
        ("host", Cell::Word("gpu:1")),
        ("outcome", Cell::Word("ok")),
        ("seen_by", Cell::Word("front")),
        ("clock_state", Cell::Word("offset")),
        at("clock_offset", 100.0),
        ("labels", Cell::Word("x-tenant=acme; x-team=b")),
        at("arrival_time", queued),
        at("router_send_time", queued),
        at("queue_time_start", queued),
        at("queue_time_end", started),
        at("pure_queue_time", started - queued),
        at("finish_time", ended),
    ]);
    table.request(0)
}

/// Seconds by cause.
fn told(metrics: &Metrics) -> Vec<(String, f64)> {
    let sets = metrics.wait_causes.sets().into_iter();
    let mut told: Vec<(String, f64)> = sets
        .map(|(labels, one)| (labels.join(" "), (one.get() * 1e3).round() / 1e3))
        .filter(|(_, seconds)| *seconds > 0.0)
        .collect();
    told.sort_by(|a, b| a.0.cmp(&b.0));
    told
}

fn at(seconds: f64) -> Stamp {
    Stamp::from_nanos((seconds * 1e9) as i64)
}

#[test]
fn waits_are_counted_once_when_those_that_ran_meanwhile_have_ended() {
    let (log, metrics) = (WaitLog::default(), Metrics::new().unwrap());
    // Two run at once: each takes 2 s, and one more comes each second.
    for n in 0..40 {
        let (queued, started) = (f64::from(n) * 0.5, f64::from(n));
        let ended = started + 2.0;
        log.record(&rows(queued, started, ended), at(ended), &metrics);
    }
    log.count(at(40.9), &metrics);
    // Not those that ended in the last 2 s: whoever ran beside them may run still.
    let whole = |n: i32| f64::from((0..n).sum::<i32>()) * 0.5;
    let sum = |told: &[(String, f64)]| told.iter().map(|of| of.1).sum::<f64>();
    assert_eq!(sum(&told(&metrics)), whole(37));
    log.count(at(40.9), &metrics);
    assert_eq!(sum(&told(&metrics)), whole(37));
    log.count(at(50.0), &metrics);
    let last = told(&metrics);
    assert_eq!(sum(&last), whole(40));
    let slots = last.iter().find(|of| of.0 == "gpu:1 slots").unwrap();
    assert!(slots.1 > 0.95 * whole(40), "{last:?}");
    // Nothing is left of a worker that is gone.
    log.count(at(1000.0), &metrics);
    assert!(log.0.lock().timed.is_empty());
}

/// A server runs four of ours, later two while one more waits: others have it, unless one of ours was there of which it told nothing.
#[test]
fn where_a_request_without_times_was_nobody_else_is_blamed() {
    let told_of = |untimed: &[Vec<Row>]| {
        let (log, metrics) = (WaitLog::default(), Metrics::new().unwrap());
        for (queued, started, ended) in [
            (0.0, 0.0, 4.0),
            (0.0, 0.0, 4.0),
            (0.0, 0.0, 4.0),
            (0.0, 0.0, 4.0),
            (5.0, 5.0, 9.0),
            (5.0, 5.0, 9.0),
            (5.0, 8.0, 9.0),
        ] {
            log.record(&rows(queued, started, ended), at(ended), &metrics);
        }
        untimed
            .iter()
            .for_each(|rows| log.record(rows, at(8.5), &metrics));
        log.count(at(100.0), &metrics);
        told(&metrics)
    };
    let untimed = |host: &str, outcome: &str| {
        let mut rows = rows(0.0, 0.0, 8.5);
        rows[0].router_send_time = Some(at(6.0));
        rows[0].pure_queue_time = None;
        rows[0].host = Some(host.to_owned());
        rows[0].ended_in = Some(outcome.to_owned());
        rows
    };
    let others = |seconds| ("gpu:1 not_seen_here".to_owned(), seconds);
    assert_eq!(told_of(&[]), [others(3.0)]);
    let unknown = ("gpu:1 unknown".to_owned(), 2.0);
    assert_eq!(
        told_of(&[untimed("gpu:1", "server")]),
        [others(1.0), unknown.clone()]
    );
    // Where it was nobody knows.
    assert_eq!(told_of(&[untimed("", "server")]), [others(1.0), unknown]);
    assert_eq!(told_of(&[untimed("gpu:2", "server")]), [others(3.0)]);
    assert_eq!(told_of(&[untimed("gpu:1", "connecting")]), [others(3.0)]);
}

#[test]
fn requests_without_times_are_kept_in_bounds() {
    let mut log = Log::default();
    for n in 0..i64::try_from(KEPT).unwrap() + 10 {
        let interval = |start| Interval {
            start,
            end: start + 5,
        };
        log.add_untimed("gpu:1", interval(n * 10), at(1e9));
    }
    let all = &log.untimed["gpu:1"];
    assert_eq!(
        (all.len(), all[0], all[1].start),
        (KEPT, Interval { start: 0, end: 105 }, 110)
    );
    log.add_untimed(
        "gpu:1",
        Interval {
            start: 100,
            end: i64::MAX,
        },
        at(1.0),
    );
    assert_eq!(
        log.untimed["gpu:1"],
        [Interval {
            start: 0,
            end: at(1.0).nanos() + FORGOTTEN
        }]
    );
    for n in 0..2 * WORKERS {
        log.add_untimed(&n.to_string(), Interval { start: 0, end: 1 }, at(1.0));
    }
    assert!(log.untimed.len() <= WORKERS + 1 && log.untimed.contains_key(""));
}

#[test]
fn what_waits_to_be_judged_is_bounded() {
    let (log, metrics) = (WaitLog::default(), Metrics::new().unwrap());
    let row = rows(0.0, 1.0, 2.0);
    for _ in 0..MOST + 10 {
        log.record(&row, at(2.0), &metrics);
    }
    log.count(at(2.0), &metrics);
    assert_eq!(told(&metrics).iter().map(|of| of.1).sum::<f64>(), 10.0);
    for _ in 0..MOST {
        log.record(&row, at(2.0), &metrics);
    }
    log.count(at(2.0), &metrics);
    log.count(at(2.0), &metrics);
    let kept = log
        .0
        .lock()
        .timed
        .values()
        .map(|of| of.all.len())
        .sum::<usize>();
    assert!(kept <= 2 * MOST + KEPT, "{kept}");
}

#[test]
fn what_waited_on_the_way_or_at_an_unknown_time_is_counted_at_once() {
    let mut rows = rows(0.0, 1.0, 2.0);
    rows[0].worker = Some("gpu:1".to_owned());
    rows[0].queue_time_in_router = Some(NANOS / 4);
    rows[0].queue_time_start = None;
    let one = "gpu:0 server_error 500 after 0.100000 s";
    for (failed, expected) in [
        ("", vec![("gpu:1 router", 0.25)]),
        (
            one,
            vec![("gpu:1 router", 0.15), ("gpu:1 server_down", 0.1)],
        ),
        (
            "gpu:0 timeout after 0.100000 s; gpu:2 timeout after 0.050000 s",
            vec![("gpu:1 router", 0.1), ("gpu:1 server_down", 0.15)],
        ),
        // Of one nobody knows how long it took.
        ("gpu:0 open", vec![("gpu:1 server_down", 0.25)]),
    ] {
        let (log, metrics) = (WaitLog::default(), Metrics::new().unwrap());
        rows[0].failed_attempts = Some(failed.to_owned()).filter(|failed| !failed.is_empty());
        log.record(&rows, at(2.0), &metrics);
        let told = told(&metrics);
        let told: Vec<(&str, f64)> = told.iter().map(|of| (of.0.as_str(), of.1)).collect();
        assert_eq!(told, [expected, vec![("gpu:1 unknown", 1.0)]].concat());
    }
    // Without a hop it was the proxy that held it, and not while its client still sent the prompt.
    rows[0].worker = None;
    rows[0].forwarded_time = rows[0].router_send_time;
    rows[0].failed_attempts = None;
    rows[0].prompt_wait = Some(NANOS / 10);
    let (log, metrics) = (WaitLog::default(), Metrics::new().unwrap());
    log.record(&rows, at(2.0), &metrics);
    assert_eq!(told(&metrics)[0], ("gpu:1 proxy".to_owned(), 0.15));
}

#[test]
fn the_waits_of_a_pair_are_counted_at_once_each_by_its_cause_and_server() {
    let (log, metrics) = (WaitLog::default(), Metrics::new().unwrap());
    let mut rows = rows(0.0, 1.0, 2.0);
    rows[0].disaggregated = Some(true);
    rows[0].decode_bootstrap_time = Some(NANOS / 2);
    rows[0].prefill_queue_time = Some(NANOS / 4);
    rows[0].kv_transfer_time = Some(-NANOS);
    rows[0].decode_queue_time = Some(NANOS / 8);
    rows[0].prefill_host = Some("gpu:2".to_owned());
    log.record(&rows, at(2.0), &metrics);
    rows[0].decode_bootstrap_time = None;
    rows[0].decode_queue_time = None;
    rows[0].more.prefill_worker = Some("p0".to_owned());
    log.record(&rows, at(2.0), &metrics);
    log.count(at(100.0), &metrics);
    let told = told(&metrics);
    let told: Vec<(&str, f64)> = told.iter().map(|of| (of.0.as_str(), of.1)).collect();
    let expected = [
        ("gpu:1 decode_memory", 0.5),
        ("gpu:1 decode_slots", 0.125),
        ("gpu:2 prefill_queue", 0.25),
        ("p0 prefill_queue", 0.25),
    ];
    assert_eq!(told, expected);
}

#[test]
fn requests_are_counted_by_what_their_headers_say() {
    let metrics = Metrics::new().unwrap();
    metrics.request_ended(&Counted::of(&rows(0.0, 1.5, 2.0)));
    metrics.request_ended(&Counted::of(&rows(0.0, 0.5, 2.0)));
    let text = metrics.text();
    for line in [
        r#"queuescope_label_requests_total{header="x-tenant",outcome="ok",value="acme"} 2"#,
        r#"queuescope_label_requests_total{header="x-team",outcome="ok",value="b"} 2"#,
        r#"queuescope_label_wait_seconds_total{header="x-tenant",value="acme"} 2"#,
    ] {
        assert!(text.contains(line), "{line} not in {text}");
    }
    // Of whom no server told its times there is no wait, rather than one of 0.
    let mut untold = rows(0.0, 0.0, 2.0);
    untold[0].pure_queue_time = None;
    untold[0].labels = Some("x-tenant=untold".to_owned());
    metrics.request_ended(&Counted::of(&untold));
    let text = metrics.text();
    let told: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("untold"))
        .collect();
    let is_right = told.len() == 1 && told[0].starts_with("queuescope_label_requests_total");
    assert!(is_right, "{told:?}");
}
