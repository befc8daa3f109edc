//! What the scan of a recorded stream costs: bytes a second on one core.
//!
//! `cargo bench --bench scan`. Prints for each recording its size, its events, and the time to observe it
//! whole, from the response head to the records, in reads of the sizes that were recorded.
#![expect(
    clippy::panic,
    missing_docs,
    reason = "a bench may fail loudly; criterion's macros have no docs"
)]

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use queuescope::clock::Stamp;
use queuescope::request::{End, Endpoint, Observer, Side};

const CASES: &[(&str, Endpoint)] = &[
    ("generate_stream_natural_stop", Endpoint::Generate),
    ("incr_generate_stream", Endpoint::Generate),
    ("retract/07", Endpoint::Generate),
    ("router/kill_stream_0", Endpoint::Generate),
    ("generate_stream_logprob", Endpoint::Generate),
    ("queue12_openai/09", Endpoint::Completions),
];

fn observe(events: &[&[u8]], endpoint: Endpoint) -> usize {
    let at = Stamp::from_nanos(1_795_168_000_000_000_000);
    let mut observer = Observer::new(Side::Front, endpoint, String::from("bench"));
    observer.response_head(200, Some("text/event-stream; charset=utf-8"), false, at);
    for event in events {
        observer.response_body(event, at, 0);
    }
    observer.finish(End::Complete, at).len()
}

fn scan(c: &mut Criterion) {
    let mut group = c.benchmark_group("observe a recorded stream");
    for (case, endpoint) in CASES {
        let file = Path::new("tests/data/sglang-0.5.23").join(format!("{case}.body"));
        let body = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        // One event a read, as an engine writes them.
        let mut events: Vec<&[u8]> = Vec::new();
        let mut start = 0;
        for end in memchr::memmem::find_iter(&body, b"\n\n") {
            events.push(&body[start..end + 2]);
            start = end + 2;
        }
        events.push(&body[start..]);
        group.throughput(Throughput::Bytes(body.len() as u64));
        let name = format!("{case} ({} bytes, {} events)", body.len(), events.len());
        group.bench_function(name, |b| b.iter(|| observe(black_box(&events), *endpoint)));
    }
    group.finish();
}

criterion_group!(benches, scan);
criterion_main!(benches);
