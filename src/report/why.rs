//! Why the requests of a run waited, and which held up the others: what was full at each server while they did.
//!
//! Waiting is laid equally on those that ran meanwhile. What each held up others, and what none of the requests of the run is
//! to be blamed for, add up to all of `pure_queue_time`.

mod groups;
mod server;
pub mod tables;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

pub use groups::{Group, lopsided};
pub use server::Server;

use super::duration;
use super::reader::Run;
use crate::clock::NANOS;
use crate::request::columns::ColumnId;
use crate::request::row::Row;
use crate::request::wait::Wait;
use crate::stats::waits::{ByCause, Cause, Stay};
use crate::table::Table;

/// What is known of a run's waiting.
#[derive(Clone, Debug, Default)]
pub struct Why {
    /// Sequences of which it is known how long they waited in a server queue, or in those of a pair.
    pub sequences: u64,
    /// What they, and requests in the router, waited for.
    pub causes: ByCause,
    /// Of that what each row tells by itself: in the router, and at the servers of a pair.
    pub told: ByCause,
    /// Servers, those with the most waiting first.
    pub servers: Vec<Server>,
    /// Kinds of requests with their shares.
    pub groups: Vec<Group>,
    /// Rows of sequences of pairs, and the seconds that they waited at both servers.
    at_pairs: Vec<(usize, f64)>,
    /// Seconds in server queues that no sequence of the run is to be blamed for.
    by_nobody: f64,
}

/// Why one sequence waited, and what it held up others; as in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfOne<'a> {
    req_id: &'a str,
    waited_s: f64,
    cause: Option<&'static str>,
    /// `waited 0.81 s: all 32 slots were taken; longest by req-17 (96k-token prompt)`; `None` of one that did not wait.
    pub words: Option<String>,
    /// Those that held it up longest.
    held_up_by: Vec<Holder<'a>>,
    held_up_others_s: f64,
}

/// A sequence that held up another.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Holder<'a> {
    req_id: &'a str,
    prompt_tokens: Option<u64>,
    seconds: f64,
}

/// Of one wait so many are named that held it up.
const NAMED: usize = 3;
/// So many requests are named that waited longest, and that held up others longest.
const LISTED: usize = 10;

impl Why {
    /// Of a run.
    pub fn of(run: &Run) -> Why {
        let mut why = Why::of_servers(run);
        why.groups = groups::of(&run.table, &why.parts().collect::<Vec<_>>());
        why
    }

    /// The same without groups of requests.
    pub fn of_servers(run: &Run) -> Why {
        let table = &run.table;
        let mut why = Why::default();
        let mut queues: BTreeMap<server::Key<'_>, Server> = BTreeMap::new();
        for row in 0..table.len() {
            let cell = |column| table.value(column, row);
            let (key, told) = (
                server::key(table, row),
                Wait::told(&cell, table.is_first(row)),
            );
            why.told.add_all(&told);
            for (cause, nanos) in told.all() {
                let prefill = (table.text(ColumnId::prefill_host, row), None);
                let causes = match cause {
                    Cause::PrefillQueue => &mut queues.entry(prefill).or_default().causes,
                    _ if cause.is_of_pair() => &mut queues.entry(key).or_default().causes,
                    _ => &mut why.causes,
                };
                causes.add(cause, nanos);
            }
            if let nanos @ 1.. = told.of_pair() {
                why.sequences += 1;
                why.at_pairs.push((row, seconds(nanos)));
            }
            let Some(wait) = Wait::of(&cell) else {
                continue;
            };
            why.sequences += 1;
            match wait.stay {
                Some(stay) => {
                    let queue = queues.entry(key).or_default();
                    queue.push(row, stay, wait.shift);
                }
                // When that was nobody knows.
                None => {
                    why.causes.add(Cause::Unknown, wait.nanos);
                    why.by_nobody += seconds(wait.nanos);
                }
            }
        }
        let keys: Vec<server::Key<'_>> = queues.keys().copied().collect();
        let judged = queues.into_iter();
        why.servers = judged
            .map(|(key, server)| server.judged(run, key, &keys))
            .collect();
        why.servers
            .sort_by_key(|server| std::cmp::Reverse(server.causes.total()));
        for server in &why.servers {
            why.causes.add_all(&server.causes);
            why.by_nobody += server.waits.by_nobody;
        }
        why
    }

    /// Rows, the seconds that their sequences held up others, and those that they waited.
    fn parts(&self) -> impl Iterator<Item = groups::Part> + '_ {
        let all = self.servers.iter();
        let all = all.flat_map(|of| of.stays().map(move |(row, stay)| (of, row, stay)));
        all.map(|(of, row, stay)| (row, of.waits.held_up(stay), seconds(stay.waited())))
    }

    /// How long sequences waited in server queues, all together, nanoseconds.
    pub fn waited(&self) -> i64 {
        self.causes.total() - self.told.total()
    }

    /// The seconds that a sequence waited on average; `None` where nobody knows.
    pub fn mean(&self) -> Option<f64> {
        (self.sequences > 0).then(|| seconds(self.waited()) / self.sequences as f64)
    }

    /// What the waiting in server queues was for, each with its share of that, the largest first.
    pub fn shares(&self) -> Vec<(Cause, f64)> {
        let (of_servers, waited) = (self.causes.less(&self.told), self.waited() as f64);
        let shares = of_servers.all().filter(|_| waited > 0.0);
        let share = |(cause, nanos)| (cause, (nanos as f64 / waited).min(1.0));
        let mut shares: Vec<(Cause, f64)> = shares.map(share).collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares
    }

    /// The server that a row's sequence was at, if any waited there.
    pub fn server(&self, table: &Table, row: usize) -> Option<&Server> {
        let key = server::key(table, row);
        self.servers.iter().find(|server| server.key() == key)
    }

    /// Why a row's sequence waited.
    pub fn of_row<'t>(&self, table: &'t Table, row: usize) -> Option<OfOne<'t>> {
        let cell = |column| table.value(column, row);
        let Some(wait) = Wait::of(&cell) else {
            return OfOne::of_pair(table, row, &Wait::told(&cell, false));
        };
        let (stay, server) = (wait.stay?, self.server(table, row)?);
        Some(OfOne::of(table, row, &stay, server))
    }

    /// Waiting by cause in each of `slots` stretches of so many seconds, by when a request entered its queue, or came to a pair.
    pub fn over_time(&self, table: &Table, slot: f64, slots: usize) -> Vec<ByCause> {
        let mut sums = vec![ByCause::default(); slots];
        let mut add = |at: i64, causes: ByCause| {
            let at = seconds(at) / slot;
            if let Some(sum) = sums.get_mut(at.max(0.0) as usize) {
                sum.add_all(&causes);
            }
        };
        for server in &self.servers {
            for (_, stay) in server.stays() {
                add(stay.queued - server.shift, server.waits.causes(stay));
            }
        }
        for (row, _) in &self.at_pairs {
            let told = Wait::told(&|column| table.value(column, *row), false);
            add(table.begun(*row).unwrap_or(0), told);
        }
        sums
    }

    /// For programs.
    pub fn to_json(&self, table: &Table) -> Value {
        let causes = |of: &ByCause| -> Value {
            let whole = of.total() as f64;
            let cause = |(cause, nanos): (Cause, i64)| json!({ "cause": cause.name(), "words": cause.words(), "seconds": seconds(nanos), "share": nanos as f64 / whole });
            of.all().map(cause).collect()
        };
        let servers = self.servers.iter().map(|server| {
            let mut told = server.limits();
            told["server"] = server.name.as_str().into();
            told["waited_s"] = seconds(server.causes.total()).into();
            told["causes"] = causes(&server.causes);
            told
        });
        let held_up = self.longest(|(_, held, _)| *held).into_iter();
        let held_up = held_up.map(|(row, held, _)| Holder::of(table, row, held));
        let waited = self.longest(|(_, _, waited)| *waited).into_iter();
        let waited = waited.filter_map(|(row, ..)| self.of_row(table, row));
        json!({
            "sequences": self.sequences,
            "waited_s": seconds(self.waited()),
            "in_router_s": seconds(self.told.total() - self.told.of_pair()),
            "at_pairs_s": seconds(self.told.of_pair()),
            "held_up_others_s": self.parts().map(|(_, held, _)| held).sum::<f64>(),
            "by_nobody_seen_s": self.by_nobody,
            "causes": causes(&self.causes),
            "servers": servers.collect::<Value>(),
            "groups": self.groups,
            "held_up_others": held_up.collect::<Vec<_>>(),
            "waited_longest": waited.collect::<Vec<_>>(),
        })
    }

    /// The sequences with the most of something.
    fn longest(&self, of: impl Fn(&groups::Part) -> f64) -> Vec<groups::Part> {
        let at_pairs = self.at_pairs.iter();
        let at_pairs = at_pairs.map(|(row, waited)| (*row, 0.0, *waited));
        let all = self.parts().chain(at_pairs);
        let mut all: Vec<groups::Part> = all.filter(|part| of(part) > 0.0).collect();
        all.sort_by(|a, b| of(b).total_cmp(&of(a)));
        all.truncate(LISTED);
        all
    }
}

/// Why the sequence of the first of some rows waited, in words; the others are of requests that ran at about the same time.
pub fn first_of<'r>(rows: impl IntoIterator<Item = &'r Row>) -> Option<String> {
    let mut run = Run::default();
    rows.into_iter().for_each(|row| run.table.push_row(row));
    Why::of_servers(&run).of_row(&run.table, 0)?.words
}

impl<'t> OfOne<'t> {
    fn of(table: &'t Table, row: usize, stay: &Stay, server: &Server) -> OfOne<'t> {
        let held_up_by = server.holders(stay, NAMED);
        let held_up_by = held_up_by.map(|(row, seconds)| Holder::of(table, row, seconds));
        let held_up_by: Vec<Holder<'t>> = held_up_by.collect();
        let cause = server.waits.causes(stay).main();
        let waited_s = seconds(stay.waited());
        let by = held_up_by.first().map_or(String::new(), |by| {
            let tokens = by.prompt_tokens.map(groups::short);
            let tokens = tokens.map(|tokens| format!(" ({tokens}-token prompt)"));
            format!("; longest by {}{}", by.req_id, tokens.unwrap_or_default())
        });
        let why = cause.map(|cause| words(cause, server.waits.limits.slots));
        OfOne {
            req_id: table.text(ColumnId::req_id, row),
            waited_s,
            cause: cause.map(Cause::name),
            words: why.map(|why| format!("waited {}: {why}{by}", duration(waited_s))),
            held_up_by,
            held_up_others_s: server.waits.held_up(stay),
        }
    }

    /// One that the servers of a pair served: its row alone tells what it waited for.
    fn of_pair(table: &'t Table, row: usize, told: &ByCause) -> Option<OfOne<'t>> {
        // Without spans some of its waits are not known.
        table.whole(ColumnId::pure_queue_time, row)?;
        let (cause, waited_s) = (told.main()?, seconds(told.total()));
        let most = duration(seconds(told.of(cause)));
        let (waited, what) = (duration(waited_s), cause.words());
        Some(OfOne {
            req_id: table.text(ColumnId::req_id, row),
            waited_s,
            cause: Some(cause.name()),
            words: Some(format!("waited {waited}: for {most} {what}")),
            held_up_by: Vec::new(),
            held_up_others_s: 0.0,
        })
    }
}

impl<'t> Holder<'t> {
    fn of(table: &'t Table, row: usize, seconds: f64) -> Holder<'t> {
        let prompt = table.whole(ColumnId::actual_prompt_tokens, row);
        Holder {
            req_id: table.text(ColumnId::req_id, row),
            prompt_tokens: prompt.map(i64::unsigned_abs),
            seconds,
        }
    }
}

impl OfOne<'_> {
    /// In few bytes: the sentence, the seconds that it held up others, and who but the first held it up so many seconds.
    pub fn short(&self) -> Value {
        let by = self.held_up_by.iter().skip(1);
        let by = by.map(|by| json!([by.req_id, by.seconds]));
        json!([self.words, self.held_up_others_s, by.collect::<Value>()])
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

fn seconds(nanos: i64) -> f64 {
    nanos as f64 / NANOS as f64
}

#[cfg(test)]
mod tests;
