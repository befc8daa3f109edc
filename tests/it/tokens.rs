//! What of a stream is a token, and what ends it, also of other APIs: reasoning, calls, typed events; large logprobs. Figures per token:
//! only where somebody told how many tokens an answer has, and never with events in their place.

use queuescope::request::{COLUMNS, End, Endpoint, Row};

use crate::support::docs::assert_cases;
use crate::support::observed::{AT, JSON, STREAM, assert_cells, at_once, begun, cell, streamed};

const MS: i64 = 1_000_000;

/// The rows of an answer: what is not empty.
fn rows(answer: &str) -> String {
    let (head, rest) = answer.split_once('\n').unwrap();
    let (path, apart) = head.split_once(' ').unwrap();
    let endpoint = Endpoint::from_path(path).unwrap();
    let rows = match apart.parse::<i64>() {
        Ok(ms) => streamed(endpoint, rest.lines(), ms * MS),
        Err(_) => at_once(endpoint, JSON, rest),
    };
    let shown = |row: &Row| {
        let cells = COLUMNS.iter().map(|one| (one.name, cell(row, one.name)));
        let cells = cells.filter(|(_, cell)| !cell.is_empty());
        let cells: Vec<String> = cells.map(|(name, cell)| format!("{name}={cell}")).collect();
        cells.join(", ") + "\n"
    };
    Row::ended(rows).iter().map(shown).collect()
}

#[test]
fn answers_have_the_tokens_and_the_end_that_they_tell() {
    assert_cases("tests/data/golden/answers.txt", rows);
}

#[test]
fn a_stalled_client_is_no_gap_of_the_engine() {
    // A stall before the first token is not between tokens.
    for (second_at, stalls, stalled) in [(3_010, [0, 3_000], 3_000), (10, [500, 500], 0)] {
        let mut observer = begun(Endpoint::Chat, STREAM);
        for (at, stall) in [0, second_at].into_iter().zip(stalls) {
            let event = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
            observer.response_body(event, AT.plus_nanos(at * MS), stall * MS);
        }
        let row = &observer.finish(End::Complete, AT)[0];
        let told = (row.chunk_gap_max, row.internal.stall_nanos);
        assert_eq!(told, (Some(10 * MS), stalled * MS));
    }
}

#[test]
fn large_logprobs_hide_no_timing() {
    let logprobs = "[-0.5,11,\"\\\"}]\"],".repeat(100_000);
    let event = format!(
        "{{\"text\":\"a\",\"meta_info\":{{\"id\":\"i\",\"forward_entry_time\":1795168001.0,\"queue_time\":0.25,\
         \"input_token_logprobs\":[{logprobs}null],\"output_token_logprobs\":[[-0.5,11,null]],\"completion_tokens\":1,\
         \"finish_reason\":{{\"type\":\"stop\"}},\"request_received_ts\":1795168000.5}}}}"
    );
    let rows = Row::ended(streamed(Endpoint::Generate, [&event, "[DONE]"], MS));
    let told = "queue_time_start=0.75, server_created_time=0.5, actual_output_tokens=1";
    assert_cells(&rows[0], told, "large");
}
