//! The recordings through the observer: all cells of their rows, at any split.

use queuescope::clock::Stamp;
use queuescope::offset::Offset;
use queuescope::request::attempt::{Failed, SpanId, shown};
use queuescope::request::columns::{COLUMNS, Column};
use queuescope::request::csv::TimeBase;
use queuescope::request::endpoint::Endpoint;
use queuescope::request::observer::{End, Observer};
use queuescope::request::outcome::Outcome;
use queuescope::request::passage::Passage;
use queuescope::request::row::Row;
use queuescope::request::timeline::{ClockOf, Moment, Relation, Side};
use queuescope::table::cells::RowWriter;
use serde_json::Value;

use crate::support::docs::assert_file;
use crate::support::observed::exchange;
use crate::support::recordings::{self, Recording};

const SENT: i64 = 1_795_168_000_000_000_000;

fn stamp(t: f64) -> Stamp {
    Stamp::from_nanos(SENT).plus_seconds(t)
}

/// The records of a recording whose body is fed in `pieces`.
fn observe<B: AsRef<[u8]>>(
    recording: &Recording,
    endpoint: Endpoint,
    pieces: &[(f64, B)],
) -> Vec<Row> {
    let mut observer = Observer::new(Side::Front, endpoint, recording.case.clone());
    observer.timeline_mut().set(Moment::Arrival, stamp(0.0));
    exchange(observer, recording, 0.0, pieces, 0.0)
}

/// Every cell of every row, in words.
fn rows(records: &[Row]) -> Vec<Vec<String>> {
    let cell = |row, column: &Column| format!("{:?}", (column.get)(row));
    let cells = |row| COLUMNS.iter().map(|column| cell(row, column)).collect();
    Row::ended(records.to_vec()).iter().map(cells).collect()
}

fn generation_requests() -> Vec<(Recording, Endpoint)> {
    recordings::all()
        .into_iter()
        .filter_map(|recording| {
            let endpoint = Endpoint::from_path(&recording.path)?;
            (recording.case != "err_generate_get").then_some((recording, endpoint))
        })
        .collect()
}

/// What a body says, read with nothing of ours: of each sequence its index and what events have under `meta_info`.
fn told(recording: &Recording) -> Vec<(u32, Value)> {
    let body = String::from_utf8(recording.body()).unwrap_or_default();
    let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let whole = [body.as_str()].into_iter().chain(events);
    let read = whole.filter_map(|json| serde_json::from_str(json).ok());
    let of_batch = |value: Value| match value {
        Value::Array(all) => Vec::from_iter((0..).zip(all)),
        one => vec![(0, one)],
    };
    let of_choices = |(place, mut value): (u32, Value)| match value["choices"].take() {
        Value::Array(all) => Vec::from_iter(all.into_iter().map(|one| (place, one))),
        _ => vec![(place, value)],
    };
    let told = read.flat_map(of_batch).flat_map(of_choices);
    let index = |place, value: &Value| value["index"].as_u64().map_or(place, |index| index as u32);
    let told = told.map(|(place, mut value)| (index(place, &value), value["meta_info"].take()));
    told.filter(|(_, meta)| meta.is_object()).collect()
}

/// A formula of its own: a golden file may be written anew from what is wrong.
#[test]
fn every_row_has_the_times_and_tokens_that_its_bytes_tell() {
    let mut held = [0; 8];
    for (recording, endpoint) in generation_requests() {
        let told = told(&recording);
        for row in observe(&recording, endpoint, &recording.pieces) {
            let own = told.iter().filter(|(index, _)| *index == row.index);
            let own: Vec<&Value> = own.map(|(_, meta)| meta).collect();
            let (Some(first), Some(last)) = (own.first(), own.last()) else {
                continue;
            };
            let ended = Some(last).filter(|last| last["finish_reason"].is_object());
            let [end, wait, prefilled] =
                ["forward_entry_time", "queue_time", "prefill_finished_time"]
                    .map(|name| first[name].as_f64());
            let end = end.filter(|_| first["num_retractions"].as_u64().unwrap_or(0) == 0);
            let [created, took, finished] = [
                "request_received_ts",
                "first_token_latency",
                "request_finished_ts",
            ]
            .map(|name| ended?[name].as_f64());
            let made = created.zip(took).map(|(from, took)| from + took);
            let stamped = |moment| row.timeline.raw(moment).map(Stamp::seconds);
            let tokens = |count: Option<u64>| count.map(|count| count as f64);
            let most = own
                .iter()
                .filter_map(|meta| meta["completion_tokens"].as_u64());
            let pairs = [
                (stamped(Moment::QueueEnd), end),
                (
                    stamped(Moment::QueueStart),
                    end.zip(wait).map(|(end, wait)| end - wait),
                ),
                (stamped(Moment::PrefillEnd), prefilled),
                (stamped(Moment::ServerCreated), created),
                (stamped(Moment::ServerFirstToken), made.or(prefilled)),
                (stamped(Moment::ServerFinish), finished),
                (tokens(row.actual_output_tokens), tokens(most.max())),
                (
                    tokens(row.actual_prompt_tokens),
                    last["prompt_tokens"].as_f64(),
                ),
            ];
            for (n, (ours, theirs)) in pairs.into_iter().enumerate() {
                // A float of epoch seconds resolves 0.24 µs.
                let is_near = ours
                    .zip(theirs)
                    .map(|(ours, theirs)| (ours - theirs).abs() < 1e-6);
                let is_same = is_near.unwrap_or(ours == theirs);
                assert!(
                    is_same,
                    "{}#{} {n}: {ours:?} {theirs:?}",
                    recording.case, row.index
                );
                held[n] += usize::from(theirs.is_some());
            }
        }
    }
    assert!(held.iter().all(|held| *held > 40), "{held:?}");
}

#[test]
fn at_any_split_the_rows_are_the_same_and_no_read_between_makes_them_inconsistent() {
    for (recording, endpoint) in generation_requests() {
        let body = recording.body();
        let by_pieces = |size: usize, apart: f64| {
            let pieces = body.chunks(size).zip(0u32..);
            let pieces = pieces.map(|(piece, n)| (1.0 + apart * f64::from(n), piece));
            observe(&recording, endpoint, &Vec::from_iter(pieces))
        };
        let whole = rows(&by_pieces(usize::MAX, 0.0));
        for size in [1, 7, 50, 400, 999] {
            let rows = rows(&by_pieces(size, 0.0));
            assert_eq!(rows, whole, "{} by {size}", recording.case);
        }
        // A read for every byte: whatever two reads a split lets lie apart, these do too.
        for row in Row::ended(by_pieces(1, 0.001)) {
            assert_eq!(row.inconsistency, None, "{} by bytes", recording.case);
        }
    }
}

/// The row of a request through all of our places, its moments 1 ms apart, on clocks that are `apart`.
fn through_all(side: Side, apart: Option<Offset>) -> Row {
    let stamp = |n: i64| Stamp::from_nanos(SENT + n * 1_000_000);
    let mut observer = Observer::new(side, Endpoint::Chat, "all".into());
    let timeline = observer.timeline_mut();
    // One server's: what only a pair has keeps no place among them.
    let of_pair = [
        Moment::KvReserved,
        Moment::KvArrived,
        Moment::DecodeStart,
        Moment::PrefillReplied,
    ];
    let own = Moment::ALL.into_iter();
    let own = own.filter(|moment| !of_pair.contains(moment));
    for (moment, n) in own.zip(1..) {
        timeline.set(moment, stamp(n));
    }
    for clock in [ClockOf::Traffic, ClockOf::Front, ClockOf::Hop] {
        timeline.relate(clock, apart.map_or(Relation::Unknown, Relation::Apart));
    }
    let failed = |status, nanos| Failed {
        host: "w1".into(),
        outcome: Some(Outcome::Rejected),
        status,
        nanos,
    };
    let row = observer.row_mut();
    row.host = Some("127.0.0.1:30000".into());
    row.worker = Some("w0".into());
    row.process = Some("front-1".into());
    row.attempts = Some(3);
    row.span_id = SpanId::new(0xabc);
    row.parent_span_id = SpanId::new(7);
    row.trace_id = Some("0af7651916cd43dd8448eb211c80319c".into());
    row.failed_attempts = shown(&[failed(Some(503), Some(1_234_567)), failed(None, None)]);
    row.client_stall = Some(5);
    row.client_stall_until_finish = Some(4);
    row.overhead = Some(-3);
    row.prompt_wait = Some(0);
    let [mut here, mut worker] = [Passage::default(); 2];
    here.piece(stamp(18), 0);
    here.piece(stamp(20), 9);
    worker.piece(stamp(17), 0);
    worker.piece(stamp(20), 0);
    row.passed(here, worker);
    let mut row = observer.finish(End::Complete, stamp(21)).remove(0);
    row.output_tokens_from_trace = Some(6);
    row.token_chunks = Some(3);
    row
}

/// All columns of all of them, as the CSV has them: with the engine's clock unknown, and told.
#[test]
fn the_rows_are_as_they_were() {
    let mut out = Vec::new();
    let mut writer = RowWriter::new(&mut out, TimeBase::Since(stamp(0.0))).unwrap();
    let mut write = |records: &[Row]| {
        for row in Row::ended(records.to_vec()) {
            writer.write(&row).unwrap();
        }
    };
    let apart = |nanos, error_nanos| Some(Offset { nanos, error_nanos });
    for (recording, endpoint) in generation_requests() {
        let mut records = observe(&recording, endpoint, &recording.pieces);
        write(&records);
        for record in &mut records {
            if let Some(created) = record.timeline.raw(Moment::ServerCreated) {
                let nanos = created.nanos_since(stamp(0.001));
                let apart = apart(nanos, 250_000).map_or(Relation::Unknown, Relation::Apart);
                record.timeline.relate(ClockOf::Engine, apart);
                write(std::slice::from_ref(record));
            }
        }
    }
    for side in [Side::Traffic, Side::Front, Side::Hop] {
        for apart in [
            None,
            apart(0, 0),
            apart(77, 2_000_000),
            apart(-9_000_000, 10),
        ] {
            write(&[through_all(side, apart)]);
        }
    }
    writer.flush().unwrap();
    assert_file("tests/data/rows.csv", &String::from_utf8(out).unwrap());
}
