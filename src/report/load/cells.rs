//! The cells that figures are taken of: those of a table, but of some rows without what cannot be, or without what was
//! measured with a clock that is known too poorly.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::report::table::{Table, place_of};
use crate::request::cell::Value;
use crate::request::columns::COLUMNS;
use crate::request::impossible::believed;
use crate::request::row::Row;
use crate::request::timeline::{ClockOf, Relation};

use super::clocks::Usual;

/// Rows that stand in the place of a table's.
type Rows = HashMap<usize, Row>;

/// A request of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Its first row.
    pub row: usize,
    /// The row behind its last.
    pub end: usize,
    /// Whether it went well.
    pub is_ok: bool,
    /// Whether it arrived in the time that the figures are of.
    pub is_inside: bool,
    /// Whether it ended in it.
    pub ends_inside: bool,
    /// Whether one of its clocks is known too poorly.
    pub is_poor: bool,
}

/// What stands in place of a table's rows.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    believed: Rows,
    measured: Rows,
}

/// The cells of a table, but of the rows that are replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells<'a> {
    pub table: &'a Table,
    replaced: [&'a Rows; 2],
}

impl Request {
    pub fn rows(&self) -> std::ops::Range<usize> {
        self.row..self.end
    }
}

impl Replaced {
    /// Looks through the rows of a request; whether one of its clocks is known too poorly.
    pub fn look(&mut self, table: &Table, row: usize, end: usize, usual: &Usual) -> bool {
        let is_wrong = (row..end).any(|row| !table.text("inconsistency", row).is_empty());
        let is_poor = (row..end).any(|row| usual.poor(table, row).next().is_some());
        if !is_wrong && !is_poor {
            return false;
        }
        let mut rows = believed(&table.request(row)).into_owned();
        if is_wrong {
            self.believed.extend((row..end).zip(rows.clone()));
        }
        if is_poor {
            for (at, row) in (row..end).zip(&mut rows) {
                let poor = usual.poor(table, at);
                poor.for_each(|clock| row.timeline.relate(clock, Relation::Unknown));
                row.derive_anew();
            }
            self.measured.extend((row..end).zip(rows));
        }
        is_poor
    }

    /// The cells without what cannot be.
    pub fn believed<'a>(&'a self, table: &'a Table) -> Cells<'a> {
        Cells {
            table,
            replaced: [&self.believed, &self.believed],
        }
    }

    /// Those without poorly known clocks as well.
    pub fn measured<'a>(&'a self, table: &'a Table) -> Cells<'a> {
        Cells {
            table,
            replaced: [&self.measured, &self.believed],
        }
    }
}

impl<'a> Cells<'a> {
    fn replaced(&self, row: usize) -> Option<&'a Row> {
        let [first, second] = self.replaced;
        first.get(&row).or_else(|| second.get(&row))
    }

    /// A count or nanoseconds.
    pub fn whole(&self, column: &str, row: usize) -> Option<i64> {
        self.whole_at(place_of(column)?, row)
    }

    /// The same by the column's place in [`COLUMNS`].
    pub fn whole_at(&self, place: usize, row: usize) -> Option<i64> {
        match self.replaced(row) {
            Some(record) => match (COLUMNS.get(place)?.get)(record) {
                Value::Nanos(nanos) => Some(nanos),
                Value::Time(at) => Some(at.nanos()),
                Value::Count(count) => i64::try_from(count).ok(),
                _ => None,
            },
            None => self.table.whole_at(place, row),
        }
    }

    /// A time of the engine's, where its clock compares with that of the row.
    pub fn of_engine(&self, column: &str, row: usize) -> Option<i64> {
        let is_apart = match self.replaced(row) {
            Some(record) => record.timeline.relation(ClockOf::Engine) == Relation::Unknown,
            None => matches!(self.table.text("clock_state", row), "" | "raw"),
        };
        self.whole(column, row).filter(|_| !is_apart)
    }

    /// When the request of a row was sent or arrived.
    pub fn begun(&self, row: usize) -> Option<i64> {
        self.whole("sent_time", row)
            .or_else(|| self.whole("arrival_time", row))
    }

    /// From one moment to another.
    pub fn between(&self, from: &str, to: &str, row: usize) -> Option<i64> {
        Some(self.whole(to, row)? - self.whole(from, row)?)
    }

    /// The durations of a row that are within the error of their clocks.
    pub fn within_clock_error(&self, row: usize) -> Cow<'a, str> {
        match self.replaced(row) {
            Some(row) => row.within_clock_error.as_deref().unwrap_or_default().into(),
            None => self.table.text("within_clock_error", row).into(),
        }
    }

    /// A row, but for words of its own.
    pub fn row(&self, row: usize) -> Cow<'a, Row> {
        match self.replaced(row) {
            Some(record) => Cow::Borrowed(record),
            None => Cow::Owned(self.table.row(row)),
        }
    }
}
