//! Rows of a front and of worker hops that ran as processes of their own, put together.
//!
//! Each process has a clock of its own. What passed from one to the other bounds how far they are apart: a hop cannot have
//! read what the front had not sent, nor the front what the hop had not read. So what is measured from one clock to the other
//! has an error, which each row tells (`hop_clock_offset_error`).

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::clock::Stamp;
use crate::disk::New;
use crate::offset::{Offset, OffsetBound, OffsetTable};
use crate::request::columns::{COLUMNS, ColumnId};
use crate::request::csv::{Base, TimeBase};
use crate::request::row::Row;
use crate::request::timeline::{ClockOf, Moment, Relation};
use crate::stats::Summary;

use super::cells::RowWriter;
use super::{Error, Table};
use super::{rotated, rows};

mod pairs;
mod told;

use pairs::Pairs;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Joined {
    /// What is to be known of it, a line each.
    pub notes: Vec<String>,
    /// How well the hops' clocks are known: the errors of the rows that were joined, seconds.
    pub clocks: Option<Summary>,
}

/// Bounds on a clock from requests up to so long after one count for it as well: half of what the filter remembers.
const AHEAD: i64 = crate::offset::MEMORY / 2;

/// Joins the rows of hops to those of their front, whose file is the first, and writes them to `out`, which reads as a front's file
/// whose hops were known to it.
///
/// # Errors
/// There is no file of a hop; one cannot be read, is of another kind of process, counts its times from another base, or `out` cannot be written.
pub fn join(files: &[PathBuf], out: &Path) -> Result<Joined, Error> {
    let files = rotated::once(files);
    let [front, hops @ ..] = files.as_slice() else {
        return Ok(Joined::default());
    };
    if hops.is_empty() {
        let what = "--join takes the front's file first and then those of its hops, at least one";
        return Err(Error::read(front, what));
    }
    let mut joined = Joined::default();
    let mut zero = None;
    let mut read = |path: &Path, side| {
        let began = zero.map(|(began, _)| began);
        let files = rotated::with_older(path).map_err(|cause| Error::read(path, cause))?;
        let (rows, told) = rows::read(&files, began, &[])?;
        let own = told.zero.map(|zero| zero.base);
        check(&rows, own, path, side)?;
        zero = zero.or(told.began.zip(told.zero));
        joined.notes.extend(told.left_out());
        Ok::<Table, Error>(rows)
    };
    let front = read(front, "front")?;
    let (mut hop_rows, mut of_files) = (Table::default(), Vec::new());
    for hop in hops {
        let first = hop_rows.len();
        hop_rows.append(read(hop, "hop")?);
        of_files.push((hop, first..hop_rows.len()));
    }
    let zero = zero.map_or(0, |(_, zero)| zero.nanos);
    let pairs = Pairs::of(&front, &hop_rows);
    let mut joining = Joining::new(&front, &hop_rows, &pairs);
    let mut errors = Vec::new();
    let rows = front.firsts().flat_map(|first| {
        let joined = joining.joined(first).into_iter().flatten().map(Some);
        let all = front
            .rows_of(first)
            .zip(joined.chain(std::iter::repeat(None)));
        let all: Vec<(usize, Option<Row>)> = all.collect();
        let clocks = all.iter();
        let clocks = clocks.filter_map(|(_, row)| row.as_ref()?.hop_clock_offset_error);
        errors.extend(clocks.map(|nanos| nanos as f64 / 1e9));
        all
    });
    // Made when all is read: what cannot be joined leaves no folder.
    let file = std::fs::create_dir_all(out.parent().unwrap_or(Path::new("")))
        .and_then(|()| write(New::first(out)?, zero, &front, rows));
    file.map_err(|cause| Error::write(out, cause))?;
    joined.notes.extend(pairs.notes(&front, &hop_rows));
    joined.notes.extend(of_files.into_iter().filter_map(|(path, rows)| {
        let all: Vec<usize> = rows.filter(|row| hop_rows.is_first(*row)).collect();
        let is_of_none = all.iter().all(|row| pairs.is_alone(*row));
        let (path, count) = (path.display(), all.len());
        is_of_none.then(|| format!("{path} gave nothing: of its {count} attempts none belongs to a request of the front"))
    }));
    joined.clocks = Summary::of(errors);
    Ok(joined)
}

/// Puts into the file of a generator's rows what those of its front say of pairs of servers. Its run began then, Unix seconds. Gives
/// what of the front's could not be read.
///
/// # Errors
/// A file cannot be read, or the generator's not be written.
pub fn tell_pairs(path: &Path, front: &Path, began: Option<f64>) -> Result<Option<String>, Error> {
    let (rows, told) = rows::read(&[path.to_owned()], began, &[])?;
    if let Some(what) = told.left_out() {
        // They would be gone from the file.
        return Err(Error::read(path, what));
    }
    let (front, of_front) = rows::read(&[front.to_owned()], began, &[])?;
    let all = front.firsts().flat_map(|first| front.request(first));
    let of_pairs = all.filter(|row| row.disaggregated == Some(true));
    let of_pairs: HashMap<String, Row> = of_pairs
        .filter_map(|row| Some((row.req_id.clone()?, row)))
        .collect();
    let told_row = |(at, mut row): (usize, Row)| {
        let front = row.req_id.as_ref().and_then(|id| of_pairs.get(id));
        let row = front.map(|front| {
            told::take(&mut row, front);
            row
        });
        (at, row)
    };
    let all = rows
        .firsts()
        .flat_map(|first| rows.rows_of(first).zip(rows.request(first)));
    let zero = told.zero.map_or(0, |zero| zero.nanos);
    let file = New::beside(path).and_then(|file| write(file, zero, &rows, all.map(told_row)));
    file.map_err(|cause| Error::write(path, cause))?;
    Ok(of_front.left_out())
}

/// Writes rows of a table, those in their place that were joined; their times count from `zero`, nanoseconds since what those of the
/// file do.
fn write(
    file: New,
    zero: i64,
    table: &Table,
    rows: impl Iterator<Item = (usize, Option<Row>)>,
) -> io::Result<()> {
    let began = TimeBase::Since(Stamp::from_nanos(-zero));
    let mut file = RowWriter::new(file, began)?;
    for (at, row) in rows {
        match row {
            Some(row) => {
                file.write_cells(COLUMNS.iter().map(|column| (column.get)(&row)))?;
            }
            None => file.write_cells(COLUMNS.iter().map(|of| table.value(of.id, at)))?,
        }
    }
    file.finish()?.put()
}

/// A file's rows are all of one side, and their times compare with those of others.
fn check(table: &Table, base: Option<Base>, path: &Path, side: &str) -> Result<(), Error> {
    let mut sides = (0..table.len()).map(|row| table.text(ColumnId::seen_by, row));
    let what = match sides.find(|found| *found != side) {
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
    Err(Error::read(path, what))
}

/// The front's rows with what hops know, request after request.
struct Joining<'a> {
    front: &'a Table,
    hops: &'a Table,
    pairs: &'a Pairs,
    /// How far hops' clocks are from the front's.
    offsets: OffsetTable,
    /// What bounds them, by when: the front's row and the hop's.
    bounds: Vec<(i64, usize, usize)>,
    fed: usize,
}

impl<'a> Joining<'a> {
    fn new(front: &'a Table, hops: &'a Table, pairs: &'a Pairs) -> Joining<'a> {
        let answered = pairs.answered();
        let ended = |row| front.whole(ColumnId::end_time, row);
        let mut bounds: Vec<(i64, usize, usize)> = answered
            .filter_map(|(row, hop)| Some((ended(row)?, row, hop)))
            .collect();
        bounds.sort_unstable();
        Joining {
            front,
            hops,
            pairs,
            offsets: OffsetTable::default(),
            bounds,
            fed: 0,
        }
    }

    /// The rows of the request of a first row, where a hop has any of it.
    fn joined(&mut self, first: usize) -> Option<Vec<Row>> {
        let attempts = self.pairs.of_request(first)?;
        let mut rows = self.front.request(first);
        let answered = attempts.answered;
        // Each sequence has a row at the hop, too.
        let mut of_hop = answered
            .map_or_else(Vec::new, |hop| self.hops.request(hop))
            .into_iter();
        let leg = attempts.leg.map(|leg| self.hops.request(leg));
        let mut of_leg = leg.into_iter().flatten();
        for row in &mut rows {
            attempts.tell(self.hops, row);
            let is_error =
                row.status >= Some(400) && row.timeline.raw(Moment::ResponseHead).is_some();
            row.more.is_routers_error = answered.is_none() && is_error;
            if let (Some(hop), Some(hop_row)) = (answered, of_hop.next()) {
                row.worker_longest_gap = hop_row.worker_longest_gap;
                // A front that knew its hop's stamps has them better: on the head of that very response.
                if row.worker.is_none() {
                    take(row, &hop_row, self.offset(first, hop));
                }
            }
            if let Some(leg) = of_leg.next() {
                told::tell_lost(row, &leg);
                let room = leg.bootstrap_room;
                told::take_leg(row, leg.host, room, leg.timeline.as_prefill());
            }
            row.derive_anew();
        }
        Some(rows)
    }

    /// That of the hop of a row, over the life of a front's. Rows come in the order in which they ended, or nearly.
    fn offset(&mut self, row: usize, hop: usize) -> Option<Offset> {
        let from = stamp(self.front, ColumnId::arrival_time, row)?;
        let to = stamp(self.front, ColumnId::end_time, row)?;
        while let Some((at, row, hop)) = self.bounds.get(self.fed).copied()
            && at <= to.nanos().saturating_add(AHEAD)
        {
            let bounds = self.bounds_of(row, hop);
            self.offsets.add(self.process(hop), &bounds);
            self.fed += 1;
        }
        self.offsets.get_over(self.process(hop), (from, to))
    }

    fn process(&self, hop: usize) -> &'a str {
        self.hops.text(ColumnId::process, hop)
    }

    /// What a request tells of the two clocks.
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
    table.whole(column, row).map(Stamp::from_nanos)
}

/// Puts what the hop saw into the front's row, the hop's clock being so far ahead of the front's.
fn take(row: &mut Row, hop: &Row, offset: Option<Offset>) {
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
    // A front without the server's clock has its moments as they came, and so has the hop's row once they are moved back.
    if ours.relation(ClockOf::Engine) == Relation::Unknown {
        told::take_engine(row, hop, offset);
    }
}
