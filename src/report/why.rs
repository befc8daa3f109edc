//! Why the requests of a run waited, and which held up the others: what was full at each server while they did.
//!
//! Waiting is laid equally on those that ran meanwhile. What each held up others, and what none of the requests of the run is
//! to be blamed for, add up to all of `pure_queue_time`.

mod groups;
pub mod tables;

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub use groups::{Group, lopsided};

use super::duration;
use super::reader::Run;
use super::series::METRICS;
use crate::clock::NANOS;
use crate::request::columns::ColumnId;
use crate::request::row::Row;
use crate::stats::Interval;
use crate::stats::waits::{Cause, Known, Stay, Waits};
use crate::table::Table;

/// Seconds by cause, in the order of [`Cause::ALL`].
pub type Seconds = [f64; Cause::ALL.len()];

/// What is known of a run's waiting.
#[derive(Clone, Debug, Default)]
pub struct Why {
    /// Sequences of which it is known how long they waited in a server's queue.
    pub sequences: u64,
    /// How long they did, all together, seconds.
    pub waited: f64,
    /// The part of it that no sequence of the run is to be blamed for, seconds.
    pub by_nobody: f64,
    /// How long requests waited in the router, all together, seconds.
    pub in_router: f64,
    /// What all of it was for.
    pub causes: Seconds,
    /// Servers, those with the most waiting first.
    pub servers: Vec<Server>,
    /// Kinds of requests with their shares.
    pub groups: Vec<Group>,
    /// By row, the place of its server and its place there.
    places: BTreeMap<usize, (usize, usize)>,
}

/// A server, or one of its data-parallel ranks: what has a queue and slots of its own.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// Its name, with the rank where there are several.
    pub name: String,
    /// Whether [`Server::slots`] was told; else it was found.
    pub is_told: bool,
    /// How many requests it runs at once, where that is known.
    pub slots: Option<u32>,
    /// How long its requests waited, seconds.
    pub waited: f64,
    /// What for.
    pub causes: Seconds,
    /// From the run's times to those of its stays, nanoseconds.
    shift: i64,
    rows: Vec<usize>,
    stays: Vec<Stay>,
    waits: Waits,
}

/// Why one sequence waited.
#[derive(Clone, Debug, PartialEq)]
pub struct OfOne<'a> {
    /// How long, seconds.
    pub waited: f64,
    /// What most of it was for.
    pub cause: Cause,
    /// How many its server runs at once, where that is known.
    pub slots: Option<u32>,
    /// Those that held it up longest: their ids, prompt tokens, and how long, seconds.
    pub by: Vec<(&'a str, Option<u64>, f64)>,
}

/// A router that holds a request for less only passes it on, seconds.
const ROUTER: f64 = 0.010;
/// Files tell times so exactly, nanoseconds: differences of two were rounded apart from them.
const EXACT: i64 = 1_000;
/// Of one wait so many are named that held it up.
const NAMED: usize = 3;
/// A server's flag.
const SLOTS: &str = "--max-running-requests";
/// So many requests are named that waited longest, and that held up others longest.
const LISTED: usize = 10;

impl Why {
    /// Of a run.
    pub fn of(run: &Run) -> Why {
        let table = &run.table;
        let mut why = Why::default();
        let mut queues: BTreeMap<(usize, Option<i64>), Server> = BTreeMap::new();
        for row in 0..table.len() {
            why.look_at_router(table, row);
            let Some(nanos) = waited(table, row) else {
                continue;
            };
            why.sequences += 1;
            why.waited += nanos as f64 / NANOS as f64;
            let rank = table.whole(ColumnId::dp_rank, row);
            let is_its = |stay: &Stay| (stay.waited() - nanos).abs() <= EXACT;
            match stay(table, row).filter(is_its) {
                Some(mut stay) => {
                    stay.started = stay.queued + nanos;
                    let code = table.code(ColumnId::host, row);
                    let server = queues.entry((code, rank)).or_default();
                    server.rows.push(row);
                    server.stays.push(stay);
                }
                // When that was nobody knows, or where.
                None => {
                    why.causes[Cause::Unknown as usize] += nanos as f64 / NANOS as f64;
                    why.by_nobody += nanos as f64 / NANOS as f64;
                }
            }
        }
        let ranks = |code| queues.keys().filter(|(of, _)| *of == code).count();
        let ranks: BTreeMap<usize, usize> =
            queues.keys().map(|(of, _)| (*of, ranks(*of))).collect();
        for ((code, rank), server) in queues {
            let of = ranks.get(&code).copied().unwrap_or(1);
            why.servers
                .push(server.judged(run, rank.filter(|_| of > 1), of));
        }
        why.servers.sort_by(|a, b| b.waited.total_cmp(&a.waited));
        for (at, server) in why.servers.iter().enumerate() {
            let sums = why.causes.iter_mut().zip(&server.causes);
            sums.for_each(|(sum, of)| *sum += of);
            why.by_nobody += server.waits.by_nobody;
            let places = server.rows.iter().enumerate();
            why.places
                .extend(places.map(|(place, row)| (*row, (at, place))));
        }
        let parts = why.servers.iter().flat_map(|server| {
            let waited = server
                .stays
                .iter()
                .map(|stay| stay.waited() as f64 / NANOS as f64);
            let parts = server.rows.iter().copied().zip(&server.waits.held_up);
            parts
                .zip(waited)
                .map(|((row, held), waited)| (row, *held, waited))
        });
        why.groups = groups::of(table, &parts.collect::<Vec<_>>());
        why
    }

    /// What the router's queue took, which is before the server's.
    fn look_at_router(&mut self, table: &Table, row: usize) {
        let held = table.number(ColumnId::queue_time_in_router, row);
        let held = held.filter(|held| *held >= ROUTER && table.is_first(row));
        let was_down = !table.text(ColumnId::failed_attempts, row).is_empty();
        let cause = if was_down { Cause::Down } else { Cause::Router };
        self.causes[cause as usize] += held.unwrap_or(0.0);
        self.in_router += held.unwrap_or(0.0);
    }

    /// The server that a row's sequence is known to have waited at.
    pub fn server(&self, row: usize) -> Option<&Server> {
        let (server, _) = self.places.get(&row)?;
        self.servers.get(*server)
    }

    /// Seconds that a row's sequence held up others; `None` where nobody knows when it ran.
    pub fn held_up(&self, row: usize) -> Option<f64> {
        let (server, place) = self.places.get(&row)?;
        self.servers
            .get(*server)?
            .waits
            .held_up
            .get(*place)
            .copied()
    }

    /// All seconds that sequences held up others.
    pub fn held_up_sum(&self) -> f64 {
        let servers = self.servers.iter();
        servers.flat_map(|server| &server.waits.held_up).sum()
    }

    /// Why a row's sequence waited.
    pub fn of_row<'t>(&self, table: &'t Table, row: usize) -> Option<OfOne<'t>> {
        let (server, place) = self.places.get(&row)?;
        let server = self.servers.get(*server)?;
        let held = |(place, seconds): (usize, f64)| {
            let row = *server.rows.get(place)?;
            Some((
                table.text(ColumnId::req_id, row),
                prompt(table, row),
                seconds,
            ))
        };
        let by = server.waits.holders(&server.stays, *place, NAMED);
        Some(OfOne {
            waited: server.stays.get(*place)?.waited() as f64 / NANOS as f64,
            cause: server.waits.main(*place)?,
            slots: server.slots,
            by: by.into_iter().filter_map(held).collect(),
        })
    }

    /// The seconds that a sequence waited on average; `None` where nobody knows.
    pub fn mean(&self) -> Option<f64> {
        (self.sequences > 0).then(|| self.waited / self.sequences as f64)
    }

    /// What most of the waiting in servers' queues was for, and its share of that.
    pub fn main(&self) -> Option<(Cause, f64)> {
        let causes = Cause::ALL.into_iter().zip(self.causes);
        let of_servers = causes.filter(|(cause, _)| *cause != Cause::Router);
        let (cause, seconds) = of_servers.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (self.waited > 0.0).then(|| (cause, (seconds / self.waited).min(1.0)))
    }

    /// Seconds of waiting by cause in each of `slots` stretches of so many seconds, by when a request entered its queue.
    pub fn over_time(&self, slot: f64, slots: usize) -> Vec<Seconds> {
        let mut sums = vec![Seconds::default(); slots];
        for server in &self.servers {
            for (stay, of) in server.stays.iter().zip(&server.waits.causes) {
                let at = (stay.queued - server.shift) as f64 / NANOS as f64 / slot;
                let Some(sum) = sums.get_mut(at.max(0.0) as usize) else {
                    continue;
                };
                let sums = sum.iter_mut().zip(of);
                sums.for_each(|(sum, nanos)| *sum += *nanos as f64 / NANOS as f64);
            }
        }
        sums
    }

    /// For programs.
    pub fn to_json(&self, table: &Table) -> Value {
        let whole = self.waited + self.in_router;
        let causes = |seconds: &Seconds, whole: f64| -> Value {
            let all = Cause::ALL.into_iter().zip(seconds);
            let all = all.filter(|(_, seconds)| **seconds > 0.0);
            all.map(|(cause, seconds)| {
                json!({ "cause": cause.name(), "words": cause.words(), "seconds": seconds, "share": seconds / whole })
            })
            .collect()
        };
        let servers = self.servers.iter().map(|server| {
            json!({
                "server": server.name,
                "slots": server.slots,
                "slots_source": server.slots.map(|_| if server.is_told { "told" } else { "found" }),
                "waited_s": server.waited,
                "causes": causes(&server.causes, server.waited),
            })
        });
        let held_up = self.longest(|server, place| server.waits.held_up.get(place).copied());
        let held_up = held_up.into_iter().map(|(row, seconds)| {
            json!({ "req_id": table.text(ColumnId::req_id, row), "prompt_tokens": prompt(table, row), "seconds": seconds })
        });
        let waited = self.longest(|server, place| {
            let stay = server.stays.get(place)?;
            Some(stay.waited() as f64 / NANOS as f64)
        });
        let waited = waited.into_iter().filter_map(|(row, _)| {
            let why = self.of_row(table, row)?;
            let by = why.by.iter().map(|(id, prompt, seconds)| {
                json!({ "req_id": id, "prompt_tokens": prompt, "seconds": seconds })
            });
            Some(json!({
                "req_id": table.text(ColumnId::req_id, row),
                "waited_s": why.waited,
                "cause": why.cause.name(),
                "held_up_by": by.collect::<Value>(),
                "words": why.sentence(),
            }))
        });
        json!({
            "sequences": self.sequences,
            "waited_s": self.waited,
            "in_router_s": self.in_router,
            "held_up_others_s": self.held_up_sum(),
            "by_nobody_seen_s": self.by_nobody,
            "causes": causes(&self.causes, whole),
            "servers": servers.collect::<Value>(),
            "groups": self.groups,
            "held_up_others": held_up.collect::<Value>(),
            "waited_longest": waited.collect::<Value>(),
        })
    }

    /// The rows with the most of something, and how much.
    fn longest(&self, of: impl Fn(&Server, usize) -> Option<f64>) -> Vec<(usize, f64)> {
        let servers = self.servers.iter();
        let all = servers.flat_map(|server| {
            let rows = server.rows.iter().enumerate();
            rows.filter_map(|(place, row)| Some((*row, of(server, place)?)))
        });
        let mut all: Vec<(usize, f64)> = all.filter(|(_, much)| *much > 0.0).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(LISTED);
        all
    }
}

/// Why the sequence of the first of some rows waited, in words; the others are of requests that ran at about the same time.
pub fn first_of<'r>(rows: impl IntoIterator<Item = &'r Row>) -> Option<String> {
    let mut run = Run::default();
    rows.into_iter().for_each(|row| run.table.push_row(row));
    let why = Why::of(&run);
    let first = why.of_row(&run.table, 0)?;
    Some(first.sentence())
}

impl Server {
    /// With what its requests waited for.
    fn judged(self, run: &Run, rank: Option<i64>, ranks: usize) -> Server {
        let host = self
            .rows
            .first()
            .map_or("", |row| run.table.text(ColumnId::host, *row));
        let mut files = run.file.iter().flat_map(|file| &file.servers);
        let file = files.find(|server| server.host == host);
        let name = file.map_or(host, |file| &file.name);
        let mut known = Known::default();
        let shift = self.rows.first().map_or(0, |row| shift(&run.table, *row));
        if !host.is_empty() {
            known = known_of(run, name, shift);
        }
        known.slots = known.slots.map(|slots| slots / ranks.max(1) as u32);
        // Whose queues those of no known server were, and whether of one, nobody knows.
        let waits = Waits::of(&self.stays, &known);
        let mut causes = Seconds::default();
        for of in &waits.causes {
            let sums = causes.iter_mut().zip(of);
            sums.for_each(|(sum, nanos)| *sum += *nanos as f64 / NANOS as f64);
        }
        let name = match rank {
            Some(rank) => format!("{name} rank {rank}"),
            None if name.is_empty() => "unknown".to_owned(),
            None => name.to_owned(),
        };
        Server {
            name,
            is_told: known.slots.is_some(),
            slots: waits.limits.slots,
            waited: causes.iter().sum(),
            causes,
            shift,
            waits,
            ..self
        }
    }
}

impl OfOne<'_> {
    /// In words: `waited 0.81 s: all 32 slots were taken; longest by req-17 (96k-token prompt)`.
    pub fn sentence(&self) -> String {
        let why = words(self.cause, self.slots);
        let by = self.by.first().map_or(String::new(), |(id, prompt, _)| {
            let prompt = prompt.map_or(String::new(), |tokens| {
                format!(" ({}-token prompt)", groups::short(tokens))
            });
            format!("; longest by {id}{prompt}")
        });
        format!("waited {}: {why}{by}", duration(self.waited))
    }
}

/// What a cause is, of a server that runs so many requests at once.
pub fn words(cause: Cause, slots: Option<u32>) -> String {
    match (cause, slots) {
        (Cause::Slots, Some(1)) => "the only slot was taken".to_owned(),
        (Cause::Slots, Some(slots)) => format!("all {slots} slots were taken"),
        (cause, _) => cause.words().to_owned(),
    }
}

/// How long a row's sequence waited, nanoseconds; not where that cannot be.
fn waited(table: &Table, row: usize) -> Option<i64> {
    let wrong = table.text(ColumnId::inconsistency, row);
    let is_wrong = ["pure_queue_time", "queue_end<"]
        .iter()
        .any(|name| wrong.contains(name));
    let waited = table.whole(ColumnId::pure_queue_time, row)?;
    (waited >= 0 && !is_wrong).then_some(waited)
}

/// From the times of a row to its server's clock, nanoseconds: there the moments of all its requests are exact.
fn shift(table: &Table, row: usize) -> i64 {
    match table.text(ColumnId::clock_state, row) {
        "offset" => table.whole(ColumnId::clock_offset, row).unwrap_or(0),
        _ => 0,
    }
}

fn stay(table: &Table, row: usize) -> Option<Stay> {
    let shift = shift(table, row);
    let of_engine = |column| Some(table.whole(column, row)? + shift);
    // Another clock's moments tell nothing here.
    let is_raw = table.text(ColumnId::clock_state, row) == "raw";
    let ours = |column| of_engine(column).filter(|_| !is_raw);
    let started = of_engine(ColumnId::queue_time_end)?;
    let ended = of_engine(ColumnId::server_finish_time);
    let ended = ended.or_else(|| ours(ColumnId::finish_time));
    let tokens = |column| table.whole(column, row).unwrap_or(0).max(0) as u64;
    let prompt = tokens(ColumnId::actual_prompt_tokens);
    Some(Stay {
        queued: of_engine(ColumnId::queue_time_start)?,
        started,
        first: of_engine(ColumnId::server_first_token_time).unwrap_or(started),
        ended: ended
            .or_else(|| ours(ColumnId::end_time))
            .unwrap_or(started),
        prompt: prompt.saturating_sub(tokens(ColumnId::cached_tokens)),
        output: tokens(ColumnId::actual_output_tokens),
    })
}

fn prompt(table: &Table, row: usize) -> Option<u64> {
    table
        .whole(ColumnId::actual_prompt_tokens, row)
        .map(i64::unsigned_abs)
}

/// What the files of a run tell of a server, whose clock is so much ahead of ours.
fn known_of(run: &Run, name: &str, shift: i64) -> Known {
    let processes = || run.file.iter().flat_map(|file| &file.processes);
    let own = processes().find(|process| process.name == name);
    // Servers of a run are alike, unless they are told apart.
    let any = || processes().find(|process| process.command.contains(SLOTS));
    let command = own.or_else(any).map_or("", |process| &process.command);
    let at = |seconds: f64| (seconds * NANOS as f64) as i64 + shift;
    let is_usage = |row: &&super::files::SeriesRow| {
        row.source == METRICS && row.metric == "token_usage" && row.server == name
    };
    let usage = run.series.iter().filter(is_usage);
    let mut usage: Vec<(i64, f64)> = usage.map(|row| (at(row.time), row.value)).collect();
    usage.sort_by_key(|(at, _)| *at);
    let mut down: Vec<Interval> = Vec::new();
    let kills = run.faults.iter();
    for fault in kills.filter(|fault| fault.server == name && fault.kind == "kill") {
        match (fault.event.as_str(), down.last_mut()) {
            ("down", _) => down.push(Interval {
                start: at(fault.time),
                end: i64::MAX,
            }),
            ("ready", Some(last)) => last.end = at(fault.time),
            _ => {}
        }
    }
    Known {
        slots: flag(command, SLOTS),
        pool: flag(command, "--max-total-tokens"),
        usage,
        down,
    }
}

/// The value of a flag in a command.
fn flag<N: std::str::FromStr>(command: &str, name: &str) -> Option<N> {
    let mut words = command.split_whitespace().skip_while(|word| *word != name);
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests;
