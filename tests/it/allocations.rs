//! What is allocated: nothing for an event (the same stream, many times as long, allocates no more), and little for
//! a request that is over.

use queuescope::clock::Stamp;
use queuescope::offset::Offset;
use queuescope::request::endpoint::Endpoint;
use queuescope::request::observer::{End, Observer, relate};
use queuescope::request::row::Row;
use queuescope::request::timeline::{ClockOf, Moment, Relation, Side};
use queuescope::table::Table;

use crate::support::recordings;

/// Allocations while the middle of a recorded stream is fed `times` times over, in pieces of `size` bytes.
fn allocations(case: &str, times: usize, size: usize) -> u64 {
    let recording = recordings::named(case);
    let endpoint = Endpoint::from_path(&recording.path).unwrap();
    let at = Stamp::from_nanos(1_795_168_000_000_000_000);
    let body = recording.body();
    let ends: Vec<usize> = body
        .windows(2)
        .enumerate()
        .filter(|(_, w)| w == b"\n\n")
        .map(|(at, _)| at + 2)
        .collect();
    // What its kinds of events are like is kept once for all streams of a thread.
    let mut other = Observer::new(Side::Front, endpoint, case.to_owned());
    other.response_head(200, recording.header("content-type"), false, at);
    other.response_body(&body, at, 0);
    // The first events fill what a sequence needs once: its place, id and histogram of gaps, and an event to compare with.
    let (start, end) = (ends[3], ends[ends.len() - 3]);
    let mut observer = Observer::new(Side::Front, endpoint, case.to_owned());
    observer.response_head(200, recording.header("content-type"), false, at);
    for event in [0].iter().chain(&ends[..4]).zip(&ends[..4]) {
        observer.response_body(&body[*event.0..*event.1], at, 0);
    }
    let info = allocation_counter::measure(|| {
        for time in 0..times {
            let later = at.plus_nanos(1_000_000 * time as i64);
            for piece in body[start..end].chunks(size) {
                observer.response_body(piece, later, 0);
            }
        }
    });
    let records = observer.finish(End::Complete, at);
    assert!(
        records[0].token_chunks > Some(times as u64),
        "the events were read"
    );
    info.count_total
}

#[test]
fn an_event_allocates_nothing() {
    for case in [
        "generate_stream_natural_stop",
        "incr_generate_stream",
        "queue12_openai/09",
    ] {
        for size in [100, 100_000] {
            assert_eq!(allocations(case, 50, size), 0, "{case} by {size}");
        }
    }
}

/// A request of a recorded stream.
fn record(number: usize) -> Row {
    let recording = recordings::named("generate_stream");
    let at = Stamp::from_nanos(1_795_168_000_000_000_000 + 1_000_000 * number as i64);
    let endpoint = Endpoint::from_path(&recording.path).unwrap();
    let mut observer = Observer::new(Side::Traffic, endpoint, format!("qs-{number}"));
    observer.timeline_mut().set(Moment::Scheduled, at);
    observer.timeline_mut().set(Moment::Sent, at);
    observer.row_mut().host = Some("127.0.0.1:30000".to_owned());
    observer.response_head(200, recording.header("content-type"), false, at);
    observer.response_body(&recording.body(), at, 0);
    let mut rows = observer.finish(End::Complete, at);
    let known = Offset {
        nanos: 0,
        error_nanos: 1,
    };
    relate(&mut rows, ClockOf::Engine, Relation::Apart(known));
    Row::ended(rows).remove(0)
}

#[test]
fn the_figures_of_a_million_requests_need_no_gigabyte() {
    const REQUESTS: usize = 4000;
    let mut table = Table::default();
    let info = allocation_counter::measure(|| {
        for number in 0..REQUESTS {
            table.push_row(&record(number));
        }
    });
    let each = info.bytes_current / REQUESTS as i64;
    assert!((100..700).contains(&each), "{each} bytes");
    assert!(info.bytes_total > 1000 * REQUESTS as u64, "rows passed");
}

#[test]
fn the_counter_counts() {
    let info = allocation_counter::measure(|| drop(vec![1, 2, 3]));
    assert!(info.count_total > 0);
}
