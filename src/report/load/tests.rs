use serde_json::{Value, json};

use super::*;
use crate::report::sample::{Sample, at, ms};
use crate::report::sanitize::sanitize;
use crate::request::attempt::{FailedAttempt, failed_text};
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::timeline::Moment;
use crate::table::Table;

/// The moments between the front's send and the last byte.
pub const AFTER_SENDING: [Moment; 12] = [
    Moment::WorkerArrival,
    Moment::WorkerForwarded,
    Moment::ServerCreated,
    Moment::QueueStart,
    Moment::QueueEnd,
    Moment::PrefillEnd,
    Moment::ServerFirstToken,
    Moment::ServerFinish,
    Moment::ResponseHead,
    Moment::FirstEvent,
    Moment::FirstToken,
    Moment::LastToken,
];

pub fn run() -> RunFacts {
    RunFacts {
        started: at(0),
        ended: at(2000),
        offered_rate: Some(2.5),
        scheduled: 4,
        config: json!({ "seed": 7 }),
        goodput: Vec::new(),
        machine: Value::Null,
    }
}

/// Three successful requests, the third with 100 ms more of decoding on another server, and one that timed out 2 ms after its send.
fn four() -> Vec<Row> {
    let slower = Sample::starting(1000).host("127.0.0.1:30001");
    let failed = Sample::starting(1500)
        .without(&AFTER_SENDING)
        .without(&[Moment::Finish])
        .at(Moment::End, 1503)
        .ended(Outcome::Timeout, "no answer for 10 s");
    vec![
        Sample::starting(0).open_row(),
        Sample::starting(500).open_row(),
        slower.at(Moment::Finish, 1600).open_row(),
        failed.open_row(),
    ]
}

#[test]
fn failed_attempts_are_counted_by_server_outcome_and_status() {
    let failed = |host: &str, status| FailedAttempt {
        host: host.into(),
        outcome: Some(Outcome::Rejected),
        status: Some(status),
        nanos: None,
    };
    let mut records = four();
    records[0].attempts = Some(3);
    records[0].failed_attempts = failed_text(&[failed("a:1", 503), failed("b:1", 503)]);
    records[1].attempts = Some(2);
    records[1].failed_attempts = failed_text(&[failed("b:1", 503)]);
    // The last never reached its server: the hop before it reports its own name.
    records[2].worker = Some("server-2".to_owned());
    records[3].host = None;
    records[3].failed_attempts = failed_text(&[failed("server-2", 502)]);
    let json = json_of(&records, &run());
    assert_near(&json, "/hosts/127.0.0.1:30001/failed", 1.0);
    records[3].failed_attempts = None;
    let json = json_of(&records, &run());
    assert_eq!(json["attempts"], 5);
    assert_eq!(json["retried_requests"], 2);
    let of = |host: &str, count| json!({ "host": host, "outcome": "rejected", "status": 503, "count": count });
    assert_eq!(json["failed_attempts"], json!([of("b:1", 2), of("a:1", 1)]));
}

/// Text with single spaces, as the width of columns varies.
pub fn flat(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.map(|line| line + "\n").collect()
}

/// A table of rows, with their times unchanged.
pub fn table(records: &[Row]) -> Table {
    let mut table = Table::default();
    for row in crate::request::sample::rows(records) {
        table.push_row(&row);
    }
    table
}

impl Summary {
    /// The summary of rows.
    pub fn of_records(records: &[Row], run: &RunFacts) -> Summary {
        Summary::of_table(&sanitize(table(records)), run, None)
    }
}

pub fn json_of(records: &[Row], run: &RunFacts) -> Value {
    Summary::of_records(records, run).to_json()
}

/// Asserts that a text contains another, and shows it if not.
#[track_caller]
pub fn assert_says(text: &str, expected: &str) {
    assert!(text.contains(expected), "{expected:?} is not in\n{text}");
}

#[track_caller]
pub fn assert_near(json: &Value, pointer: &str, expected: f64) {
    let got = json.pointer(pointer).and_then(Value::as_f64);
    let got = got.unwrap_or_else(|| panic!("{pointer} is no number: {:?}", json.pointer(pointer)));
    let error = (got - expected).abs();
    assert!(
        error <= 1e-9 * expected.abs().max(1.0),
        "{pointer}: {got} is not {expected}"
    );
}

/// The figures of the four requests, by their pointers in the summary.
const BY_HAND: [(&str, f64); 41] = [
    ("/completed", 3.0),
    ("/outcomes/timeout", 1.0),
    ("/success_rate", 0.75),
    ("/duration", 2.0),
    ("/offered_rate", 2.5),
    // Four sends 500 ms apart.
    ("/schedule_rate", 2.0),
    ("/achieved_rate", 2.0),
    ("/request_throughput", 1.5),
    ("/total_input_tokens", 90.0),
    ("/total_output_tokens", 87.0),
    ("/total_throughput", 88.5),
    ("/latency/server_latency/mean", 1.585 / 3.0),
    // numpy.percentile([495, 495, 595], 99)
    ("/latency/server_latency/p99", 0.593),
    ("/latency/server_latency/max", 0.595),
    ("/latency/total_latency_from_send/max", 0.599),
    ("/latency/total_latency_from_schedule/p50", 0.5),
    ("/latency/ttft_from_schedule/mean", 0.210),
    ("/latency/pure_queue_time/p99.9", 0.08),
    ("/latency/schedule_lag/count", 3.0),
    ("/avg_total_latency", (498.0 + 498.0 + 598.0) / 3.0),
    ("/avg_ttft", 198.0),
    ("/p99_server_latency", 593.0),
    ("/mean_e2e_latency_ms", (499.0 + 499.0 + 599.0) / 3.0),
    // The standard deviation of a population: sqrt(2)/3 × 100.
    ("/std_e2e_latency_ms", 47.140_452_079_103_17),
    ("/median_ttft_ms", 209.0),
    // 280 ms over 28 gaps.
    ("/p99_tpot_ms", 10.0),
    ("/mean_itl_ms", 10.0),
    ("/max_itl_ms", 20.0),
    ("/concurrency", (0.499 + 0.499 + 0.599) / 2.0),
    // 1–500, 501–1000, 1001–1600 and 1501–1503 ms, of 2 s.
    ("/mean_concurrency", (499.0 + 499.0 + 599.0 + 2.0) / 2000.0),
    ("/peak_concurrency", 2.0),
    ("/mean_queued", 240.0 / 2000.0),
    ("/mean_running", 3.0 * 395.0 / 2000.0),
    ("/series/bucket_s", 0.02),
    // 0–20 ms: one request from 1 ms on.
    ("/series/concurrency/0", 0.95),
    ("/series/queued/1", 1.0),
    // The fourth, whose times in the server are unknown.
    ("/state_unknown_requests", 1.0),
    ("/mean_unknown", 2.0 / 2000.0),
    // Figures by server.
    ("/hosts/127.0.0.1:30000/outcomes/timeout", 1.0),
    ("/hosts/127.0.0.1:30001/avg_server_latency", 595.0),
    // All servers together.
    ("/time_spent/until_first_token/mean", 0.210),
];

#[test]
fn figures_by_hand() {
    let json = json_of(&four(), &run());
    for (pointer, expected) in BY_HAND {
        assert_near(&json, pointer, expected);
    }
    assert_eq!(
        json["errors"],
        json!([{ "error": "no answer for 10 s", "count": 1 }])
    );
}

#[test]
fn a_failed_request_enters_no_latency_and_no_tokens() {
    let mut records = four();
    let before = json_of(&records, &run());
    records.push(
        Sample::starting(1900)
            .at(Moment::Finish, 900_000)
            .ended(Outcome::UpstreamDied, "cut")
            .open_row(),
    );
    let after = json_of(&records, &run());
    for key in "latency total_output_tokens mean_ttft_ms".split(' ') {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_eq!(before["time_spent"]["parts"], after["time_spent"]["parts"]);
    assert_near(&after, "/outcomes/upstream_died", 1.0);
}

#[test]
fn the_time_is_one_sentence() {
    let summary = Summary::of_records(&four()[..3], &run());
    let expected = "Of 0.53 s a request took on average, 61 % was spent in decoding (0.32 s), 19 % in prefill \
        (0.10 s), 15 % in the server queue (80.0 ms), 2 % in tokenizing and the hand-over to the scheduler \
        (10.0 ms); in the router queue 3.0 ms.";
    assert_eq!(summary.all.time_sentences(), expected);
    let parts = summary.to_json()["time_spent"]["parts"].take();
    let parts = parts.as_array().unwrap().iter();
    let shares: f64 = parts.filter_map(|part| part["share"].as_f64()).sum();
    assert!((shares - 1.0).abs() < 1e-9);
}

#[test]
fn the_sentence_names_what_was_not_measured() {
    let mut records = four();
    for record in &mut records {
        record.timeline.clear(Moment::WorkerArrival);
    }
    let sentence = Summary::of_records(&records, &run()).all.time_sentences();
    let expected = "; in the router queue or on the way into the server 8.0 ms. The router's part was not measured: no worker hop \
        (if there is no router: `--upstream-kind server`, which also names the server and relates its clock).";
    assert!(sentence.ends_with(expected), "{sentence}");
    records[0].timeline.clear(Moment::QueueStart);
    let sentence = Summary::of_records(&records, &run()).all.time_sentences();
    let remedy =
        "the answer had no `meta_info` (to measure them: an answer as SGLang writes it) (in 1 of";
    assert_says(&sentence, remedy);
    let sentence = Summary::of_records(&four()[3..], &run())
        .all
        .time_sentences();
    let expected = "1 of 1 requests (100 %) failed: 1 timeout, last seen in the router or the server, before the first token, \
        after 3.0 ms on average.";
    assert_eq!(sentence, expected);
    let sentence = Summary::of_records(&[], &run()).all.time_sentences();
    assert_says(
        &sentence,
        "Where the time went is unknown: no row of a request",
    );
}

#[test]
fn without_a_router_there_is_no_router_queue() {
    let between = [
        Moment::Arrival,
        Moment::Forwarded,
        Moment::WorkerArrival,
        Moment::WorkerForwarded,
    ];
    let straight = |record: &mut Row| record.timeline.upstream_is_server(true);
    let record = Sample::whole().without(&between).with(straight).open_row();
    let text = Summary::of_records(&[record], &run()).to_text();
    assert_says(&text, "; no router stood in between.\n");
    assert_says(&text, "\nserver queue ");
    assert!(!text.contains("router queue"), "{text}");
}

fn two_sequences(n: u64) -> Vec<Row> {
    let twin = |index: u32| {
        let later = i64::from(index) * 5;
        Sample::starting(0)
            .at(Moment::FirstToken, 210 + later)
            .with(|record| {
                record.sequences = 2;
                record.index = index;
                record.internal.n = n;
                record.client_stall = Some(ms(3));
                record.client_stall_until_finish = Some(ms(3));
            })
            .open_row()
    };
    vec![twin(0), twin(1)]
}

#[test]
fn values_of_the_whole_request_count_once() {
    let json = json_of(&two_sequences(2), &run());
    for (pointer, expected) in [
        ("/requests", 1.0),
        ("/rows", 2.0),
        ("/total_input_tokens", 30.0),
        ("/total_output_tokens", 58.0),
        ("/latency/total_latency/count", 1.0),
        ("/latency/client_stall/count", 1.0),
        ("/latency/schedule_lag/count", 1.0),
        ("/latency/pure_queue_time/count", 2.0),
        ("/latency/ttft_observed/max", 0.213),
        // The scheduler runs both sequences.
        ("/peak_running", 2.0),
        ("/time_spent/requests", 1.0),
    ] {
        assert_near(&json, pointer, expected);
    }
    // Two prompts in one request: each has its tokens.
    assert_near(
        &json_of(&two_sequences(1), &run()),
        "/total_input_tokens",
        60.0,
    );
}

#[test]
fn usage_counts_for_the_whole_request() {
    let mut records = two_sequences(2);
    for record in &mut records {
        record.actual_prompt_tokens = None;
        record.actual_output_tokens = None;
        record.internal.usage_prompt_tokens = Some(31);
        record.internal.usage_completion_tokens = Some(50);
    }
    let json = json_of(&records, &run());
    assert_near(&json, "/total_input_tokens", 31.0);
    assert_near(&json, "/total_output_tokens", 50.0);
    for record in &mut records {
        record.internal.usage_completion_tokens = None;
        record.internal.usage_prompt_tokens = None;
    }
    let json = json_of(&records, &run());
    // Events do not count as tokens.
    for key in "total_input_tokens total_output_tokens output_throughput mean_tpot_ms".split(' ') {
        assert_eq!(json[key], Value::Null, "{key}");
    }
    assert_near(&json, "/output_tokens_unknown_requests", 1.0);
}

#[test]
fn goodput_counts_requests_that_meet_every_goal() {
    let unseen = Sample::whole().without(&[Moment::WorkerArrival]);
    let single = Sample::whole()
        .with(|row| (row.actual_output_tokens, row.token_chunks) = (Some(1), Some(1)));
    let without_count = Sample::whole().with(|row| row.actual_output_tokens = None);
    for (goals, records, good, unknown) in [
        ("ttft:209 e2el:550", four(), 2.0, 0.0),
        ("ttft:208.9", four(), 0.0, 0.0),
        ("pure_queue_time:80 tpot:10", four(), 3.0, 0.0),
        // One of two sequences is late.
        ("ttft:210", two_sequences(2), 0.0, 0.0),
        ("server_latency:900", vec![unseen.open_row()], 0.0, 1.0),
        // One token has no time between tokens.
        ("tpot:1", vec![single.open_row()], 1.0, 0.0),
        ("tpot:900", vec![without_count.open_row()], 0.0, 1.0),
    ] {
        let parsed = goals.split(' ').map(|goal| goal.parse::<Goal>().unwrap());
        let goodput = parsed.collect();
        let json = json_of(&records, &RunFacts { goodput, ..run() });
        let found = ["goodput_requests", "goodput_unknown", "request_goodput"]
            .map(|key| json[key].as_f64().unwrap());
        assert_eq!(found, [good, unknown, good / 2.0], "{goals}");
    }
    assert_eq!(json_of(&four(), &run()).get("request_goodput"), None);
}

#[test]
fn an_invalid_goal_is_refused_with_a_hint() {
    for text in ["ttft:500", "ttft:500ms", "ttft:0.5s"] {
        assert_eq!(text.parse::<Goal>().unwrap().limit_ms, 500.0, "{text}");
    }
    for (text, expected) in [
        ("ttft", "such as ttft:500"),
        ("ttft:-5", "above 0"),
        ("ttft:NaN", "above 0"),
        ("latency:5", "e2el or one of server_latency, total"),
    ] {
        assert_says(&text.parse::<Goal>().unwrap_err().to_string(), expected);
    }
}

#[test]
fn of_many_errors_the_most_frequent_are_named() {
    let mut records = four();
    for n in 0..9 {
        let sample = Sample::starting(1500 + n).ended(Outcome::ServerError, &format!("error {n}"));
        records.push(sample.open_row());
    }
    records[1].timeline.set(Moment::LastToken, at(0));
    let text = Summary::of_records(&records, &run()).to_text();
    for expected in [
        "13 requests in 2.00 s: 3 ok (23.1 %), 9 server_error, 1 timeout\n",
        "  1 × error 0\n",
        "  and 7 other errors\n",
        "warning: 1 of 13 rows hold what cannot be: moments out of order",
    ] {
        assert_says(&text, expected);
    }
}
