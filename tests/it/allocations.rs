//! An event costs no allocation: the same stream, many times as long, allocates no more.

use queuescope::clock::Stamp;
use queuescope::request::endpoint::Endpoint;
use queuescope::request::observer::{End, Observer};
use queuescope::request::timeline::Side;

use crate::support::recordings;

/// Allocations while the middle of a recorded stream is fed `times` times over.
fn allocations(case: &str, times: usize) -> u64 {
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
    // The first two events fill what a sequence needs once: its place, id and histogram of gaps.
    let (start, end) = (ends[3], ends[ends.len() - 3]);
    let mut observer = Observer::new(Side::Front, endpoint, case.to_owned());
    observer.response_head(200, recording.header("content-type"), false, at);
    observer.response_body(&body[..start], at, 0);
    let info = allocation_counter::measure(|| {
        for time in 0..times {
            let later = at.plus_nanos(1_000_000 * time as i64);
            for piece in body[start..end].chunks(100) {
                observer.response_body(piece, later, 0);
            }
        }
    });
    let records = observer.finish(End::Complete, at).into_records(None);
    assert!(
        records[0].sequence.token_events > times as u64,
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
        assert_eq!(allocations(case, 50), 0, "{case}");
    }
}

#[test]
fn the_counter_counts() {
    let info = allocation_counter::measure(|| drop(vec![1, 2, 3]));
    assert!(info.count_total > 0);
}
