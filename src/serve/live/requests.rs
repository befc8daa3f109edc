//! Requests that have ended, as the live page draws them.

use serde_json::{Value as Json, json};

use crate::report::timeline::{clock_lines, error, unseen};
use crate::report::why::first_of;
use crate::request::column::Unit;
use crate::request::columns::COLUMNS;
use crate::request::impossible::believed;
use crate::request::row::Row;
use crate::request::stages::{Breakdown, place};
use crate::request::timeline::{Moment, Side};
use crate::telemetry::recent::Ended;

use super::seconds;

/// One request as a line of the waterfall.
pub fn bar(ended: &Ended) -> Option<Json> {
    let row = ended.rows.first()?;
    let believed = believed(std::slice::from_ref(row));
    let row = believed.first()?;
    let timeline = &row.timeline;
    let begin = match timeline.side() {
        Side::Traffic | Side::Front => Moment::Arrival,
        Side::Hop => Moment::RouterSend,
    };
    let arrival = timeline.on_own_clock(begin);
    let worker = row.worker.as_ref().or(row.host.as_ref());
    Some(json!({
        "number": ended.number,
        "req_id": row.request_id(),
        "endpoint": row.endpoint().path(),
        "model": row.model,
        "worker": worker,
        "prefill_host": row.prefill_host,
        "outcome": row.outcome().name(),
        "error": row.error.as_deref().unwrap_or_default(),
        "last_seen": row.last_seen().map(place),
        "sequences": row.sequences,
        "attempts": row.attempts,
        "trace_id": row.trace_id,
        "arrival": arrival.map(|at| at.seconds()),
        "elapsed": row.elapsed.map(seconds),
        "ttft": row.ttft.map(seconds),
        "output_tokens": row.actual_output_tokens,
        "parts": parts(row),
    }))
}

/// All that is known of one request; why it waited, from what is known of those that ended `lately` too.
pub fn request(ended: &Ended, lately: &[Ended]) -> Json {
    let others = lately.iter().filter(|other| other.number != ended.number);
    let others = others.flat_map(|other| other.rows.iter());
    let first = ended.rows.first();
    let rows = ended.rows.iter().map(columns);
    json!({
        "bar": bar(ended),
        "trace_id": first.and_then(|row| row.trace_id.as_deref()),
        "unseen": first.map(unseen).unwrap_or_default(),
        "clocks": first.map(clock_lines).unwrap_or_default(),
        "waited": first_of(ended.rows.iter().chain(others)),
        "rows": rows.collect::<Vec<Json>>(),
    })
}

/// The parts of its time with where they begin and end, seconds after its first moment; those that nobody saw apart
/// are one. A client's stalls stand last, though they lie within decoding.
fn parts(row: &Row) -> Vec<Json> {
    let Some(breakdown) = Breakdown::of(row) else {
        return Vec::new();
    };
    let mut at = 0_i64;
    let parts = breakdown.parts.iter().map(|part| {
        let start = at;
        at = at.saturating_add(part.nanos);
        json!({
            "name": part.spent.name(),
            "label": part.spent.label(),
            "place": part.spent.place(),
            "is_after": part.spent.is_after_first_token(),
            "start": seconds(start),
            "end": seconds(at),
            "error": seconds(error(row, part.spent)),
        })
    });
    parts.collect()
}

fn columns(row: &Row) -> Json {
    let cells = COLUMNS.iter().map(|column| {
        let value = (column.get)(row).to_json();
        let unit = match column.unit {
            Unit::Latency | Unit::Seconds => "s",
            Unit::Time => "time",
            Unit::Text | Unit::Bool | Unit::Count => "",
        };
        json!({"name": column.name, "value": value, "unit": unit, "help": column.help})
    });
    cells.collect()
}
