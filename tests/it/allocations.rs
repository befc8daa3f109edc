//! What is allocated: nothing for an event (the same stream, many times as long, allocates no more), and little for
//! a request that is over.

use queuescope::request::cell::Value;
use queuescope::request::{COLUMNS, End, Endpoint, Row, Unit};
use queuescope::table::Table;

use crate::support::observed::{AT, begun, recorded};
use crate::support::recordings;

/// Allocations while the middle of a recorded stream is fed `times` times over, in pieces of `size` bytes.
fn allocations(case: &str, times: i64, size: usize) -> u64 {
    let recording = recordings::named(case);
    let endpoint = Endpoint::from_path(&recording.path).unwrap();
    let observer = || begun(endpoint, recording.header("content-type").unwrap());
    let body = recording.body();
    let events: Vec<&[u8]> = body.split_inclusive(|byte| *byte == b'\n').collect();
    // What its kinds of events are like is kept once for all streams of a thread.
    observer().response_body(&body, AT, 0);
    // The first events fill what a sequence needs once: its place, id and histogram of gaps, and an event to compare with.
    let mut observer = observer();
    let (first, rest) = events.split_at(8);
    for event in first.chunks(2) {
        observer.response_body(&event.concat(), AT, 0);
    }
    let middle = rest[..rest.len() - 4].concat();
    let info = allocation_counter::measure(|| {
        for time in 0..times {
            for piece in middle.chunks(size) {
                observer.response_body(piece, AT.plus_nanos(1_000_000 * time), 0);
            }
        }
    });
    let records = observer.finish(End::Complete, AT);
    let read = records[0].token_chunks;
    assert!(read > Some(times as u64), "they were read");
    info.count_total
}

#[test]
fn an_event_allocates_nothing() {
    let natural = "generate_stream_natural_stop";
    for case in [natural, "incr_generate_stream", "queue12_openai/09"] {
        for size in [100, 100_000] {
            assert_eq!(allocations(case, 50, size), 0, "{case} by {size}");
        }
    }
}

#[test]
fn the_figures_of_a_million_requests_need_no_gigabyte() {
    const REQUESTS: usize = 4000;
    let row = Row::ended(recorded(&recordings::named("generate_stream"), 0)).remove(0);
    let mut table = Table::default();
    let info = allocation_counter::measure(|| {
        for number in 0..REQUESTS {
            let mut row = row.clone();
            row.req_id = Some(format!("qs-{number}"));
            row.host = Some("127.0.0.1:30000".to_owned());
            for column in COLUMNS.iter().filter(|column| column.unit == Unit::Time) {
                let at = AT.plus_nanos(1_000_000 * number as i64);
                (column.put)(&mut row, Value::Time(at));
            }
            table.push_row(&row);
        }
    });
    let each = info.bytes_current / REQUESTS as i64;
    // It does count, then.
    assert!((100..700).contains(&each), "{each} bytes");
}
