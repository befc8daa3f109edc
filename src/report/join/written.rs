//! Joined rows as a file: the front's cells, and in their place those of what the hops add.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::disk::New;
use crate::report::cells::written;
use crate::report::table::Table;
use crate::request::columns::COLUMNS;

use super::Pair;

/// What a hop adds to a front's row.
const ADDED: [&str; 27] = [
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
    "server_finish_time",
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
    "unseen",
];
/// What stands in the hop's row as it is to stand in the front's, on the hop's clock or on none.
const COPIED: [&str; 1] = ["worker_longest_gap"];

/// Writes all rows; times of the tables count from `zero`.
pub fn write(front: &Table, hops: &Table, rows: &[Pair], zero: i64, path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(New::first(path)?);
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    writeln!(out, "{}", names.join(","))?;
    for (at, row) in rows.iter().enumerate() {
        let cells = COLUMNS.iter().enumerate().map(|(place, column)| {
            let value = match row.hop {
                _ if row.changed && ADDED.contains(&column.name) => (column.get)(&row.record),
                Some(hop) if COPIED.contains(&column.name) => hops.value_at(place, hop),
                _ => front.value_at(place, at),
            };
            written(value, zero)
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join(","))?;
    }
    out.into_inner()?.put()
}
