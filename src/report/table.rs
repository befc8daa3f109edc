//! The rows of a run, by column: what `requests.csv` or a proxy's records hold. Times count from the run's beginning,
//! whatever the file's counted from.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::LazyLock;

use crate::clock::{NANOS, Stamp};
use crate::request::column::{Unit, Value};
use crate::request::columns::COLUMNS;

/// Rows of requests, by column. A cell that is empty is `NaN`, or the empty text.
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
    Numbers(Vec<f64>),
    Words(Words),
    Ids(Ids),
}

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

/// A cell that is not empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    /// A number, or seconds.
    Number(f64),
    /// A word of few different ones.
    Word(&'a str),
    /// A word that no other row has.
    Id(&'a str),
}

impl Table {
    /// Adds a row of the cells that are not empty; names that are no column's are left out.
    pub fn push<'a>(&mut self, cells: impl IntoIterator<Item = (&'a str, Cell<'a>)>) {
        let cells = cells.into_iter();
        self.push_at(cells.filter_map(|(name, cell)| Some((*PLACES.get(name)?, cell))));
    }

    /// The same by the columns' places in [`COLUMNS`].
    pub fn push_at<'a>(&mut self, cells: impl IntoIterator<Item = (usize, Cell<'a>)>) {
        self.columns.resize_with(COLUMNS.len(), Store::default);
        for (column, cell) in cells {
            if let Some(store) = self.columns.get_mut(column) {
                store.push(cell, self.len);
            }
        }
        self.len += 1;
        let first = self.begins_request();
        self.firsts.push(first);
    }

    /// Ends a table: a column of numbers is as long as the table. `began`: where its times count from, Unix seconds, if
    /// that is known.
    pub fn finish(&mut self, began: Option<f64>) {
        for store in &mut self.columns {
            if let Store::Numbers(numbers) = store {
                numbers.resize(self.len, f64::NAN);
            }
        }
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

    /// A column of numbers, times (seconds since the run began) or durations (seconds); no values at all where no row
    /// has one.
    pub fn numbers(&self, column: &str) -> &[f64] {
        match self.store(column) {
            Some(Store::Numbers(numbers)) => numbers,
            _ => &[],
        }
    }

    /// A number of a row that has it.
    pub fn number(&self, column: &str, row: usize) -> Option<f64> {
        let value = self.numbers(column).get(row).copied();
        value.filter(|value| !value.is_nan())
    }

    /// A cell of a column of words; `True` and `False` are words.
    pub fn text(&self, column: &str, row: usize) -> &str {
        let word = match self.store(column) {
            Some(Store::Words(words)) => words.get(row),
            Some(Store::Ids(ids)) => ids.get(row),
            _ => None,
        };
        word.unwrap_or_default()
    }

    /// The different words of a column, the empty one first; which rows have which: [`Table::codes`].
    pub fn words(&self, column: &str) -> &[String] {
        match self.store(column) {
            Some(Store::Words(words)) => &words.words,
            _ => &[],
        }
    }

    /// The place in [`Table::words`] of each row's word; rows beyond the last have the empty one.
    pub fn codes(&self, column: &str) -> &[u32] {
        match self.store(column) {
            Some(Store::Words(words)) => &words.cells,
            _ => &[],
        }
    }

    /// A cell of the column at a place in [`COLUMNS`], as that column has it.
    pub fn value(&self, place: usize, row: usize) -> Option<Value<'_>> {
        let unit = COLUMNS.get(place)?.unit;
        let text = match self.columns.get(place)? {
            Store::Numbers(numbers) => {
                let number = numbers
                    .get(row)
                    .copied()
                    .filter(|number| !number.is_nan())?;
                let nanos = (number * NANOS as f64).round() as i64;
                return Some(match unit {
                    Unit::Count => Value::Count(number as u64),
                    Unit::Time => Value::Time(Stamp::from_nanos(nanos)),
                    _ => Value::Nanos(nanos),
                });
            }
            Store::Words(words) => words.get(row),
            Store::Ids(ids) => ids.get(row),
            Store::Nothing => None,
        };
        let text = text.filter(|text| !text.is_empty())?;
        Some(match unit {
            Unit::Bool => Value::Bool(text == "True"),
            _ => Value::Text(text.into()),
        })
    }

    fn store(&self, column: &str) -> Option<&Store> {
        self.columns.get(*PLACES.get(column)?)
    }

    /// Whether a row stands for its request in sums of what its rows have in common: of a request of several sequences
    /// the first does.
    pub fn is_first(&self, row: usize) -> bool {
        self.firsts.get(row).copied().unwrap_or(false)
    }

    /// Whether the request of a row went well.
    pub fn is_ok(&self, row: usize) -> bool {
        match self.text("outcome", row) {
            "" => self.text("success", row) == "True",
            outcome => outcome == "ok",
        }
    }

    /// The place in the schedule of the request of a row: the number behind the last `-` of its id (before `#`).
    /// Rows of two runs with the same place are a pair.
    pub fn place(&self, row: usize) -> Option<usize> {
        let id = self.text("req_id", row);
        let id = id.split_once('#').map_or(id, |(id, _)| id);
        id.rsplit_once('-')?.1.parse().ok()
    }

    /// The rows of a request stand together, `#0` first. A client's own id may hold a `#` too.
    fn begins_request(&self) -> bool {
        let Some(last) = self.len.checked_sub(1) else {
            return true;
        };
        let numbered = |row: usize| {
            let (id, index) = self.text("req_id", row).rsplit_once('#')?;
            Some((id, index.parse::<u32>().ok()?))
        };
        let before = last.checked_sub(1).and_then(numbered);
        match (before, numbered(last)) {
            (Some((before, index)), Some((id, next))) => before != id || index + 1 != next,
            _ => true,
        }
    }
}

impl Store {
    fn push(&mut self, cell: Cell<'_>, row: usize) {
        if let Store::Nothing = self {
            *self = match cell {
                Cell::Number(_) => Store::Numbers(Vec::new()),
                Cell::Word(_) => Store::Words(Words::default()),
                Cell::Id(_) => Store::Ids(Ids::default()),
            };
        }
        match (self, cell) {
            (Store::Numbers(numbers), Cell::Number(value)) => {
                numbers.resize(row, f64::NAN);
                numbers.push(value);
            }
            (Store::Words(words), Cell::Word(word) | Cell::Id(word)) => words.push(word, row),
            (Store::Ids(ids), Cell::Word(word) | Cell::Id(word)) => ids.push(word, row),
            // A column has cells of one kind.
            _ => {}
        }
    }
}

impl Words {
    fn push(&mut self, word: &str, row: usize) {
        if self.words.is_empty() {
            self.code("");
        }
        self.cells.resize(row, 0);
        // Most rows have the word of the row before.
        let last = self.cells.last().copied();
        let same = last.filter(|code| self.words.get(*code as usize).is_some_and(|w| w == word));
        let code = same.unwrap_or_else(|| self.code(word));
        self.cells.push(code);
    }

    fn code(&mut self, word: &str) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_request_are_told_from_requests_that_look_alike() {
        let mut table = Table::default();
        for id in ["a#0", "a#1", "a#1", "b#1", "b#2", "c", "d#0", "e#0", "-7"] {
            table.push([("req_id", Cell::Id(id))]);
        }
        table.finish(None);
        let firsts: Vec<bool> = (0..9).map(|row| table.is_first(row)).collect();
        let expected = [true, false, true, true, false, true, true, true, true];
        assert_eq!(firsts, expected);
        assert_eq!(table.place(8), Some(7));
        assert_eq!(table.text("req_id", 4), "b#2");
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
        assert_eq!(table.numbers("tpot"), [0.0; 0]);
        let hosts: Vec<&str> = (0..4).map(|row| table.text("host", row)).collect();
        assert_eq!(hosts, ["", "a", "", ""]);
        assert_eq!(table.words("host"), ["", "a"]);
        let ok: Vec<bool> = (0..4).map(|row| table.is_ok(row)).collect();
        assert_eq!(ok, [false, true, true, false]);
        assert_eq!(table.began(), Some(5.0));
    }
}
