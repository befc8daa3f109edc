//! What there was to serve and when, as the rows of a run tell it, and what became of it.

use std::collections::{HashMap, HashSet};

use crate::report::reader::Run;
use crate::report::why::Why;
use crate::request::columns::ColumnId;
use crate::table::Table;
use crate::units::count;

use super::Error;

/// The requests of a run, by arrival, without those whose rows do not tell what they asked for.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// The run's name.
    pub name: String,
    /// The requests. All times count from the beginning of the run.
    pub requests: Vec<Request>,
    /// The servers that they went to.
    pub servers: Vec<String>,
    /// How many requests each server runs at once, where that was told, or their waiting shows it.
    pub slots: Vec<Option<usize>>,
    /// Tokens that a server's KV cache holds, where that was told.
    pub pool: Option<u64>,
    /// What its reader must know, each with its name.
    pub notes: Vec<String>,
}

/// A request: times in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// When it arrived.
    pub at: f64,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Those of them that the prefix cache spared it.
    pub cached: u32,
    /// Tokens that it made.
    pub output: u32,
    /// The place of its server.
    pub server: usize,
    /// What became of it, where the server told when.
    pub seen: Option<Times>,
}

/// What became of a request: seconds since the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// The server had received it.
    pub created: f64,
    /// It entered the server's queue.
    pub queued: f64,
    /// It left it.
    pub admitted: f64,
    /// Its prefill had ended.
    pub prefilled: f64,
    /// The server had its first token.
    pub first: f64,
    /// All of the answer had come.
    pub finish: f64,
}

/// Fewer requests tell nothing of a server.
const FEWEST: usize = 20;
/// A server's sample has at most so many requests, and all samples make so many tokens.
const MOST: (usize, u64) = (2_000, 400_000);

/// Runs of which each is a load: records of proxies of one time are those of one, whichever of them a request came through.
///
/// # Errors
/// One cannot be read.
pub fn together(mut runs: Vec<Run>) -> Result<Vec<Run>, Error> {
    let mut all: Vec<Run> = Vec::new();
    let records = |run: &Run| {
        let belongs_to_none = run.epoch.is_some() && run.file.is_none() && run.summary.is_null();
        run.span().filter(|_| belongs_to_none)
    };
    // Else one that overlaps two would join the first of them alone.
    let begun = |run: &Run| records(run).map_or(f64::NEG_INFINITY, |(begin, _)| begin);
    runs.sort_by(|a, b| begun(a).total_cmp(&begun(b)));
    for run in runs {
        let is_one = |one: &&mut Run| {
            let both = records(one).zip(records(&run));
            both.is_some_and(|(one, other)| overlap(one, other))
        };
        let mut doubled = all.iter().map(|one| (one, in_both(one, &run)));
        if let Some((one, both)) = doubled.find(|(_, both)| *both > 0) {
            return Err(Error::Twice(run.name, one.name.clone(), both));
        }
        match all.iter_mut().find(is_one) {
            Some(one) => one.take(run)?,
            None => all.push(run),
        }
    }
    Ok(all)
}

/// How many requests two runs both have: of one id and moment, as copies do, or of one id that no other has there, at one time, as
/// proxies behind each other do. Clients may number theirs alike: then the engine tells another time in its queue. Some that look
/// so by chance count for nothing.
fn in_both(one: &Run, other: &Run) -> usize {
    let has_clock = one.zero().and(other.zero()).is_some();
    // Of runs one after another, as in a sweep, nothing needs to be looked for.
    if let Some((one, other)) = one.span().zip(other.span())
        && !overlap(one, other)
    {
        return 0;
    }
    let spans = |run: &Run| {
        let (table, zero) = (&run.table, run.zero().filter(|_| has_clock));
        let zero = zero.unwrap_or(0.0);
        let mut spans: HashMap<(String, Option<i64>), Vec<Span>> = HashMap::new();
        for row in table.firsts() {
            let at = |column| Some(zero + table.number(column, row)?);
            let end = at(ColumnId::end_time).or_else(|| at(ColumnId::finish_time));
            let id = table.text(ColumnId::req_id, row).to_owned();
            let queued = table.whole(ColumnId::pure_queue_time, row);
            let all = spans.entry((id, queued)).or_default();
            all.extend(at(ColumnId::arrival_time).zip(end));
        }
        spans
    };
    let (one, other) = (spans(one), spans(other));
    let requests = |spans: &HashMap<_, Vec<_>>| spans.values().map(Vec::len).sum::<usize>();
    let few = requests(&one).min(requests(&other)).div_ceil(2);
    let (mut same, mut at_one_time) = (0, 0);
    let alike = one
        .iter()
        .filter_map(|(id, all)| Some((all, other.get(id)?)));
    for (all, others) in alike {
        let moments: HashSet<u64> = others.iter().map(|(from, _)| from.to_bits()).collect();
        let is_same = |(from, _): &&Span| moments.contains(&from.to_bits());
        same += all.iter().filter(is_same).count();
        if let ([a], [b]) = (&all[..], &others[..]) {
            at_one_time += usize::from(overlap(*a, *b));
        }
    }
    match has_clock {
        true if at_one_time >= few => same.max(at_one_time),
        // Moments of years have no more digits than tell one of many.
        true if same * 10 >= few => same,
        false if same >= few => same,
        _ => 0,
    }
}

/// A beginning and an end, seconds.
type Span = (f64, f64);

fn overlap(one: Span, other: Span) -> bool {
    one.0 <= other.1 && other.0 <= one.1
}

impl Load {
    /// Of a run.
    ///
    /// # Errors
    /// It is of pairs of servers, of worker hops, or a part of a load.
    pub fn of(run: &Run) -> Result<Load, Error> {
        let table = &run.table;
        let is_hop = |row| table.text(ColumnId::seen_by, row) == "hop";
        if !table.is_empty() && (0..table.len()).all(is_hop) {
            return Err(Error::Hops(run.name.clone()));
        }
        if let Some(shard) = run.read_of::<String>("/config/shard")
            && !shard.ends_with("/1")
        {
            return Err(Error::Shard(run.name.clone(), shard));
        }
        if table.has(ColumnId::disaggregated) {
            return Err(Error::Pairs(run.name.clone()));
        }
        let mut load = Load {
            name: run.name.clone(),
            ..Load::default()
        };
        let (mut notes, mut left_out) = (run.notes.clone(), 0);
        let mut places = vec![None; table.codes(ColumnId::host)];
        let why = Why::of_servers(run);
        for row in 0..table.len() {
            let Some(request) = request(table, row) else {
                left_out += 1;
                continue;
            };
            let place = &mut places[table.code(ColumnId::host, row)];
            let server = *place.get_or_insert_with(|| {
                let host = table.text(ColumnId::host, row);
                load.servers.push(host.to_owned());
                let server = why.server(table, row, None);
                let slots = server.and_then(|server| server.slots());
                load.slots.push(slots.map(|(slots, _)| slots as usize));
                load.pool = load.pool.or(server.and_then(|server| server.pool()));
                load.slots.len() - 1
            });
            load.requests.push(Request { server, ..request });
        }
        if left_out > 0 {
            notes.push(format!(
                "left out: {} (failed, or without arrival or numbers of tokens)",
                count(left_out, "row")
            ));
        }
        let named = |note| format!("{}: {note}", run.name);
        load.notes = notes.into_iter().map(named).collect();
        load.requests.sort_by(|a, b| a.at.total_cmp(&b.at));
        Ok(load)
    }

    /// The requests of which the server told, with what it told.
    pub fn seen(&self) -> impl Iterator<Item = (&Request, Times)> + Clone {
        let requests = self.requests.iter();
        requests.filter_map(|request| Some((request, request.seen?)))
    }

    /// Requests a second that arrive.
    pub fn rate(&self) -> f64 {
        let [first, last] =
            [self.requests.first(), self.requests.last()].map(|of| of.map_or(0.0, |of| of.at));
        (self.requests.len().max(2) - 1) as f64 / (last - first).max(1e-9)
    }

    /// How many requests ran at once on a server, as far as is known: at most on any, and on average of all.
    pub fn running(&self) -> (usize, f64) {
        let changes = self.seen().flat_map(|(request, times)| {
            let [from, to] = [times.admitted, times.finish];
            [(request.server, from, 1), (request.server, to, -1)]
        });
        let mut changes: Vec<(usize, f64, isize)> = changes.collect();
        // Who ends makes room.
        changes.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        let (mut running, mut most, mut ran) = (0, 0, 0.0);
        let (mut first, mut last) = (f64::INFINITY, 0.0_f64);
        for (_, at, change) in changes {
            running += change;
            most = most.max(running);
            ran -= at * change as f64;
            (first, last) = (first.min(at), last.max(at));
        }
        let whole = (last - first).max(1e-9) * self.servers.len() as f64;
        (most.unsigned_abs(), ran / whole)
    }

    /// Whether the prefix cache had any tokens worth a word.
    pub fn shares_prefixes(&self) -> bool {
        let cached: u64 = self.requests.iter().map(|of| u64::from(of.cached)).sum();
        let all: u64 = self.requests.iter().map(|of| u64::from(of.prompt)).sum();
        cached * 100 > all
    }

    /// Of a server's requests those that came closest together; `of` servers share the room for samples. Who met others that are
    /// not among them is there, but not as seen. `None`: too few tell anything.
    pub fn sample(&self, server: usize, of: usize) -> Option<Load> {
        let its = self.requests.iter().filter(|of| of.server == server);
        let all: Vec<Request> = its.map(|of| Request { server: 0, ..*of }).collect();
        let tokens: u64 = all.iter().map(|request| u64::from(request.output)).sum();
        let room = MOST.1 / of.max(1) as u64 * all.len() as u64 / tokens.max(1);
        let size = (room as usize).min(MOST.0).max(5 * FEWEST).min(all.len());
        let span = |from: &usize| all[from + size - 1].at - all[*from].at;
        let starts = (0..=all.len() - size).step_by(size / 2 + 1);
        let from = starts.min_by(|a, b| span(a).total_cmp(&span(b)))?;
        let (before, rest) = all.split_at(from);
        let (requests, after) = rest.split_at(size);
        let end = |request: &Request| request.seen.map_or(0.0, |seen| seen.finish);
        let from = before.iter().map(end).fold(f64::NEG_INFINITY, f64::max);
        let to = after.first().map_or(f64::INFINITY, |next| next.at);
        let alone = |request: &Request| {
            let is_alone = |seen: &Times| request.at >= from && seen.finish <= to;
            let seen = request.seen.filter(is_alone);
            Request { seen, ..*request }
        };
        let sample = Load {
            requests: requests.iter().map(alone).collect(),
            servers: self.servers.clone(),
            slots: vec![self.slots[server]],
            pool: self.pool,
            ..Load::default()
        };
        (sample.seen().count() >= FEWEST).then_some(sample)
    }
}

/// What a row tells; its server is not told yet.
fn request(table: &Table, row: usize) -> Option<Request> {
    let tokens = |column| Some(u32::try_from(table.whole(column, row)?).unwrap_or(u32::MAX));
    let at = table.number(ColumnId::arrival_time, row)?;
    let prompt = tokens(ColumnId::actual_prompt_tokens)?.max(1);
    let made = tokens(ColumnId::actual_output_tokens);
    let request = Request {
        at,
        prompt,
        cached: tokens(ColumnId::cached_tokens).unwrap_or(0).min(prompt),
        output: made.or_else(|| tokens(ColumnId::decode_length))?.max(1),
        server: 0,
        seen: seen(table, row, at),
    };
    table.is_ok(row).then_some(request)
}

/// What the server told of a request, unless its clock is not known.
fn seen(table: &Table, row: usize, at: f64) -> Option<Times> {
    if table.text(ColumnId::clock_state, row) == "raw" {
        return None;
    }
    let time = |column| table.number(column, row);
    let queued = time(ColumnId::queue_time_start)?;
    let first = time(ColumnId::server_first_token_time)?;
    let times = Times {
        created: time(ColumnId::server_created_time).unwrap_or(at),
        queued,
        admitted: time(ColumnId::queue_time_end)?,
        prefilled: time(ColumnId::prefill_end_time).unwrap_or(first),
        first,
        finish: time(ColumnId::finish_time)?,
    };
    let in_order = [at, queued, times.admitted, first, times.finish];
    in_order.is_sorted().then_some(times)
}
