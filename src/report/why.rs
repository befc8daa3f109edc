//! Why the requests of a run waited, and which requests held up the others.
//!
//! Waiting is attributed in equal parts to the requests that ran meanwhile. The seconds for which each held up others, and those that
//! are attributed to none, add up to all of `pure_queue_time`.

mod groups;
mod server;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use groups::Part;
pub use groups::{Group, dominant_group};
pub use server::{Server, key};

use super::grid::Grid;
use super::reader::Run;
use crate::clock::seconds;
use crate::request::{ColumnId, Row, Wait, without_impossible};
use crate::stats::Interval;
use crate::stats::waits::{ByCause, Cause};
use crate::table::Table;
use crate::units::{duration, thousands};

/// The waiting of a run's requests, by cause, server and kind of request.
#[derive(Clone, Debug, Default)]
pub struct WaitReport {
    /// The number of sequences with a known wait at a server, or at a pair of servers.
    pub sequences: u64,
    /// The causes of all waiting, at servers and on the way there.
    pub causes: ByCause,
    /// Those of them that rows have as durations of their own: on the way, and at pairs of servers.
    pub direct: ByCause,
    /// The number of sequences at a server whose times of waiting and running are unknown.
    pub untimed: u64,
    /// The servers, those with the most waiting first.
    pub servers: Vec<Server>,
    /// Kinds of requests with their shares of the waiting.
    pub groups: Vec<Group>,
    /// The part of each row in the waiting, summed over both servers of a pair.
    parts: Vec<Part>,
    /// The requests that these are of.
    requests: usize,
    /// Seconds of waiting at servers that are attributed to no sequence.
    unattributed_s: f64,
}

/// The most holders that are named for a wait.
const MAX_HOLDERS: usize = 3;
/// The most requests in the lists of those that waited longest, and that held up others longest.
const MAX_LISTED: usize = 10;
/// With a smaller mean wait there are no tables, seconds.
const MIN_MEAN_S: f64 = 0.001;

impl WaitReport {
    /// Analyzes a run.
    pub fn of(run: &Run) -> WaitReport {
        let table = &run.table;
        let mut why = WaitReport::default();
        let mut queues: BTreeMap<server::Key<'_>, Server> = BTreeMap::new();
        let mut untimed: Vec<(&str, Interval)> = Vec::new();
        for row in 0..table.len() {
            let cell = |column| table.value(column, row);
            if table.is_first(row) {
                let on_the_way = Wait::before_server(&cell);
                why.direct.add_all(&on_the_way);
                why.causes.add_all(&on_the_way);
            }
            let host = table.text(ColumnId::host, row);
            let waits = Wait::all(&cell);
            untimed.extend(Wait::untimed(&waits, &cell).map(|at| (host, at)));
            why.sequences += u64::from(!waits.is_empty());
            for wait in waits {
                if let Some(cause) = wait.cause {
                    why.direct.add(cause, wait.nanos);
                }
                let key = key(table, row, wait.cause);
                if let Some(stay) = wait.stay {
                    queues.entry(key).or_default().push(row, &wait, stay);
                    continue;
                }
                // At an unknown time, so it is attributed to none.
                why.unattributed_s += seconds(wait.nanos);
                let (causes, cause) = match wait.cause {
                    Some(cause) => (&mut queues.entry(key).or_default().causes, cause),
                    None => (&mut why.causes, Cause::Unknown),
                };
                causes.add(cause, wait.nanos);
            }
        }
        let keys: Vec<server::Key<'_>> = queues.keys().copied().collect();
        let analyzed = |(key, server): (_, Server)| server.analyzed(run, key, &keys, &untimed);
        why.servers = queues.into_iter().map(analyzed).collect();
        why.untimed = untimed.len() as u64;
        why.servers
            .sort_by_key(|server| std::cmp::Reverse(server.causes.total()));
        for server in &why.servers {
            why.causes.add_all(&server.causes);
            let queues = server.queues.values();
            why.unattributed_s += queues.map(|of| of.waits.unattributed_s).sum::<f64>();
        }
        let part = |(queue, at): (&server::Queue, usize)| Part {
            row: queue.rows[at],
            held: queue.waits.held_up(at),
            waited: seconds(queue.stays[at].waited()),
        };
        let parts = why.servers.iter().flat_map(Server::stays).map(part);
        why.parts = Part::by_row(parts.collect());
        why.requests = Part::by_request(&why.parts, table).count();
        why.groups = groups::of(table, &why.parts);
        why
    }

    /// The waiting of all sequences in server queues, nanoseconds.
    pub fn waited(&self) -> i64 {
        self.causes.total() - self.direct.total()
    }

    /// The mean wait of a sequence, seconds; `None` if unknown.
    pub fn mean(&self) -> Option<f64> {
        (self.sequences > 0).then(|| seconds(self.waited()) / self.sequences as f64)
    }

    /// The causes of waiting in server queues with their shares, the largest first.
    pub fn shares(&self) -> Vec<(Cause, f64)> {
        let (of_servers, waited) = (self.causes.minus(&self.direct), self.waited() as f64);
        let shares = of_servers.all().filter(|_| waited > 0.0);
        let share = |(cause, nanos)| (cause, (nanos as f64 / waited).min(1.0));
        let mut shares: Vec<(Cause, f64)> = shares.map(share).collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares
    }

    /// The slots of its servers, and ` of each server` if there are several; `None` if unknown or different.
    pub fn slots(&self) -> Option<(u32, &'static str)> {
        let slots = |server: &Server| Some(server.slots()?.0);
        let first = self.servers.first().and_then(slots)?;
        let is_one = self.servers.iter().all(|of| slots(of) == Some(first));
        let is_alone = self.servers.len() < 2;
        let of = if is_alone { "" } else { " of each server" };
        is_one.then_some((first, of))
    }

    /// The server at which a row's sequence may have waited for a cause.
    pub fn server(&self, table: &Table, row: usize, cause: Option<Cause>) -> Option<&Server> {
        let key = key(table, row, cause);
        self.servers.iter().find(|server| server.key() == key)
    }

    /// Why a row's sequence waited, and for how long it held up others, as JSON. `words` is null if it did not wait, otherwise like
    /// `waited 0.81 s: all 32 slots were taken; longest by req-17 (96k-token prompt)`.
    pub fn of_row(&self, table: &Table, row: usize) -> Option<Value> {
        // Without the spans of a pair, some of its waits are unknown.
        table.integer(ColumnId::pure_queue_time, row)?;
        let waits = Wait::all(&|column| table.value(column, row));
        let longest = waits.iter().max_by_key(|wait| wait.nanos)?;
        let queue_of = |wait: &Wait| {
            let server = self.server(table, row, wait.cause)?;
            let queue = server.queues.get(&wait.cause)?;
            Some((queue, queue.rows.binary_search(&row).ok()?))
        };
        let (cause, slots, holders) = match queue_of(longest) {
            Some((queue, at)) => {
                let slots = queue.waits.limits.slots;
                let cause = queue.waits.causes(&queue.stays[at]).main();
                let has_holders = cause.is_some_and(Cause::has_holders);
                let max = if has_holders { MAX_HOLDERS } else { 0 };
                let holders = queue.waits.holders(at, max).into_iter();
                let holders = holders.map(|(at, seconds)| (queue.rows[at], seconds));
                (cause, slots, holders.collect())
            }
            // At an unknown time.
            None => (Some(longest.cause?), None, Vec::new()),
        };
        let whole = |sum: i64, wait: &Wait| sum.saturating_add(wait.nanos);
        let waited_s = seconds(waits.iter().fold(0, whole));
        let part = format!("for {} ", duration(seconds(longest.nanos)));
        let part = part.repeat((waits.len() > 1).into());
        let by = holders.first().map(|(row, _)| {
            let tokens = table.integer(ColumnId::actual_prompt_tokens, *row);
            let tokens = tokens.map(i64::unsigned_abs);
            (table.text(ColumnId::req_id, *row), tokens)
        });
        let text = cause.map(|cause| part + &cause.described(slots.map(|slots| (slots, ""))));
        let held_up = waits.iter().filter_map(queue_of);
        let held_up = held_up.map(|(queue, at)| queue.waits.held_up(at));
        let holders = holders.into_iter();
        let holders = holders.map(|(row, seconds)| holder(table, row, seconds));
        Some(json!({
            "req_id": table.text(ColumnId::req_id, row),
            "waited_s": waited_s,
            "cause": cause.map(Cause::name),
            "words": text.map(|text| sentence(waited_s, &text, by)),
            "held_up_by": holders.collect::<Value>(),
            "held_up_others_s": held_up.sum::<f64>(),
        }))
    }

    /// Calls `add` for each wait with the second at which it began, and a function that returns it by cause. Where it was on the way, or on
    /// a clock that does not compare with the run's, that is the second of the request's arrival.
    pub fn each(&self, table: &Table, mut add: impl FnMut(f64, &dyn Fn() -> ByCause)) {
        let arrival = |row| table.number(ColumnId::arrival_time, row);
        for row in table.first_rows().filter(|_| self.direct.total() > 0) {
            let waited = || Wait::before_server(&|column| table.value(column, row));
            add(arrival(row).unwrap_or(0.0), &waited);
        }
        for (queue, at) in self.servers.iter().flat_map(Server::stays) {
            let (row, stay) = (queue.rows[at], &queue.stays[at]);
            let is_raw = table.text(ColumnId::clock_state, row) == "raw";
            let shift = queue.shift.filter(|_| !is_raw);
            let queued = shift.map(|shift| seconds(stay.queued.saturating_sub(shift)));
            let began = queued.or_else(|| arrival(row));
            add(began.unwrap_or(0.0), &|| queue.waits.causes(stay));
        }
    }

    /// The analysis as JSON.
    pub fn to_json(&self, table: &Table) -> Value {
        let causes = |of: &ByCause| -> Value {
            let whole = of.total() as f64;
            let cause = |(cause, nanos): (Cause, i64)| json!({ "cause": cause.name(), "words": cause.description(), "seconds": seconds(nanos), "share": nanos as f64 / whole });
            of.all().map(cause).collect()
        };
        let servers = self.servers.iter().map(|server| {
            let slots = server.slots();
            json!({
                "server": server.name,
                "slots": slots.map(|(slots, _)| slots),
                "slots_source": slots.map(|(_, source)| source),
                "pool_tokens": server.pool,
                "waited_s": seconds(server.causes.total()),
                "causes": causes(&server.causes),
            })
        });
        let held_up = self.longest(|part| part.held).into_iter();
        let held_up = held_up.map(|part| holder(table, part.row, part.held));
        let waited = self.longest(|part| part.waited).into_iter();
        let waited = waited.filter_map(|part| self.of_row(table, part.row));
        let in_proxy = self.direct.of(Cause::Proxy);
        json!({
            "sequences": self.sequences,
            "untimed": self.untimed,
            "waited_s": seconds(self.waited()),
            "in_proxy_s": seconds(in_proxy),
            "in_router_s": seconds(self.direct.total() - self.direct.of_pair() - in_proxy),
            "at_pairs_s": seconds(self.direct.of_pair()),
            "held_up_others_s": self.parts.iter().map(|part| part.held).sum::<f64>(),
            "by_nobody_seen_s": self.unattributed_s,
            "causes": causes(&self.causes),
            "servers": servers.collect::<Value>(),
            "groups": self.groups,
            "held_up_others": held_up.collect::<Value>(),
            "waited_longest": waited.collect::<Value>(),
        })
    }

    /// The sequences with the largest values of `of`.
    fn longest(&self, of: impl Fn(&Part) -> f64) -> Vec<&Part> {
        let some = self.parts.iter().filter(|part| of(part) > 0.0);
        let mut all: Vec<&Part> = some.collect();
        all.sort_by(|a, b| of(b).total_cmp(&of(a)));
        all.truncate(MAX_LISTED);
        all
    }

    /// The causes of waiting at each server, and the kinds of requests that waited and that held others up. None if the requests hardly
    /// waited.
    pub fn tables(&self) -> Vec<Grid> {
        let whole = self.causes.total();
        if self.mean().is_none_or(|mean| mean < MIN_MEAN_S)
            && seconds(self.direct.total()) <= MIN_MEAN_S * self.sequences as f64
        {
            return Vec::new();
        }
        let whole_percent = |share: f64| format!("{:.0} %", share * 100.0);
        let visible = |(cause, nanos)| (nanos >= whole / 2000).then_some(cause);
        let causes: Vec<Cause> = self.causes.all().filter_map(visible).collect();
        let line = |name: &str, slots: Option<(u32, &str)>, of: &ByCause| {
            let slots = slots.map(|(slots, source)| format!("{slots}, {source}"));
            let slots = slots.unwrap_or_else(|| "-".to_owned());
            let waited = of.total();
            let share = |cause: &Cause| whole_percent(of.of(*cause) as f64 / waited.max(1) as f64);
            let shares = causes.iter().map(share);
            let first = [name.to_owned(), slots, duration(seconds(waited))];
            first.into_iter().chain(shares).collect::<Vec<String>>()
        };
        let mut rows: Vec<Vec<String>> = Vec::new();
        if self.servers.len() != 1 || self.direct.total() > 0 {
            rows.push(line("all", None, &self.causes));
        }
        let servers = self.servers.iter().take(MAX_LISTED);
        rows.extend(servers.map(|of| line(&of.name, of.slots(), &of.causes)));
        let heads = ["why they waited", "slots", "waited"].into_iter();
        let names = causes.iter().map(|cause| cause.heading());
        let causes = Grid::new(heads.chain(names), rows);
        let parts = &self.parts;
        let sum = |of: fn(&Part) -> f64| duration(parts.iter().map(of).sum());
        let (caused, waited) = (sum(|part| part.held), sum(|part| part.waited));
        let all = ["all", &self.requests.to_string(), "", &caused, &waited].map(str::to_owned);
        let all = (!self.groups.is_empty()).then(|| all.to_vec());
        let groups = self.groups.iter().map(|of| {
            let shares = [of.share_of_requests, of.share_of_tokens, of.caused, of.bore];
            let unit = if of.is_length() { " tokens" } else { "" };
            let name = format!("{} {}{unit}", of.by, of.name);
            let shares = shares.into_iter().map(whole_percent);
            std::iter::once(name).chain(shares).collect::<Vec<String>>()
        });
        let heads = [
            "who held others up",
            "requests",
            "tokens",
            "caused",
            "waited",
        ];
        let groups = Grid::new(heads, all.into_iter().chain(groups).collect());
        let tables = [causes, groups].into_iter();
        tables.filter(|grid| !grid.rows.is_empty()).collect()
    }
}

/// Why the sequence of the first row waited, as a sentence; the other rows are of requests that ran at about the same time. They are not
/// all, so nothing is concluded from what they leave free.
pub fn wait_sentence<'r>(rows: impl IntoIterator<Item = &'r Row>) -> Option<String> {
    let mut run = Run::default();
    for row in rows {
        let sound = without_impossible(std::slice::from_ref(row));
        sound.iter().for_each(|row| run.table.push_row(row));
    }
    run.is_excerpt = true;
    let json = WaitReport::of(&run).of_row(&run.table, 0)?;
    json["words"].as_str().map(str::to_owned)
}

/// `by`: the id and the prompt tokens of the sequence that held it up longest.
pub fn sentence(waited_s: f64, why: &str, by: Option<(&str, Option<u64>)>) -> String {
    let by = by.map_or(String::new(), |(id, tokens)| match tokens {
        Some(tokens) => format!("; longest by {id} ({}-token prompt)", thousands(tokens)),
        None => format!("; longest by {id}"),
    });
    format!("waited {}: {why}{by}", duration(waited_s))
}

/// A sequence that held up others, as JSON.
fn holder(table: &Table, row: usize, seconds: f64) -> Value {
    json!({
        "req_id": table.text(ColumnId::req_id, row),
        "prompt_tokens": table.integer(ColumnId::actual_prompt_tokens, row),
        "seconds": seconds,
    })
}

#[cfg(test)]
mod tests;
