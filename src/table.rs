//! Rows of requests: read from files and written to files, windowed, joined, and kept by column. Times count from the run's
//! beginning, whatever the file's counted from.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::clock::{NANOS, Stamp};
use crate::request::cell::Value;
use crate::request::column::Unit;
use crate::request::columns::{COLUMNS, Column, ColumnId};
use crate::request::row::Row;
use crate::request::timeline::{ClockOf, Relation};

pub mod cells;
pub mod join;
pub mod parquet;
pub mod rotated;
pub mod rows;
mod store;
pub mod window;
pub mod workers;

use store::Store;

/// Rows of requests, by column. A column that no row has a cell of costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Table {
    len: usize,
    /// In the order of [`COLUMNS`].
    columns: Vec<Store>,
    /// Whether a row is the first of its request.
    firsts: Vec<bool>,
    /// Clocks that were known too poorly at a row for what was measured with them, which was taken out.
    pub left_out: HashMap<usize, Vec<ClockOf>>,
}

/// Why files of rows cannot be read, or made.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct Error {
    /// The file, or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
    /// Whether it is to be written: what was given may be right.
    pub is_written: bool,
}

/// Columns that stages follow from, beside those of times, of clocks and of what is or is not.
const OF_STAGES: [ColumnId; 20] = [
    ColumnId::actual_output_tokens,
    ColumnId::total_latency,
    ColumnId::queue_time_in_router,
    ColumnId::tpot,
    ColumnId::client_stall,
    ColumnId::num_retractions,
    ColumnId::endpoint,
    ColumnId::outcome,
    ColumnId::clock_state,
    ColumnId::timing_source,
    ColumnId::seen_by,
    ColumnId::worker,
    ColumnId::unread,
    ColumnId::token_chunks,
    ColumnId::return_time,
    ColumnId::first_event_tokens,
    ColumnId::unseen,
    ColumnId::prefill_time,
    ColumnId::prefill_queue_time,
    ColumnId::kv_send_time,
];

static STAGED: LazyLock<Vec<ColumnId>> = LazyLock::new(|| {
    let columns = COLUMNS.iter().filter(|column| match column.unit {
        Unit::Time | Unit::Seconds | Unit::Bool => true,
        _ => OF_STAGES.contains(&column.id),
    });
    columns.map(|column| column.id).collect()
});

impl Error {
    /// That something cannot be read.
    pub fn read(path: &Path, what: impl ToString) -> Error {
        Error {
            path: path.to_owned(),
            what: what.to_string(),
            is_written: false,
        }
    }

    /// That something cannot be written.
    pub fn write(path: &Path, what: impl ToString) -> Error {
        Error {
            is_written: true,
            ..Error::read(path, what)
        }
    }
}

impl Table {
    /// Adds a row of the cells that are not empty.
    pub fn push_cells<'a>(&mut self, cells: impl IntoIterator<Item = (ColumnId, Value<'a>)>) {
        self.columns.resize_with(COLUMNS.len(), Store::default);
        for (column, cell) in cells {
            self.columns[column as usize].put(&cell, self.len, column);
        }
        self.len += 1;
        let first = self.begins_request(self.len - 1);
        self.firsts.push(first);
    }

    /// Adds a row.
    pub fn push_row(&mut self, row: &Row) {
        self.push_cells(COLUMNS.iter().map(|column| (column.id, (column.get)(row))));
    }

    /// Puts those cells of a row in the place of what it had that are of some columns.
    pub fn put_row(&mut self, at: usize, row: &Row, is_put: impl Fn(&Column) -> bool) {
        for column in COLUMNS.iter().filter(|column| is_put(column)) {
            let cell = (column.get)(row);
            if cell != self.value(column.id, at) {
                self.columns[column.id as usize].put(&cell, at, column.id);
            }
        }
    }

    /// Adds the rows of another table; a request's may have begun in this one.
    pub fn append(&mut self, more: Table) {
        self.columns.resize_with(COLUMNS.len(), Store::default);
        let columns = self.columns.iter_mut().zip(more.columns);
        columns.for_each(|(store, more)| store.append(more, self.len));
        let joint = self.len;
        let left_out = more.left_out.into_iter();
        self.left_out
            .extend(left_out.map(|(row, clocks)| (row + joint, clocks)));
        self.len += more.len;
        self.firsts.extend(more.firsts);
        let first = self.begins_request(joint);
        if let Some(known) = self.firsts.get_mut(joint) {
            *known = first;
        }
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn store(&self, column: ColumnId) -> &Store {
        self.columns.get(column as usize).unwrap_or(&Store::Nothing)
    }

    /// Whether any row has a cell in this column.
    pub fn has(&self, column: ColumnId) -> bool {
        !matches!(self.store(column), Store::Nothing)
    }

    /// A column of numbers, times (seconds since the run began) or durations (seconds): `NaN` where a row has none, no
    /// values at all where no row has one.
    pub fn numbers(&self, column: ColumnId) -> Vec<f64> {
        let rows = if self.has(column) { self.len } else { 0 };
        let number = |row| self.number(column, row).unwrap_or(f64::NAN);
        (0..rows).map(number).collect()
    }

    /// A number of a row that has it; times and durations in seconds.
    pub fn number(&self, column: ColumnId, row: usize) -> Option<f64> {
        let value = self.whole(column, row)? as f64;
        Some(match column.column().unit {
            Unit::Count => value,
            _ => value / NANOS as f64,
        })
    }

    /// The same as it is kept: a count, or nanoseconds.
    pub fn whole(&self, column: ColumnId, row: usize) -> Option<i64> {
        match self.store(column) {
            Store::Numbers(numbers) => numbers.get(row),
            _ => None,
        }
    }

    /// Nanoseconds from one moment to another.
    pub fn between(&self, from: ColumnId, to: ColumnId, row: usize) -> Option<i64> {
        Some(self.whole(to, row)? - self.whole(from, row)?)
    }

    /// A cell of a column of words; `True` and `False` are words.
    pub fn text(&self, column: ColumnId, row: usize) -> &str {
        match self.store(column) {
            Store::Words(words) => words.get(row),
            _ => "",
        }
    }

    /// Any cell.
    pub fn value(&self, column: ColumnId, row: usize) -> Value<'_> {
        let number = |of: fn(i64) -> Value<'static>| self.whole(column, row).map(of);
        let word = || Some(self.text(column, row)).filter(|word| !word.is_empty());
        let value = match column.column().unit {
            Unit::Text => word().map(|word| Value::Text(word.into())),
            Unit::Bool => word().map(|word| Value::Bool(word == "True")),
            Unit::Count => number(|count| Value::Count(count.unsigned_abs())),
            Unit::Latency | Unit::Seconds => number(Value::Nanos),
            Unit::Time => number(|at| Value::Time(Stamp::from_nanos(at))),
        };
        value.unwrap_or(Value::Empty)
    }

    /// A number for a row's word, the same for the same word; that of none is 0. See [`Table::codes`].
    pub fn code(&self, column: ColumnId, row: usize) -> usize {
        match self.store(column) {
            Store::Words(words) => words.row_code(row),
            _ => 0,
        }
    }

    /// How many different words a column has, with the empty one.
    pub fn codes(&self, column: ColumnId) -> usize {
        match self.store(column) {
            Store::Words(words) => words.all().count(),
            _ => 1,
        }
    }

    /// What stages follow from of a row, as if its request had no other. Stamps count from where the table's times do.
    pub fn row(&self, at: usize) -> Row {
        let mut rows = [self.read_row(at, STAGED.iter().copied())];
        Row::settle(&mut rows);
        let [mut row] = rows;
        row.index = u32::from(!self.is_first(at));
        let clocks = self.left_out.get(&at).into_iter().flatten();
        clocks.for_each(|clock| row.timeline.relate(*clock, Relation::Unknown));
        row
    }

    /// The rows of the request of a first row.
    pub fn request(&self, first: usize) -> Vec<Row> {
        let rows = self.rows_of(first);
        let mut rows: Vec<Row> = rows
            .map(|at| self.read_row(at, COLUMNS.iter().map(|column| column.id)))
            .collect();
        Row::settle(&mut rows);
        rows
    }

    fn read_row(&self, at: usize, columns: impl Iterator<Item = ColumnId>) -> Row {
        let mut row = Row::default();
        for column in columns {
            let value = self.value(column, at);
            if value != Value::Empty {
                (column.column().put)(&mut row, value);
            }
        }
        row
    }

    /// Whether a row stands for its request in sums of what its rows have in common: of a request of several sequences
    /// the first does.
    pub fn is_first(&self, row: usize) -> bool {
        self.firsts.get(row).copied().unwrap_or(false)
    }

    /// The first row of each request.
    pub fn firsts(&self) -> impl Iterator<Item = usize> {
        (0..self.len).filter(|row| self.is_first(*row))
    }

    /// The rows of the request of a first row.
    pub fn rows_of(&self, first: usize) -> std::ops::Range<usize> {
        let more = self.firsts.iter().skip(first + 1);
        first..first + 1 + more.take_while(|is_first| !**is_first).count()
    }

    /// Whether the request of a row went well.
    pub fn is_ok(&self, row: usize) -> bool {
        match self.text(ColumnId::outcome, row) {
            "" => self.text(ColumnId::success, row) == "True",
            outcome => outcome == "ok",
        }
    }

    /// When a request arrived: was sent by the generator, or came to the proxy; nanoseconds.
    pub fn begun(&self, row: usize) -> Option<i64> {
        let sent = self.whole(ColumnId::sent_time, row);
        sent.or_else(|| self.whole(ColumnId::arrival_time, row))
    }

    /// The place in the schedule of the request of a row: the number behind the last `-` of its id (before `#`).
    /// Rows of two runs with the same place are a pair.
    pub fn place(&self, row: usize) -> Option<usize> {
        let id = self.text(ColumnId::req_id, row);
        let id = id.split_once('#').map_or(id, |(id, _)| id);
        id.rsplit_once('-')?.1.parse().ok()
    }

    /// The rows of a request stand together, `#0` first; one that began nothing has none. A client's own id may hold a `#` too.
    fn begins_request(&self, row: usize) -> bool {
        let numbered = |row: usize| {
            let (id, index) = self.text(ColumnId::req_id, row).rsplit_once('#')?;
            Some((id, index.parse::<u32>().ok()?))
        };
        let Some((id, next)) = numbered(row) else {
            return true;
        };
        let before = row.checked_sub(1).and_then(numbered);
        before.is_none_or(|(before, index)| before != id || next <= index)
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::Cell;
