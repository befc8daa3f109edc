//! Joins the rows of a front with those of worker hops in other processes.
//!
//! Each process has its own clock. Messages between them bound the clock offset: a hop cannot have read what the front had not
//! sent, nor the front what the hop had not read. The remaining error is in each row (`hop_clock_offset_error`).

use std::collections::{HashMap, HashSet};
use std::io;
use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::vec;

use crate::clock::Stamp;
use crate::disk::NewFile;
use crate::error::Error;
use crate::offset::{Offset, OffsetBound, OffsetTable};
use crate::request::cell::Value;
use crate::request::csv::Base;
use crate::request::{
    ClockOf, ColumnId, ENGINE, ENGINE_OF_PAIR, FailedAttempt, MAX_FAILED, Moment, Outcome,
    PrefillTimes, Relation, Row, ServerRole, Unseens, append_lost_server, sendings,
};

use super::Table;
use super::cells::RowWriter;
use super::rows::{self, ReadStats};

/// Clock bounds from requests up to this long after a request count for it too, nanoseconds: half of a bound's validity.
const LOOKAHEAD_NANOS: i64 = crate::offset::VALIDITY / 2;

/// Joins the rows of hops with those of their front, whose file is the first, and writes them to `out`, like the file of a front that
/// received its hops' timestamps. Returns messages for the user, a line each.
///
/// # Errors
/// If no hop's file is given, a file cannot be read, is of another kind of process or has another time base, or `out` cannot be
/// written.
pub fn join(files: &[PathBuf], out: &Path) -> Result<Vec<String>, Error> {
    let files = rows::without_duplicates(files);
    let [front, hops @ ..] = files.as_slice() else {
        return Ok(Vec::new());
    };
    if hops.is_empty() {
        let message =
            "--join takes the front's file first and then those of its hops, at least one";
        return Err(Error::read(front, message));
    }
    let (mut notes, mut began) = (Vec::new(), None);
    let mut read = |path: &Path, side| {
        let (rows, stats) = read_rotated(path, began)?;
        check(&rows, stats.origin.map(Base::of), path, side)?;
        began = began.or(stats.zero);
        notes.extend(stats.left_out());
        Ok::<Table, Error>(rows)
    };
    let front = read(front, "front")?;
    let mut hop_rows = Table::default();
    for hop in hops {
        hop_rows.append(read(hop, "hop")?);
    }
    let origin_nanos = began.map_or(0, Stamp::nanos);
    let mut joining = Joining::new(&front, &hop_rows);
    notes.push(joining.note());
    let rows = front.first_rows().flat_map(|first| joining.joined(first));
    // Created only now, so that a failed join leaves no folder.
    let file = std::fs::create_dir_all(out.parent().unwrap_or(Path::new("")))
        .and_then(|()| write(NewFile::create_new(out)?, origin_nanos, rows));
    file.map_err(|cause| Error::write(out, cause))?;
    Ok(notes)
}

/// Adds to a generator's file of rows what its front's rows report about pairs of servers, and the hops that held requests without a
/// response. `began`: the start of the run. Returns which of the front's rows could not be read.
///
/// # Errors
/// If a file cannot be read, or the generator's cannot be written.
pub fn add_front_reports(
    path: &Path,
    front: &Path,
    began: Option<Stamp>,
) -> Result<Option<String>, Error> {
    let (rows, stats) = rows::read(&[path.to_owned()], began, &[])?;
    if let Some(message) = stats.left_out() {
        // Writing the file anew would lose these rows.
        return Err(Error::read(path, message));
    }
    let (front, front_stats) = read_rotated(front, began)?;
    let known = [ColumnId::host, ColumnId::worker, ColumnId::router_send_time];
    let is_unserved = |at: &usize| known.iter().all(|of| rows.value(*of, *at) == Value::Empty);
    let unserved = rows.first_rows().filter(is_unserved);
    let unserved: HashSet<&str> = unserved.map(|at| rows.text(ColumnId::req_id, at)).collect();
    let reports = front.first_rows().flat_map(|first| front.request(first));
    let reports = reports.filter_map(|row| Some((row.req_id.clone()?, row)));
    // A run has millions of rows, and few of them lack anything.
    let is_wanted = |(id, row): &(String, Row)| {
        row.disaggregated == Some(true) || row.worker.is_some() && unserved.contains(id.as_str())
    };
    let reports: HashMap<String, Row> = reports.filter(is_wanted).collect();
    let with_report = |mut row: Row| {
        match row.req_id.as_ref().and_then(|id| reports.get(id)) {
            Some(front) if front.disaggregated == Some(true) => {
                add_front(&mut row, front);
            }
            Some(front) => row.worker.clone_from(&front.worker),
            None => {}
        }
        row
    };
    let all = rows.first_rows().flat_map(|first| rows.request(first));
    let origin_nanos = stats.origin.unwrap_or(0);
    let file =
        NewFile::replacing(path).and_then(|file| write(file, origin_nanos, all.map(with_report)));
    file.map_err(|cause| Error::write(path, cause))?;
    Ok(front_stats.left_out())
}

/// Reads a file of rows and those it was rotated to.
fn read_rotated(path: &Path, began: Option<Stamp>) -> Result<(Table, ReadStats), Error> {
    let files = rows::with_rotated(path).map_err(|cause| Error::read(path, cause))?;
    rows::read(&files, began, &[])
}

/// Writes rows. `origin_nanos`: the origin of their times in the file's time base, nanoseconds.
fn write(file: NewFile, origin_nanos: i64, rows: impl Iterator<Item = Row>) -> io::Result<()> {
    let mut file = RowWriter::new(file, Stamp::from_nanos(-origin_nanos))?;
    for row in rows {
        file.write(&row)?;
    }
    file.finish()?.commit()
}

/// Checks that all rows of a file are of one side, and that their times compare with those of other files.
fn check(table: &Table, base: Option<Base>, path: &Path, side: &str) -> Result<(), Error> {
    let mut sides = (0..table.len()).map(|row| table.text(ColumnId::seen_by, row));
    let message = match sides.find(|found| *found != side) {
        Some(found) => format!(
            "column seen_by of its rows is {}: --join takes the front's file first, then those of its hops",
            if found.is_empty() { "empty" } else { found }
        ),
        None if base == Some(Base::Run) => {
            "its times count from the start of its process, of which the others know nothing: \
             --join takes records with time_base = \"epoch\" (the default of a proxy)"
                .to_owned()
        }
        None => return Ok(()),
    };
    Err(Error::read(path, message))
}

/// The attempts of a request, as first rows of the hops. The two legs of a pair count as one attempt.
struct Attempts {
    /// The one whose response the front read, as far as known.
    answered: Option<usize>,
    /// Its leg on the prefill server.
    leg: Option<usize>,
    /// The others, in order of time.
    others: Vec<usize>,
}

/// A request's id without the `#0` of its first sequence.
fn id(table: &Table, row: usize) -> &str {
    let id = table.text(ColumnId::req_id, row);
    id.strip_suffix("#0").unwrap_or(id)
}

impl Attempts {
    fn new(front: &Table, row: usize, hops: &Table, mut all: Vec<usize>) -> Attempts {
        let began = |hop: &usize| hops.integer(ColumnId::router_send_time, *hop);
        all.sort_by_key(|hop| began(hop).unwrap_or(i64::MAX));
        // The router sends both legs of an attempt with the same room.
        let room = |hop: &usize| hops.text(ColumnId::bootstrap_room, *hop);
        let is_other_leg = |a: &usize, b: &usize| !room(a).is_empty() && room(a) == room(b);
        let mut attempts = sendings(all, is_other_leg);
        // The last leg is the one that answered: the host in the front's row, else the decode server, else the longer one.
        let host = front.text(ColumnId::host, row);
        let answer_order = |hop: &usize| {
            let is_host = hops.text(ColumnId::host, *hop) == host;
            let is_decode = hops.value(ColumnId::disaggregated, *hop) != Value::Empty;
            let elapsed = hops.integer(ColumnId::elapsed, *hop);
            (is_host, is_decode, elapsed, *hop)
        };
        attempts
            .iter_mut()
            .for_each(|legs| legs.sort_by_key(&answer_order));
        // The front read the response of the last attempt that has the front's status; if none has,
        // it read none of theirs, as when the router responded itself.
        let status = front.number(ColumnId::status, row);
        let has_status = |legs: &Vec<usize>| {
            let hop = legs.last();
            status.is_some() && hop.map(|hop| hops.number(ColumnId::status, *hop)) == Some(status)
        };
        let index = attempts.iter().rposition(has_status);
        let legs = index.map_or_else(Vec::new, |index| attempts.remove(index));
        // Of another attempt's legs, the one that failed by itself counts: the router then abandoned the other.
        let has_failed = |hop: &usize| {
            let outcome = Outcome::named(hops.text(ColumnId::outcome, *hop));
            outcome.is_some_and(|outcome| !outcome.is_ok_or_client_abort())
        };
        let others = attempts.into_iter();
        let others = others.filter_map(|legs| legs.into_iter().max_by_key(has_failed));
        Attempts {
            answered: legs.last().copied(),
            leg: legs.iter().rev().nth(1).copied(),
            others: others.collect(),
        }
    }

    /// Adds to the front's row the number of attempts and the outcomes of the failed ones.
    fn add_to(&self, row: &mut Row, hops: &Table) {
        let count = self.others.len() + usize::from(self.answered.is_some());
        row.attempts = row.attempts.max(Some(count as u64));
        if row.failed_attempts.is_some() {
            return;
        }
        let host = |hop| match hops.text(ColumnId::host, hop) {
            "" => hops.text(ColumnId::worker, hop),
            host => host,
        };
        let failed = |hop: &usize| FailedAttempt {
            host: host(*hop).to_owned(),
            outcome: Outcome::named(hops.text(ColumnId::outcome, *hop)),
            status: hops
                .number(ColumnId::status, *hop)
                .map(|status| status as u16),
            nanos: hops.integer(ColumnId::elapsed, *hop),
        };
        let failed = self.others.iter().take(MAX_FAILED).map(failed);
        row.failed_attempts = Some(failed.collect());
    }
}

/// Joins the front's rows request by request.
struct Joining<'a> {
    front: &'a Table,
    hops: &'a Table,
    /// The attempts of each request that has any, by its first row.
    attempts: HashMap<usize, Attempts>,
    /// How many attempts belong to a request, and how many to none.
    matched: usize,
    unmatched: usize,
    /// How many rows are of an attempt that was read before.
    repeated: usize,
    /// The offsets of the hops' clocks from the front's.
    offsets: OffsetTable,
    /// The exchanges that bound them and are yet to be added, in order of time: end time, the front's row, the hop's row.
    exchanges: Peekable<vec::IntoIter<(i64, usize, usize)>>,
}

impl<'a> Joining<'a> {
    /// Matches an attempt by its parent span, which the front sent. A router that begins spans of its own drops that span; then
    /// the request's id decides, if only one request had it.
    fn new(front: &'a Table, hops: &'a Table) -> Joining<'a> {
        let mut by_span = HashMap::new();
        let mut by_id: HashMap<&str, Option<usize>> = HashMap::new();
        for row in front.first_rows() {
            let span = front.text(ColumnId::span_id, row);
            if !span.is_empty() {
                by_span.insert(span, row);
            }
            let entry = by_id.entry(id(front, row));
            entry.and_modify(|found| *found = None).or_insert(Some(row));
        }
        let (mut matched, mut unmatched, mut repeated) = (0, 0, 0);
        let mut found: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut spans = HashSet::new();
        for hop in hops.first_rows() {
            let span = hops.text(ColumnId::span_id, hop);
            if !span.is_empty() && !spans.insert(span) {
                repeated += 1;
                continue;
            }
            let parent = hops.text(ColumnId::parent_span_id, hop);
            let by_span = by_span.get(parent).copied();
            let by_id = || by_id.get(id(hops, hop)).copied().flatten();
            match by_span.or_else(by_id) {
                Some(row) => {
                    matched += 1;
                    found.entry(row).or_default().push(hop);
                }
                None => unmatched += 1,
            }
        }
        let attempts = found.into_iter();
        let attempts = attempts.map(|(row, hop)| (row, Attempts::new(front, row, hops, hop)));
        let attempts: HashMap<usize, Attempts> = attempts.collect();
        let exchange = |(row, of): (&usize, &Attempts)| {
            let ended = front.integer(ColumnId::end_time, *row)?;
            Some((ended, *row, of.answered?))
        };
        let mut exchanges: Vec<_> = attempts.iter().filter_map(exchange).collect();
        exchanges.sort_unstable();
        Joining {
            front,
            hops,
            attempts,
            matched,
            unmatched,
            repeated,
            offsets: OffsetTable::default(),
            exchanges: exchanges.into_iter().peekable(),
        }
    }

    /// Returns a message: how many attempts and requests were matched, and how many were not.
    fn note(&self) -> String {
        let (matched, unmatched, joined) = (self.matched, self.unmatched, self.attempts.len());
        let attempts = matched + unmatched;
        let of = self.front.first_rows().count();
        let rest = match unmatched {
            0 => String::new(),
            _ => format!(": the front has no request for the other {unmatched}"),
        };
        let repeated = match self.repeated {
            0 => String::new(),
            rows => format!("; {rows} rows of hops were given twice, and count once"),
        };
        format!(
            "{matched} of {attempts} attempts joined to {joined} of {of} requests{rest}{repeated}"
        )
    }

    /// Returns the joined rows of a request, given its first row; those of the front if no hop has an attempt of it.
    fn joined(&mut self, first: usize) -> Vec<Row> {
        let mut rows = self.front.request(first);
        let Some(attempts) = self.attempts.remove(&first) else {
            return rows;
        };
        let answered = attempts.answered;
        // Each sequence has a row at the hop too.
        let hop_rows = answered.map(|hop| self.hops.request(hop));
        let mut hop_rows = hop_rows.into_iter().flatten();
        let leg_rows = attempts.leg.map(|leg| self.hops.request(leg));
        let mut leg_rows = leg_rows.into_iter().flatten();
        for row in &mut rows {
            attempts.add_to(row, self.hops);
            let is_error =
                row.status >= Some(400) && row.timeline.raw(Moment::ResponseHead).is_some();
            row.internal.is_routers_error = answered.is_none() && is_error;
            if let (Some(hop), Some(hop_row)) = (answered, hop_rows.next()) {
                row.worker_longest_gap = hop_row.worker_longest_gap;
                // The hop's timestamps on the response head, if the front received them, are more exact.
                if row.worker.is_none() {
                    add_hop(row, &hop_row, self.offset(first, hop));
                }
            }
            if let Some(leg) = leg_rows.next() {
                add_lost(row, &leg);
                let room = leg.bootstrap_room;
                add_leg(row, leg.host, room, leg.timeline.as_prefill());
            }
            row.derive_anew();
        }
        rows
    }

    /// Returns the offset of a hop's clock during a request of the front. Rows are in the order in which their requests ended, or
    /// nearly so.
    fn offset(&mut self, row: usize, hop: usize) -> Option<Offset> {
        let from = stamp(self.front, ColumnId::arrival_time, row)?;
        let to = stamp(self.front, ColumnId::end_time, row)?;
        let until = to.nanos().saturating_add(LOOKAHEAD_NANOS);
        while let Some((_, row, hop)) = self.exchanges.next_if(|(at, ..)| *at <= until) {
            let bounds = self.bounds_of(row, hop);
            self.offsets.add(self.process(hop), bounds);
        }
        self.offsets.get_over(self.process(hop), (from, to))
    }

    fn process(&self, hop: usize) -> &'a str {
        self.hops.text(ColumnId::process, hop)
    }

    /// The bounds that an exchange puts on the offset.
    fn bounds_of(&self, row: usize, hop: usize) -> Vec<OffsetBound> {
        let pair = |ours, theirs| {
            Some((
                stamp(self.front, ours, row)?,
                stamp(self.hops, theirs, hop)?,
            ))
        };
        let sent = pair(ColumnId::forwarded_time, ColumnId::router_send_time);
        let sent = sent.map(|(ours, theirs)| OffsetBound::of_sent(ours, theirs));
        let read = [
            ColumnId::response_head_time,
            ColumnId::first_token_time,
            ColumnId::finish_time,
        ];
        let read = read.into_iter().filter_map(|column| pair(column, column));
        let read = read.map(|(ours, theirs)| OffsetBound::of_received(ours, theirs));
        sent.into_iter().chain(read).collect()
    }
}

fn stamp(table: &Table, column: ColumnId, row: usize) -> Option<Stamp> {
    table.integer(column, row).map(Stamp::from_nanos)
}

/// Adds a hop's timestamps to the front's row. `offset`: that of the hop's clock from the front's.
fn add_hop(row: &mut Row, hop: &Row, offset: Option<Offset>) {
    let (ours, theirs) = (&mut row.timeline, &hop.timeline);
    row.worker = hop.worker.clone();
    row.host = hop.host.clone().or(row.host.take());
    let apart = offset.map_or(Relation::Unknown, Relation::Apart);
    ours.relate(ClockOf::Hop, apart);
    for moment in [Moment::WorkerArrival, Moment::WorkerForwarded] {
        if let Some(at) = theirs.raw(moment) {
            ours.set(moment, at);
        }
    }
    if let Some(at) = theirs.on_own_clock(Moment::FirstToken) {
        ours.set(Moment::WorkerFirstToken, at);
    }
    // Without a relation to the engine's clock, the front's row has the engine's timestamps unconverted, and so has the hop's timeline.
    if ours.relation(ClockOf::Engine) == Relation::Unknown {
        add_engine(row, hop, offset);
    }
}

/// Adds what the front's row reports about the pair to a generator's row.
fn add_front(row: &mut Row, front: &Row) {
    let (host, room) = (front.prefill_host.clone(), front.bootstrap_room.clone());
    let times = front.timeline.prefill().unwrap_or_default();
    add_leg(row, host, room, times);
    row.host = front.host.clone().or(row.host.take());
    add_engine(row, front, row.timeline.offset(ClockOf::Front));
    if front.unseen.and_then(Unseens::engine).is_none() {
        // No timestamps of the servers are missing now.
        row.unseen = None;
    }
    row.derive_anew();
}

/// Adds to a row's error which server of the pair was lost, if it was that of this leg.
fn add_lost(row: &mut Row, leg: &Row) {
    let (Some(error), Some(host)) = (&mut row.error, &leg.host) else {
        return;
    };
    // The front may have added it already.
    if !error.contains(host.as_str()) {
        append_lost_server(error, ServerRole::Prefill, host, leg.outcome);
    }
}

/// Adds the leg of the prefill server to a row.
fn add_leg(row: &mut Row, host: Option<String>, room: Option<String>, times: PrefillTimes) {
    row.prefill_host = row.prefill_host.take().or(host);
    row.bootstrap_room = row.bootstrap_room.take().or(room);
    row.timeline.set_pair(times);
}

/// Adds the engine's timestamps that this row lacks from another process's row; none if the engine's clock does not compare with this
/// row's. `clock`: the offset of the other process's clock.
fn add_engine(row: &mut Row, other: &Row, clock: Option<Offset>) {
    let (ours, theirs) = (&mut row.timeline, &other.timeline);
    if ours.relation(ClockOf::Engine) == Relation::Unknown {
        let engine = match (theirs.relation(ClockOf::Engine), clock) {
            (Relation::Apart(engine), Some(clock)) => Offset {
                nanos: engine.nanos.saturating_add(clock.nanos),
                error_nanos: engine.error_nanos.saturating_add(clock.error_nanos),
            },
            (Relation::Same, Some(clock)) => clock,
            _ => return,
        };
        ours.relate(ClockOf::Engine, Relation::Apart(engine));
    }
    for moment in ENGINE.into_iter().chain(ENGINE_OF_PAIR) {
        if let Some(at) = theirs.raw(moment) {
            ours.set_if_unknown(moment, at);
        }
    }
    row.timing_source = row.timing_source.or(other.timing_source);
}
