//! What tests of reports share; figures of four requests.

pub use serde_json::{Value, json};

use super::*;
pub use super::{RunFacts, Summary};
pub use crate::report::Report;
pub use crate::report::files::{FaultRow, ProcessFile, RunFile, SeriesRow, ServerFile};
pub use crate::report::findings::RunReport;
pub use crate::report::reader::{Loaded, Run};
pub use crate::report::sample::{Sample, at, ms};
use crate::report::sanitize::sanitize;
use crate::request::ENGINE;
pub use crate::request::csv;
pub use crate::request::{ColumnId, GIVEN_UP, Moment, Outcome, Row};
pub use crate::table::Table;
pub use crate::table::window::Window;

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

/// A request that ended then, without this moment and those after it.
pub fn cut(sample: Sample, from: Moment, end: i64) -> Sample {
    let later = Moment::ALL.into_iter().skip_while(|moment| *moment != from);
    let later: Vec<Moment> = later.collect();
    sample.without(&later).at(Moment::End, end)
}

/// Three successful requests, the third with 100 ms more of decoding on another server, and one that timed out 2 ms after its send.
fn four() -> Vec<Row> {
    let slower = Sample::starting(1000).host("127.0.0.1:30001");
    let failed = cut(Sample::starting(1500), Moment::WorkerArrival, 1503);
    let failed = failed.ended(Outcome::Timeout, "no answer for 10 s");
    vec![
        Sample::starting(0).open_row(),
        Sample::starting(500).open_row(),
        slower.at(Moment::Finish, 1600).open_row(),
        failed.open_row(),
    ]
}

/// Text with single spaces, as the width of columns varies.
pub fn flat(text: &str) -> String {
    let flat = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    text.lines().map(flat).collect()
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

/// Asserts that a text contains all of these.
#[track_caller]
pub fn assert_says_all<const N: usize>(text: &str, expected: [&str; N]) {
    for expected in expected {
        assert_says(text, expected);
    }
}

/// Asserts the figures at these pointers.
#[track_caller]
pub fn assert_figures<const N: usize>(json: &Value, expected: [(&str, f64); N]) {
    for (pointer, expected) in expected {
        assert_near(json, pointer, expected);
    }
}

#[track_caller]
pub fn assert_near(json: &Value, pointer: &str, expected: f64) {
    let got = json.pointer(pointer);
    let number = got.and_then(Value::as_f64);
    let number = number.unwrap_or_else(|| panic!("{pointer} is no number: {got:?}"));
    let is_near = (number - expected).abs() <= 1e-9 * expected.abs().max(1.0);
    assert!(is_near, "{pointer}: {number} is not {expected}");
}

/// Figures of the four requests, of each kind, by their pointers in the summary. Golden reports hold all others.
const BY_HAND: [(&str, f64); 16] = [
    // Four sends 500 ms apart.
    ("/schedule_rate", 2.0),
    ("/total_throughput", 88.5),
    // numpy.percentile([495, 495, 595], 99)
    ("/latency/server_latency/p99", 0.593),
    ("/latency/total_latency_from_schedule/p50", 0.5),
    // The standard deviation of a population: sqrt(2)/3 × 100.
    ("/std_e2e_latency_ms", 47.140_452_079_103_17),
    // 280 ms over 28 gaps.
    ("/p99_tpot_ms", 10.0),
    ("/concurrency", (0.499 + 0.499 + 0.599) / 2.0),
    // 1–500, 501–1000, 1001–1600 and 1501–1503 ms, of 2 s.
    ("/mean_concurrency", (499.0 + 499.0 + 599.0 + 2.0) / 2000.0),
    ("/mean_queued", 240.0 / 2000.0),
    ("/mean_running", 3.0 * 395.0 / 2000.0),
    // 0–20 ms: one request from 1 ms on.
    ("/series/concurrency/0", 0.95),
    ("/series/queued/1", 1.0),
    // The fourth, whose times in the server are unknown.
    ("/state_unknown_requests", 1.0),
    ("/mean_unknown", 2.0 / 2000.0),
    // Figures by server.
    ("/hosts/127.0.0.1:30001/avg_server_latency", 595.0),
    // All servers together.
    ("/time_spent/until_first_token/mean", 0.210),
];

#[test]
fn figures_by_hand() {
    assert_figures(&json_of(&four(), &run()), BY_HAND);
}

#[test]
fn a_failed_request_enters_no_latency_and_no_tokens() {
    let mut records = four();
    let before = json_of(&records, &run());
    let cut = Sample::starting(1900).at(Moment::Finish, 900_000);
    records.push(cut.ended(Outcome::UpstreamDied, "cut").open_row());
    let after = json_of(&records, &run());
    for key in "latency total_output_tokens mean_ttft_ms".split(' ') {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_eq!(before["time_spent"]["parts"], after["time_spent"]["parts"]);
    assert_near(&after, "/outcomes/upstream_died", 1.0);
}

pub fn time_sentences(records: &[Row]) -> String {
    Summary::of_records(records, &run()).all.time_sentences()
}

#[test]
fn the_sentence_names_what_was_not_measured() {
    let mut records = four();
    for record in &mut records {
        record.timeline.clear(Moment::WorkerArrival);
    }
    let way = "; in the router queue or on the way into the server 8.0 ms. The router's part";
    assert_says(&time_sentences(&records), way);
    records[0].timeline.clear(Moment::QueueStart);
    let remedy =
        "the answer had no `meta_info` (to measure them: an answer as SGLang writes it) (in 1 of";
    assert_says(&time_sentences(&records), remedy);
    let failed =
        "last seen in the router or the server, before the first token, after 3.0 ms on average.";
    assert_says(&time_sentences(&four()[3..]), failed);
    let unknown = "Where the time went is unknown: no row of a request";
    assert_says(&time_sentences(&[]), unknown);
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
    let expected = ["; no router stood in between.\n", "\nserver queue "];
    assert_says_all(&text, expected);
    assert!(!text.contains("router queue"), "{text}");
}

fn two_sequences(n: u64) -> Vec<Row> {
    let twin = |index: u32| {
        let sample = Sample::starting(0).at(Moment::FirstToken, 210 + 5 * i64::from(index));
        let sample = sample.with(|record| {
            (record.sequences, record.index, record.internal.n) = (2, index, n);
            record.client_stall = Some(ms(3));
            record.client_stall_until_finish = Some(ms(3));
        });
        sample.open_row()
    };
    vec![twin(0), twin(1)]
}

#[test]
fn values_of_the_whole_request_count_once() {
    let expected = [
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
    ];
    assert_figures(&json_of(&two_sequences(2), &run()), expected);
    let text = Summary::of_records(&two_sequences(2), &run()).to_text();
    assert_says(
        &text,
        "(peak 2); sequences are queued and run, not requests\n",
    );
    // Two prompts in one request: each has its tokens.
    let json = json_of(&two_sequences(1), &run());
    assert_near(&json, "/total_input_tokens", 60.0);
}

#[test]
fn usage_counts_for_the_whole_request() {
    let json = |usage: [Option<u64>; 2]| {
        let mut records = two_sequences(2);
        for record in &mut records {
            (record.actual_prompt_tokens, record.actual_output_tokens) = (None, None);
            record.internal.usage_prompt_tokens = usage[0];
            record.internal.usage_completion_tokens = usage[1];
        }
        json_of(&records, &run())
    };
    let told = json([Some(31), Some(50)]);
    assert_near(&told, "/total_input_tokens", 31.0);
    assert_near(&told, "/total_output_tokens", 50.0);
    let json = json([None; 2]);
    // Events do not count as tokens.
    for key in "total_input_tokens total_output_tokens output_throughput mean_tpot_ms".split(' ') {
        assert_eq!(json[key], Value::Null, "{key}");
    }
    assert_near(&json, "/output_tokens_unknown_requests", 1.0);
    // A number that cannot be is not called missing, nor a missing one impossible.
    for (tokens, is_impossible) in [(Some(1_000_000_000), true), (None, false)] {
        let sample = Sample::starting(9).with(|row| row.actual_output_tokens = tokens);
        let records = [Sample::whole().open_row(), sample.open_row()];
        let text = Summary::of_records(&records, &run()).to_text();
        assert_says(&text, "1 of 2 ok requests are in no token figure");
        assert_eq!(text.contains("the first: tokens>"), is_impossible, "{text}");
        assert_eq!(text.contains("cannot be"), is_impossible, "{text}");
    }
}

#[test]
fn goodput_counts_requests_that_meet_every_goal() {
    let unseen = Sample::whole().without(&[Moment::WorkerArrival]);
    let one = |row: &mut Row| (row.actual_output_tokens, row.token_chunks) = (Some(1), Some(1));
    let single = Sample::whole().with(one);
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
        let keys = ["goodput_requests", "goodput_unknown", "request_goodput"];
        let found = keys.map(|key| json[key].as_f64());
        // What could not be judged is not 0.
        let rate = (unknown == 0.0).then_some(good / 2.0);
        assert_eq!(found, [Some(good), Some(unknown), rate], "{goals}");
        // Of all requests, also those that failed.
        let share = (unknown == 0.0).then(|| good / records.len() as f64);
        assert_eq!(json["goodput_share"].as_f64(), share, "{goals}");
    }
    assert_eq!(json_of(&four(), &run()).get("request_goodput"), None);
    // As the throughput, those that ended in the window: the second was sent before it.
    let goodput = vec!["e2el:700".parse::<Goal>().unwrap()];
    let window = Window {
        from_s: 0.9,
        to_s: 1.9,
        left_out_first: 2,
        ..Window::default()
    };
    let facts = RunFacts { goodput, ..run() };
    let json = Summary::of_table(&table(&four()), &facts, Some(window)).to_json();
    let rates = [("/request_goodput", 2.0), ("/request_throughput", 2.0)];
    assert_figures(&json, rates);
    assert_near(&json, "/goodput_requests", 1.0);
}

/// Other invalid ones are in tests/data/experiment/wrong-plans.txt.
#[test]
fn a_goal_names_a_latency_and_its_limit_in_milliseconds_or_with_a_unit() {
    for text in ["ttft:500", "ttft:500ms", "ttft:0.5s"] {
        assert_eq!(text.parse::<Goal>().unwrap().limit_ms, 500.0, "{text}");
    }
    let unknown = "latency:5".parse::<Goal>().unwrap_err();
    assert_says(&unknown, "e2el or one of server_latency, total");
}

#[test]
fn of_many_errors_and_kinds_of_failures_the_most_frequent_are_named() {
    let mut records = four();
    let outcomes = [
        (Outcome::ServerError, 4),
        (Outcome::Rejected, 3),
        (Outcome::ClientError, 2),
        // Last seen elsewhere than that of the four.
        (Outcome::Timeout, 1),
    ];
    let outcomes = outcomes.map(|(outcome, times)| vec![outcome; times]);
    for (n, outcome) in (0..).zip(outcomes.concat()) {
        let sample = Sample::starting(1500 + n).ended(outcome, &format!("error {}", n / 2));
        records.push(sample.open_row());
    }
    records[1].timeline.set(Moment::LastToken, at(0));
    let text = Summary::of_records(&records, &run()).to_text();
    let expected = [
        "14 requests in 2.00 s: 3 ok (21.4 %), 11 failed\n",
        "11 of 14 requests (78.6 %) failed: 4 server_error, ",
        "; 3 rejected, ",
        "; 2 client_error, ",
        "; others: 2 timeout. Of 0.53 s",
        "  2 × error 0\n",
        "  and 3 other errors\n",
        "warning: 1 of 14 rows hold what cannot be: moments out of order",
    ];
    assert_says_all(&text, expected);
}

#[test]
fn failed_requests_count_as_infinite() {
    let rejected = |n| {
        let sample = cut(Sample::starting(n), Moment::WorkerArrival, n + 2);
        sample.ended(Outcome::Rejected, "503").open_row()
    };
    let ok = (0..6).map(|n| Sample::starting(n).open_row());
    let mut records: Vec<Row> = ok.chain((6..10).map(rejected)).collect();
    let unsent = cut(Sample::starting(10), Moment::Sent, 17);
    records.push(unsent.ended(Outcome::ClientAbort, "").open_row());
    let summary = Summary::of_records(&records, &run());
    let json = summary.to_json();
    let least = &json["latency_at_least"];
    assert_near(least, "/ttft_from_send/p50", 0.209);
    for figure in ["mean", "std", "p90", "p99", "max"] {
        assert!(least["ttft_from_send"][figure].is_null(), "{figure}");
    }
    let expected = [
        "of all 11, at least (-: no answer ever)\n",
        "\ntotal, from send 10 - 499.0 - -\n",
    ];
    assert_says_all(&flat(&summary.to_text()), expected);
    // No row of dashes alone.
    let text = Summary::of_records(&records[6..10], &run()).to_text();
    assert!(!text.contains("from send"), "{text}");
}

#[test]
fn requests_given_up_when_the_run_was_stopped_did_not_fail() {
    let late = |n| {
        let sample = cut(Sample::starting(n), Moment::ServerCreated, n + 10_001);
        sample.ended(Outcome::Timeout, "late").open_row()
    };
    let ok = (0..8).map(|n| Sample::starting(n).open_row());
    let mut records: Vec<Row> = ok.chain((8..13).map(late)).collect();
    for record in &mut records[10..] {
        record.outcome = Some(Outcome::ClientAbort);
        record.error = Some(GIVEN_UP.to_owned());
    }
    let summary = Summary::of_records(&records, &run());
    let json = summary.to_json();
    let given_up = "/hosts/127.0.0.1:30000/given_up";
    assert_figures(&json, [("/failed", 2.0), (given_up, 3.0)]);
    let expected = [
        "13 requests in 2.00 s: 8 ok (61.5 %), 2 failed\n",
        "2 of 13 requests (15.4 %) failed: 2 timeout, last seen in the server, before its first token, after 10.00 s \
        on average. 3 of 13 requests were given up when the run was stopped. Of 0.50 s the 8 of 13 requests that \
        went well took",
    ];
    assert_says_all(&flat(&summary.to_text()), expected);
    let none = time_sentences(&records[10..12]);
    let expected = "2 of 2 requests were given up when the run was stopped.";
    assert_eq!(none, expected);
    // A client that disconnected by itself counts as failed.
    records[10].error = Some("the client went away".to_owned());
    let summary = Summary::of_records(&records, &run());
    assert_eq!(summary.whole.failed(), 3);
}

/// Its upstream died after the first token, 350 ms after the send, later than the last read.
#[test]
fn a_failed_request_waited_at_least_until_its_end() {
    let died = Sample::starting(1).at(Moment::Finish, 202);
    let died = died.at(Moment::End, 352).ended(Outcome::UpstreamDied, "");
    let mut records = vec![Sample::whole().open_row(), died.open_row()];
    let expected = [
        ("/latency_at_least/ttft_from_send/max", 0.209),
        ("/failures/0/waited/max", 0.351),
    ];
    assert_figures(&json_of(&records, &run()), expected);
    // A response that is no stream has no first token.
    records[0].timeline.clear(Moment::FirstToken);
    let json = json_of(&records, &run());
    assert!(json["latency_at_least"]["ttft_from_send"]["p50"].is_null());
}

#[test]
fn requests_that_ended_before_the_window_are_not_unknown_in_it() {
    let silent = |start| {
        let sample = cut(Sample::starting(start), Moment::WorkerArrival, start + 500);
        sample.open_row()
    };
    let window = Window {
        from_s: 1.0,
        to_s: 2.0,
        left_out_first: 2,
        ..Window::default()
    };
    // The first ends at 500 ms, the second at 1300 ms.
    let table = table(&[silent(0), silent(800), Sample::starting(1200).open_row()]);
    let summary = Summary::of_table(&table, &run(), Some(window));
    let over_time = summary.all.over_time.unwrap();
    assert_eq!(over_time.missing, [0, 1, 1, 1]);
    let [.., unknown] = over_time.series;
    assert!((unknown.unwrap().mean - 0.3).abs() < 1e-9);
}

#[test]
fn times_without_an_end_or_too_far_apart_give_no_figure() {
    let nulls = |lines: &[&str], keys: &str| {
        let summary = Summary::of_table(&Table::of_lines(lines), &run(), None);
        let json = summary.to_json();
        let is_null = |key: &str| json[key].is_null();
        assert!(keys.split(' ').all(is_null), "{json}");
    };
    let endless = "req_id=a, outcome=ok, arrival_time=1";
    nulls(&[endless], "mean_concurrency");
    let unknown = Summary::of_run(&Run::of_lines([endless])).to_text();
    assert_says(&unknown, "1 request in - s: 1 ok");
    let far = ["-9.2e9", "9.2e9"].map(|at| format!("arrival_time={at}, scheduled_time={at}"));
    nulls(&[&far[0], &far[1]], "schedule_rate achieved_rate");
}

/// Later turns of a conversation follow its replies.
#[test]
fn the_schedules_rate_is_of_the_starts_of_conversations() {
    let turn = |n| format!("req_id=x-{n}, outcome=ok, scheduled_time={n}, sent_time={n}");
    let table = Table::of_lines((0..10).map(turn));
    let rates = |turns| {
        let config = json!({ "turns": turns });
        let summary = Summary::of_table(&table, &RunFacts { config, ..run() }, None);
        [summary.all.schedule_rate, summary.all.achieved_rate]
    };
    assert_eq!(rates(1), [Some(1.0), Some(1.0)]);
    assert_eq!(rates(4), [Some(0.25), Some(1.0)]);
}

#[test]
fn a_stage_is_averaged_over_the_requests_that_measured_it() {
    let stall = |record: &mut Row| record.client_stall_until_finish = Some(ms(50));
    let one = |n: i64| match n % 2 {
        0 => Sample::starting(n * 50).with(stall).open_row(),
        _ => Sample::starting(n * 50).without(&ENGINE).open_row(),
    };
    let records: Vec<Row> = (0..10).map(one).collect();
    let summary = Summary::of_records(&records, &run());
    let shares = "Of 0.50 s a request took on average, 53 % was spent in decoding (0.27 s), 41 % unseen in the server \
        (0.20 s, of 5 of 10 requests), 20 % in prefill (0.10 s, of 5 of 10 requests), 16 % in the server queue \
        (80.0 ms, of 5 of 10 requests); in the router queue 3.0 ms";
    assert_eq!(summary.all.spent.shares("a request took"), shares);
    let bars = summary.all.spent.bars();
    let unseen = "unseen in the server      0.20 s   41 %  ░░░░░░░░, of 5 of 10 requests";
    assert_eq!(bars[1], unseen);
    let is_short = |line: &String| line.chars().count() <= 80;
    assert!(bars.iter().all(is_short), "{bars:?}");
    let json = summary.to_json();
    let mut parts = json["time_spent"]["parts"].as_array().unwrap().iter();
    // A client without stalls counts as measured.
    let stall = parts.find(|part| part["stage"] == "client_stall");
    assert_figures(stall.unwrap(), [("/share", 0.05), ("/mean", 0.025)]);
}

/// Of many servers not all have figures: who has none was not idle.
#[test]
fn servers_beyond_the_largest_are_counted() {
    let row = |n| match n {
        // Of no known server.
        52.. => "outcome=ok, arrival_time=1".to_owned(),
        _ => format!("host=h{n}:1, outcome=ok, arrival_time=1"),
    };
    let run = Run::of_lines((0..60).map(row)).at_servers(&[("idle", "i:1")]);
    let summary = Summary::of_run(&run);
    assert_eq!(summary.hosts.len(), 50);
    let others = "2 more servers, with 2 requests, are not shown.";
    assert_eq!(summary.other_servers().as_deref(), Some(others));
}
