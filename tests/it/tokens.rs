//! Figures per token: only where somebody told how many tokens an answer has, and never with events in their place.

use queuescope::request::endpoint::Endpoint;
use queuescope::request::observer::End;
use queuescope::request::row::Row;

use crate::support::observed::{STREAM, assert_cells, begun, in_pieces, recorded};
use crate::support::recordings;

/// The rows of a stream of chat of which an event is read every 100 ms.
fn chat(events: &[impl AsRef<str>]) -> Vec<Row> {
    let events = events.iter().map(AsRef::as_ref);
    let pieces = events.chain(["[DONE]"]).zip(0..);
    let pieces = pieces.map(|(event, n)| (n * 100_000_000, format!("data: {event}\n\n")));
    let observer = begun(Endpoint::Chat, STREAM);
    Row::ended(in_pieces(observer, pieces, End::Complete))
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

#[test]
fn figures_per_token_are_of_tokens_that_were_told() {
    let text = said(0, "eight tokens", None);
    let ([of_17, of_3], begin) = ([17, 3].map(usage), said(0, "", None));
    let [first, second, third] = [Some(1), None, Some(17)].map(|usage| said(0, "a", usage));
    for (what, events, cells) in [
        (
            "as a server with --stream-interval 8 answers: the first token, then eight at a time",
            &[&begin, &text, &text, &text][..],
            "actual_output_tokens=, decode_length=, token_count_source=, tpot=, itl_mean=, itl_p99=, itl_max=, \
             token_chunks=3, chunk_gap_mean=0.1, chunk_gap_p99=0.1, chunk_gap_max=0.1",
        ),
        (
            "usage tells the time per token, 200 ms for 16 more, and not the gaps between tokens",
            &[&text, &text, &text, &of_17],
            "decode_length=17, token_count_source=usage, tpot=0.0125, itl_mean=, itl_p99=, itl_max=, chunk_gap_mean=0.1",
        ),
        (
            "as many events as tokens: each brought one",
            &[&text, &text, &text, &of_3],
            "tpot=0.1, itl_mean=0.1, itl_max=0.1",
        ),
        (
            "an answer in one event has no time per token",
            &[&text, &of_17],
            "decode_length=17, tpot=, itl_mean=",
        ),
        (
            "of the second event nobody says what it brought",
            &[&first, &second, &third],
            "tpot=0.0125, itl_mean=, itl_p99=",
        ),
    ] {
        assert_cells(&chat(events)[0], cells, what);
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
    let of_second = "decode_length=7, tpot=0.1, itl_mean=0.1, token_chunks=3";
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
    for row in &rows {
        assert_cells(
            row,
            "actual_output_tokens=1, request_output_tokens=4",
            "of two",
        );
    }
}

#[test]
fn the_recorded_stream_interval_of_eight_is_told_by_its_events() {
    let recording = recordings::named("si8_generate_stream");
    let row = &Row::ended(recorded(&recording, 95_000_000))[0];
    // 285 ms for 19 tokens in three events.
    // Three tokens in the last 95 ms.
    let told = "decode_length=20, token_count_source=meta_info, token_chunks=4, tpot=0.015, itl_mean=0.015, itl_max=0.031667, chunk_gap_max=0.095";
    assert_cells(row, told, "recorded");
}
