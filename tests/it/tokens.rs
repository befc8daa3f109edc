//! Figures per token: only where somebody told how many tokens an answer has, and never with events in their place.

use queuescope::report::load::{RunFacts, Summary};
use queuescope::request::column::Value;
use queuescope::request::columns::COLUMNS;
use queuescope::request::endpoint::Endpoint;
use queuescope::request::observer::End;
use queuescope::request::row::Row;

use crate::support::observed::{AT, STREAM, begun, in_pieces, recorded};
use crate::support::recordings;

/// The rows of a stream of which an event is read every 100 ms.
fn rows(endpoint: Endpoint, events: &[&str]) -> Vec<Row> {
    let pieces = events.iter().chain(&["[DONE]"]).zip(0..);
    let pieces = pieces.map(|(event, n)| (n * 100_000_000, format!("data: {event}\n\n")));
    Row::ended(in_pieces(begun(endpoint, STREAM), pieces, End::Complete))
}

fn chat(events: &[&str]) -> Vec<Row> {
    rows(Endpoint::Chat, events)
}

fn said(index: usize, text: &str, usage: Option<u64>) -> String {
    let usage = usage.map_or_else(String::new, |n| {
        format!(",\"usage\":{{\"completion_tokens\":{n}}}")
    });
    format!(
        "{{\"id\":\"i\",\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":\"{text}\"}}}}]{usage}}}"
    )
}

fn usage(tokens: u64) -> String {
    format!("{{\"id\":\"i\",\"choices\":[],\"usage\":{{\"completion_tokens\":{tokens}}}}}")
}

#[track_caller]
fn assert_cells(row: &Row, expected: &str) {
    for (name, expected) in expected.split(", ").map(|one| one.split_once('=').unwrap()) {
        let column = COLUMNS.iter().find(|column| column.name == name);
        let column = column.unwrap_or_else(|| panic!("no column {name}"));
        let cell = match (column.get)(row) {
            Value::Empty => String::new(),
            Value::Text(text) => text.into_owned(),
            Value::Count(count) => count.to_string(),
            Value::Nanos(nanos) => format!("{} ms", nanos as f64 / 1e6),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(cell, expected, "{name} of {:?}", row.req_id);
    }
}

/// `total_output_tokens` of a run with these rows alone.
fn total(rows: &[Row]) -> serde_json::Value {
    let run = RunFacts {
        started: AT,
        ended: AT.plus_nanos(2_000_000_000),
        offered_rate: None,
        scheduled: 1,
        config: serde_json::Value::Null,
        goodput: Vec::new(),
        machine: serde_json::Value::Null,
    };
    let mut table = queuescope::table::Table::default();
    rows.iter().for_each(|row| table.push_row(row));
    let summary = Summary::of_table(&table, &run, None);
    summary.to_json()["total_output_tokens"].clone()
}

/// As a server with `--stream-interval 8` answers: the first token, then eight at a time.
#[test]
fn a_stream_that_tells_no_tokens_has_no_figure_per_token() {
    let text = said(0, "eight tokens", None);
    let row = &chat(&[&said(0, "", None), &text, &text, &text])[0];
    assert_cells(
        row,
        "actual_output_tokens=, decode_length=, token_count_source=, tpot=, itl_mean=, itl_p99=, itl_max=, token_chunks=3, chunk_gap_mean=100 ms, chunk_gap_p99=100 ms, chunk_gap_max=100 ms",
    );
}

#[test]
fn usage_tells_the_time_per_token_and_not_the_gaps_between_tokens() {
    let text = said(0, "eight tokens", None);
    let row = &chat(&[&text, &text, &text, &usage(17)])[0];
    // 200 ms from the first token to the last of 16 more.
    assert_cells(
        row,
        "decode_length=17, token_count_source=usage, tpot=12.5 ms, itl_mean=, itl_p99=, itl_max=, chunk_gap_mean=100 ms",
    );
    // As many events as tokens: each brought one.
    let row = &chat(&[&text, &text, &text, &usage(3)])[0];
    assert_cells(row, "tpot=100 ms, itl_mean=100 ms, itl_max=100 ms");
}

#[test]
fn an_answer_in_one_event_has_no_time_per_token() {
    let row = &chat(&[&said(0, "all of it", None), &usage(17)])[0];
    assert_cells(row, "decode_length=17, tpot=, itl_mean=");
}

/// `"stream_options": {"continuous_usage_stats": true}`: each event counts the tokens of its choice.
#[test]
fn usage_beside_each_event_tells_the_gaps_too() {
    let events = [(0, 1), (1, 3), (0, 9), (1, 3), (0, 17), (1, 7)];
    let events = events.map(|(index, tokens)| said(index, "a", Some(tokens)));
    let mut events: Vec<&str> = events.iter().map(String::as_str).collect();
    let last = usage(24);
    events.push(&last);
    let rows = chat(&events);
    assert_cells(
        &rows[0],
        "decode_length=17, token_count_source=usage, tpot=25 ms, itl_mean=25 ms, itl_max=25 ms, chunk_gap_mean=200 ms",
    );
    // Four tokens in the 400 ms after the first event, which brought three.
    assert_cells(
        &rows[1],
        "decode_length=7, tpot=100 ms, itl_mean=100 ms, token_chunks=3",
    );

    // Of the second event nobody says what it brought.
    let [first, second, third] = [Some(1), None, Some(17)].map(|usage| said(0, "a", usage));
    let row = &chat(&[&first, &second, &third])[0];
    assert_cells(row, "tpot=12.5 ms, itl_mean=, itl_p99=");
}

/// The last token may bring no text, or come with the chunk that ends the stream: only the usage of all counts it.
#[test]
fn tokens_that_only_the_usage_of_all_counts_are_counted() {
    let mut events: Vec<String> = (1..10).map(|n| said(0, "a", Some(n))).collect();
    let finish = "{\"id\":\"i\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\
                  \"usage\":{\"completion_tokens\":10}}";
    events.extend([finish.to_owned(), usage(10)]);
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let rows = chat(&events);
    assert_cells(
        &rows[0],
        "actual_output_tokens=10, token_count_source=usage, token_chunks=9, itl_mean=100 ms",
    );
    assert_eq!(total(&rows), 10);

    // Of two sequences nobody can say which had the tokens that only the whole counts.
    let [first, second] = [0, 1].map(|index| said(index, "a", Some(1)));
    let rows = chat(&[&first, &second, &usage(4)]);
    for row in &rows {
        assert_cells(row, "actual_output_tokens=1");
    }
    assert_eq!(total(&rows), 4);
}

#[test]
fn the_recorded_stream_interval_of_eight_is_told_by_its_events() {
    let recording = recordings::named("si8_generate_stream");
    let row = &Row::ended(recorded(&recording, 95_000_000))[0];
    // 285 ms for 19 tokens in three events.
    // Three tokens in the last 95 ms.
    assert_cells(
        row,
        "decode_length=20, token_count_source=meta_info, token_chunks=4, tpot=15 ms, itl_mean=15 ms, itl_max=31.666666 ms, chunk_gap_max=95 ms",
    );
}
