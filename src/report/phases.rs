//! What faults did to requests: before, during and after each, how soon traffic left the server, and how soon it was back.

use std::collections::BTreeMap;

use serde::Serialize;

use super::files::{FaultRow, ServerFile};
use super::load::is_given_up;
use crate::request::columns::ColumnId;
use crate::stats::quantile;
use crate::table::Table;
use crate::units::duration;

mod recovery;

/// One or several faults that overlap, and what became of requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Episode {
    /// Each fault in it.
    pub faults: Vec<FaultOf>,
    /// Before the first began, while one lasted, and after the last was over.
    pub phases: [Phase; 3],
}

/// What was to come about after a fault, and how soon it did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// How soon, seconds; `None`: it did not, or nobody can say.
    pub seconds: Option<f64>,
    /// The same in words.
    pub said: String,
}

/// A fault of one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FaultOf {
    /// The server's name.
    pub server: String,
    /// `kill`, or a kind of the hop's.
    pub kind: String,
    /// When it began, seconds since the run began.
    pub down: f64,
    /// When it was taken away; `None`: not in this run.
    pub up: Option<f64>,
    /// When a server that was killed or refused connections answered again.
    pub ready: Option<f64>,
    /// When the server could serve again: one that answered nothing when it answers, others when the fault is taken away.
    pub over: Option<f64>,
    /// How soon traffic left the server, from the fault's begin.
    pub left: Outcome,
    /// How soon it served again, from when it could.
    pub recovery: Outcome,
    /// Requests that came while it could serve again and never did, to whichever server.
    pub unserved: usize,
}

/// The requests of a stretch of time: those that arrived in it, but that those which failed while a fault lasted belong to
/// it although they came before.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Phase {
    /// Its begin, seconds since the run began.
    pub from: f64,
    /// Its end; `None`: that of the run.
    pub to: Option<f64>,
    /// How many there are.
    pub requests: usize,
    /// How many of them failed, by outcome. Those that were given up for the run's end are none of them.
    pub failed: BTreeMap<String, usize>,
    /// How many were given up when the run was stopped.
    pub given_up: usize,
    /// Of those that did not fail.
    pub ttft: Quantiles,
    /// The same of the whole time.
    pub total_latency: Quantiles,
}

/// Seconds; `None`: too few requests to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// The quantiles that are told, and the fewest requests of which they are: of fewer, the p99 is the slowest one.
const TOLD: [(f64, usize); 2] = [(0.5, 10), (0.99, 100)];
const NAMES: [&str; 3] = ["before", "during", "after"];

/// When a request arrived, and its row.
type Arrived = (f64, usize);

/// Requests in the order in which they arrived.
struct Arrivals<'a> {
    table: &'a Table,
    rows: Vec<Arrived>,
}

/// The episodes of a run, in order of time. A fault that began while another lasted belongs to its episode.
pub fn episodes(table: &Table, faults: &[FaultRow], servers: &[ServerFile]) -> Vec<Episode> {
    let arrivals = Arrivals::of(table);
    let mut grouped: Vec<Vec<FaultOf>> = Vec::new();
    for fault in paired(faults) {
        let lasts = |group: &&mut Vec<FaultOf>| end(group).is_none_or(|over| over > fault.down);
        match grouped.last_mut().filter(lasts) {
            Some(group) => group.push(fault),
            None => grouped.push(vec![fault]),
        }
    }
    let begin = |group: &Vec<FaultOf>| group.first().map(|fault| fault.down);
    let begins: Vec<f64> = grouped.iter().filter_map(begin).collect();
    let mut since = 0.0;
    let mut episodes = Vec::new();
    for (n, (mut faults, from)) in grouped.into_iter().zip(&begins).enumerate() {
        let (from, to, next) = (*from, end(&faults), begins.get(n + 1).copied());
        let (before, mut hit) = arrivals.parted(since, Some(from));
        hit.extend(arrivals.between(from, to));
        // Those that the next fault broke are its own.
        let after = to.map_or(Vec::new(), |to| arrivals.parted(to, next).0);
        for fault in &mut faults {
            let sent = arrivals.sent_to(&fault.server, servers);
            sent.tell(fault, &arrivals);
        }
        episodes.push(Episode {
            faults,
            phases: [
                arrivals.phase(&before, since, Some(from)),
                arrivals.phase(&hit, from, to),
                to.map_or_else(Phase::default, |to| arrivals.phase(&after, to, next)),
            ],
        });
        since = to.unwrap_or(f64::INFINITY);
    }
    episodes
}

/// Each `down` with the `up` and `ready` of the same server that follow it, in order of time.
pub fn paired(rows: &[FaultRow]) -> Vec<FaultOf> {
    let mut rows: Vec<&FaultRow> = rows.iter().collect();
    rows.sort_by(|a, b| a.time.total_cmp(&b.time));
    let mut faults: Vec<FaultOf> = Vec::new();
    for row in rows {
        let last = faults.iter_mut().rfind(|fault| fault.server == row.server);
        match (last, row.event.as_str(), row.kind.as_str()) {
            (_, "down", _) => faults.push(FaultOf {
                server: row.server.clone(),
                kind: row.kind.clone(),
                down: row.time,
                ..FaultOf::default()
            }),
            (Some(fault), "up", _) => fault.up = fault.up.or(Some(row.time)),
            // Others answered what asks whether they are ready all the time.
            (Some(fault), "ready", "kill" | "refuse") => {
                fault.ready = fault.ready.or(Some(row.time));
            }
            _ => {}
        }
    }
    for fault in &mut faults {
        let up = fault.up.filter(|_| fault.kind != "kill");
        fault.over = fault.ready.or(up);
    }
    faults
}

/// When the last was over; `None` where one never was.
fn end(faults: &[FaultOf]) -> Option<f64> {
    let mut ends = faults.iter().map(|fault| fault.over);
    ends.try_fold(0.0, |last: f64, over| Some(last.max(over?)))
}

impl Arrivals<'_> {
    fn of(table: &Table) -> Arrivals<'_> {
        let arrived = |row| Some((table.number(ColumnId::arrival_time, row)?, row));
        let mut rows: Vec<Arrived> = table.firsts().filter_map(arrived).collect();
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        Arrivals { table, rows }
    }

    /// The rows that arrived from `from` on and before `to`.
    fn between(&self, from: f64, to: Option<f64>) -> &[Arrived] {
        let place = |at: f64| self.rows.partition_point(|(arrival, _)| *arrival < at);
        let end = to.map_or(self.rows.len(), place);
        self.rows.get(place(from)..end).unwrap_or(&[])
    }

    /// Those that arrived since a moment and before a fault, and apart from them those that were under way when it began and
    /// failed. Those that went well stay, however long they took: without the slowest the others would look quick; and those
    /// that were given up, for the run's end and not for the fault.
    fn parted(&self, since: f64, fault: Option<f64>) -> (Vec<Arrived>, Vec<Arrived>) {
        let is_whole = |(_, row): &Arrived| {
            let end = self.table.number(ColumnId::end_time, *row);
            let is_over = end.zip(fault).is_none_or(|(end, fault)| end < fault);
            is_over || self.table.is_ok(*row) || is_given_up(self.table, *row)
        };
        let all = self.between(since, fault).iter().copied();
        all.partition(is_whole)
    }

    fn phase(&self, rows: &[Arrived], from: f64, to: Option<f64>) -> Phase {
        let (table, mut ok) = (self.table, Vec::new());
        let (mut failed, mut given_up) = (BTreeMap::new(), 0);
        for &(_, row) in rows {
            let outcome = table.text(ColumnId::outcome, row).to_owned();
            match (table.is_ok(row), is_given_up(table, row)) {
                (true, _) => ok.push(row),
                (_, true) => given_up += 1,
                _ => *failed.entry(outcome).or_insert(0) += 1,
            }
        }
        let quantiles = |column| {
            let values = ok.iter().filter_map(|row| table.number(column, *row));
            let mut values: Vec<f64> = values.collect();
            values.sort_unstable_by(f64::total_cmp);
            let [p50, p99] =
                TOLD.map(|(q, least)| quantile(&values, q).filter(|_| values.len() >= least));
            Quantiles { p50, p99 }
        };
        Phase {
            from,
            to,
            requests: rows.len(),
            ttft: quantiles(ColumnId::ttft),
            total_latency: quantiles(ColumnId::total_latency),
            failed,
            given_up,
        }
    }
}

/// The episodes as a person reads them.
pub fn lines(episodes: &[Episode]) -> Vec<String> {
    let mut lines = Vec::new();
    for episode in episodes {
        for fault in &episode.faults {
            let over = match (fault.up, fault.ready) {
                (_, Some(ready)) => format!("until {ready:.1} s, when it answered again"),
                (Some(up), None) => format!("taken away at {up:.1} s"),
                (None, None) => "to the end of the run".to_owned(),
            };
            let (server, kind, down) = (&fault.server, &fault.kind, fault.down);
            lines.push(format!("Fault: {server} {kind} from {down:.1} s {over}"));
            lines.push(format!("  {}; {}", fault.left.said, fault.recovery.said));
        }
        lines.push(format!(
            "  {:<7} {:>8} {:>7}  {:>19}  {:>19}  failed as",
            "", "requests", "failed", "TTFT p50 / p99", "total p50 / p99"
        ));
        let phases = NAMES.iter().zip(&episode.phases);
        lines.extend(phases.map(|(name, phase)| format!("  {name:<7} {}", phase.line())));
    }
    lines
}

impl Phase {
    fn line(&self) -> String {
        let failed: usize = self.failed.values().sum();
        let given_up = format!("{} given up when the run was stopped", self.given_up);
        let outcomes = self.failed.iter().map(|(name, n)| format!("{name} {n}"));
        let outcomes = outcomes.chain((self.given_up > 0).then_some(given_up));
        let line = format!(
            "{:>8} {failed:>7}  {:>19}  {:>19}  {}",
            self.requests,
            self.ttft.words(),
            self.total_latency.words(),
            outcomes.collect::<Vec<_>>().join(", ")
        );
        line.trim_end().to_owned()
    }
}

impl Quantiles {
    fn words(&self) -> String {
        let word = |value: Option<f64>| value.map_or_else(|| "too few".to_owned(), duration);
        format!("{} / {}", word(self.p50), word(self.p99))
    }
}

#[cfg(test)]
mod tests;
