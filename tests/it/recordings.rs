//! The recordings through the observer: all cells of their rows, at any split.

use queuescope::clock::Stamp;
use queuescope::offset::Offset;
use queuescope::request::{
    BodyTiming, Breakdown, COLUMNS, ClockOf, Column, End, Endpoint, FailedAttempt, Moment,
    Observer, Outcome, PrefillTimes, Relation, Row, Side, SpanId, Stamps, Unseens,
};
use queuescope::table::cells::RowWriter;
use serde_json::Value;

use crate::support::docs::assert_file;
use crate::support::observed::{AT, exchange};
use crate::support::read_rows;
use crate::support::recordings::{self, Recording};

/// The records of a recording whose body is fed in `pieces`.
fn observe<B: AsRef<[u8]>>(
    recording: &Recording,
    endpoint: Endpoint,
    pieces: &[(f64, B)],
) -> Vec<Row> {
    let mut observer = Observer::new(Side::Front, endpoint, recording.case.clone());
    observer.row_mut().timeline.set(Moment::Arrival, AT);
    exchange(observer, recording, 0.0, pieces, 0.0)
}

/// Every cell of every row, in words.
fn rows(records: &[Row]) -> Vec<Vec<String>> {
    let cell = |row, column: &Column| format!("{:?}", (column.get)(row));
    let cells = |row| COLUMNS.iter().map(|column| cell(row, column)).collect();
    Row::ended(records.to_vec()).iter().map(cells).collect()
}

fn generation_requests() -> Vec<(Endpoint, Recording)> {
    let mut all = recordings::all();
    all.retain(|recording| recording.case != "err_generate_get");
    let of_endpoint = |of: Recording| Some((Endpoint::from_path(&of.path)?, of));
    all.into_iter().filter_map(of_endpoint).collect()
}

/// The index and `meta_info` of each part that has one, read with nothing of ours.
fn told(of: &Value, place: u64, found: &mut Vec<(u64, Value)>) {
    let parts = of.as_array().or_else(|| of["choices"].as_array());
    for (place, part) in (0..).zip(parts.into_iter().flatten()) {
        told(part, place, found);
    }
    let index = of["index"].as_u64().unwrap_or(place);
    let meta = Some(&of["meta_info"]).filter(|meta| meta.is_object());
    found.extend(meta.map(|meta| (index, meta.clone())));
}

/// By a formula of its own: a golden file may be written anew from what is wrong.
#[test]
fn every_row_has_the_outcome_times_and_tokens_that_its_bytes_tell() {
    let mut held = 0;
    for (endpoint, recording) in generation_requests() {
        let body = String::from_utf8(recording.body()).unwrap_or_default();
        let is_in = |part| body.contains(part);
        let outcome = match recording.status {
            _ if recording.client_aborted => Outcome::ClientAbort,
            _ if is_in("request queue is full") => Outcome::Rejected,
            200 if is_in("data: {\"error\":{") => Outcome::ClientError,
            200 if is_in("longer than the model's context") => Outcome::ServerError,
            200 if recording.case.ends_with("kill_stream_0") => Outcome::UpstreamDied,
            200 => Outcome::Ok,
            503 => Outcome::Rejected,
            400..500 => Outcome::ClientError,
            _ => Outcome::ServerError,
        };
        let mut all = Vec::new();
        let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
        for json in [body.as_str()].into_iter().chain(events) {
            let value = serde_json::from_str(json).unwrap_or_default();
            told(&value, 0, &mut all);
        }
        for row in observe(&recording, endpoint, &recording.pieces) {
            let case = format!("{}#{}", recording.case, row.index);
            assert_eq!(row.outcome(), outcome, "{case}");
            let is_own = |of: &&(u64, Value)| of.0 == u64::from(row.index);
            let own: Vec<&Value> = all.iter().filter(is_own).map(|of| &of.1).collect();
            let [Some(first), Some(last)] = [own.first(), own.last()] else {
                continue;
            };
            let of_first = |name: &str| first[name].as_f64();
            let is_ended = last["finish_reason"].is_object();
            let of_last = |name: &str| last[name].as_f64().filter(|_| is_ended);
            let is_one_wait = first["num_retractions"].as_u64().unwrap_or(0) == 0;
            let entry = of_first("forward_entry_time").filter(|_| is_one_wait);
            let wait = entry.zip(of_first("queue_time"));
            let prefilled = of_first("prefill_finished_time");
            let created = of_last("request_received_ts");
            let took = created.zip(of_last("first_token_latency"));
            let made = took.map(|(at, took)| at + took).or(prefilled);
            let holds = |moment, said: Option<f64>| {
                // A float of epoch seconds resolves 0.24 µs.
                let ours = row.timeline.raw(moment).map(Stamp::seconds);
                let apart = ours.zip(said).map(|(ours, said)| (ours - said).abs());
                let is_same = apart.map_or(ours == said, |apart| apart < 1e-6);
                assert!(is_same, "{case} {moment:?}: {ours:?} {said:?}");
            };
            holds(Moment::QueueStart, wait.map(|(at, wait)| at - wait));
            holds(Moment::QueueEnd, entry);
            holds(Moment::PrefillEnd, prefilled);
            holds(Moment::ServerCreated, created);
            holds(Moment::ServerFirstToken, made);
            holds(Moment::ServerFinish, of_last("request_finished_ts"));
            let tokens = |meta: &&Value| meta["completion_tokens"].as_u64();
            let most = own.iter().filter_map(tokens).max();
            assert_eq!(row.actual_output_tokens, most, "{case}");
            let prompt = last["prompt_tokens"].as_u64();
            assert_eq!(row.actual_prompt_tokens, prompt, "{case}");
            held += 1;
        }
    }
    assert!(held > 50, "{held} rows were held");
}

#[test]
fn at_any_split_the_rows_are_the_same_and_no_read_between_makes_them_inconsistent() {
    for (endpoint, recording) in generation_requests() {
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
    let stamp = |n: i64| AT.plus_nanos(n * 1_000_000);
    let mut observer = Observer::new(side, Endpoint::Chat, "all".into());
    let timeline = &mut observer.row_mut().timeline;
    // One server's: what only a pair has keeps no place among them.
    use Moment::{DecodeStart, KvArrived, KvReserved, PrefillReplied};
    let of_pair = [KvReserved, KvArrived, DecodeStart, PrefillReplied];
    let own = Moment::ALL.into_iter();
    let own = own.filter(|moment| !of_pair.contains(moment));
    for (moment, n) in own.zip(1..) {
        timeline.set(moment, stamp(n));
    }
    for clock in [ClockOf::Traffic, ClockOf::Front, ClockOf::Hop] {
        timeline.relate(clock, apart.map_or(Relation::Unknown, Relation::Apart));
    }
    let failed = |status, nanos| FailedAttempt {
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
    row.failed_attempts = Some(vec![failed(Some(503), Some(1_234_567)), failed(None, None)]);
    row.client_stall = Some(5);
    row.client_stall_until_finish = Some(4);
    row.overhead = Some(-3);
    row.prompt_wait = Some(0);
    let [mut here, mut worker] = [BodyTiming::default(); 2];
    here.piece(stamp(18), 0);
    here.piece(stamp(20), 9);
    worker.piece(stamp(17), 0);
    worker.piece(stamp(20), 0);
    row.set_body_timings(here, worker);
    let mut row = observer.finish(End::Complete, stamp(21)).remove(0);
    row.output_tokens_from_trace = Some(6);
    row.token_chunks = Some(3);
    row
}

/// All columns of all of them, as the CSV has them: with the engine's clock unknown, and told.
#[test]
fn the_rows_are_as_they_were() {
    let mut writer = RowWriter::new(Vec::new(), AT).unwrap();
    let mut write = |records: &[Row]| {
        for row in Row::ended(records.to_vec()) {
            writer.write(&row).unwrap();
        }
    };
    let apart = |nanos, error_nanos| Some(Offset { nanos, error_nanos });
    for (endpoint, recording) in generation_requests() {
        let mut records = observe(&recording, endpoint, &recording.pieces);
        write(&records);
        for record in &mut records {
            if let Some(created) = record.timeline.raw(Moment::ServerCreated) {
                let nanos = created.nanos_since(AT.plus_seconds(0.001));
                let apart = apart(nanos, 250_000).map_or(Relation::Unknown, Relation::Apart);
                record.timeline.relate(ClockOf::Engine, apart);
                write(std::slice::from_ref(record));
            }
        }
    }
    for side in [Side::Traffic, Side::Front, Side::Hop] {
        write(&[through_all(side, None)]);
        for (nanos, error) in [(0, 0), (77, 2_000_000), (-9_000_000, 10)] {
            write(&[through_all(side, apart(nanos, error))]);
        }
    }
    let out = writer.finish().unwrap();
    assert_file("tests/data/rows.csv", &String::from_utf8(out).unwrap());
}

/// The rows of a recording of which `side` read so many halves, behind a front and a hop if their clock has a relation to its own.
fn halves(of: &(Endpoint, Recording), how: (usize, Side, Option<Relation>, bool)) -> Vec<Row> {
    let ((endpoint, recording), (count, side, relation, is_pair)) = (of, how);
    let id = format!("{} {how:?}", recording.case);
    let mut observer = Observer::new(side, *endpoint, id);
    // All before the response of our own processes.
    for (moment, n) in Moment::ALL[..7].iter().zip(-9..) {
        let own = Some(AT.plus_seconds(0.001 * f64::from(n)))
            .filter(|_| moment.clock(side) == side.clock());
        observer.row_mut().timeline.set(*moment, own);
    }
    if let Some(relation) = relation.filter(|_| side != Side::Hop) {
        let is_same = relation == Relation::Same;
        let mut stamps = Stamps {
            clock: if is_same { "own" } else { "other" }.to_owned(),
            arrival: Some(AT.plus_seconds(-0.005)),
            forwarded: Some(AT.plus_seconds(-0.004)),
            worker: Some("w0".to_owned()),
            ..Stamps::default()
        };
        stamps.hop = Some(Box::new(stamps.clone()));
        observer.stamps(&stamps, "own");
    }
    let pieces = &recording.pieces[..count * recording.pieces.len() / 2];
    let mut rows = exchange(observer, recording, 0.0, pieces, 99.0);
    for Row { timeline, .. } in &mut rows {
        let apart = relation.filter(|of| matches!(of, Relation::Apart(_)));
        if let Some(apart) = apart {
            // A hop relates no front's clock to its own.
            let is_known = |clock: &ClockOf| side != Side::Hop || *clock == ClockOf::Engine;
            let clocks = ClockOf::ALL.into_iter().filter(is_known);
            clocks.for_each(|clock| timeline.relate(clock, apart));
        }
        if is_pair {
            timeline.set(Moment::KvReserved, timeline.raw(Moment::QueueStart));
            timeline.set_pair(PrefillTimes {
                queue: Some(5),
                forward: Some(7),
                sending: None,
            });
        }
    }
    Row::ended(rows)
}

#[test]
fn a_row_that_is_read_back_says_what_it_said_when_it_ended() {
    let apart = Relation::Apart(Offset {
        nanos: 7_000_000,
        error_nanos: 9,
    });
    let mut ended = Vec::new();
    for of in generation_requests() {
        for relation in [
            None,
            Some(Relation::Same),
            Some(Relation::Unknown),
            Some(apart),
        ] {
            for (count, is_pair) in (0..3).flat_map(|n| [(n, false), (n, true)]) {
                let seen_by = |side| halves(&of, (count, side, relation, is_pair));
                ended.extend(Side::ALL.map(seen_by));
            }
        }
    }
    let mut writer = RowWriter::new(Vec::new(), Stamp::EPOCH).unwrap();
    let mut rows = ended.iter().flatten();
    rows.try_for_each(|row| writer.write(row)).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), writer.finish().unwrap()).unwrap();
    let table = read_rows(file.path());
    assert_eq!(table.len(), ended.iter().flatten().count());
    // What reports compute of a row: its stages, where it was last, what was not measured and why.
    let said = |row: &Row| (Breakdown::of(row), row.last_seen(), Unseens::of(row));
    for (first, rows) in table.first_rows().zip(ended) {
        for ((row, read), at) in rows.iter().zip(table.request(first)).zip(first..) {
            let alone = table.row(at);
            let id = &row.req_id;
            assert_eq!([&read, &alone].map(said), [row, row].map(said), "{id:?}");
        }
    }
}
