//! What becomes of a row when the engine tells more of it.

use super::*;
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::timeline::{Period, Side};

const MS: i64 = 1_000_000;
const START: i64 = 1_795_000_000 * NANOS;

fn at(ms: i64) -> Stamp {
    Stamp::from_nanos(START + ms * MS)
}

/// A streamed answer of these events, the first read at 100 ms, each of the others 10 ms later.
fn row(endpoint: Endpoint, events: &[&str]) -> Row {
    let mut observer = Observer::new(Side::Front, endpoint, "id".into());
    observer.timeline_mut().set(Moment::Forwarded, at(1));
    observer.response_head(200, Some("text/event-stream"), false, at(90));
    for (event, number) in events.iter().zip(0..) {
        let event = format!("data: {event}\n\n");
        observer.response_body(event.as_bytes(), at(100 + 10 * number), 0);
    }
    observer.finish(End::Complete, at(500)).remove(0)
}

fn chat(texts: usize) -> Row {
    let event = "{\"id\":\"r\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}";
    let events: Vec<&str> = (0..texts).map(|_| event).collect();
    row(Endpoint::Chat, &events)
}

fn told(source: TimingSource) -> Told {
    Told {
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
        ..Told::of(source)
    }
}

fn inconsistency(record: &Row) -> String {
    let mut rows = crate::request::sample::rows(std::slice::from_ref(record));
    rows.remove(0).inconsistency.unwrap_or_default()
}

#[test]
fn a_chat_stream_gets_the_engines_moments_and_tokens() {
    for (source, name) in [(TimingSource::Trace, "trace"), (TimingSource::Log, "log")] {
        let mut row = chat(3);
        assert_eq!(row.pure_queue(), None);
        told(source).put(&mut row);
        assert_eq!(inconsistency(&row), "");
        let row = Row::ended(vec![row]).remove(0);
        assert_eq!(row.pure_queue_time, Some(40 * MS));
        assert_eq!(row.timeline.nanos(Period::PREFILL), Some(18 * MS));
        assert_eq!(row.timing_source, Some(source));
        assert_eq!(row.token_count_source.unwrap().name(), name);
        // Three events in 20 ms brought seven tokens.
        assert_eq!(row.tpot, Some(20 * MS / 6));
        assert_eq!(row.itl_mean, None);
        assert_eq!(row.cached_tokens, Some(24));
        let by_trace = (source == TimingSource::Trace).then_some(7);
        assert_eq!(row.output_tokens_from_trace, by_trace);
    }
}

#[test]
fn where_there_are_as_many_events_as_tokens_their_gaps_are_the_tokens() {
    let mut row = chat(7);
    told(TimingSource::Log).put(&mut row);
    assert_eq!(Row::ended(vec![row])[0].itl_mean, Some(10 * MS));
}

#[test]
fn what_two_sources_know_is_compared_and_the_first_is_trusted() {
    let meta = |received: &str| {
        format!(
            "{{\"text\":\"x\",\"meta_info\":{{\"id\":\"r\",\"finish_reason\":{{\"type\":\"stop\"}},\"completion_tokens\":1,\
             \"forward_entry_time\":1795000000.043,\"queue_time\":0.04,\"prefill_finished_time\":1795000000.06,\
             \"request_received_ts\":{received},\"first_token_latency\":0.0595}}}}"
        )
    };
    for (received, differs) in [
        ("1795000000.002", ""),
        ("1795000000.0011", ""),
        ("1795000000.0009", "server_created!=trace"),
    ] {
        let mut row = row(Endpoint::Generate, &[&meta(received)]);
        let own = row.timeline.raw(Moment::ServerCreated);
        told(TimingSource::Trace).put(&mut row);
        assert_eq!(inconsistency(&row), differs, "{received}");
        assert_eq!(row.timeline.raw(Moment::ServerCreated), own);
        assert_eq!(row.timing_source, Some(TimingSource::MetaInfo));
        assert_eq!(row.output_tokens(), Some(1));
        assert_eq!(row.output_tokens_from_trace, Some(7));
        // What `meta_info` had not.
        assert_eq!(row.timeline.raw(Moment::ServerFinish), Some(at(130)));
    }
    // Trace before log, whatever the log says.
    let mut row = chat(2);
    told(TimingSource::Trace).put(&mut row);
    let late = Told {
        queue_end: Some(at(45)),
        ..told(TimingSource::Log)
    };
    late.put(&mut row);
    assert_eq!(inconsistency(&row), "queue_end!=log");
    assert_eq!(row.pure_queue(), Some(40 * MS));
    assert_eq!(row.timing_source, Some(TimingSource::Trace));
}

#[test]
fn the_end_of_prefill_stands_in_for_a_first_token_that_nobody_told() {
    let meta = "{\"text\":\"x\",\"meta_info\":{\"id\":\"r\",\"completion_tokens\":1,\"forward_entry_time\":1795000000.043,\
                \"queue_time\":0.04,\"prefill_finished_time\":1795000000.06}}";
    let mut row = row(Endpoint::Generate, &[meta]);
    let nobody = Told {
        first_token: None,
        ..told(TimingSource::Trace)
    };
    nobody.put(&mut row);
    let first = |row: &Row| row.timeline.raw(Moment::ServerFirstToken).unwrap();
    assert!(first(&row).nanos_since(at(60)).abs() < 1000);
    told(TimingSource::Log).put(&mut row);
    assert_eq!(first(&row), at(61));
    assert_eq!(inconsistency(&row), "");
    let mut chat = chat(1);
    nobody.put(&mut chat);
    assert_eq!(first(&chat), at(60));
}

#[test]
fn a_retracted_ones_total_is_kept_without_its_pair() {
    let mut row = chat(2);
    let retracted = Told {
        queue_start: None,
        queue_end: None,
        queue_nanos: Some(90 * MS),
        num_retractions: Some(2),
        ..told(TimingSource::Log)
    };
    retracted.put(&mut row);
    assert_eq!(row.pure_queue(), Some(90 * MS));
    assert_eq!(row.num_retractions, Some(2));
    // The trace knows the first wait by itself.
    told(TimingSource::Trace).put(&mut row);
    assert_eq!(row.pure_queue(), Some(40 * MS));
}

#[test]
fn what_was_sent_and_read_bounds_the_engines_clock() {
    let row = chat(2);
    let [sent, read] = &told(TimingSource::Trace).bounds(&row)[..] else {
        panic!("two bounds");
    };
    assert_eq!(sent.at_most.or(sent.at_least), Some(MS));
    assert_eq!(read.at_most.or(read.at_least), Some((61 - 100) * MS));
}

#[test]
fn a_reply_bounds_the_clock_by_its_end() {
    let reply = |is_whole: bool| {
        let mut observer = Observer::new(Side::Front, Endpoint::Chat, "id".into());
        observer.timeline_mut().set(Moment::Forwarded, at(1));
        observer.response_head(200, Some("application/json"), false, at(130));
        let body = "{\"id\":\"r\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"x\"}}]}";
        observer.response_body(body.as_bytes(), at(140), 0);
        if is_whole {
            observer.response_end(at(140));
        }
        observer.finish(End::ClientGone, at(140)).remove(0)
    };
    let bounds = told(TimingSource::Trace).bounds(&reply(true));
    assert_eq!(bounds[1].at_least, Some((130 - 140) * MS));
    // Who left did not see it finish.
    let bounds = told(TimingSource::Trace).bounds(&reply(false));
    assert!(bounds.iter().all(|bound| bound.at_least.is_none()));
}

#[test]
fn only_of_a_reply_the_end_of_prefill_stands_for_the_first_token() {
    for (stream, first) in [(Some(true), 61), (None, 61), (Some(false), 60)] {
        // No event of it could be read.
        let mut row = row(Endpoint::Chat, &[]);
        row.stream = stream;
        told(TimingSource::Trace).put(&mut row);
        assert_eq!(row.timeline.raw(Moment::ServerFirstToken), Some(at(first)));
    }
}
