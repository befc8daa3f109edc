//! What each generation of SGLang tells: the synthetic bodies of `tests/data/synthetic` (its README has the request that they
//! all tell of), and what recorded servers are taken for.

use std::path::Path;

use queuescope::request::{End, Endpoint, Generation, Row};

use crate::golden::assert_golden;
use crate::support::observed::{JSON, STREAM, begun, cell, in_pieces, recorded};
use crate::support::{files, pair, recordings};

/// The moments that a generation tells, and what follows from them.
const SHOWN: &str = "server_created_time queue_time_start queue_time_end prefill_end_time server_first_token_time \
    pure_queue_time timing_source server_finish_time";
const MORE: &str = "outcome inconsistency actual_output_tokens num_retractions";

/// The record of a synthetic body: `sse` of a stream, `json` of a reply.
pub fn observed(body: &str, ending: &str, piece: usize) -> Row {
    let path = format!("tests/data/synthetic/{body}.{ending}");
    let bytes = std::fs::read(path).unwrap();
    let kind = if ending == "sse" { STREAM } else { JSON };
    let pieces = bytes.chunks(piece).map(|piece| (0, piece));
    in_pieces(begun(Endpoint::Generate, kind), pieces, End::Complete).remove(0)
}

/// These cells, moments in seconds after second 0; `-` where nothing is told.
fn cells(row: &Row, columns: &str) -> String {
    let row = &Row::ended(vec![row.clone()])[0];
    let cells = columns.split(' ').map(|column| match cell(row, column) {
        nothing if nothing.is_empty() => "-".to_owned(),
        cell => cell,
    });
    Vec::from_iter(cells).join(" ")
}

/// Which moments a record has, as `-` where it has none.
pub fn shown(row: &Row) -> String {
    cells(row, SHOWN)
}

fn generation(row: &Row) -> String {
    let generation = row.internal.generation;
    generation.map_or("-".to_owned(), |generation| format!("{generation:?}"))
}

/// Of those before 0.5.21 the end of prefill stands for the first token. Who holds a reply's tokens back stamps the first of them late: it is
/// not taken. With a retraction, the queue's moments are lost with the first of its times; what later ones add up to is known from 0.5.21 on.
#[test]
fn each_generation_gives_what_it_tells_and_no_more() {
    let mut text = format!("body generation {SHOWN} {MORE}\n");
    for path in files(Path::new("tests/data/synthetic")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let (body, ending) = name.rsplit_once('.').unwrap();
        if ending == "md" {
            continue;
        }
        // Whole, by bytes, and as reads of any size cut it.
        let [whole, bytes, reads] = [usize::MAX, 1, 400].map(|piece| {
            let row = observed(body, ending, piece);
            format!("{} {} {}", generation(&row), shown(&row), cells(&row, MORE))
        });
        assert_eq!([&bytes, &reads], [&whole; 2], "{name}");
        text += &format!("{name} {whole}\n");
    }
    assert_golden("generations.txt", &text);
}

/// What never ran names none; nor does what was broken off before its end.
#[test]
fn recorded_servers_and_both_of_a_pair_are_taken_for_what_they_are() {
    let mut text = String::new();
    for recording in recordings::all() {
        if Endpoint::from_path(&recording.path) == Some(Endpoint::Generate) {
            let row = &recorded(&recording, 0)[0];
            text += &format!("{} {}\n", recording.case, generation(row));
        }
    }
    for one in pair::all() {
        for (leg, role) in [(&one.prefill, "prefill"), (&one.decode, "decode")] {
            let reply = leg.text();
            let events = reply.lines().filter(|line| line.starts_with("data: "));
            let events = events.map(|event| (0, format!("{event}\n\n")));
            let rows = in_pieces(begun(Endpoint::Generate, STREAM), events, End::Complete);
            if one.path == "/generate" && reply.contains("text/event-stream") {
                text += &format!("{} {role} {}\n", one.name(), generation(&rows[0]));
            }
        }
    }
    assert_golden("servers.txt", &text);
    assert!(!Generation::Decode0_5_21.help().contains("end of prefill"));
}
