//! A row to which an engine's reports are added.

use super::*;
use crate::offset::OffsetBound;
use crate::request::observer::{End, Observer};
use crate::request::response::Endpoint;
use crate::request::sample::at;
use crate::request::stamps::engine_bounds;
use crate::request::timeline::Side;

const MS: i64 = 1_000_000;

/// A streamed response of these events, the first read at 100 ms, each of the others 10 ms later.
fn row(endpoint: Endpoint, events: &[&str]) -> Row {
    let mut observer = Observer::new(Side::Front, endpoint, "id".into());
    observer.row_mut().timeline.set(Moment::Forwarded, at(1));
    observer.response_head(200, Some("text/event-stream"), false, at(90));
    for (event, number) in events.iter().zip(0..) {
        let event = format!("data: {event}\n\n");
        observer.response_body(event.as_bytes(), at(100 + 10 * number), 0);
    }
    observer.finish(End::Complete, at(500)).remove(0)
}

fn chat(texts: usize) -> Row {
    let event = "{\"id\":\"r\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}";
    row(Endpoint::Chat, &vec![event; texts])
}

fn report(source: TimingSource) -> EngineReport {
    EngineReport {
        rid: Some("r".into()),
        received: Some(at(2)),
        queue_start: Some(at(3)),
        queue_end: Some(at(43)),
        prefill_end: Some(at(60)),
        first_token: Some(at(61)),
        finished: Some(at(130)),
        prompt_tokens: Some(25),
        cached_tokens: Some(24),
        output_tokens: Some(7),
        ..EngineReport::of(source)
    }
}

/// The ended row, with these reports added.
fn after(mut row: Row, reports: &[EngineReport]) -> Row {
    reports.iter().for_each(|report| report.put(&mut row));
    Row::ended(vec![row]).remove(0)
}

#[test]
fn a_chat_stream_gets_the_engines_moments_and_tokens() {
    assert_eq!(after(chat(3), &[]).pure_queue_time, None);
    for (source, name) in [(TimingSource::Trace, "trace"), (TimingSource::Log, "log")] {
        let row = after(chat(3), &[report(source)]);
        assert_eq!(row.inconsistency, None);
        assert_eq!(row.pure_queue_time, Some(40 * MS));
        assert_eq!(row.prefill_time, Some(18 * MS));
        assert_eq!(row.timing_source, Some(source));
        assert_eq!(row.token_count_source.unwrap().name(), name);
        // Three events in 20 ms brought seven tokens.
        assert_eq!((row.tpot, row.itl_mean), (Some(20 * MS / 6), None));
        assert_eq!(row.cached_tokens, Some(24));
        let by_trace = (source == TimingSource::Trace).then_some(7);
        assert_eq!(row.output_tokens_from_trace, by_trace);
    }
    // As many events as tokens: their gaps are the tokens'.
    let row = after(chat(7), &[report(TimingSource::Log)]);
    assert_eq!(row.itl_mean, Some(10 * MS));
}

/// A reply's `meta_info` with no more than these members, beside those of the queue.
fn generate(more: &str) -> Row {
    let meta = format!(
        "{{\"text\":\"x\",\"meta_info\":{{\"id\":\"r\",{more}\"completion_tokens\":1,\"forward_entry_time\":1795000000.043,\
         \"queue_time\":0.04,\"prefill_finished_time\":1795000000.06}}}}"
    );
    row(Endpoint::Generate, &[&meta])
}

#[test]
fn of_two_sources_the_first_is_trusted() {
    let row = generate(
        "\"finish_reason\":{\"type\":\"stop\"},\"request_received_ts\":1795000000.0009,\"first_token_latency\":0.0595,",
    );
    let own = row.timeline.raw(Moment::ServerCreated);
    let row = after(row, &[report(TimingSource::Trace)]);
    assert_eq!(row.timeline.raw(Moment::ServerCreated), own);
    assert_eq!(row.timing_source, Some(TimingSource::MetaInfo));
    assert_eq!(row.actual_output_tokens, Some(1));
    assert_eq!(row.output_tokens_from_trace, Some(7));
    // `meta_info` lacked this.
    assert_eq!(row.timeline.raw(Moment::ServerFinish), Some(at(130)));
    // Trace before log, whatever the log says.
    let mut both = [report(TimingSource::Trace), report(TimingSource::Log)];
    both[1].queue_end = Some(at(45));
    let row = after(chat(2), &both);
    assert_eq!(row.pure_queue_time, Some(40 * MS));
    assert_eq!(row.timing_source, Some(TimingSource::Trace));
}

#[test]
fn the_end_of_prefill_stands_in_for_an_unreported_first_token_and_for_that_of_a_reply() {
    let first = |row: &Row| row.timeline.raw(Moment::ServerFirstToken).unwrap();
    let mut unreported = [report(TimingSource::Trace), report(TimingSource::Log)];
    unreported[0].first_token = None;
    let row = after(generate(""), &unreported[..1]);
    assert!(first(&row).nanos_since(at(60)).abs() < 1000);
    let row = after(generate(""), &unreported);
    assert_eq!(first(&row), at(61));
    assert_eq!(first(&after(chat(1), &unreported[..1])), at(60));
    for (stream, expected) in [(Some(true), 61), (None, 61), (Some(false), 60)] {
        // No event of it could be read.
        let mut row = chat(0);
        row.stream = stream;
        let row = after(row, &[report(TimingSource::Trace)]);
        assert_eq!(first(&row), at(expected), "{stream:?}");
    }
}

#[test]
fn a_retracted_sequence_keeps_its_total_queue_time_alone() {
    let retracted = || EngineReport {
        queue_start: None,
        queue_end: None,
        queue_nanos: Some(90 * MS),
        num_retractions: Some(2),
        ..report(TimingSource::Log)
    };
    let row = after(chat(2), &[retracted()]);
    assert_eq!(row.pure_queue_time, Some(90 * MS));
    assert_eq!(row.num_retractions, Some(2));
    // The trace knows the first wait by itself.
    let row = after(chat(2), &[retracted(), report(TimingSource::Trace)]);
    assert_eq!(row.pure_queue_time, Some(40 * MS));
}

#[test]
fn what_was_sent_and_read_bounds_the_engines_clock() {
    let bounds = |row: &Row| {
        let mut row = row.clone();
        report(TimingSource::Trace).put(&mut row);
        let of = |bound: OffsetBound| (bound.is_upper, bound.least);
        Vec::from_iter(engine_bounds(&[row]).map(of))
    };
    let reply = |is_whole: bool| {
        let mut observer = Observer::new(Side::Front, Endpoint::Chat, "id".into());
        observer.row_mut().timeline.set(Moment::Forwarded, at(1));
        observer.response_head(200, Some("application/json"), false, at(130));
        let body = "{\"id\":\"r\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"x\"}}]}";
        observer.response_body(body.as_bytes(), at(140), 0);
        if is_whole {
            observer.response_end(at(140));
        }
        observer.finish(End::ClientGone, at(140)).remove(0)
    };
    let sent = (true, -MS);
    assert_eq!(bounds(&chat(2)), [sent, (false, (61 - 100) * MS)]);
    // A reply was read after the engine had finished it; a client that left early did not see that.
    assert_eq!(bounds(&reply(true)), [sent, (false, (130 - 140) * MS)]);
    assert_eq!(bounds(&reply(false)), [sent]);
}
