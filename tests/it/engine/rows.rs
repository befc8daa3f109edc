//! What a row holds by the recorded spans alone, and by the `meta_info` of the same request alone.

use queuescope::clock::Stamp;
use queuescope::request::column::Value as Cell;
use queuescope::request::columns::COLUMNS;
use queuescope::request::endpoint::Endpoint;
use queuescope::request::observer::{End, Observer};
use queuescope::request::row::Row;
use queuescope::request::timeline::Side;
use serde_json::Value;

use super::assembly::{assembled, by_rid};
use crate::support::spans;

/// The row of a streamed answer of one event.
fn row(endpoint: Endpoint, event: &Value, finished: Stamp) -> Row {
    let mut observer = Observer::new(Side::Front, endpoint, "id".into());
    observer.response_head(200, Some("text/event-stream"), false, finished);
    observer.response_body(format!("data: {event}\n\n").as_bytes(), finished, 0);
    observer.finish(End::Complete, finished).remove(0)
}

/// As numbers: nanoseconds, or counts.
fn cells(row: &Row) -> Vec<i64> {
    let row = &Row::ended(vec![row.clone()])[0];
    let cell = |name: &str| {
        let column = COLUMNS.iter().find(|column| column.name == name).unwrap();
        match (column.get)(row) {
            Cell::Count(count) => count as i64,
            Cell::Nanos(nanos) => nanos,
            Cell::Time(at) => at.nanos_since(Stamp::from_nanos(0)),
            other => panic!("{name}: {other:?}"),
        }
    };
    SHOWN.into_iter().map(cell).collect()
}

const SHOWN: [&str; 10] = [
    "server_created_time",
    "queue_time_start",
    "queue_time_end",
    "prefill_end_time",
    "server_first_token_time",
    "pure_queue_time",
    "tokenize_time",
    "queue_time_in_server",
    "actual_output_tokens",
    "num_retractions",
];

#[test]
fn a_row_of_a_chat_stream_gets_the_columns_that_meta_info_gives() {
    let mut compared = 0;
    for case in spans::all() {
        let (told, _) = assembled(&case.spans);
        let told = by_rid(&told);
        for meta in &case.meta_info {
            let id = meta["id"].as_str().unwrap();
            let Some(told) = told.get(id).filter(|_| meta["completion_tokens"] != 0) else {
                continue;
            };
            let finished = told.finished.unwrap();
            let generate = serde_json::json!({"text": "x", "meta_info": meta});
            let mut by_meta = row(Endpoint::Generate, &generate, finished);
            let delta = serde_json::json!([{"index": 0, "delta": {"content": "x"}}]);
            let chat = serde_json::json!({"id": id, "choices": delta});
            let mut by_trace = row(Endpoint::Chat, &chat, finished);
            told.put(&mut by_trace);
            assert_eq!(by_trace.timing_source.unwrap().name(), "trace");
            let (ours, theirs) = (cells(&by_trace), cells(&by_meta));
            for ((name, ours), theirs) in SHOWN.iter().zip(ours).zip(&theirs) {
                // The floats of epoch seconds resolve no better; counts are the same.
                let most = if name.contains("time") { 1_000 } else { 0 };
                assert!(
                    (ours - theirs).abs() <= most,
                    "{}: {name} {ours} {theirs}",
                    case.name
                );
            }
            // Told of both, a row stays as meta_info has it, and nothing differs.
            told.put(&mut by_meta);
            assert_eq!(cells(&by_meta), theirs, "{}", case.name);
            assert_eq!(
                Row::ended(vec![by_meta.clone()])[0].inconsistency,
                None,
                "{}",
                case.name
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 31);
}
