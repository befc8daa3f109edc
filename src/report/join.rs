//! Rows of a front and of worker hops that ran as processes of their own, put together.
//!
//! Each process has a clock of its own. What passed from one to the other bounds how far they are apart: a hop cannot have
//! read what the front had not sent, nor the front what the hop had not read. So what is measured from one clock to the other
//! has an error, which each row tells (`hop_clock_offset_error`).

use std::path::{Path, PathBuf};

use crate::clock::Stamp;
use crate::offset::{Offset, OffsetBound, OffsetTable};
use crate::request::row::Row;
use crate::request::timeline::{ClockOf, Moment, Relation};

use super::rows::{self, Base, Told, read_columns};
use super::table::Table;

mod pairs;
mod written;

use pairs::Pairs;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Joined {
    /// What is to be known of it, a line each.
    pub notes: Vec<String>,
}

/// Why there is nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Rows cannot be read.
    #[error(transparent)]
    Rows(#[from] rows::Error),
    /// It was given rows of another process.
    #[error(
        "{}: its rows are of a {found}: --join takes the front's file first, then those of its hops (column seen_by)",
        path.display()
    )]
    Side {
        /// The file.
        path: PathBuf,
        /// Who saw its rows.
        found: String,
    },
    /// Times that nobody else's compare with.
    #[error(
        "{}: its times count from the start of its process, of which the others know nothing: --join takes records with \
         time_base = \"epoch\" (the default of a proxy)", .0.display()
    )]
    Base(PathBuf),
    /// The file of the joined rows.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
}

/// Bounds on a clock from requests up to so long after one count for it as well: half of what the filter remembers.
const AHEAD: i64 = crate::offset::MEMORY / 2;

/// Joins the rows of hops to those of their front and writes them to `out`, which reads as a front's file whose hops were
/// known to it.
///
/// # Errors
/// A file cannot be read, is of another kind of process, counts its times from another base, or `out` cannot be written.
pub fn join(front: &Path, hops: &[PathBuf], out: &Path) -> Result<Joined, Error> {
    let (front_rows, told) = read_columns(&[front.to_owned()], None, &[])?;
    check(&front_rows, &told, front, "front")?;
    let mut notes: Vec<String> = broken(&told).into_iter().collect();
    let (hop_rows, hops_told) = read_columns(hops, told.began, &[])?;
    if check(&hop_rows, &hops_told, front, "hop").is_err() {
        // With which of them that is, each tells by itself.
        for hop in hops {
            let (rows, own) = read_columns(std::slice::from_ref(hop), told.began, &[])?;
            check(&rows, &own, hop, "hop")?;
        }
    }
    notes.extend(broken(&hops_told));
    let pairs = Pairs::of(&front_rows, &hop_rows);
    let records = joined(&front_rows, &hop_rows, &pairs);
    written::write(&front_rows, &hop_rows, &records, told.zero, out).map_err(|cause| {
        Error::File {
            path: out.to_owned(),
            cause,
        }
    })?;
    notes.extend(pairs.notes(&front_rows, &hop_rows));
    notes.extend(clocks(&records));
    Ok(Joined { notes })
}

fn broken(told: &Told) -> Option<String> {
    let first = told.examples.first()?;
    Some(format!(
        "{} rows cannot be read and are left out, the first: {} line {}: {}",
        told.broken,
        first.file.display(),
        first.line,
        first.what
    ))
}

/// A file's rows are all of one side, and their times compare with those of others.
fn check(table: &Table, told: &Told, path: &Path, side: &str) -> Result<(), Error> {
    let mut sides = (0..table.len()).map(|row| table.text("seen_by", row));
    match sides.find(|found| *found != side) {
        None if told.base == Some(Base::Run) => Err(Error::Base(path.to_owned())),
        None => Ok(()),
        Some(found) => Err(Error::Side {
            path: path.to_owned(),
            found: match found {
                "" => "process that did not tell what it is".to_owned(),
                found => found.to_owned(),
            },
        }),
    }
}

/// A front's row, with what the hop knows where one belongs to it.
#[derive(Debug)]
struct Pair {
    record: Row,
    /// The hop's row of the attempt that answered.
    hop: Option<usize>,
    /// Whether the row tells more than the front's did.
    changed: bool,
}

/// The front's rows in their order.
fn joined(front: &Table, hops: &Table, pairs: &Pairs) -> Vec<Pair> {
    let requests = front.firsts().map(|first| front.request(first));
    let mut offsets = Offsets::new(front, hops, pairs);
    let mut rows = Vec::with_capacity(front.len());
    let mut at = 0;
    for records in requests {
        let attempts = pairs.of_request(at);
        for (index, mut record) in records.into_iter().enumerate() {
            let Some(attempts) = attempts else {
                rows.push(Pair {
                    record,
                    hop: None,
                    changed: false,
                });
                continue;
            };
            attempts.tell(hops, &mut record);
            // Each sequence has a row at the hop, too.
            let hop = attempts.answered.map(|hop| hop + index);
            let hop = hop.filter(|hop| index == 0 || !hops.is_first(*hop) && *hop < hops.len());
            // A front that knew its hop's stamps has them better: on the head of that very response.
            if let (Some(hop), None) = (hop, &record.worker) {
                let offset = offsets.of(at, hop);
                let of_request = (0..=hop)
                    .rev()
                    .find(|row| hops.is_first(*row))
                    .unwrap_or(hop);
                let mut hop_rows = hops.request(of_request);
                let hop_row = hop_rows.swap_remove(hop - of_request);
                take(&mut record, &hop_row, offset);
            }
            record.derive_anew();
            rows.push(Pair {
                record,
                hop,
                changed: true,
            });
        }
        at = rows.len();
    }
    rows
}

/// Puts what the hop saw into the front's row, the hop's clock being so far ahead of the front's.
fn take(record: &mut Row, hop: &Row, offset: Option<Offset>) {
    let (ours, theirs) = (&mut record.timeline, &hop.timeline);
    record.worker = hop.worker.clone();
    record.host = hop.host.clone().or(record.host.take());
    record.worker_first_byte_time = hop.worker_first_byte_time;
    record.worker_last_byte_time = hop.worker_last_byte_time;
    record.worker_longest_gap = hop.worker_longest_gap;
    ours.relate(
        ClockOf::Hop,
        offset.map_or(Relation::Unknown, Relation::Apart),
    );
    for moment in [Moment::WorkerArrival, Moment::WorkerForwarded] {
        if let Some(at) = theirs.raw(moment) {
            ours.set(moment, at);
        }
    }
    if let Some(at) = theirs.on_own_clock(Moment::FirstToken) {
        ours.set(Moment::WorkerFirstToken, at);
    }
    let engine = match (theirs.relation(ClockOf::Engine), offset) {
        (Relation::Apart(engine), Some(hop)) => Relation::Apart(Offset {
            nanos: engine.nanos.saturating_add(hop.nanos),
            error_nanos: engine.error_nanos.saturating_add(hop.error_nanos),
        }),
        (Relation::Same, Some(hop)) => Relation::Apart(hop),
        _ => return,
    };
    // A front without the server's clock has its moments as they came, and so has the hop's row once they are moved back.
    let engines = [
        Moment::ServerCreated,
        Moment::QueueStart,
        Moment::QueueEnd,
        Moment::PrefillEnd,
        Moment::ServerFirstToken,
    ];
    if ours.relation(ClockOf::Engine) == Relation::Unknown {
        ours.relate(ClockOf::Engine, engine);
        for moment in engines {
            if let Some(at) = theirs.raw(moment) {
                ours.set(moment, at);
            }
        }
        record.timing_source = hop.timing_source;
    }
}

/// How far hops' clocks are from the front's, request after request.
struct Offsets<'a> {
    front: &'a Table,
    hops: &'a Table,
    table: OffsetTable,
    /// What bounds them, by when: the front's row and the hop's.
    pairs: Vec<(i64, usize, usize)>,
    fed: usize,
}

impl<'a> Offsets<'a> {
    fn new(front: &'a Table, hops: &'a Table, pairs: &Pairs) -> Offsets<'a> {
        let answered = pairs.answered();
        let mut pairs: Vec<(i64, usize, usize)> = answered
            .filter_map(|(row, hop)| Some((stamp(front, "end_time", row)?.nanos(), row, hop)))
            .collect();
        pairs.sort_unstable();
        Offsets {
            front,
            hops,
            table: OffsetTable::default(),
            pairs,
            fed: 0,
        }
    }

    /// That of the hop of a row, over the life of a front's. Rows come in the order in which they ended, or nearly.
    fn of(&mut self, row: usize, hop: usize) -> Option<Offset> {
        let from = stamp(self.front, "arrival_time", row)?;
        let to = stamp(self.front, "end_time", row)?;
        while let Some((at, row, hop)) = self.pairs.get(self.fed).copied()
            && at <= to.nanos().saturating_add(AHEAD)
        {
            let bounds = self.bounds(row, hop);
            self.table.add(self.hops.text("process", hop), &bounds);
            self.fed += 1;
        }
        self.table
            .get_over(self.hops.text("process", hop), (from, to))
    }

    /// What a request tells of the two clocks.
    fn bounds(&self, row: usize, hop: usize) -> Vec<OffsetBound> {
        let pair = |ours, theirs| {
            Some((
                stamp(self.front, ours, row)?,
                stamp(self.hops, theirs, hop)?,
            ))
        };
        let sent = pair("forwarded_time", "router_send_time");
        let sent = sent.map(|(ours, theirs)| OffsetBound::of_sent(ours, theirs));
        let read = ["response_head_time", "first_token_time", "finish_time"];
        let read = read.into_iter().filter_map(|column| pair(column, column));
        let read = read.map(|(ours, theirs)| OffsetBound::of_received(ours, theirs));
        sent.into_iter().chain(read).collect()
    }
}

fn stamp(table: &Table, column: &str, row: usize) -> Option<Stamp> {
    table.whole(column, row).map(Stamp::from_nanos)
}

/// How well the clocks are known.
fn clocks(rows: &[Pair]) -> Option<String> {
    let errors = rows.iter().filter(|row| row.hop.is_some());
    let errors = errors.filter_map(|row| match row.record.timeline.relation(ClockOf::Hop) {
        Relation::Apart(offset) => Some(offset.error_nanos as f64 / 1e9),
        Relation::Same | Relation::Unknown => None,
    });
    let summary = crate::stats::Summary::of(errors)?;
    Some(format!(
        "clocks of hops are known to ± {} (median; at worst ± {}): so far may router and network times be off",
        super::duration(summary.p50),
        super::duration(summary.max)
    ))
}
