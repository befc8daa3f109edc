//! The cells that figures are taken of: those of a table, but of some rows without what cannot be, or without what was
//! measured with a clock that is known too poorly.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use crate::request::cell::Value;
use crate::request::columns::{COLUMNS, ColumnId};
use crate::request::impossible::believed;
use crate::request::row::Row;
use crate::request::timeline::{ClockOf, Relation};
use crate::table::{Named, Table};

use super::clocks::Usual;

/// Rows that stand in the place of a table's.
pub(super) type Rows = HashMap<usize, Row, ahash::RandomState>;

/// A request of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub row: u32,
    pub rows: u32,
    /// Whether it went well.
    pub is_ok: bool,
    /// Whether it arrived in the time that the figures are of.
    pub is_inside: bool,
    /// Whether it ended in it.
    pub ends_inside: bool,
    /// Whether one of its clocks is known too poorly.
    pub is_poor: bool,
}

/// The cells of a table, but of the rows that are replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells<'a> {
    pub table: &'a Table,
    pub replaced: &'a Rows,
}

impl Request {
    /// Its first row.
    pub fn row(&self) -> usize {
        self.row as usize
    }

    /// All of them.
    pub fn rows(&self) -> Range<usize> {
        self.row()..self.row() + self.rows as usize
    }
}

/// Looks through the rows of a request, and puts those without what cannot be into the first of these, and those without poorly known
/// clocks as well into the second. Whether there is such a clock.
pub(super) fn replace(
    [believed_rows, measured_rows]: &mut [Rows; 2],
    table: &Table,
    rows: Range<usize>,
    usual: &Usual,
) -> bool {
    let is_wrong = |row| !table.text(ColumnId::inconsistency, row).is_empty();
    let is_wrong = rows.clone().any(is_wrong);
    let is_of_poor = |row| usual.poor(table, row).next().is_some();
    let is_poor = rows.clone().any(is_of_poor);
    if !is_wrong && !is_poor {
        return false;
    }
    let mut read = believed(&table.request(rows.start)).into_owned();
    if is_wrong {
        believed_rows.extend(rows.clone().zip(read.clone()));
    }
    for (at, row) in rows.clone().zip(&mut read).filter(|_| is_poor) {
        let poor = usual.poor(table, at);
        poor.for_each(|clock| row.timeline.relate(clock, Relation::Unknown));
        row.derive_anew();
    }
    measured_rows.extend(rows.zip(read));
    is_poor
}

impl<'a> Cells<'a> {
    /// A count or nanoseconds.
    pub fn whole(&self, column: impl Named, row: usize) -> Option<i64> {
        let Some(replaced) = self.replaced.get(&row) else {
            return self.table.whole(column, row);
        };
        match (COLUMNS.get(column.place()?)?.get)(replaced) {
            Value::Nanos(nanos) => Some(nanos),
            Value::Time(at) => Some(at.nanos()),
            Value::Count(count) => i64::try_from(count).ok(),
            _ => None,
        }
    }

    /// A time of the engine's, where its clock compares with that of the row.
    pub fn of_engine(&self, column: ColumnId, row: usize) -> Option<i64> {
        let is_apart = match self.replaced.get(&row) {
            Some(row) => row.timeline.relation(ClockOf::Engine) == Relation::Unknown,
            None => matches!(self.table.text(ColumnId::clock_state, row), "" | "raw"),
        };
        self.whole(column, row).filter(|_| !is_apart)
    }

    /// When the request of a row was sent or arrived.
    pub fn begun(&self, row: usize) -> Option<i64> {
        let sent = self.whole(ColumnId::sent_time, row);
        sent.or_else(|| self.whole(ColumnId::arrival_time, row))
    }

    /// From one moment to another.
    pub fn between(&self, from: impl Named, to: impl Named, row: usize) -> Option<i64> {
        Some(self.whole(to, row)? - self.whole(from, row)?)
    }

    /// A row, as far as stages follow from it.
    pub fn row(&self, row: usize) -> Cow<'a, Row> {
        match self.replaced.get(&row) {
            Some(row) => Cow::Borrowed(row),
            None => Cow::Owned(self.table.row(row)),
        }
    }
}
