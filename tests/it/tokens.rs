//! Figures per token: only where somebody told how many tokens an answer has, and never with events in their place.

use queuescope::request::{End, Endpoint, Row};

use crate::support::observed::{AT, STREAM, assert_cells, begun, streamed};
use crate::support::table;

const MS: i64 = 1_000_000;

/// The rows of a stream of chat of which an event is read every 100 ms.
fn chat(events: &[impl AsRef<str>]) -> Vec<Row> {
    let events = events.iter().map(AsRef::as_ref).chain(["[DONE]"]);
    Row::ended(streamed(Endpoint::Chat, events, 100_000_000))
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

/// Events (text or `-`, with the tokens of its choice behind it; a number is that of all tokens), cells, and why.
const FIGURES: &str = "\
- eight eight eight | token_chunks=3, chunk_gap_mean=0.1, chunk_gap_p99=0.1, chunk_gap_max=0.1 | with --stream-interval 8
- eight eight eight | actual_output_tokens=, decode_length=, token_count_source= | nobody told how many
- eight eight eight | tpot=, itl_mean=, itl_p99=, itl_max= | nobody told how many
a a a 17 | decode_length=17, token_count_source=usage, tpot=0.0125, chunk_gap_mean=0.1 | 200 ms for 16 more
a a a 17 | itl_mean=, itl_p99=, itl_max= | usage does not tell the gaps between tokens
a a a 3 | tpot=0.1, itl_mean=0.1, itl_max=0.1 | as many events as tokens: each brought one
a 17 | decode_length=17, tpot=, itl_mean= | an answer in one event has no time per token
a:1 a a:17 | tpot=0.0125, itl_mean=, itl_p99= | of the second event nobody says what it brought
-:0 | actual_output_tokens=0, token_chunks= | none came";

#[test]
fn figures_per_token_are_of_tokens_that_were_told() {
    for [events, cells, what] in table(FIGURES) {
        let event = |event: &str| {
            let (text, tokens) = event.split_once(':').unwrap_or((event, ""));
            let of_choice = said(0, text.trim_matches('-'), tokens.parse().ok());
            event.parse().map_or(of_choice, usage)
        };
        let events: Vec<String> = events.split(' ').map(event).collect();
        assert_cells(&chat(&events)[0], cells, what);
    }
}

/// `"stream_options": {"continuous_usage_stats": true}`: each event counts the tokens of its choice.
#[test]
fn usage_beside_each_event_tells_the_gaps_too() {
    let events = [(0, 1), (1, 3), (0, 9), (1, 3), (0, 17), (1, 7)];
    let events = events.map(|(index, tokens)| said(index, "a", Some(tokens)));
    let rows = chat(&[&events[..], &[usage(24)]].concat());
    let of_first = "decode_length=17, token_count_source=usage, tpot=0.025, itl_mean=0.025, itl_max=0.025, chunk_gap_mean=0.2";
    assert_cells(&rows[0], of_first, "first");
    // Four tokens in the 400 ms after the first event, which brought three.
    let of_second = "decode_length=7, tpot=0.1, itl_mean=0.1, itl_max=0.1, token_chunks=3";
    assert_cells(&rows[1], of_second, "second");
}

/// The last token may bring no text, or come with the chunk that ends the stream: only the usage of all counts it.
#[test]
fn tokens_that_only_the_usage_of_all_counts_are_counted() {
    let mut events: Vec<String> = (1..10).map(|n| said(0, "a", Some(n))).collect();
    let finish = "{\"id\":\"i\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\
                  \"usage\":{\"completion_tokens\":10}}";
    events.extend([finish.to_owned(), usage(10)]);
    let rows = chat(&events);
    let whole = "actual_output_tokens=10, request_output_tokens=10, token_count_source=usage, token_chunks=9, itl_mean=0.1";
    assert_cells(&rows[0], whole, "whole");

    // Of two sequences nobody can say which had the tokens that only the whole counts.
    let [first, second] = [0, 1].map(|index| said(index, "a", Some(1)));
    let rows = chat(&[&first, &second, &usage(4)]);
    let of_two = "actual_output_tokens=1, request_output_tokens=4";
    rows.iter()
        .for_each(|row| assert_cells(row, of_two, "of two"));
}

#[test]
fn a_stalled_client_is_no_gap_of_the_engine() {
    // A stall before the first token is not between tokens.
    for (second_at, stalls, stalled) in [(3_010, [0, 3_000], 3_000), (10, [500, 500], 0)] {
        let mut observer = begun(Endpoint::Chat, STREAM);
        for (at, stall) in [0, second_at].into_iter().zip(stalls) {
            let event = format!("data: {}\n\n", said(0, "a", None));
            observer.response_body(event.as_bytes(), AT.plus_nanos(at * MS), stall * MS);
        }
        let row = &observer.finish(End::Complete, AT)[0];
        let told = (row.chunk_gap_max, row.internal.stall_nanos);
        assert_eq!(told, (Some(10 * MS), stalled * MS));
    }
}
