//! What each generation of SGLang tells: the synthetic bodies of `tests/data/synthetic` (its README has the request that they
//! all tell of), and what a recorded 0.5.23 is taken for.

use std::path::{Path, PathBuf};

use queuescope::request::row;
use queuescope::request::{End, Endpoint, Generation, Generation::*, Outcome};

use crate::support::observed::{JSON, STREAM, assert_cells, begun, cell, in_pieces, recorded};
use crate::support::{pair, recordings};

const SHOWN: &str = "server_created_time queue_time_start queue_time_end prefill_end_time server_first_token_time \
    pure_queue_time timing_source server_finish_time";

const NOTHING: &str = "- - - - - - - -";
/// All moments; of those before 0.5.21 the end of prefill stands for the first token.
const ALL: &str = "0.125 0.25 0.5 0.75 0.8125 0.25 meta_info 1";
const NO_FIRST_TOKEN: &str = "0.125 0.25 0.5 0.75 0.75 0.25 meta_info 1";
const NO_PREFILL: &str = "0.125 0.25 0.5 - 0.8125 0.25 meta_info 1";
/// Who holds a reply's tokens back stamps the first of them late: it is not taken.
const NEITHER: &str = "0.125 0.25 0.5 - - 0.25 meta_info 1";
/// The queue's moments are lost with the first of its times; what later ones add up to is known from 0.5.21 on.
const RETRACTED: &str = "0.125 - - 0.75 0.75 - meta_info 1";

pub type Row = (&'static str, Generation, &'static str, &'static str);

/// Body, generation, what its stream gives, and what its reply: the columns of [`SHOWN`].
pub const TABLE: &[Row] = &[
    ("0.4.0", Before0_5_5, NOTHING, NOTHING),
    ("0.4.6", Before0_5_5, NOTHING, NOTHING),
    ("0.5.4.post3", Before0_5_5, NOTHING, NOTHING),
    // The queue's pair is of `perf_counter`: a duration, and no moment.
    ("fork-perf_counter", Fork, FORK_PERF, FORK_PERF),
    ("fork-epoch", Fork, FORK_EPOCH, FORK_EPOCH),
    ("0.5.5", From0_5_5, NO_PREFILL, NEITHER),
    ("0.5.5-metrics-off", From0_5_5, NEITHER, NEITHER),
    ("0.5.6", From0_5_5, NO_PREFILL, NEITHER),
    ("0.5.7", From0_5_7, NO_FIRST_TOKEN, NO_FIRST_TOKEN),
    ("0.5.9", From0_5_7, NO_FIRST_TOKEN, NO_FIRST_TOKEN),
    ("0.5.9-retracted", From0_5_7, NO_FIRST_TOKEN, RETRACTED),
    ("0.5.9-metrics-off", MetricsOff, NOTHING, NOTHING),
    ("0.5.10", From0_5_7, NO_FIRST_TOKEN, NO_FIRST_TOKEN),
    ("0.5.11", From0_5_7, NO_FIRST_TOKEN, NO_FIRST_TOKEN),
    ("0.5.11-metrics-off", MetricsOff, NOTHING, NOTHING),
    ("0.5.12", From0_5_7, NO_FIRST_TOKEN, NO_FIRST_TOKEN),
    ("0.5.12-metrics-off", MetricsOff, NOTHING, NOTHING),
    ("0.5.20", From0_5_7, NO_FIRST_TOKEN, NO_FIRST_TOKEN),
    ("0.5.20-retracted", From0_5_7, NO_FIRST_TOKEN, RETRACTED),
    ("0.5.21", From0_5_21, ALL, NO_FIRST_TOKEN),
    ("0.5.22", From0_5_21, ALL, NO_FIRST_TOKEN),
    ("0.5.23", From0_5_21, ALL, NO_FIRST_TOKEN),
    ("0.5.23-retracted", From0_5_21, ALL, ADDED_UP),
    ("0.5.23-metrics-off", MetricsOff, NOTHING, NOTHING),
];
const FORK_PERF: &str = "0.125 - - - 0.8125 0.25 meta_info -";
const FORK_EPOCH: &str = "0.125 0.25 0.5 - 0.8125 0.25 meta_info -";
const ADDED_UP: &str = "0.125 - - 0.75 0.75 0.35 meta_info 1";

fn observed(body: &str, ending: &str, piece: usize) -> row::Row {
    let bytes = std::fs::read(folder().join(format!("{body}.{ending}"))).unwrap();
    let kind = if ending == "sse" { STREAM } else { JSON };
    let pieces = bytes.chunks(piece).map(|piece| (0, piece));
    in_pieces(begun(Endpoint::Generate, kind), pieces, End::Complete).remove(0)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/synthetic")
}

/// The cells of [`SHOWN`], moments in seconds after second 0.
pub fn shown(record: &row::Row) -> String {
    let row = &row::Row::ended(vec![record.clone()])[0];
    let cells = SHOWN.split(' ').map(|column| match cell(row, column) {
        nothing if nothing.is_empty() => "-".to_owned(),
        cell => cell,
    });
    Vec::from_iter(cells).join(" ")
}

#[test]
fn each_generation_gives_what_it_tells_and_no_more() {
    for (body, generation, of_stream, of_reply) in TABLE {
        for (ending, expected) in [("sse", of_stream), ("json", of_reply)] {
            // Whole, by bytes, and as reads of any size cut it.
            for piece in [usize::MAX, 1, 400] {
                let row = observed(body, ending, piece);
                let case = format!("{body}.{ending} in pieces of {piece}");
                assert_eq!(row.outcome(), Outcome::Ok, "{case}");
                assert_eq!(shown(&row), *expected, "{case}");
                assert_eq!(row.internal.generation, Some(*generation), "{case}");
                let retracted = match *body {
                    body if body.ends_with("retracted") => "2",
                    "0.4.0" | "0.4.6" | "fork-perf_counter" | "fork-epoch" => "",
                    _ => "0",
                };
                let cells = "inconsistency=, actual_output_tokens=3, num_retractions=";
                let row = &row::Row::ended(vec![row])[0];
                assert_cells(row, &format!("{cells}{retracted}"), &case);
            }
        }
    }
    let bodies = std::fs::read_dir(folder()).unwrap().count() - 1;
    assert_eq!(bodies, 2 * TABLE.len(), "every body is in the table");
}

#[test]
fn a_recorded_server_is_taken_for_what_it_is() {
    let cases = "generate_stream generate_nostream generate_stream_logprob generate_stream_1tok retract/07 \
                 chat_nostream_return_meta_info nometrics_generate_stream nometrics_generate_nostream";
    for case in cases.split(' ') {
        let generation = match case.starts_with("nometrics") {
            true => MetricsOff,
            false => From0_5_21,
        };
        let rows = recorded(&recordings::named(case), 0);
        assert_eq!(rows[0].internal.generation, Some(generation), "{case}");
    }
    // What never ran names none: as recorded of a full queue, with metrics on.
    let rows = recorded(&recordings::named("queuefull_stream/07"), 0);
    assert_eq!(rows[0].outcome(), Outcome::Rejected);
    assert_eq!(rows[0].internal.generation, None);
}

#[test]
fn the_servers_of_a_recorded_pair_are_told_apart() {
    let mut streams = pair::all();
    streams.retain(|one| {
        let is_stream = one.decode.text().contains("text/event-stream");
        one.path == "/generate" && is_stream && one.rooms.len() == 1
    });
    assert!(streams.len() >= 3, "{}", streams.len());
    for one in streams {
        for (leg, generation) in [(&one.prefill, From0_5_21), (&one.decode, Decode0_5_21)] {
            let text = leg.text();
            if !text.contains("request_finished_ts") {
                // The router had broken it off.
                continue;
            }
            let events = text.lines().filter(|line| line.starts_with("data: "));
            let events = events.map(|event| (0, format!("{event}\n\n")));
            let rows = in_pieces(begun(Endpoint::Generate, STREAM), events, End::Complete);
            let name = one.name();
            assert_eq!(rows[0].internal.generation, Some(generation), "{name}");
        }
    }
    assert!(!Decode0_5_21.help().contains("end of prefill"));
}
