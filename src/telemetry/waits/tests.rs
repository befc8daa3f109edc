use std::collections::BTreeMap;

use super::*;
use crate::clock::Clock;
use crate::request::{Moment, Period, StageSet, parse_failed};
use crate::table::Table;
use crate::telemetry::prometheus;
use crate::telemetry::{CountedRequest, Telemetry};

/// A request at a server with two slots, whose clock is 100 s ahead of ours. Start of its wait, of its run, and end, seconds.
fn rows(queued: f64, started: f64, ended: f64) -> Vec<Row> {
    let mut table = Table::default();
    let waited = started - queued;
    table.push_line(&format!(
        "req_id=a, host=gpu:1, outcome=ok, seen_by=front, clock_state=offset, clock_offset=100, labels=x-tenant=acme; x-team=b, \
         arrival_time={queued}, router_send_time={queued}, queue_time_start={queued}, queue_time_end={started}, \
         pure_queue_time={waited}, finish_time={ended}"
    ));
    table.request(0)
}

/// A log and its metrics.
fn begin() -> (WaitLog, Metrics) {
    (WaitLog::default(), Metrics::new().unwrap())
}

/// Records rows of a request when it ends.
fn record_at_end(log: &WaitLog, rows: &[Row], ended: f64, metrics: &Metrics) {
    log.record(rows, at(ended), at(ended), metrics);
}

/// The counted seconds by server and cause.
fn counted(metrics: &Metrics) -> BTreeMap<String, f64> {
    let sets = metrics.wait_causes.sets().into_iter();
    let seconds = sets.map(|(labels, sum)| (labels.join(" "), (sum.get() * 1e3).round() / 1e3));
    seconds.filter(|(_, seconds)| *seconds > 0.0).collect()
}

/// The same as a text.
fn shown(metrics: &Metrics) -> String {
    let counted = counted(metrics).into_iter();
    let counted = counted.map(|(labels, seconds)| format!("{labels} {seconds}"));
    Vec::from_iter(counted).join(", ")
}

fn at(seconds: f64) -> Stamp {
    Stamp::from_nanos((seconds * 1e9) as i64)
}

#[test]
fn waits_are_counted_once_when_the_requests_that_ran_meanwhile_have_ended() {
    let (log, metrics) = begin();
    // Two run at once, for 2 s each, and one more arrives each second.
    for n in 0..40 {
        let (queued, started) = (f64::from(n) * 0.5, f64::from(n));
        let ended = started + 2.0;
        record_at_end(&log, &rows(queued, started, ended), ended, &metrics);
    }
    let whole = |n: i32| f64::from((0..n).sum::<i32>()) * 0.5;
    // Without those that ended in the last 2 s: requests that ran beside them may still run.
    for (now, count) in [(40.9, 37), (40.9, 37), (50.0, 40)] {
        log.count(at(now), &metrics);
        let sum: f64 = counted(&metrics).values().sum();
        assert_eq!(sum, whole(count), "{now}");
    }
    assert!(counted(&metrics)["gpu:1 slots"] > 0.95 * whole(40));
    // A worker without requests is removed.
    log.count(at(1000.0), &metrics);
    assert!(log.0.lock().timed.is_empty());
}

/// Of the requests of the live page alone neither is known: the slots, and whether others still run.
#[test]
fn a_wait_is_judged_by_all_that_were_at_the_worker() {
    let (log, metrics) = begin();
    let mut at_once = Vec::new();
    for n in 0..800 {
        let started = f64::from(n) * 0.1;
        let rows = rows(started - 3.0, started, started + 1.6);
        record_at_end(&log, &rows, started + 1.6, &metrics);
        at_once.push(rows);
    }
    log.count(at(80.0), &metrics);
    let judged = log.judge(&at_once[700][0]).unwrap();
    assert_eq!((judged.cause, judged.slots), (Cause::Slots, Some(16)));
    let held_up = at_once.iter().position(|rows| judged.is_holder(&rows[0]));
    assert!((655..700).contains(&held_up.unwrap()), "{held_up:?}");
    // One more waits while only one of them is known to run: others may still run.
    let last = rows(100.0, 102.0, 103.0);
    record_at_end(&log, &rows(99.0, 99.0, 103.0), 103.0, &metrics);
    record_at_end(&log, &last, 103.0, &metrics);
    let cause = |log: &WaitLog| log.judge(&last[0]).unwrap().cause;
    assert_eq!(cause(&log), Cause::Unknown);
    log.count(at(200.0), &metrics);
    assert_eq!(cause(&log), Cause::NotSeen);
    assert_eq!(log.judge(&rows(1.0, 2.0, 3.0)[0]), None);
}

/// A server runs four of our requests, later two while a third waits. Other clients' requests must have the slots, unless one of
/// ours without times was there.
#[test]
fn a_wait_beside_a_request_without_times_has_an_unknown_cause() {
    let in_server = StageSet::of(Period::PURE_QUEUE);
    for (untimed, others, unknown) in [
        (None, 3, 0),
        (Some(("gpu:1", in_server)), 1, 2),
        // Its worker is unknown.
        (Some(("", in_server)), 1, 2),
        (Some(("gpu:2", in_server)), 3, 0),
        (Some(("gpu:1", StageSet::CONNECTING)), 3, 0),
    ] {
        let (log, metrics) = begin();
        let earlier = [[0.0, 0.0, 4.0]; 4].into_iter();
        let later = [[5.0, 5.0, 9.0], [5.0, 5.0, 9.0], [5.0, 8.0, 9.0]];
        for [queued, started, ended] in earlier.chain(later) {
            record_at_end(&log, &rows(queued, started, ended), ended, &metrics);
        }
        if let Some((host, stage)) = untimed {
            let mut rows = rows(0.0, 0.0, 8.5);
            rows[0].router_send_time = Some(at(6.0));
            rows[0].pure_queue_time = None;
            rows[0].host = Some(host.to_owned());
            rows[0].ended_in = Some(stage);
            record_at_end(&log, &rows, 8.5, &metrics);
        }
        log.count(at(100.0), &metrics);
        let unknown = match unknown {
            0 => String::new(),
            seconds => format!(", gpu:1 unknown {seconds}"),
        };
        let expected = format!("gpu:1 not_seen_here {others}{unknown}");
        assert_eq!(shown(&metrics), expected, "{untimed:?}");
    }
}

/// Rows of requests whose times come with a server's spans are recorded late. A wait beside them is not judged before.
#[test]
fn a_wait_is_judged_when_those_that_ran_meanwhile_are_recorded() {
    let (log, metrics) = begin();
    let record = |[queued, started, ended]: [f64; 3], late: f64| {
        let rows = rows(queued, started, ended);
        log.record(&rows, at(ended), at(ended + late), &metrics);
    };
    (0..4).for_each(|_| record([0.0, 0.0, 2.0], 4.0));
    record([5.0, 8.0, 9.0], 0.0);
    log.count(at(11.5), &metrics);
    assert_eq!(shown(&metrics), "");
    (0..4).for_each(|_| record([5.0, 5.0, 8.0], 4.0));
    log.count(at(20.0), &metrics);
    assert_eq!(shown(&metrics), "gpu:1 unknown 3");
}

#[test]
fn the_requests_without_times_are_bounded() {
    let mut log = Log::default();
    let interval = |start, end| Interval { start, end };
    for n in 0..=i64::try_from(MAX_COUNTED).unwrap() {
        log.add_untimed("gpu:1", interval(n * 10, n * 10 + 5), at(1e9));
    }
    let all = &log.untimed["gpu:1"];
    let kept = (all.len(), all[0], all[1].start);
    assert_eq!(kept, (MAX_COUNTED / 2, interval(0, 10_015), 10_020));
    log.add_untimed("gpu:2", interval(100, i64::MAX), at(1.0));
    let end = at(1.0).nanos() + MAX_AGE_NANOS;
    assert_eq!(log.untimed["gpu:2"], [interval(100, end)]);
    // Of requests at once one interval is kept.
    for start in 0..=i64::try_from(MAX_COUNTED).unwrap() {
        log.add_untimed("gpu:3", interval(start, start + 5), at(1.0));
    }
    assert_eq!(log.untimed["gpu:3"].len(), 1);
    for n in 0..2 * MAX_WORKERS {
        log.add_untimed(&n.to_string(), interval(0, 1), at(1.0));
    }
    assert!(log.untimed.len() <= MAX_WORKERS + 1 && log.untimed.contains_key(""));
}

#[test]
fn the_pending_stays_are_bounded() {
    let (log, metrics) = begin();
    let row = rows(0.0, 1.0, 2.0);
    let record = |count| (0..count).for_each(|_| record_at_end(&log, &row, 2.0, &metrics));
    record(MAX_PENDING + 10);
    log.count(at(2.0), &metrics);
    let sum: f64 = counted(&metrics).values().sum();
    assert_eq!(sum, 10.0);
    record(MAX_PENDING);
    (0..2).for_each(|_| log.count(at(2.0), &metrics));
    let log = log.0.lock();
    let kept: usize = log.timed.values().map(|of| of.stays.len()).sum();
    assert!(kept <= 2 * MAX_PENDING + MAX_COUNTED, "{kept}");
}

#[test]
fn waits_before_the_server_or_at_an_unknown_time_are_counted_at_once() {
    let mut rows = rows(0.0, 1.0, 2.0);
    rows[0].worker = Some("gpu:1".to_owned());
    rows[0].queue_time_in_router = Some(NANOS / 4);
    rows[0].queue_time_start = None;
    let counted = |rows: &[Row]| {
        let (log, metrics) = begin();
        record_at_end(&log, rows, 2.0, &metrics);
        shown(&metrics).replace("gpu:1 ", "")
    };
    let failed = "gpu:0 server_error 500 after 0.100000 s";
    let two = "gpu:0 timeout after 0.100000 s; gpu:2 timeout after 0.050000 s";
    let backwards = "gpu:0 timeout after 0.100000 s; gpu:2 timeout after -1 s";
    let years = "gpu:0 timeout after 9223372036 s; gpu:2 timeout after 9223372036 s";
    for (failed, expected) in [
        (None, "router 0.25, unknown 1"),
        (Some(failed), "router 0.15, server_down 0.1, unknown 1"),
        (Some(two), "router 0.1, server_down 0.15, unknown 1"),
        // An attempt of unknown or impossible duration.
        (Some("gpu:0 open"), "server_down 0.25, unknown 1"),
        (Some(years), "server_down 0.25, unknown 1"),
        (Some(backwards), "server_down 0.25, unknown 1"),
    ] {
        rows[0].failed_attempts = failed.map(|failed| parse_failed(failed).collect());
        assert_eq!(counted(&rows), expected);
    }
    // Without a hop the proxy held the request, except while the client still sent the prompt.
    rows[0].worker = None;
    rows[0].forwarded_time = rows[0].router_send_time;
    rows[0].failed_attempts = None;
    rows[0].prompt_wait = Some(NANOS / 10);
    assert_eq!(counted(&rows), "proxy 0.15, unknown 1");
}

#[test]
fn the_waits_of_a_pair_are_counted_at_once_by_cause_and_server() {
    let (log, metrics) = begin();
    let mut rows = rows(0.0, 1.0, 2.0);
    rows[0].disaggregated = Some(true);
    rows[0].decode_bootstrap_time = Some(NANOS / 2);
    rows[0].prefill_queue_time = Some(NANOS / 4);
    rows[0].kv_transfer_time = Some(-NANOS);
    rows[0].decode_queue_time = Some(NANOS / 8);
    rows[0].prefill_host = Some("gpu:2".to_owned());
    record_at_end(&log, &rows, 2.0, &metrics);
    rows[0].decode_bootstrap_time = None;
    rows[0].decode_queue_time = None;
    rows[0].internal.prefill_worker = Some("p0".to_owned());
    record_at_end(&log, &rows, 2.0, &metrics);
    log.count(at(100.0), &metrics);
    let expected = "gpu:1 decode_memory 0.5, gpu:1 decode_slots 0.125, gpu:2 prefill_queue 0.25, p0 prefill_queue 0.25";
    assert_eq!(shown(&metrics), expected);
}

/// The second was queued before the server had received it: no figure includes such times.
#[test]
fn an_impossible_wait_is_not_counted() {
    let metrics = Metrics::new().unwrap();
    let (clock, _) = Clock::manual(at(9.0));
    let telemetry = Telemetry::new(None, metrics.clone(), true, clock);
    for created in [-0.5, 0.5] {
        let mut rows = rows(0.0, 1.0, 2.0);
        rows[0].timeline.set(Moment::ServerCreated, at(created));
        rows[0].timeline.set(Moment::End, at(2.0));
        telemetry.record(rows);
        telemetry.count_waits(at(100.0));
        assert_eq!(shown(&metrics), "gpu:1 not_seen_here 1", "{created}");
    }
}

#[test]
fn requests_are_counted_by_their_headers() {
    let metrics = Metrics::new().unwrap();
    metrics.request_ended(&CountedRequest::of(&rows(0.0, 1.5, 2.0)));
    metrics.request_ended(&CountedRequest::of(&rows(0.0, 0.5, 2.0)));
    let labels = prometheus::tests::shown(&metrics).into_iter();
    let labels = labels.filter(|(name, _)| name.starts_with("queuescope_label_"));
    let lines = labels.map(|(name, value)| format!("{name} {value}"));
    let expected = [
        r#"queuescope_label_requests_total{header="x-team",outcome="ok",value="b"} 2"#,
        r#"queuescope_label_requests_total{header="x-tenant",outcome="ok",value="acme"} 2"#,
        r#"queuescope_label_wait_seconds_total{header="x-team",value="b"} 2"#,
        r#"queuescope_label_wait_seconds_total{header="x-tenant",value="acme"} 2"#,
    ];
    assert_eq!(Vec::from_iter(lines), expected);
}
