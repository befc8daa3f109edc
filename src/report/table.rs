//! The rows of a run, by column: what `requests.csv` or a proxy's records hold. Times count from the run's beginning,
//! whatever the file's counted from.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::LazyLock;

use crate::clock::{NANOS, Stamp};
use crate::request::cell::Value;
use crate::request::column::Unit;
use crate::request::columns::COLUMNS;
use crate::request::row::Row;

/// Rows of requests, by column. A column that no row has a cell of costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Table {
    len: usize,
    /// In the order of [`COLUMNS`].
    columns: Vec<Store>,
    /// Whether a row is the first of its request.
    firsts: Vec<bool>,
    began: Option<f64>,
}

/// The cells of a column.
#[derive(Clone, Debug, Default)]
enum Store {
    /// No row has one.
    #[default]
    Nothing,
    /// Counts or nanoseconds; [`NONE`] where there is none.
    Numbers(Vec<i64>),
    Words(Words),
    Ids(Ids),
}

/// A number that no cell holds.
const NONE: i64 = i64::MIN;

/// A column of words, each distinct one kept once.
#[derive(Clone, Debug, Default)]
struct Words {
    words: Vec<String>,
    codes: HashMap<String, u32>,
    cells: Vec<u32>,
}

/// A column of words that are all different, in one piece of memory.
#[derive(Clone, Debug, Default)]
struct Ids {
    text: String,
    ends: Vec<usize>,
}

/// Columns whose words are different in every row.
const IDS: [&str; 5] = [
    "req_id",
    "trace_id",
    "engine_id",
    "span_id",
    "parent_span_id",
];

/// A column is looked up by its name for every cell that is asked for: the names are ours, and short, so a hash that
/// resists nobody will do (FNV-1a).
#[derive(Clone, Copy, Debug, Default)]
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Places = HashMap<&'static str, usize, BuildHasherDefault<Fnv>>;

static PLACES: LazyLock<Places> = LazyLock::new(|| {
    let names = COLUMNS.iter().map(|column| column.name);
    names.zip(0..).collect()
});

/// All columns.
static ALL: LazyLock<Vec<usize>> = LazyLock::new(|| (0..COLUMNS.len()).collect());

/// Those that stages and moments follow from: words that are the row's own say nothing of them.
static WORDLESS: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let own = [
        "req_id",
        "error",
        "host",
        "model",
        "process",
        "trace_id",
        "engine_id",
        "failed_attempts",
        "inconsistency",
        "within_clock_error",
    ];
    let all = COLUMNS.iter().enumerate();
    let all = all.filter(|(_, column)| !own.contains(&column.name));
    all.map(|(place, _)| place).collect()
});

/// The place of a column in [`COLUMNS`].
pub fn place_of(column: &str) -> Option<usize> {
    PLACES.get(column).copied()
}

impl Table {
    /// Adds a row of the cells that are not empty, by the columns' places in [`COLUMNS`].
    pub fn push_at<'a>(&mut self, cells: impl IntoIterator<Item = (usize, Value<'a>)>) {
        self.columns.resize_with(COLUMNS.len(), Store::default);
        for (column, cell) in cells {
            if let Some(store) = self.columns.get_mut(column) {
                store.push(&cell, self.len, column);
            }
        }
        self.len += 1;
        let first = self.begins_request(self.len - 1);
        self.firsts.push(first);
    }

    /// Adds a row.
    pub fn push_row(&mut self, row: &Row) {
        self.push_at((0..).zip(COLUMNS.iter().map(|column| (column.get)(row))));
    }

    /// Adds the rows of another table; a request's may have begun in this one.
    pub fn append(&mut self, more: Table) {
        if self.len == 0 {
            *self = Table {
                began: self.began,
                ..more
            };
            return;
        }
        let columns = self.columns.iter_mut().zip(more.columns);
        columns.for_each(|(store, more)| store.append(more, self.len));
        let joint = self.len;
        self.len += more.len;
        self.firsts.extend(more.firsts);
        let first = self.begins_request(joint);
        if let Some(known) = self.firsts.get_mut(joint) {
            *known = first;
        }
    }

    /// Says where its times count from, Unix seconds, if that is known.
    pub fn finish(&mut self, began: Option<f64>) {
        self.began = began;
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where its times count from, Unix seconds.
    pub fn began(&self) -> Option<f64> {
        self.began
    }

    /// Whether any row has a cell in this column.
    pub fn has(&self, column: &str) -> bool {
        !matches!(self.store(column), None | Some(Store::Nothing))
    }

    /// A column of numbers, times (seconds since the run began) or durations (seconds): `NaN` where a row has none, no
    /// values at all where no row has one.
    pub fn numbers(&self, column: &str) -> Vec<f64> {
        let rows = if self.has(column) { self.len } else { 0 };
        let number = |row| self.number(column, row).unwrap_or(f64::NAN);
        (0..rows).map(number).collect()
    }

    /// A number of a row that has it; times and durations in seconds.
    pub fn number(&self, column: &str, row: usize) -> Option<f64> {
        let place = place_of(column)?;
        let value = self.whole_at(place, row)? as f64;
        Some(match COLUMNS.get(place)?.unit {
            Unit::Count => value,
            _ => value / NANOS as f64,
        })
    }

    /// The same as it is kept: a count, or nanoseconds.
    pub fn whole(&self, column: &str, row: usize) -> Option<i64> {
        self.whole_at(place_of(column)?, row)
    }

    /// The same by the column's place in [`COLUMNS`].
    pub fn whole_at(&self, place: usize, row: usize) -> Option<i64> {
        match self.columns.get(place)? {
            Store::Numbers(numbers) => numbers.get(row).copied().filter(|value| *value != NONE),
            _ => None,
        }
    }

    /// A cell of a column of words; `True` and `False` are words.
    pub fn text(&self, column: &str, row: usize) -> &str {
        place_of(column).map_or("", |place| self.text_at(place, row))
    }

    /// The same by the column's place in [`COLUMNS`].
    pub fn text_at(&self, place: usize, row: usize) -> &str {
        let word = match self.columns.get(place) {
            Some(Store::Words(words)) => words.get(row),
            Some(Store::Ids(ids)) => ids.get(row),
            _ => None,
        };
        word.unwrap_or_default()
    }

    /// Any cell by the column's place in [`COLUMNS`].
    pub fn value_at(&self, place: usize, row: usize) -> Value<'_> {
        let unit = COLUMNS.get(place).map(|column| column.unit);
        let value = match unit {
            None | Some(Unit::Text | Unit::Bool) => {
                let text = Some(self.text_at(place, row)).filter(|text| !text.is_empty());
                text.map(|text| match unit {
                    Some(Unit::Bool) => Value::Bool(text == "True"),
                    _ => Value::Text(text.into()),
                })
            }
            Some(Unit::Count) => self
                .whole_at(place, row)
                .map(|n| Value::Count(n.unsigned_abs())),
            Some(Unit::Latency | Unit::Seconds) => self.whole_at(place, row).map(Value::Nanos),
            Some(Unit::Time) => {
                let at = self.whole_at(place, row).map(Stamp::from_nanos);
                at.map(Value::Time)
            }
        };
        value.unwrap_or(Value::Empty)
    }

    /// The different words of a column, the empty one first; which rows have which: [`Table::code`].
    pub fn words(&self, column: &str) -> &[String] {
        match self.store(column) {
            Some(Store::Words(words)) => &words.words,
            _ => &[],
        }
    }

    /// The place in [`Table::words`] of a row's word.
    pub fn code(&self, column: &str, row: usize) -> usize {
        match self.store(column) {
            Some(Store::Words(words)) => words.cells.get(row).map_or(0, |code| *code as usize),
            _ => 0,
        }
    }

    /// A row by itself, as if its request had no other, but for its words. Stamps count from where the table's times do.
    pub fn row(&self, at: usize) -> Row {
        let mut rows = [self.read_row(at, &WORDLESS)];
        Row::settle(&mut rows);
        let [mut row] = rows;
        row.index = u32::from(!self.is_first(at));
        row
    }

    /// The rows of the request of a first row.
    pub fn request(&self, first: usize) -> Vec<Row> {
        let mut rows: Vec<Row> = self
            .rows_of(first)
            .map(|at| self.read_row(at, &ALL))
            .collect();
        Row::settle(&mut rows);
        rows
    }

    fn read_row(&self, at: usize, places: &[usize]) -> Row {
        let mut row = Row::default();
        for place in places {
            let value = self.value_at(*place, at);
            if let (false, Some(column)) = (value == Value::Empty, COLUMNS.get(*place)) {
                (column.put)(&mut row, value);
            }
        }
        row
    }

    fn store(&self, column: &str) -> Option<&Store> {
        self.columns.get(place_of(column)?)
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
        let more = self
            .firsts
            .iter()
            .skip(first + 1)
            .take_while(|is_first| !**is_first);
        first..first + 1 + more.count()
    }

    /// Whether the request of a row went well.
    pub fn is_ok(&self, row: usize) -> bool {
        match self.text("outcome", row) {
            "" => self.text("success", row) == "True",
            outcome => outcome == "ok",
        }
    }

    /// When a request arrived: was sent by the generator, or came to the proxy; nanoseconds.
    pub fn begun(&self, row: usize) -> Option<i64> {
        self.whole("sent_time", row)
            .or_else(|| self.whole("arrival_time", row))
    }

    /// The place in the schedule of the request of a row: the number behind the last `-` of its id (before `#`).
    /// Rows of two runs with the same place are a pair.
    pub fn place(&self, row: usize) -> Option<usize> {
        let id = self.text("req_id", row);
        let id = id.split_once('#').map_or(id, |(id, _)| id);
        id.rsplit_once('-')?.1.parse().ok()
    }

    /// The rows of a request stand together, `#0` first; one that began nothing has none. A client's own id may hold a `#` too.
    fn begins_request(&self, row: usize) -> bool {
        let numbered = |row: usize| {
            let (id, index) = self.text("req_id", row).rsplit_once('#')?;
            Some((id, index.parse::<u32>().ok()?))
        };
        let before = row.checked_sub(1).and_then(numbered);
        match (before, numbered(row)) {
            (Some((before, index)), Some((id, next))) => before != id || next <= index,
            _ => true,
        }
    }
}

impl Store {
    fn push(&mut self, cell: &Value<'_>, row: usize, column: usize) {
        let (number, text) = match cell {
            Value::Empty => return,
            Value::Count(count) => (i64::try_from(*count).unwrap_or(i64::MAX), None),
            Value::Nanos(nanos) => (*nanos, None),
            Value::Time(at) => (at.nanos(), None),
            Value::Bool(true) => (NONE, Some("True")),
            Value::Bool(false) => (NONE, Some("False")),
            Value::Text(text) => (NONE, Some(text.as_ref())),
        };
        if let Store::Nothing = self {
            let is_id = || {
                COLUMNS
                    .get(column)
                    .is_some_and(|column| IDS.contains(&column.name))
            };
            *self = match text {
                None => Store::Numbers(Vec::new()),
                Some(_) if is_id() => Store::Ids(Ids::default()),
                Some(_) => Store::Words(Words::default()),
            };
        }
        match (self, text) {
            (Store::Numbers(numbers), None) => {
                numbers.resize(row, NONE);
                numbers.push(number);
            }
            (Store::Words(words), Some(word)) => words.push(word, row),
            (Store::Ids(ids), Some(word)) => ids.push(word, row),
            // A column has cells of one kind.
            _ => {}
        }
    }

    /// Adds the cells of rows behind this many.
    fn append(&mut self, more: Store, rows: usize) {
        match (&mut *self, more) {
            (_, Store::Nothing) => {}
            (Store::Numbers(numbers), Store::Numbers(more)) => {
                numbers.resize(rows, NONE);
                numbers.extend(more);
            }
            (Store::Words(words), Store::Words(more)) => {
                let codes: Vec<u32> = more.words.iter().map(|word| words.code(word)).collect();
                words.cells.resize(rows, 0);
                let cells = more
                    .cells
                    .iter()
                    .filter_map(|code| codes.get(*code as usize));
                words.cells.extend(cells);
            }
            (Store::Ids(ids), Store::Ids(more)) => {
                ids.ends.resize(rows, ids.text.len());
                let before = ids.text.len();
                ids.text.push_str(&more.text);
                ids.ends.extend(more.ends.iter().map(|end| before + end));
            }
            (nothing @ Store::Nothing, more) => {
                *nothing = match more {
                    Store::Numbers(_) => Store::Numbers(Vec::new()),
                    Store::Words(_) => Store::Words(Words::default()),
                    _ => Store::Ids(Ids::default()),
                };
                nothing.append(more, rows);
            }
            // A column has cells of one kind.
            _ => {}
        }
    }
}

impl Words {
    fn push(&mut self, word: &str, row: usize) {
        self.cells.resize(row, 0);
        // Most rows have the word of the row before.
        let last = self.cells.last().copied();
        let same = last.filter(|code| self.words.get(*code as usize).is_some_and(|w| w == word));
        let code = same.unwrap_or_else(|| self.code(word));
        self.cells.push(code);
    }

    fn code(&mut self, word: &str) -> u32 {
        if self.words.is_empty() {
            self.words.push(String::new());
            self.codes.insert(String::new(), 0);
        }
        if let Some(code) = self.codes.get(word) {
            return *code;
        }
        let code = self.words.len() as u32;
        self.words.push(word.to_owned());
        self.codes.insert(word.to_owned(), code);
        code
    }

    fn get(&self, row: usize) -> Option<&str> {
        let code = *self.cells.get(row)?;
        self.words.get(code as usize).map(String::as_str)
    }
}

impl Ids {
    fn push(&mut self, id: &str, row: usize) {
        self.ends.resize(row, self.text.len());
        self.text.push_str(id);
        self.ends.push(self.text.len());
    }

    fn get(&self, row: usize) -> Option<&str> {
        let end = *self.ends.get(row)?;
        let start = row.checked_sub(1).and_then(|row| self.ends.get(row));
        self.text.get(start.copied().unwrap_or(0)..end)
    }
}

/// A cell as tests write it: a count or seconds, or words.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(crate) enum Cell<'a> {
    Number(f64),
    Word(&'a str),
    Id(&'a str),
}

#[cfg(test)]
impl Table {
    pub(crate) fn push<'a>(&mut self, cells: impl IntoIterator<Item = (&'a str, Cell<'a>)>) {
        let value = |(name, cell): (&str, Cell<'a>)| {
            let place = place_of(name)?;
            let value = match cell {
                Cell::Number(value) if COLUMNS.get(place)?.unit == Unit::Count => {
                    Value::Count(value as u64)
                }
                Cell::Number(value) => Value::Nanos((value * NANOS as f64).round() as i64),
                Cell::Word(word) | Cell::Id(word) => Value::Text(word.into()),
            };
            Some((place, value))
        };
        self.push_at(cells.into_iter().filter_map(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_request_are_told_from_requests_that_look_alike() {
        let mut table = Table::default();
        for id in ["a#0", "a#1", "a#1", "b#1", "b#3", "c", "d#0", "e#0", "-7"] {
            table.push([("req_id", Cell::Id(id))]);
        }
        table.finish(None);
        let firsts: Vec<bool> = (0..9).map(|row| table.is_first(row)).collect();
        let expected = [true, false, true, true, false, true, true, true, true];
        assert_eq!(firsts, expected);
        assert_eq!(table.place(8), Some(7));
        assert_eq!(table.text("req_id", 4), "b#3");
    }

    #[test]
    fn what_a_row_lacks_is_empty_wherever_it_stands() {
        let mut table = Table::default();
        table.push([("ttft", Cell::Number(1.0))]);
        table.push([("host", Cell::Word("a")), ("outcome", Cell::Word("ok"))]);
        table.push([("success", Cell::Word("True"))]);
        table.push([]);
        table.finish(Some(5.0));
        assert_eq!(table.numbers("ttft").len(), 4);
        assert_eq!(table.number("ttft", 0), Some(1.0));
        assert_eq!(table.number("ttft", 3), None);
        assert!(table.numbers("tpot").is_empty());
        let hosts: Vec<&str> = (0..4).map(|row| table.text("host", row)).collect();
        assert_eq!(hosts, ["", "a", "", ""]);
        assert_eq!(table.words("host"), ["", "a"]);
        let ok: Vec<bool> = (0..4).map(|row| table.is_ok(row)).collect();
        assert_eq!(ok, [false, true, true, false]);
        assert_eq!(table.began(), Some(5.0));
    }
}
