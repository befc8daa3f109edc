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
