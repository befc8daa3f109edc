//! Joins the rows of a front with those of worker hops in other processes.
//!
//! Each process has its own clock. Messages between them bound the clock offset: a hop cannot have read what the front had not
//! sent, nor the front what the hop had not read. The remaining error is in each row (`hop_clock_offset_error`).

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::clock::Stamp;
use crate::disk::NewFile;
use crate::error::Error;
use crate::offset::{Offset, OffsetBound, OffsetTable};
use crate::request::cell::Value;
use crate::request::csv::Base;
use crate::request::{
    ClockOf, ColumnId, ENGINE, ENGINE_OF_PAIR, Moment, PrefillTimes, Relation, Row, ServerRole,
    Unseens, append_lost_server,
};

use super::cells::RowWriter;
use super::rows::{self, ReadStats};
use super::{Table, rotated};

mod attempts;

use attempts::JoinedAttempts;

/// Clock bounds from requests up to this long after a request count for it too, nanoseconds: half of a bound's validity.
const LOOKAHEAD_NANOS: i64 = crate::offset::VALIDITY / 2;

/// Joins the rows of hops with those of their front, whose file is the first, and writes them to `out`, like the file of a front that
/// received its hops' timestamps. Returns messages for the user, a line each.
///
/// # Errors
/// If no hop's file is given, a file cannot be read, is of another kind of process or has another time base, or `out` cannot be
/// written.
pub fn join(files: &[PathBuf], out: &Path) -> Result<Vec<String>, Error> {
    let files = rotated::without_duplicates(files);
    let [front, hops @ ..] = files.as_slice() else {
        return Ok(Vec::new());
    };
    if hops.is_empty() {
        let message =
            "--join takes the front's file first and then those of its hops, at least one";
        return Err(Error::read(front, message));
    }
    let (mut notes, mut origin) = (Vec::new(), None);
    let mut read = |path: &Path, side| {
        let began = origin.map(|(began, _)| began);
        let (rows, stats) = read_rotated(path, began)?;
        let base = stats.origin.map(|origin| origin.base);
        check(&rows, base, path, side)?;
        origin = origin.or(stats.began.zip(stats.origin));
        notes.extend(stats.left_out());
        Ok::<Table, Error>(rows)
    };
    let front = read(front, "front")?;
    let mut hop_rows = Table::default();
    for hop in hops {
        hop_rows.append(read(hop, "hop")?);
    }
    let origin_nanos = origin.map_or(0, |(_, origin)| origin.nanos);
    let attempts = JoinedAttempts::find(&front, &hop_rows);
    let mut joining = Joining::new(&front, &hop_rows, &attempts);
    let rows = front.first_rows().flat_map(|first| joining.joined(first));
    // Created only now, so that a failed join leaves no folder.
    let file = std::fs::create_dir_all(out.parent().unwrap_or(Path::new("")))
        .and_then(|()| write(NewFile::create_new(out)?, origin_nanos, rows));
    file.map_err(|cause| Error::write(out, cause))?;
    notes.push(attempts.note(&front, &hop_rows));
    Ok(notes)
}

/// Adds to a generator's file of rows what its front's rows report about pairs of servers, and the hops that held requests without a
/// response. `began`: the start of the run, Unix seconds. Returns which of the front's rows could not be read.
///
/// # Errors
/// If a file cannot be read, or the generator's cannot be written.
pub fn add_front_reports(
    path: &Path,
    front: &Path,
    began: Option<f64>,
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
    let origin_nanos = stats.origin.map_or(0, |origin| origin.nanos);
    let file =
        NewFile::replacing(path).and_then(|file| write(file, origin_nanos, all.map(with_report)));
    file.map_err(|cause| Error::write(path, cause))?;
    Ok(front_stats.left_out())
}

/// Reads a file of rows and those it was rotated to.
fn read_rotated(path: &Path, began: Option<f64>) -> Result<(Table, ReadStats), Error> {
    let files = rotated::with_rotated(path).map_err(|cause| Error::read(path, cause))?;
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

/// Joins the front's rows request by request.
struct Joining<'a> {
    front: &'a Table,
    hops: &'a Table,
    attempts: &'a JoinedAttempts,
    /// The offsets of the hops' clocks from the front's.
    offsets: OffsetTable,
    /// The exchanges that bound the offsets, in order of time: end time, the front's row, the hop's row.
    exchanges: Vec<(i64, usize, usize)>,
    /// How many of them `offsets` has.
    added: usize,
}

impl<'a> Joining<'a> {
    fn new(front: &'a Table, hops: &'a Table, attempts: &'a JoinedAttempts) -> Joining<'a> {
        let answered = attempts.answered();
        let ended = |row| front.integer(ColumnId::end_time, row);
        let mut exchanges: Vec<(i64, usize, usize)> = answered
            .filter_map(|(row, hop)| Some((ended(row)?, row, hop)))
            .collect();
        exchanges.sort_unstable();
        Joining {
            front,
            hops,
            attempts,
            offsets: OffsetTable::default(),
            exchanges,
            added: 0,
        }
    }

    /// Returns the joined rows of a request, given its first row; those of the front if no hop has an attempt of it.
    fn joined(&mut self, first: usize) -> Vec<Row> {
        let mut rows = self.front.request(first);
        let Some(attempts) = self.attempts.of_request(first) else {
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
        while let Some((at, row, hop)) = self.exchanges.get(self.added).copied()
            && at <= to.nanos().saturating_add(LOOKAHEAD_NANOS)
        {
            let bounds = self.bounds_of(row, hop);
            self.offsets.add(self.process(hop), bounds);
            self.added += 1;
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
