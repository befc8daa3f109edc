//! The requests of a run, from its rows: when each arrived, what it asked for, and its times at the server.

use std::collections::HashMap;

use crate::error::Error;
use crate::report::reader::Run;
use crate::report::why::{self, WaitReport};
use crate::request::ColumnId;
use crate::stats::waits::Cause;
use crate::table::Table;
use crate::units::count;

/// The requests of a run in the order of arrival, without those of unknown size or of several sequences.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// The run's name.
    pub name: String,
    /// The requests, without failed ones. All times are seconds since the run began.
    pub requests: Vec<Request>,
    /// The servers; each data-parallel rank is one, as it has a queue and slots of its own.
    pub servers: Vec<String>,
    /// The most requests that each server runs at once: as given, of its command, or inferred from waiting; `None` if unknown.
    pub slots: Vec<Option<usize>>,
    /// Tokens that a server's KV cache holds, if known.
    pub pool: Option<u64>,
    /// The main cause of waiting at servers, and its share, if requests waited.
    pub wait: Option<(Cause, f64)>,
    /// Warnings, each prefixed with the load's name.
    pub notes: Vec<String>,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The time of its arrival.
    pub arrival: f64,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Prompt tokens that were in the prefix cache.
    pub cached: u32,
    /// Generated tokens.
    pub output: u32,
    /// The index of its server.
    pub server: usize,
    /// Its times at the server, if these are known.
    pub times: Option<Times>,
}

/// The times of a request at its server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// The server received it.
    pub created: f64,
    /// It entered the server's queue.
    pub queued: f64,
    /// It left the queue.
    pub admitted: f64,
    /// Its prefill ended.
    pub prefilled: f64,
    /// The server had its first token.
    pub first: f64,
    /// The response ended.
    pub finish: f64,
}

/// A sample of fewer requests is not used.
const MIN_REQUESTS: usize = 20;
/// With a shorter mean wait at servers, seconds, its cause does not matter.
const MIN_WAIT_S: f64 = 0.01;
/// The most requests of a server's sample, and generated tokens of all samples together: replaying takes time.
const MAX_REQUESTS: usize = 2_000;
const MAX_TOKENS: u64 = 400_000;
/// Why a run is no load.
const OF_SHARD: &str = "of a load, whose servers had the other shards, too: put all of them together by `queuescope report --merge`, and \
    give that folder";
const OF_PAIRS: &str = "its requests were prefilled by one server and decoded by another (column disaggregated): pairs are not predicted; \
    give rows of servers that do both";
const NOTHING_TO_REPLAY: &str = "no request of one sequence went well and tells its arrival and numbers of tokens \
    (arrival_time, actual_prompt_tokens, actual_output_tokens)";
const OF_HOP: &str = "a worker hop does not know when requests arrived: queuescope report --join puts its rows together with those of \
    its front";

impl Load {
    /// The load of a run.
    ///
    /// # Errors
    /// None of its requests can be replayed, or they are of prefill/decode pairs, or one shard of several.
    pub fn of(run: &Run) -> Result<Load, Error> {
        let table = &run.table;
        let error = |problem: String| Err(Error::usage(format!("{}: {problem}", run.name)));
        let shard = run.summary_as::<String>("/config/shard");
        if let Some(shard) = shard.filter(|shard| !shard.ends_with("/1")) {
            return error(format!("is shard {shard} {OF_SHARD}"));
        }
        if table.has(ColumnId::disaggregated) {
            return error(OF_PAIRS.to_owned());
        }
        let mut load = Load {
            name: run.name.clone(),
            pool: run.given_pool,
            ..Load::default()
        };
        let (mut notes, mut left_out) = (run.notes.clone(), 0);
        let mut indices = HashMap::new();
        let report = WaitReport::of(run);
        let waited = report.mean() >= Some(MIN_WAIT_S);
        load.wait = report.shares().first().copied().filter(|_| waited);
        for row in table.first_rows() {
            let is_one = |_: &Request| table.rows_of(row).len() == 1;
            let Some(request) = request(table, row).filter(is_one) else {
                left_out += 1;
                continue;
            };
            let key = why::key(table, row, None);
            let server = *indices.entry(key).or_insert_with(|| {
                let server = report.server(table, row, None);
                let name = server.map_or(key.0, |server| &server.name);
                load.servers.push(name.to_owned());
                let slots = server.and_then(|server| Some(server.slots()?.0));
                let slots = slots.or(run.given_slots);
                load.slots.push(slots.map(|slots| slots as usize));
                load.pool = load.pool.or(server.and_then(|server| server.pool));
                load.slots.len() - 1
            });
            load.requests.push(Request { server, ..request });
        }
        if load.requests.is_empty() {
            let is_of_hop = |row| table.text(ColumnId::seen_by, row) == "hop";
            let are_of_hops = !table.is_empty() && table.first_rows().all(is_of_hop);
            let of_hop = are_of_hops.then_some(OF_HOP);
            let notes = notes.iter().map(String::as_str).chain(of_hop);
            let problem: Vec<&str> = std::iter::once(NOTHING_TO_REPLAY).chain(notes).collect();
            return error(problem.join("; "));
        }
        if left_out > 0 {
            notes.push(format!(
                "left out: {} (failed, of several sequences, or without arrival or numbers of tokens)",
                count(left_out, "request")
            ));
        }
        if run.window().is_some_and(|window| !window.is_whole_run()) {
            notes
                .push("measured figures are of its window, predictions of all requests".to_owned());
        }
        let named = |note| format!("{}: {note}", run.name);
        load.notes = notes.into_iter().map(named).collect();
        load.requests
            .sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
        Ok(load)
    }

    /// What requests mainly waited for, if a replay does not know of it.
    pub fn unexplained_wait(&self) -> Option<String> {
        let (cause, share) = self.wait?;
        let hint = match cause {
            Cause::Slots | Cause::Prefill => return None,
            Cause::Memory if self.pool.is_some() => return None,
            Cause::Memory => {
                ", and its size is not known: give it, in tokens, by --max-total-tokens"
            }
            _ => ", which is not replayed",
        };
        let (cause, share) = (cause.description(), share * 100.0);
        Some(format!("{cause} for {share:.0} % of the waiting{hint}"))
    }

    /// The requests with known times at the server, and these.
    pub fn timed(&self) -> impl Iterator<Item = (&Request, Times)> + Clone {
        let requests = self.requests.iter();
        requests.filter_map(|request| Some((request, request.times?)))
    }

    /// The rate of arrivals, requests a second.
    pub fn rate(&self) -> f64 {
        let [first, last] =
            [self.requests.first(), self.requests.last()].map(|of| of.map_or(0.0, |of| of.arrival));
        (self.requests.len().max(2) - 1) as f64 / (last - first).max(1e-9)
    }

    /// The requests that ran at once on a server: the most on any, and the mean of all servers.
    pub fn running(&self) -> (usize, f64) {
        let changes = self.timed().flat_map(|(request, times)| {
            let [from, to] = [times.admitted, times.finish];
            [(request.server, from, 1), (request.server, to, -1)]
        });
        let mut changes: Vec<(usize, f64, isize)> = changes.collect();
        // At the same time, ends come before starts.
        changes.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        let (mut running, mut max, mut ran) = (0, 0, 0.0);
        let (mut first, mut last) = (f64::INFINITY, 0.0_f64);
        for (_, at, change) in changes {
            running += change;
            max = max.max(running);
            ran -= at * change as f64;
            (first, last) = (first.min(at), last.max(at));
        }
        let whole = (last - first).max(1e-9) * self.servers.len() as f64;
        (max.unsigned_abs(), ran / whole)
    }

    /// Whether more than 1 % of the prompt tokens were in the prefix cache.
    pub fn shares_prefixes(&self) -> bool {
        let cached: u64 = self.requests.iter().map(|of| u64::from(of.cached)).sum();
        let all: u64 = self.requests.iter().map(|of| u64::from(of.prompt)).sum();
        cached * 100 > all
    }

    /// The busiest stretch of a server's requests, of a bounded size; `servers` is the number of servers that are sampled. Requests
    /// that ran beside others outside of the sample keep no times, as a replay cannot explain those. `None` if too few are left.
    pub fn sample(&self, server: usize, servers: usize) -> Option<Load> {
        let its = self.requests.iter().filter(|of| of.server == server);
        let all: Vec<Request> = its.map(|of| Request { server: 0, ..*of }).collect();
        let tokens: u64 = all.iter().map(|request| u64::from(request.output)).sum();
        let room = MAX_TOKENS / servers.max(1) as u64 * all.len() as u64 / tokens.max(1);
        let size = (room as usize).clamp(5 * MIN_REQUESTS, MAX_REQUESTS);
        let size = size.min(all.len());
        let span = |from: &usize| all[from + size - 1].arrival - all[*from].arrival;
        let starts = (0..=all.len() - size).step_by(size / 2 + 1);
        let from = starts.min_by(|a, b| span(a).total_cmp(&span(b)))?;
        let (before, rest) = all.split_at(from);
        let (requests, after) = rest.split_at(size);
        let end = |request: &Request| request.times.map_or(0.0, |times| times.finish);
        let from = before.iter().map(end).fold(f64::NEG_INFINITY, f64::max);
        let to = after.first().map_or(f64::INFINITY, |next| next.arrival);
        let explained = |request: &Request| {
            let is_inside = |times: &Times| request.arrival >= from && times.finish <= to;
            let times = request.times.filter(is_inside);
            Request { times, ..*request }
        };
        let sample = Load {
            requests: requests.iter().map(explained).collect(),
            servers: self.servers.clone(),
            slots: vec![self.slots[server]],
            pool: self.pool,
            ..Load::default()
        };
        (sample.timed().count() >= MIN_REQUESTS).then_some(sample)
    }
}

/// The request of a row, without its server; `None` if it failed or its size is unknown.
fn request(table: &Table, row: usize) -> Option<Request> {
    let tokens = |column| Some(u32::try_from(table.integer(column, row)?).unwrap_or(u32::MAX));
    let arrival = table.number(ColumnId::arrival_time, row)?;
    let prompt = tokens(ColumnId::actual_prompt_tokens)?.max(1);
    let made = tokens(ColumnId::actual_output_tokens);
    let request = Request {
        arrival,
        prompt,
        cached: tokens(ColumnId::cached_tokens).unwrap_or(0).min(prompt),
        output: made.or_else(|| tokens(ColumnId::decode_length))?.max(1),
        server: 0,
        times: times(table, row, arrival),
    };
    table.is_ok(row).then_some(request)
}

/// The times of a request at its server; `None` if some are missing, out of order, or on an unknown clock.
fn times(table: &Table, row: usize, arrival: f64) -> Option<Times> {
    if table.text(ColumnId::clock_state, row) == "raw" {
        return None;
    }
    let time = |column| table.number(column, row);
    let queued = time(ColumnId::queue_time_start)?;
    let first = time(ColumnId::server_first_token_time)?;
    let times = Times {
        created: time(ColumnId::server_created_time).unwrap_or(arrival),
        queued,
        admitted: time(ColumnId::queue_time_end)?,
        prefilled: time(ColumnId::prefill_end_time).unwrap_or(first),
        first,
        finish: time(ColumnId::finish_time)?,
    };
    let in_order = [arrival, queued, times.admitted, first, times.finish];
    in_order.is_sorted().then_some(times)
}
