//! A server of a run: its limits, the sources of these, and the causes of waiting there.

use std::collections::BTreeMap;

use crate::clock::NANOS;
use crate::report::files::{METRICS, POOL, SeriesRow};
use crate::report::phases::pair_events;
use crate::report::reader::Run;
use crate::request::{ColumnId, Wait};
use crate::stats::Interval;
use crate::stats::waits::{ByCause, Cause, ServerFacts, Stay, Waits};
use crate::table::Table;

/// A server, or one of its data-parallel ranks, which have a queue and slots of their own.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// Its name, with the rank where there are several.
    pub name: String,
    /// The causes of waiting there.
    pub causes: ByCause,
    host: String,
    rank: Option<i64>,
    /// By the cause of waiting, if rows have it (servers of pairs).
    pub(super) queues: BTreeMap<Option<Cause>, Queue>,
    /// The source of its slots, if the run's files name them.
    slots_source: Option<&'static str>,
    /// The tokens that its KV cache holds.
    pub pool: Option<u64>,
}

/// The sequences of a queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub(super) waits: Waits,
    /// The shift from the run's times to those of the stays, nanoseconds; `None` if the clocks cannot be compared.
    pub(super) shift: Option<i64>,
    /// Ascending.
    pub(super) rows: Vec<usize>,
    pub(super) stays: Vec<Stay>,
}

/// The address of a server, and the rank.
pub type Key<'t> = (&'t str, Option<i64>);

/// The sources of limits.
const GIVEN: &str = "given";
const SERVER_INFO: &str = "its /get_server_info";
const FOUND: &str = "found in the rows";

/// The server at which a row's sequence waited for a cause.
pub fn key(table: &Table, row: usize, cause: Option<Cause>) -> Key<'_> {
    match cause {
        Some(Cause::PrefillQueue) => (table.text(ColumnId::prefill_host, row), None),
        _ => (
            table.text(ColumnId::host, row),
            table.integer(ColumnId::dp_rank, row),
        ),
    }
}

impl Server {
    /// Adds a wait of a row.
    pub(super) fn push(&mut self, row: usize, wait: &Wait, stay: Stay) {
        let queue = self.queues.entry(wait.cause).or_default();
        queue.shift = queue.shift.or(wait.shift);
        queue.rows.push(row);
        queue.stays.push(stay);
    }

    pub(super) fn key(&self) -> Key<'_> {
        (&self.host, self.rank)
    }

    /// Its stays: their queues, and their places in these.
    pub(super) fn stays(&self) -> impl Iterator<Item = (&Queue, usize)> {
        let queues = self.queues.values();
        queues.flat_map(|queue| (0..queue.stays.len()).map(move |at| (queue, at)))
    }

    /// The most requests that it runs at once, and the source of that.
    pub fn slots(&self) -> Option<(u32, &'static str)> {
        let causes = [None, Some(Cause::DecodeSlots)];
        let queue = causes.iter().find_map(|of| self.queues.get(of))?;
        Some((
            queue.waits.limits.slots?,
            self.slots_source.unwrap_or(FOUND),
        ))
    }

    /// Finds the causes of its waiting. `all` are the servers of the run; `untimed` are the hosts and times of requests of which the times
    /// of waiting are unknown. Those of no known host may have been here.
    pub(super) fn analyzed(
        mut self,
        run: &Run,
        (host, rank): Key<'_>,
        all: &[Key<'_>],
        untimed: &[(&str, Interval)],
    ) -> Server {
        let name = run.server(host);
        let ranks = all.iter().filter(|of| of.0 == host).count();
        // Requests of no known host may be of any number of servers.
        let mut known = match host {
            "" => ServerFacts::default(),
            _ => self.read_facts(run, name),
        };
        let shift = self.shift();
        let here = untimed.iter().filter(|(at, _)| [host, ""].contains(at));
        let here = here.map(|(_, at)| shift.map_or(Interval::ALWAYS, |shift| at.shifted(shift)));
        known.untimed = Interval::union(here.collect());
        known.is_incomplete = run.is_excerpt;
        for (cause, queue) in &mut self.queues {
            known.cause = *cause;
            queue.waits = Waits::of(&queue.stays, &known);
            self.causes.add_all(&queue.waits.all);
        }
        self.name = match rank.filter(|_| ranks > 1) {
            Some(rank) => format!("{name} rank {rank}"),
            None if name.is_empty() => "unknown".to_owned(),
            None => name.to_owned(),
        };
        (self.host, self.rank) = (host.to_owned(), rank);
        self
    }

    /// The shift from the run's times to the server's, nanoseconds.
    fn shift(&self) -> Option<i64> {
        self.queues.values().next()?.shift
    }

    /// Reads what the files of a run have on it; nothing that has a time, where their clock does not compare with its own.
    fn read_facts(&mut self, run: &Run, name: &str) -> ServerFacts {
        let shift = self.shift();
        let at = |seconds: f64| {
            let nanos = (seconds * NANOS as f64) as i64;
            nanos.saturating_add(shift.unwrap_or(0))
        };
        let rows_of = |metric: &'static str| {
            let is_it = move |row: &&SeriesRow| {
                row.source == METRICS && row.metric == metric && row.server == name
            };
            run.series.iter().filter(is_it)
        };
        let compares = shift.is_some();
        let usage = rows_of("token_usage").filter(|_| compares);
        let usage = usage.map(|row| (at(row.time), row.value));
        let mut usage: Vec<(i64, f64)> = usage.collect();
        usage.sort_by_key(|(at, _)| *at);
        let faults = pair_events(&run.faults).into_iter();
        let kills = faults.filter(|fault| compares && fault.server == name && fault.kind == "kill");
        let down = kills.map(|fault| Interval {
            start: at(fault.down),
            end: fault.ready.map_or(i64::MAX, at),
        });
        let asked = run.servers().iter().find(|server| server.name == name);
        let asked = asked.and_then(|server| Some((server.max_running_requests?, SERVER_INFO)));
        let slots = run.given_slots.map(|slots| (slots, GIVEN)).or(asked);
        let down = Interval::union(down.collect());
        let mut scraped = rows_of(POOL).map(|row| row.value as u64);
        self.pool = run.given_pool.or_else(|| scraped.next_back());
        self.slots_source = slots.map(|(_, source)| source);
        ServerFacts {
            slots: slots.map(|(slots, _)| slots),
            pool: self.pool,
            usage,
            down,
            ..ServerFacts::default()
        }
    }
}
