//! Joined rows as a file: the front's cells, and in their place those of what the hops add.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::clock::NANOS;
use crate::disk::New;
use crate::report::merge::seconds;
use crate::report::table::Table;
use crate::request::column::{Unit, Value};
use crate::request::columns::COLUMNS;
use crate::request::columns::Column;

use super::Pair;

/// What a hop adds to a front's row.
const ADDED: [&str; 25] = [
    "host",
    "worker",
    "attempts",
    "failed_attempts",
    "router_send_time",
    "worker_forwarded_time",
    "server_created_time",
    "queue_time_start",
    "queue_time_end",
    "prefill_end_time",
    "server_first_token_time",
    "server_latency",
    "ttft",
    "ttft_source",
    "queue_time_in_router",
    "network_time",
    "server_queue_wait",
    "return_time",
    "clock_offset",
    "clock_offset_error",
    "clock_state",
    "timing_source",
    "hop_clock_offset",
    "hop_clock_offset_error",
    "within_clock_error",
];
/// What stands in the hop's row as it is to stand in the front's, on the hop's clock or on none.
const COPIED: [&str; 1] = ["worker_longest_gap"];

/// Writes all rows.
pub fn write(front: &Table, hops: &Table, rows: &[Pair], path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(New::first(path)?);
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    writeln!(out, "{}", names.join(","))?;
    let zero = (front.began().unwrap_or(0.0) * NANOS as f64).round() as i64;
    for (at, row) in rows.iter().enumerate() {
        let cells = COLUMNS.iter().map(|column| {
            if row.changed && ADDED.contains(&column.name) {
                return shown((column.get)(&row.record), zero);
            }
            match row.hop {
                Some(hop) if COPIED.contains(&column.name) => cell(hops, hop, column, zero),
                _ => cell(front, at, column, zero),
            }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join(","))?;
    }
    out.into_inner()?.put()
}

/// A cell as it was read.
fn cell(table: &Table, row: usize, column: &Column, zero: i64) -> String {
    let number = table.number(column.name, row);
    let nanos = number.map(|seconds| (seconds * NANOS as f64).round() as i64);
    match (column.unit, number, nanos) {
        (Unit::Text | Unit::Bool, ..) => quoted(table.text(column.name, row)),
        (Unit::Count, Some(count), _) => (count as u64).to_string(),
        (Unit::Time, _, Some(nanos)) => seconds(nanos.saturating_add(zero)),
        (Unit::Latency | Unit::Seconds, _, Some(nanos)) => seconds(nanos),
        _ => String::new(),
    }
}

/// A cell of a record whose stamps count from `zero`.
fn shown(value: Value<'_>, zero: i64) -> String {
    match value {
        Value::Empty => String::new(),
        Value::Text(text) => quoted(&text),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Count(count) => count.to_string(),
        Value::Nanos(nanos) => seconds(nanos),
        Value::Time(at) => seconds(at.nanos().saturating_add(zero)),
    }
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
