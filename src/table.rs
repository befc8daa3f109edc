//! Rows of requests, stored by column: reading and writing files, measurement window, join. Times in a table count from the
//! run's start, whatever they count from in the file.

use std::collections::HashMap;
use std::slice;

use crate::clock::{NANOS, Stamp};
use crate::request::cell::Value;
use crate::request::{COLUMNS, ClockOf, Column, ColumnId, Relation, Row, Unit};

pub mod cells;
pub mod join;
pub mod parquet;
pub mod rows;
mod store;
pub mod window;

use store::Store;

/// Rows of requests, by column. An empty column takes no memory.
#[derive(Clone, Debug, Default)]
pub struct Table {
    len: usize,
    /// In the order of [`COLUMNS`].
    columns: Vec<Store>,
    /// Whether a row is the first of its request.
    firsts: Vec<bool>,
    /// By row, the clocks whose offset was too uncertain, so that what was measured with them has been removed.
    pub unreliable_clocks: HashMap<usize, Vec<ClockOf>>,
}

/// What stages are computed from, besides times, flags and durations of the unit [`Unit::Seconds`]; to read all columns would take
/// time for each row.
const OF_STAGES: [ColumnId; 14] = [
    ColumnId::endpoint,
    ColumnId::outcome,
    ColumnId::attempts,
    ColumnId::total_latency,
    ColumnId::queue_time_in_router,
    ColumnId::prefill_queue_time,
    ColumnId::prefill_time,
    ColumnId::clock_state,
    ColumnId::timing_source,
    ColumnId::seen_by,
    ColumnId::worker,
    ColumnId::unread,
    ColumnId::ended_in,
    ColumnId::unseen,
];

impl Table {
    /// Adds a row of these cells; the others are empty.
    pub fn push_cells<'a>(&mut self, cells: impl IntoIterator<Item = (ColumnId, Value<'a>)>) {
        self.begin();
        for (column, cell) in cells {
            self.columns[column as usize].put(&cell, self.len);
        }
        self.len += 1;
        let is_first = self.begins_request(self.len - 1);
        self.firsts.push(is_first);
    }

    /// Adds a row.
    pub fn push_row(&mut self, row: &Row) {
        self.push_cells(COLUMNS.iter().map(|column| (column.id, (column.get)(row))));
    }

    /// Replaces the cells of row `at` in the columns for which `is_replaced`.
    pub fn put_row(&mut self, at: usize, row: &Row, is_replaced: impl Fn(&Column) -> bool) {
        for column in COLUMNS.iter().filter(|column| is_replaced(column)) {
            let cell = (column.get)(row);
            if cell != self.value(column.id, at) {
                self.columns[column.id as usize].put(&cell, at);
            }
        }
    }

    /// Appends the rows of another table, whose first may continue a request of this one.
    pub fn append(&mut self, more: Table) {
        self.begin();
        let columns = self.columns.iter_mut().zip(more.columns);
        columns.for_each(|(store, more)| store.append(more, self.len));
        let first = self.len;
        let unreliable = more.unreliable_clocks.into_iter();
        self.unreliable_clocks
            .extend(unreliable.map(|(row, clocks)| (row + first, clocks)));
        self.len += more.len;
        self.firsts.extend(more.firsts);
        let begins_request = self.begins_request(first);
        if let Some(is_first) = self.firsts.get_mut(first) {
            *is_first = begins_request;
        }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Creates the columns, before the first row.
    fn begin(&mut self) {
        if self.columns.is_empty() {
            self.columns = COLUMNS.iter().map(Store::of).collect();
        }
    }

    /// Whether any row has a cell in this column.
    pub fn has(&self, column: ColumnId) -> bool {
        let store = self.columns.get(column as usize);
        store.is_some_and(|store| !store.is_empty())
    }

    /// A number; times and durations in seconds. `None` if the cell is empty.
    pub fn number(&self, column: ColumnId, row: usize) -> Option<f64> {
        let value = self.integer(column, row)? as f64;
        Some(match column.column().unit {
            Unit::Count => value,
            _ => value / NANOS as f64,
        })
    }

    /// The same as an integer: a count, or nanoseconds.
    pub fn integer(&self, column: ColumnId, row: usize) -> Option<i64> {
        self.columns.get(column as usize)?.number(row)
    }

    /// Nanoseconds from one time column to another; `None` also if they are centuries apart.
    pub fn between(&self, from: ColumnId, to: ColumnId, row: usize) -> Option<i64> {
        self.integer(to, row)?.checked_sub(self.integer(from, row)?)
    }

    /// A text; empty if the cell is. Booleans are the texts `True` and `False`.
    pub fn text(&self, column: ColumnId, row: usize) -> &str {
        let store = self.columns.get(column as usize);
        store.and_then(|store| store.text(row)).unwrap_or_default()
    }

    /// Any cell.
    pub fn value(&self, column: ColumnId, row: usize) -> Value<'_> {
        let number = |value: fn(i64) -> Value<'static>| self.integer(column, row).map(value);
        let text = || Some(self.text(column, row)).filter(|text| !text.is_empty());
        let value = match column.column().unit {
            Unit::Text => text().map(|text| Value::Text(text.into())),
            Unit::Bool => text().map(|text| Value::Bool(text == "True")),
            Unit::Count => number(|count| Value::Count(count.unsigned_abs())),
            Unit::Latency | Unit::Seconds => number(Value::Nanos),
            Unit::Time => number(|at| Value::Time(Stamp::from_nanos(at))),
        };
        value.unwrap_or(Value::Empty)
    }

    /// Returns a row with the columns that stages are computed from, as if it were its request's only one. Its timestamps count
    /// from the run's start, as the table's do.
    pub fn row(&self, at: usize) -> Row {
        let mut row = self.read_row(at, |of| match of.unit {
            Unit::Time | Unit::Seconds | Unit::Bool => true,
            Unit::Text | Unit::Count | Unit::Latency => OF_STAGES.contains(&of.id),
        });
        Row::finish_reading(slice::from_mut(&mut row));
        row.index = u32::from(!self.is_first(at));
        let clocks = self.unreliable_clocks.get(&at).into_iter().flatten();
        clocks.for_each(|clock| row.timeline.relate(*clock, Relation::Unknown));
        row
    }

    /// Returns the whole rows of a request, given its first row.
    pub fn request(&self, first: usize) -> Vec<Row> {
        let rows = self.rows_of(first);
        let mut rows: Vec<Row> = rows.map(|at| self.read_row(at, |_| true)).collect();
        Row::finish_reading(&mut rows);
        rows
    }

    fn read_row(&self, at: usize, is_read: impl Fn(&Column) -> bool) -> Row {
        let mut row = Row::default();
        for column in COLUMNS.iter().filter(|column| is_read(column)) {
            let value = self.value(column.id, at);
            if value != Value::Empty {
                (column.put)(&mut row, value);
            }
        }
        row
    }

    /// Whether a row is the first of its request. Only this row counts in sums of values that a request's rows share.
    pub fn is_first(&self, row: usize) -> bool {
        self.firsts.get(row).copied().unwrap_or(false)
    }

    /// The first row of a row's request.
    pub fn first_of(&self, row: usize) -> usize {
        let mut rows = (0..=row).rev();
        rows.find(|row| self.is_first(*row)).unwrap_or(row)
    }

    /// The first row of each request.
    pub fn first_rows(&self) -> impl Iterator<Item = usize> {
        (0..self.len).filter(|row| self.is_first(*row))
    }

    /// The indices of a request's rows, given its first row.
    pub fn rows_of(&self, first: usize) -> std::ops::Range<usize> {
        let more = self.firsts.iter().skip(first + 1);
        first..first + 1 + more.take_while(|is_first| !**is_first).count()
    }

    /// Whether the request of a row succeeded.
    pub fn is_ok(&self, row: usize) -> bool {
        match self.text(ColumnId::outcome, row) {
            "" => self.text(ColumnId::success, row) == "True",
            outcome => outcome == "ok",
        }
    }

    /// When the generator sent the request of a row, or, in a proxy's rows, when it arrived; nanoseconds.
    pub fn arrival(&self, row: usize) -> Option<i64> {
        let sent = self.integer(ColumnId::sent_time, row);
        sent.or_else(|| self.integer(ColumnId::arrival_time, row))
    }

    /// When the request of a row arrived, as [`Table::arrival`] has it, or was due if it was never sent; nanoseconds.
    pub fn arrival_or_due(&self, row: usize) -> Option<i64> {
        let arrival = self.arrival(row);
        arrival.or_else(|| self.integer(ColumnId::scheduled_time, row))
    }

    /// When the request of a row was scheduled, or arrived if there was no schedule; nanoseconds.
    pub fn began(&self, row: usize) -> Option<i64> {
        let scheduled = self.integer(ColumnId::scheduled_time, row);
        scheduled.or_else(|| self.arrival(row))
    }

    /// When the request of a row ended, whoever ended it; nanoseconds.
    pub fn ended(&self, row: usize) -> Option<i64> {
        let end = self.integer(ColumnId::end_time, row);
        end.or_else(|| self.integer(ColumnId::finish_time, row))
    }

    /// The index of a row's request in the schedule: the number after the last `-` of its id (before `#`). By it a comparison
    /// pairs the rows of two runs.
    pub fn schedule_index(&self, row: usize) -> Option<usize> {
        let id = self.text(ColumnId::req_id, row);
        let id = id.split_once('#').map_or(id, |(id, _)| id);
        id.rsplit_once('-')?.1.parse().ok()
    }

    /// Whether a row is the first of its request. The rows of a request are neighbors, `#0` first; an id without `#` is a request
    /// of one row. A client's own id may contain a `#` too.
    fn begins_request(&self, row: usize) -> bool {
        let id_and_index = |row: usize| {
            let (id, index) = self.text(ColumnId::req_id, row).rsplit_once('#')?;
            Some((id, index.parse::<u32>().ok()?))
        };
        let Some((id, next)) = id_and_index(row) else {
            return true;
        };
        let before = row.checked_sub(1).and_then(id_and_index);
        before.is_none_or(|(before, index)| before != id || next <= index)
    }
}

#[cfg(test)]
mod tests;
