//! What collectors and Prometheus get of the recordings, word for word. `UPDATE_GOLDEN=1` writes the files anew.

use queuescope::clock::Stamp;
use queuescope::request::{Endpoint, Moment, Observer, Row, Side};
use queuescope::telemetry::CountedRequest;
use queuescope::telemetry::otlp::settings::KeepReason;
use queuescope::telemetry::otlp::spans;
use queuescope::telemetry::prometheus::Metrics;

use crate::support::docs::assert_file;
use crate::support::observed::exchange;
use crate::support::recordings::{self, Recording};

const SENT: i64 = 1_795_168_000_000_000_000;
const MS: f64 = 0.001;

/// The rows of each recorded request, as a front before the server sees it.
fn recorded() -> Vec<Vec<Row>> {
    let rows = |recording: &Recording| {
        let endpoint = Endpoint::from_path(&recording.path)?;
        Some(observed(recording, endpoint))
    };
    recordings::all().iter().filter_map(rows).collect()
}

fn observed(recording: &Recording, endpoint: Endpoint) -> Vec<Row> {
    let at = |seconds: f64| Stamp::from_nanos(SENT).plus_seconds(seconds);
    let mut observer = Observer::new(Side::Front, endpoint, recording.case.clone());
    let timeline = &mut observer.row_mut().timeline;
    timeline.set(Moment::Arrival, at(-2.0 * MS));
    timeline.set(Moment::Forwarded, at(-MS));
    timeline.set(Moment::RouterSend, at(-MS));
    let row = observer.row_mut();
    row.trace_id = Some(format!("{:032x}", 0xab_u128 << 64 | 7));
    row.host = Some("10.0.0.7:30000".into());
    let last = recording.pieces.last().map_or(MS, |(seconds, _)| *seconds);
    let rows = exchange(observer, recording, MS, &recording.pieces, last + MS);
    Row::ended(rows)
}

/// Holds what is said now to the file of that name.
#[track_caller]
pub fn assert_golden(name: &str, now: &str) {
    assert_file(&format!("tests/data/golden/{name}"), now);
}

#[test]
fn metrics_of_the_recordings() {
    let metrics = Metrics::new().unwrap();
    for rows in recorded() {
        metrics.request_ended(&CountedRequest::of(&rows));
    }
    let text = metrics.text();
    let lines = text.lines().map(|line| match line.split_once(' ') {
        // What the system says differs each time.
        Some((name, _)) if name.starts_with("process_") => format!("{name}\n"),
        _ if line.starts_with("queuescope_build_info") => "queuescope_build_info\n".into(),
        _ => format!("{line}\n"),
    });
    assert_golden("metrics.txt", &lines.collect::<String>());
}

#[test]
fn traces_of_the_recordings() {
    let mut text = String::new();
    for rows in recorded() {
        let all = spans::spans(&rows, spans::trace_of(&rows), KeepReason::Ratio);
        let ids: Vec<_> = all.iter().map(|span| span.span_context.span_id()).collect();
        let place = |id| ids.iter().position(|of| *of == id);
        for span in &all {
            let since = |at: std::time::SystemTime| {
                let at = at.duration_since(std::time::UNIX_EPOCH).unwrap();
                at.as_nanos() as i128 - i128::from(SENT)
            };
            let (name, status, parent) = (&span.name, &span.status, place(span.parent_span_id));
            let (from, to) = (since(span.start_time), since(span.end_time));
            text += &format!("{name} below {parent:?} {from}..{to} {status:?}");
            // Of each attribute a line would be 3 MB.
            let pairs = |all: &[opentelemetry::KeyValue]| {
                let one = |pair: &opentelemetry::KeyValue| format!(" {}={}", pair.key, pair.value);
                all.iter().map(one).collect::<String>()
            };
            text += &pairs(&span.attributes);
            for event in &span.events.events {
                let (at, more) = (since(event.timestamp), pairs(&event.attributes));
                text += &format!(" [{} {at}{more}]", event.name);
            }
            text.push('\n');
        }
    }
    assert_golden("traces.txt", &text);
}
