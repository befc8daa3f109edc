//! The numbers of requests in flight, queued and running over time.

use crate::clock::seconds;
use crate::request::ColumnId;
use crate::stats::{Concurrency, Interval, Window as Span};
use crate::table::Table;

use super::RunFacts;
use super::counts::Request;

/// Concurrency over the run, in buckets.
#[derive(Clone, Debug)]
pub struct OverTime {
    /// When the first bucket begins, seconds on the clock of the rows.
    pub from_s: f64,
    /// Length of a bucket, seconds.
    pub bucket_s: f64,
    /// By [`OverTime::NAMES`]: requests from their send to their end; sequences in the server queue, and from their first batch to the
    /// engine's end (`None` if no row has the engine's moments on its clock); requests in flight that may have been queued or running.
    pub series: [Option<Concurrency>; 4],
    /// The number of requests that were sent and are not queued, not running, or not either, as their times there are unknown; of those
    /// in flight 0.
    pub missing: [u64; 4],
    /// Requests from their arrival to the router's send; `None` if that was never measured.
    pub in_router: Option<Concurrency>,
}

impl OverTime {
    /// The names of the series.
    pub const NAMES: [&str; 4] = ["concurrency", "queued", "running", "unknown"];

    /// Counts requests. Those outside the window count only while they last.
    pub(super) fn of(table: &Table, all: &[Request], run: &RunFacts) -> Option<OverTime> {
        let [start, end] = [run.started, run.ended].map(|at| at.nanos());
        let window = Span::new(Interval { start, end })?;
        let [mut in_flight, mut in_router, mut unknown] = [const { Vec::new() }; 3];
        // Queued and running.
        let mut in_server = [const { Vec::new() }; 2];
        let mut missing = [0; 4];
        for request in all {
            let mut is_known = [true; 2];
            for row in request.rows() {
                let of_row = [queued(table, row), running(table, row)];
                for (at, interval) in of_row.into_iter().enumerate() {
                    is_known[at] &= interval.is_some();
                    in_server[at].extend(interval);
                }
            }
            let of_request = |column| table.integer(column, request.row());
            let arrived = of_request(ColumnId::arrival_time);
            let sent = arrived.zip(of_request(ColumnId::router_send_time));
            in_router.extend(sent.map(|(start, end)| Interval { start, end }));
            let Some(start) = table.arrival(request.row()) else {
                continue;
            };
            let ends = request.rows().filter_map(|row| table.ended(row));
            let whole = ends.max().map(|end| Interval { start, end });
            in_flight.extend(whole);
            let whole = whole.unwrap_or(Interval { start, end: start });
            // A request that ended before the window, or arrived after it, is missing in no figure.
            let is_here = whole.start <= window.whole.end && whole.end >= window.whole.start;
            if is_here && is_known != [true; 2] {
                unknown.push(whole);
                let [queued, running] = is_known.map(|is_known| u64::from(!is_known));
                missing = [0, missing[1] + queued, missing[2] + running, missing[3] + 1];
            }
        }
        let of = |intervals: Vec<Interval>| Concurrency::of(intervals, &window);
        let some = |all: Vec<Interval>| (!all.is_empty()).then(|| of(all));
        let [queued, running] = in_server.map(some);
        Some(OverTime {
            from_s: seconds(start),
            bucket_s: seconds(window.bucket),
            series: [some(in_flight), queued, running, Some(of(unknown))],
            missing,
            in_router: some(in_router),
        })
    }
}

/// A time of the engine; `None` if it is not on the clock of the row.
fn engine_time(table: &Table, column: ColumnId, row: usize) -> Option<i64> {
    let is_raw = matches!(table.text(ColumnId::clock_state, row), "" | "raw");
    table.integer(column, row).filter(|_| !is_raw)
}

fn queued(table: &Table, row: usize) -> Option<Interval> {
    Some(Interval {
        start: engine_time(table, ColumnId::queue_time_start, row)?,
        end: started(table, row)?,
    })
}

/// When a sequence left its queue; of a pair of servers, the queue for a slot of the decode server's batch.
fn started(table: &Table, row: usize) -> Option<i64> {
    let of_pair = || engine_time(table, ColumnId::decode_start_time, row);
    let of_one = engine_time(table, ColumnId::queue_time_end, row);
    of_one.or_else(of_pair)
}

fn running(table: &Table, row: usize) -> Option<Interval> {
    Some(Interval {
        start: started(table, row)?,
        end: engine_time(table, ColumnId::server_finish_time, row)
            .or_else(|| table.integer(ColumnId::finish_time, row))?,
    })
}
