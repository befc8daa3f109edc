//! The summary of a run (docs/SUMMARY.md), computed from its rows: by `queuescope report` and for `summary.json` in the same way.
//!
//! Failed requests are counted by themselves and enter no latency and no token figure. Rows are per sequence; values of the whole
//! request count once. What was not measured is null, never 0.

mod counts;
mod json;
mod latency;
mod over_time;
mod spent;
mod text;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde_json::Value;

use super::reader::Run;
use super::sanitize::sanitize;
use crate::clock::{Stamp, seconds};
use crate::error::Error;
use crate::request::{ColumnId, ServerRole, TimeSpent, parse_failed};
use crate::table::window::{Window, arrived_or_due};
use crate::table::{Table, rows};
use crate::threads::joined;
use crate::units::one_decimal;

pub use counts::{Counts, FailureKind, Tokens, is_given_up};
use counts::{Request, most_frequent};
pub use json::{Figure, goals_ms};
pub use latency::{Goal, Goodput, Latencies, latencies};
pub use over_time::OverTime;

/// What is known of a run without its rows.
#[derive(Clone, Debug)]
pub struct RunFacts {
    /// When the run began, on the clock of its rows.
    pub started: Stamp,
    /// When its last request had ended.
    pub ended: Stamp,
    /// The configured requests per second; `None` if unlimited (`inf`) or unknown (a proxy).
    pub offered_rate: Option<f64>,
    /// The number of scheduled requests.
    pub scheduled: usize,
    /// The configuration of the run, as `summary.json` has it.
    pub config: Value,
    /// The goals that a good request meets.
    pub goodput: Vec<Goal>,
    /// The machine of the generator; null if unknown.
    pub machine: Value,
}

/// The figures of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The run without its rows. If the figures cover a window, its start and end are the window's.
    pub run: RunFacts,
    /// When the run itself began, since the epoch, if known.
    pub began: Option<Stamp>,
    /// The figures of all requests.
    pub all: Group,
    /// The counts of all requests, including those outside the window.
    pub whole: Counts,
    /// The part of the run that the figures cover; `None` if none was chosen.
    pub window: Option<Window>,
    /// The figures by server: the one that served a request, or the last that failed it. The [`MAX_HOSTS`] servers with the most
    /// requests; where these are all, with those of a run's servers that no row names.
    pub hosts: BTreeMap<String, Group>,
    /// The number of other servers, and of their requests.
    pub other_hosts: (usize, usize),
}

/// The most servers that have figures of their own.
const MAX_HOSTS: usize = 50;

/// The figures of some of a run's requests.
#[derive(Clone, Debug)]
pub struct Group {
    /// How the requests ended.
    pub counts: Counts,
    /// The tokens of the successful requests that ended within the window.
    pub tokens: Tokens,
    /// The number of successful requests that ended within the window.
    pub completed: u64,
    /// The latencies of the successful requests.
    pub latencies: Latencies,
    /// Whether there was a schedule: a proxy's rows have none.
    pub is_scheduled: bool,
    /// Requests per second by the schedule; of conversations, their starts.
    pub schedule_rate: Option<f64>,
    /// Requests per second as sent, or as they arrived at a proxy.
    pub achieved_rate: Option<f64>,
    /// Concurrency over time; `None` for a run of length 0.
    pub over_time: Option<OverTime>,
    /// The time of the successful requests, by stage.
    pub spent: TimeSpent,
    /// Their time until the first token, by stage, where the first token was seen.
    pub until_first: TimeSpent,
    /// The kinds of failures, most frequent first.
    pub failures: Vec<FailureKind>,
    /// The requests that met all goals; `None` without goals.
    pub goodput: Option<Goodput>,
    /// The number of successful requests that are left out of durations measured with two clocks.
    pub left_out: u64,
}

impl RunFacts {
    /// Reads what is known of a run without its rows from its `summary.json`, as far as there is one.
    pub(super) fn of(run: &Run) -> RunFacts {
        let (began, ended) = ends(&run.table);
        // The run begins with its schedule, not with its first request: times count from then.
        let is_scheduled = run.table.has(ColumnId::scheduled_time);
        let started = Stamp::from_nanos(if is_scheduled { 0 } else { began.unwrap_or(0) });
        let ended = match run.duration() {
            Some(duration) => started.plus_seconds(duration),
            None => ended.map_or(started, Stamp::from_nanos),
        };
        let goals = run.summary_value("/goodput_goals_ms");
        let goals = goals.and_then(Value::as_object).into_iter().flatten();
        let goal =
            |(name, limit): (&String, &Value)| format!("{name}:{limit}").parse::<Goal>().ok();
        let scheduled = run.scheduled().map(|count| count as usize);
        RunFacts {
            started,
            ended,
            offered_rate: run.summary_as("/offered_rate"),
            scheduled: scheduled.unwrap_or_else(|| run.table.first_rows().count()),
            config: run.summary_value("/config").cloned().unwrap_or_default(),
            goodput: goals.filter_map(goal).collect(),
            machine: run.summary_value("/machine").cloned().unwrap_or_default(),
        }
    }

    /// The length of the run, seconds; `None` if it is 0.
    pub fn duration(&self) -> Option<f64> {
        Some(self.ended.since(self.started)).filter(|seconds| *seconds > 0.0)
    }

    /// A count per second of the run.
    pub fn per_second(&self, things: impl Into<f64>) -> Option<f64> {
        Some(things.into() / self.duration()?)
    }
}

/// When the first request arrived, and when the last one ended; nanoseconds.
fn ends(table: &Table) -> (Option<i64>, Option<i64>) {
    // A hop's rows have no arrival.
    let columns = [ColumnId::arrival_time, ColumnId::router_send_time];
    let began = |row| columns.iter().find_map(|of| table.integer(*of, row));
    let first = (0..table.len()).filter_map(began).min();
    let last = (0..table.len()).filter_map(|row| table.ended(row)).max();
    (first, last.or(first))
}

impl Summary {
    /// Computes the figures of a run.
    pub fn of_run(run: &Run) -> Summary {
        let facts = RunFacts::of(run);
        let mut summary = Summary::of_table(&run.table, &facts, run.window());
        for host in idle(run, &summary) {
            let none = Group::of(&run.table, &summary.run, &[], &[]);
            summary.hosts.insert(host, none);
        }
        let zero = run.zero;
        summary.began = zero.map(|zero| zero.plus_nanos(facts.started.nanos()));
        summary
    }

    /// Computes the figures of a run that has just ended from its file of rows, without the first and last seconds of the run.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub fn of_file(
        rows: &Path,
        facts: &RunFacts,
        [first, last]: [f64; 2],
    ) -> Result<Summary, Error> {
        let began = Some(facts.started);
        let (table, _) = rows::read(&[rows.to_owned()], began, rows::SKIPPED_COLUMNS)?;
        let table = sanitize(table);
        // Times of a table count from the beginning of the run.
        let zero = Stamp::from_nanos(0);
        let seconds = facts.ended.since(facts.started);
        let mut of_rows = facts.clone();
        (of_rows.started, of_rows.ended) = (zero, zero.plus_seconds(seconds));
        let window = Window::choose(&arrived_or_due(&table), seconds, first, last);
        let mut summary = Summary::of_table(&table, &of_rows, Some(window));
        summary.began = began;
        Ok(summary)
    }

    /// Computes the figures of the requests of `window`. Concurrency and completions within it include requests of before
    /// it. Times of the table count from the same zero as those of `run`.
    pub fn of_table(table: &Table, run: &RunFacts, window: Option<Window>) -> Summary {
        let part = window.as_ref().filter(|window| !window.is_whole_run());
        let holds = |at: Option<i64>| match (part, at) {
            (Some(window), Some(at)) => window.contains(Stamp::from_nanos(at).since(run.started)),
            // A request whose time is unknown counts as inside.
            _ => true,
        };
        let request = |row| {
            let rows = table.rows_of(row);
            Request {
                is_ok: table.is_ok(row),
                is_inside: holds(table.arrival_or_due(row)),
                ends_inside: holds(table.integer(ColumnId::finish_time, row)),
                row: rows.start as u32,
                rows: rows.len() as u32,
            }
        };
        let mut requests: Vec<Request> = table.first_rows().map(request).collect();
        // The rows of a proxy, and of a killed run, are in the order in which requests ended.
        requests.sort_by_cached_key(|of| {
            let sent = || table.integer(ColumnId::router_send_time, of.row());
            let began = table.arrival_or_due(of.row()).or_else(sent);
            began.unwrap_or(i64::MAX)
        });
        let mut facts = run.clone();
        if let Some(window) = part {
            facts.started = run.started.plus_seconds(window.from_s);
            facts.ended = run.started.plus_seconds(window.to_s);
        }
        let figures = |all: &[Request], spent: &[Request]| Group::of(table, &facts, all, spent);
        let mut by_host = by_host(table, &requests);
        let others = by_host.split_off(by_host.len().min(MAX_HOSTS));
        let other_requests = others.iter().map(|(_, of)| count_inside(of));
        let other_hosts = (others.len(), other_requests.sum());
        let others = others.into_iter().flat_map(|(_, of)| of);
        let of_host =
            |(host, of): &(Cow<'_, str>, Vec<Request>)| (host.to_string(), figures(of, of));
        let is_unserved = |of: &&Request| table.text(ColumnId::host, of.row()).is_empty();
        let unserved = requests.iter().filter(is_unserved).copied();
        let without_group: Vec<Request> = unserved.chain(others).collect();
        let (all, hosts) = match by_host.as_slice() {
            // One server served all.
            [(host, of)] if of.len() == requests.len() => {
                let all = figures(of, of);
                (all.clone(), BTreeMap::from([(host.to_string(), all)]))
            }
            _ => std::thread::scope(|scope| {
                // All requests and the groups take about as long; the time by stage of the groups is added up.
                let all = scope.spawn(|| figures(&requests, &without_group));
                let hosts: BTreeMap<String, Group> = by_host.iter().map(of_host).collect();
                let mut all = joined(all);
                for group in hosts.values() {
                    all.spent.add(group.spent.clone());
                    all.until_first.add(group.until_first.clone());
                }
                (all, hosts)
            }),
        };
        Summary {
            hosts,
            other_hosts,
            all,
            whole: Counts::of(table, &requests),
            began: None,
            window,
            run: facts,
        }
    }

    /// The median time from the send to the first token, or to the end if there is no stream; seconds.
    pub fn typical_wait(&self) -> Option<f64> {
        let latencies = &self.all.latencies;
        let first = latencies.ttft().or(latencies.e2e());
        first.map(|latency| latency.p50)
    }

    /// Why the run counts as failed, with the most frequent errors; `None` if any request succeeded.
    pub fn failure(&self) -> Option<String> {
        let counts = &self.whole;
        if counts.requests == 0 {
            return Some("no request was sent".to_owned());
        }
        let errors = most_frequent(&counts.errors).take(3);
        let errors = errors.map(|(error, count)| format!("{error} ({count}×)"));
        let (all, errors) = (counts.requests, errors.collect::<Vec<_>>().join("; "));
        (counts.ok() == 0).then(|| format!("none of {all} requests succeeded: {errors}"))
    }
}

/// The servers of a run that no row names, where rows name servers. Of many servers not all have figures: then none counts as idle. A
/// prefill server responds to no client.
fn idle(run: &Run, summary: &Summary) -> Vec<String> {
    let table = &run.table;
    let prefilled = |host: &str| {
        let mut rows = (0..table.len()).filter(|_| table.has(ColumnId::prefill_host));
        rows.any(|row| table.text(ColumnId::prefill_host, row) == host)
    };
    let is_known = table.has(ColumnId::host) && summary.other_hosts.0 == 0;
    let servers = run.servers().iter().filter(|one| {
        let is_named = || summary.hosts.contains_key(&*one.host) || prefilled(&one.host);
        is_known && one.role != Some(ServerRole::Prefill) && !is_named()
    });
    servers.map(|one| one.host.to_string()).collect()
}

/// Groups requests by the server that served them or was the last to fail them, the largest group first. Requests whose server is unknown
/// are in no group.
fn by_host<'a>(table: &'a Table, requests: &[Request]) -> Vec<(Cow<'a, str>, Vec<Request>)> {
    let cell = |column, of: &Request| table.text(column, of.row());
    let hosts = requests
        .iter()
        .map(|of| (cell(ColumnId::worker, of), cell(ColumnId::host, of)));
    let hosts: HashMap<&str, &str> = hosts.filter(|(_, host)| !host.is_empty()).collect();
    let mut by_host: BTreeMap<Cow<'a, str>, Vec<Request>> = BTreeMap::new();
    for request in requests {
        let host = match cell(ColumnId::host, request) {
            "" if request.is_ok => continue,
            "" => match parse_failed(cell(ColumnId::failed_attempts, request)).last() {
                // Of an attempt that it never sent on, a hop reports its own name.
                Some(failed) => match hosts.get(&*failed.host) {
                    Some(host) => Cow::Borrowed(*host),
                    None => failed.host.into(),
                },
                None => continue,
            },
            host => host.into(),
        };
        by_host.entry(host).or_default().push(*request);
    }
    let mut by_host: Vec<_> = by_host.into_iter().collect();
    by_host.sort_by_key(|(_, of)| Reverse(count_inside(of)));
    by_host
}

fn count_inside(of: &[Request]) -> usize {
    of.iter().filter(|request| request.is_inside).count()
}

impl Group {
    /// Computes the figures of requests in the order of arrival. Time by stage is computed of `spent` alone.
    fn of(table: &Table, run: &RunFacts, all: &[Request], spent: &[Request]) -> Group {
        let some = |of: &[Request], is: fn(&&Request) -> bool| -> Vec<Request> {
            of.iter().filter(is).copied().collect()
        };
        let inside = some(all, |of| of.is_inside);
        let ok = some(&inside, |of| of.is_ok);
        let spent = TimeSpent::of(table, &some(spent, |of| of.is_inside && of.is_ok));
        let [spent, until_first] = spent;
        // Later turns of a conversation follow replies, not the schedule.
        let turns = run.config["turns"].as_u64().unwrap_or(1).max(1) as usize;
        let is_first = |index: usize| index.is_multiple_of(turns);
        let index = |of: &Request| table.schedule_index(of.row());
        let starts = |of: &&Request| turns == 1 || index(of).is_none_or(is_first);
        let due = |of: &Request| table.integer(ColumnId::scheduled_time, of.row());
        let scheduled = || inside.iter().filter(starts).filter_map(due);
        let ended = || all.iter().filter(|of| of.is_ok && of.ends_inside).copied();
        let is_left_out = |request: &&Request| {
            let mut rows = request.rows();
            rows.any(|row| table.unreliable_clocks.contains_key(&row))
        };
        Group {
            counts: Counts::of(table, &inside),
            tokens: Tokens::of(table, ended()),
            completed: ended().count() as u64,
            latencies: Latencies::of(table, &inside, &ok),
            is_scheduled: scheduled().next().is_some(),
            schedule_rate: rate(scheduled()),
            achieved_rate: rate(inside.iter().filter_map(|of| table.arrival(of.row()))),
            over_time: OverTime::of(table, all, run),
            spent,
            until_first,
            failures: FailureKind::all(table, &inside),
            goodput: Goodput::of(table, &ok, ended(), &run.goodput),
            left_out: ok.iter().filter(is_left_out).count() as u64,
        }
    }

    /// The share of all requests that met all goals; `None` without goals, or where a successful request lacks a latency that one names.
    pub fn goodput_share(&self) -> Option<f64> {
        let goodput = self.goodput.as_ref().filter(|of| of.unknown == 0)?;
        let requests = self.counts.requests;
        (requests > 0).then(|| goodput.good as f64 / requests as f64)
    }

    /// Where the time went, in sentences: of failed requests, then of the successful ones.
    pub fn time_sentences(&self) -> String {
        let (all, ok) = (self.counts.requests, self.counts.ok());
        let (failed, given_up) = (self.counts.failed(), self.counts.given_up);
        let mut sentences = Vec::new();
        if failed > 0 {
            let share = one_decimal(failed as f64 / all as f64);
            let kinds = FailureKind::list(&self.failures);
            sentences.push(format!(
                "{failed} of {all} requests ({share}) failed: {kinds}."
            ));
        }
        if given_up > 0 {
            sentences.push(format!(
                "{given_up} of {all} requests were given up when the run was stopped."
            ));
        }
        let subject = match ok == all {
            true => "a request took".to_owned(),
            false => format!("the {ok} of {all} requests that went well took"),
        };
        if ok > 0 || all == 0 {
            let spent = std::iter::once(self.spent.shares(&subject));
            let spent = spent.chain(self.spent.unseen_notes());
            sentences.extend(spent.map(|sentence| sentence + "."));
        }
        sentences.join(" ")
    }
}

/// The number of gaps per second between the first and the last time.
pub fn rate(times: impl Iterator<Item = i64> + Clone) -> Option<f64> {
    let (first, last) = (times.clone().min()?, times.clone().max()?);
    let nanos = last.checked_sub(first).filter(|nanos| *nanos > 0)?;
    Some((times.count() - 1) as f64 / seconds(nanos))
}

#[cfg(test)]
pub(super) mod tests;
