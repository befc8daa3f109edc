//! What the observer of a front tells of a response.

use std::fmt::Display;

use queuescope::clock::Stamp;
use queuescope::request::cell::Value;
use queuescope::request::{ColumnId, End, Endpoint, Observer, Row, Side};

use super::recordings::Recording;

/// When it is read, unless a test says otherwise.
pub const AT: Stamp = Stamp::from_nanos(1_795_168_000_000_000_000);
pub const STREAM: &str = "text/event-stream; charset=utf-8";
pub const JSON: &str = "application/json";

/// One that has read a head of this content type.
pub fn begun(endpoint: Endpoint, kind: &str) -> Observer {
    let mut observer = Observer::new(Side::Front, endpoint, "r".to_owned());
    observer.response_head(200, Some(kind), false, AT);
    observer
}

/// The records of a response whose body it reads in these pieces, each so many nanoseconds after [`AT`].
pub fn in_pieces<B: AsRef<[u8]>>(
    mut observer: Observer,
    pieces: impl IntoIterator<Item = (i64, B)>,
    end: End,
) -> Vec<Row> {
    for (nanos, piece) in pieces {
        observer.response_body(piece.as_ref(), AT.plus_nanos(nanos), 0);
    }
    observer.finish(end, AT)
}

/// The records of a stream whose events are read so many nanoseconds apart.
pub fn streamed(
    endpoint: Endpoint,
    events: impl IntoIterator<Item = impl Display>,
    apart: i64,
) -> Vec<Row> {
    let events = (0..).zip(events);
    let pieces = events.map(|(n, event)| (n * apart, format!("data: {event}\n\n")));
    in_pieces(begun(endpoint, STREAM), pieces, End::Complete)
}

/// The records of a response whose body comes at once.
pub fn at_once(endpoint: Endpoint, kind: &str, body: &str) -> Vec<Row> {
    in_pieces(begun(endpoint, kind), [(0, body)], End::Complete)
}

/// The records of a recorded exchange by a front that read the head of the response so many seconds after [`AT`], its body in these
/// pieces, and then saw its end.
pub fn exchange<B: AsRef<[u8]>>(
    mut observer: Observer,
    recording: &Recording,
    head: f64,
    pieces: &[(f64, B)],
    end: f64,
) -> Vec<Row> {
    let at = |seconds| AT.plus_seconds(seconds);
    observer.request_body(&recording.request_body);
    let kind = recording.header("content-type");
    observer.response_head(recording.status, kind, false, at(head));
    for (seconds, piece) in pieces {
        observer.response_body(piece.as_ref(), at(*seconds), 0);
    }
    let how = match recording.client_aborted {
        true => End::ClientGone,
        false => End::Complete,
    };
    observer.finish(how, at(end))
}

/// The records of a recorded response, its pieces so many nanoseconds apart.
pub fn recorded(recording: &Recording, apart: i64) -> Vec<Row> {
    let endpoint = Endpoint::from_path(&recording.path).unwrap();
    let observer = begun(endpoint, recording.header("content-type").unwrap());
    let pieces = (0..).zip(&recording.pieces);
    let pieces = pieces.map(|(n, (_, piece))| (n * apart, piece));
    in_pieces(observer, pieces, End::Complete)
}

/// A cell in words: moments in seconds after [`AT`], durations in seconds. To a µs: a float of epoch seconds resolves 0.24.
pub fn cell(row: &Row, column: &str) -> String {
    let column = ColumnId::named(column).unwrap_or_else(|| panic!("no column {column}"));
    let seconds = |nanos: i64| ((nanos as f64 / 1e3).round() / 1e6).to_string();
    match (column.column().get)(row) {
        Value::Empty => String::new(),
        Value::Text(text) => text.into_owned(),
        Value::Bool(is) => is.to_string(),
        Value::Count(count) => count.to_string(),
        Value::Nanos(nanos) => seconds(nanos),
        Value::Time(at) => seconds(at.nanos_since(AT)),
    }
}

/// Holds cells of a row to `name=value, …`.
#[track_caller]
pub fn assert_cells(row: &Row, expected: &str, what: &str) {
    for (name, expected) in expected.split(", ").map(|one| one.split_once('=').unwrap()) {
        assert_eq!(cell(row, name), expected, "{what}: {name}");
    }
}
