//! The recordings through the observer, against a formula of its own: here the whole body is at hand, so
//! events are split at blank lines, parsed by serde_json, and read with none of the product's code.

use proptest::prelude::*;
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

use self::said::{EventInFile, said};

mod said;

const SENT: i64 = 1_795_168_000_000_000_000;

/// Cases that did not end well, reviewed by hand: outcome, and a piece of its error.
const NOT_OK: &str = "\
abort_chat_stream_after3 | client_abort | client went away
abort_generate_stream_after3 | client_abort | client went away
abort_messages_stream_after3 | client_abort | client went away
chat_stream_return_meta_info | client_error | 400 return_meta_info is not supported
err_chat_bad_json | client_error | 400 1 validation error: 'loc': ('body', 16), 'msg': 'JSON decode error'
err_completions_too_long_stream | client_error | 400 The input (4000 tokens)
err_generate_bad_json | client_error | 400 1 validation error: 'loc': ('body', 16), 'msg': 'JSON decode error'
err_generate_missing_text | client_error | 400 Either text, input_ids
err_generate_missing_text_stream | client_error | 400 Either text, input_ids
err_generate_too_long | client_error | 400 The input (4000 tokens)
err_messages_too_long_stream | server_error | The input (10017 tokens)
err_responses_too_long_stream | server_error | The input (10017 tokens)
queuefull_nostream/09 | rejected | 503 The request queue is full.
queuefull_nostream/11 | rejected | 503 The request queue is full.
queuefull_stream/05 | rejected | 503 The request queue is full.
queuefull_stream/07 | rejected | 503 The request queue is full.
queuefull_stream/09 | rejected | 503 The request queue is full.
router/alldead_chat_later | rejected | 503 No available workers
router/alldead_stream_now | server_error | 500 error sending request for url
router/generate_stream_batch3 | client_error | 422
router/kill_stream_0 | upstream_died | without its end";

/// A recording of each kind of answer.
const KINDS: &str = "generate_stream_n2 generate_stream_logprob retract/07 chat_stream_n2 completions_stream_usage \
    generate_nostream_batch3 queuefull_stream/05 chat_nostream_return_meta_info err_generate_missing_text_stream \
    incr_generate_stream_n2 generate_stream_multibyte queuefull_nostream/09";

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

fn is_stream(recording: &Recording) -> bool {
    let kind = recording.header("content-type").unwrap();
    kind.starts_with("text/event-stream")
}

fn close(a: Option<Stamp>, b: Option<f64>, what: &str) {
    match (a, b) {
        (None, None) => {}
        // A float of epoch seconds resolves 0.24 µs.
        (Some(a), Some(b)) => assert!((a.seconds() - b).abs() < 1e-6, "{what}: {a:?} {b}"),
        other => panic!("{what}: {other:?}"),
    }
}

/// Holds one row against what its sequence's events say.
fn check_row(recording: &Recording, record: &Row, events: &[&EventInFile]) {
    let case = format!("{}#{}", recording.case, record.index);
    let is_stream = is_stream(recording);
    let token = |s: &&&EventInFile| {
        is_stream && (s.text || s.meta["completion_tokens"].as_u64().is_some_and(|n| n > 0))
    };
    let tokens: Vec<_> = events.iter().filter(token).collect();
    let is_at = |moment, at: Option<f64>| {
        close(
            record.timeline.raw(moment),
            at,
            &format!("{case} {moment:?}"),
        );
    };
    let read = |event: Option<&&&EventInFile>| event.map(|event| SENT as f64 / 1e9 + event.at);
    is_at(Moment::FirstToken, read(tokens.first().copied().as_ref()));
    is_at(Moment::LastToken, read(tokens.last().copied().as_ref()));
    let chunks = record.token_chunks.unwrap_or(0);
    assert_eq!(chunks, tokens.len() as u64, "{case}");
    let has_text = events.iter().any(|s| s.text);
    assert_eq!(record.has_generated_text == Some(true), has_text, "{case}");
    assert_eq!(
        record.engine_id,
        events.iter().find_map(|s| s.id.clone()),
        "{case}"
    );

    let metas: Vec<&Value> = events
        .iter()
        .map(|s| &s.meta)
        .filter(|m| m.is_object())
        .collect();
    let first = metas.first().copied();
    let last = metas
        .iter()
        .rev()
        .copied()
        .find(|m| !is_stream || m["finish_reason"].is_object());
    let number = |meta: Option<&Value>, key: &str| meta.and_then(|m| m[key].as_f64());
    let count = |key: &str| last.or(first).and_then(|m| m[key].as_u64());
    let most = metas
        .iter()
        .filter_map(|m| m["completion_tokens"].as_u64())
        .max();
    assert_eq!(record.actual_output_tokens, most, "{case}");
    assert_eq!(
        record.actual_prompt_tokens,
        count("prompt_tokens"),
        "{case}"
    );
    if !metas.is_empty() {
        assert_eq!(record.cached_tokens, count("cached_tokens"), "{case}");
    }
    assert_eq!(record.num_retractions, count("num_retractions"), "{case}");

    let retracted = first
        .and_then(|m| m["num_retractions"].as_u64())
        .unwrap_or(0)
        > 0;
    let entry = number(first, "forward_entry_time").filter(|_| !retracted);
    let start = entry
        .zip(number(first, "queue_time"))
        .map(|(entry, wait)| entry - wait);
    is_at(Moment::QueueEnd, entry);
    is_at(Moment::QueueStart, start);
    let prefill = number(first, "prefill_finished_time");
    is_at(Moment::PrefillEnd, prefill);
    let received = number(last, "request_received_ts");
    is_at(Moment::ServerCreated, received);
    let made = received.zip(number(last, "first_token_latency"));
    let made = made.map(|(a, b)| a + b).or(prefill);
    is_at(Moment::ServerFirstToken, made);
    is_at(Moment::ServerFinish, number(last, "request_finished_ts"));
}

#[test]
fn every_recording_gives_the_rows_that_its_bytes_say() {
    let mut sequences = 0;
    for (recording, endpoint) in generation_requests() {
        let records = observe(&recording, endpoint, &recording.pieces);
        let said = said(&recording);
        let most = said.iter().map(|s| s.index + 1).max().unwrap_or(1);
        assert_eq!(records.len(), most, "{}", recording.case);
        for record in &records {
            let row = &Row::ended(vec![record.clone()])[0];
            assert_eq!(row.inconsistency, None, "{}", recording.case);
            let index = record.index as usize;
            let events: Vec<&EventInFile> = said.iter().filter(|s| s.index == index).collect();
            check_row(&recording, record, &events);
            sequences += 1;
        }
    }
    assert!(sequences > 90, "{sequences} rows were checked");
}

#[test]
fn every_recording_ends_as_the_reviewed_table_says() {
    let mut not_ok = 0;
    for (recording, endpoint) in generation_requests() {
        let row = &observe(&recording, endpoint, &recording.pieces)[0];
        let error = row.error.as_deref().unwrap_or_default();
        let case = recording.case.as_str();
        let told = NOT_OK.lines().map(|line| Vec::from_iter(line.split(" | ")));
        match told.into_iter().find(|told| told[0] == case).as_deref() {
            Some([_, outcome, told]) => {
                not_ok += 1;
                assert_eq!(row.outcome().name(), *outcome, "{case}: {error}");
                assert!(error.contains(told), "{case}: {error}");
            }
            _ => assert_eq!((row.outcome(), error), (Outcome::Ok, ""), "{case}"),
        }
    }
    assert_eq!(
        not_ok,
        NOT_OK.lines().count(),
        "every row of the table was met"
    );
}

#[test]
fn by_bytes_the_rows_are_the_same_and_no_split_makes_them_inconsistent() {
    for (recording, endpoint) in generation_requests() {
        let body = recording.body();
        let inconsistent = |pieces: &[(f64, &[u8])]| {
            let rows = Row::ended(observe(&recording, endpoint, pieces)).into_iter();
            rows.filter_map(|row| row.inconsistency).collect::<String>()
        };
        let whole = rows(&observe(&recording, endpoint, &[(1.0, &body)]));
        let bytes: Vec<(f64, &[u8])> = body.chunks(1).map(|byte| (1.0, byte)).collect();
        let by_bytes = rows(&observe(&recording, endpoint, &bytes));
        assert_eq!(by_bytes, whole, "{}", recording.case);
        // A read for every byte: whatever two reads a split lets lie apart, these do too.
        let bytes = body.chunks(1).zip(0u32..);
        let bytes: Vec<(f64, &[u8])> = bytes.map(|(b, n)| (f64::from(n) / 1e3, b)).collect();
        assert_eq!(inconsistent(&bytes), "", "{} by bytes", recording.case);
        // And two reads, split anywhere in the first events of each kind of answer.
        if !KINDS.split_whitespace().any(|case| case == recording.case) {
            continue;
        }
        let part = &body[..body.len().min(1500)];
        for cut in 0..=part.len() {
            let pieces = [(1.0, &part[..cut]), (2.0, &part[cut..])];
            assert_eq!(inconsistent(&pieces), "", "{} at {cut}", recording.case);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn any_split_gives_the_same_rows(
        case in prop::sample::select(KINDS.split_whitespace().collect::<Vec<_>>()),
        cuts in prop::collection::vec(0.0..1.0f64, 0..40),
    ) {
        let recording = recordings::named(case);
        let endpoint = Endpoint::from_path(&recording.path).unwrap();
        let body = recording.body();
        let mut cuts: Vec<usize> = cuts.iter().map(|c| (c * body.len() as f64) as usize).collect();
        cuts.sort_unstable();
        cuts.push(body.len());
        let mut pieces = Vec::new();
        let mut start = 0;
        for cut in cuts {
            pieces.push((1.0, &body[start..cut]));
            start = cut;
        }
        let whole = rows(&observe(&recording, endpoint, &[(1.0, &body)]));
        prop_assert_eq!(rows(&observe(&recording, endpoint, &pieces)), whole);
    }
}

/// The rows of a request through all of our places, its moments 1 ms apart, on clocks that are `apart`.
fn through_all(side: Side, apart: Option<Offset>) -> Row {
    let mut row = Row::new(side, Endpoint::Chat, "all".into());
    let stamp = |n: i64| Stamp::from_nanos(SENT + n * 1_000_000);
    let timeline = &mut row.timeline;
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
    for clock in [
        ClockOf::Traffic,
        ClockOf::Front,
        ClockOf::Hop,
        ClockOf::Engine,
    ] {
        timeline.relate(clock, apart.map_or(Relation::Unknown, Relation::Apart));
    }
    row.host = Some("127.0.0.1:30000".into());
    row.worker = Some("w0".into());
    row.process = Some("front-1".into());
    row.attempts = Some(3);
    row.span_id = SpanId::new(0xabc);
    row.parent_span_id = SpanId::new(7);
    row.trace_id = Some("0af7651916cd43dd8448eb211c80319c".into());
    let failed = |status, nanos| Failed {
        host: "w1".into(),
        outcome: Some(Outcome::Rejected),
        status,
        nanos,
    };
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
    let mut observer = Observer::new(side, Endpoint::Chat, "all".into());
    *observer.row_mut() = row;
    let mut row = observer.finish(End::Complete, stamp(21)).remove(0);
    row.timeline.relate(ClockOf::Engine, Relation::Unknown);
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
    for (recording, endpoint) in generation_requests() {
        let mut records = observe(&recording, endpoint, &recording.pieces);
        write(&records);
        for record in &mut records {
            if let Some(created) = record.timeline.raw(Moment::ServerCreated) {
                let nanos = created.nanos_since(stamp(0.001));
                let offset = Offset {
                    nanos,
                    error_nanos: 250_000,
                };
                record
                    .timeline
                    .relate(ClockOf::Engine, Relation::Apart(offset));
                write(std::slice::from_ref(record));
            }
        }
    }
    for side in [Side::Traffic, Side::Front, Side::Hop] {
        let apart = |nanos, error_nanos| Some(Offset { nanos, error_nanos });
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
