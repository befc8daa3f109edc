//! The cells of a column.

use std::collections::HashMap;

use crate::request::cell::Value;
use crate::request::{Column, ColumnId, Unit};

/// The cells of a column, of the kind of its unit. A column without cells takes no memory.
#[derive(Clone, Debug)]
pub enum Store {
    /// Counts or nanoseconds.
    Numbers(Numbers),
    /// Texts, and booleans as `True` and `False`.
    Texts(Texts),
}

/// Columns whose texts differ in every row, or nearly: the request's id, and others.
pub(super) const IDS: [ColumnId; 6] = [
    ColumnId::req_id,
    ColumnId::trace_id,
    ColumnId::engine_id,
    ColumnId::span_id,
    ColumnId::parent_span_id,
    ColumnId::bootstrap_room,
];

/// A column of numbers, in `narrow` as long as all fit into 32 bits, else in `wide`. The minimum of the type is an empty cell.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    narrow: Vec<i32>,
    wide: Vec<i64>,
}

/// An empty cell of numbers.
const EMPTY: i64 = i64::MIN;

/// A column of texts, dictionary encoded. The texts of [`IDS`] are not looked up in the dictionary, as nearly all differ.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    /// All distinct texts, one after the other.
    dictionary: String,
    /// Where each text ends in the dictionary, by code. Code 0 is the empty text.
    ends: Vec<usize>,
    /// The code of each distinct text; empty for ids.
    codes: HashMap<String, u32, ahash::RandomState>,
    are_ids: bool,
    /// The code of each row's text.
    cells: Vec<u32>,
}

impl Store {
    /// A column without cells.
    pub fn of(column: &Column) -> Store {
        match column.unit {
            Unit::Text | Unit::Bool => Store::Texts(Texts::new(IDS.contains(&column.id))),
            _ => Store::Numbers(Numbers::default()),
        }
    }

    /// Whether no row has a cell in this column.
    pub fn is_empty(&self) -> bool {
        match self {
            Store::Numbers(numbers) => numbers.narrow.is_empty() && numbers.wide.is_empty(),
            Store::Texts(texts) => texts.cells.is_empty(),
        }
    }

    /// Sets the cell of a row, which may be a new one.
    pub fn put(&mut self, cell: &Value<'_>, row: usize) {
        match self {
            Store::Numbers(numbers) => numbers.put(cell.integer().unwrap_or(EMPTY), row),
            Store::Texts(texts) => {
                let code = texts.code(cell.text());
                put(&mut texts.cells, row, code, 0);
            }
        }
    }

    /// Appends the cells of the same column of another table to this one of `rows` rows.
    pub fn append(&mut self, more: Store, rows: usize) {
        match (self, more) {
            (_, more) if more.is_empty() => {}
            (Store::Numbers(numbers), Store::Numbers(more)) => numbers.append(more, rows),
            (Store::Texts(texts), Store::Texts(more)) => {
                texts.cells.resize(rows, 0);
                let codes: Vec<u32> = more.all().map(|text| texts.code(text)).collect();
                let cells = more.cells.iter();
                let cells = cells.filter_map(|code| codes.get(*code as usize));
                texts.cells.extend(cells);
            }
            _ => {}
        }
    }
}

impl Numbers {
    /// The number of a row, `None` if its cell is empty.
    pub fn get(&self, row: usize) -> Option<i64> {
        let narrow = self.narrow.get(row).map(|number| widened(*number));
        let number = narrow.or_else(|| self.wide.get(row).copied());
        number.filter(|number| *number != EMPTY)
    }

    fn put(&mut self, number: i64, row: usize) {
        match narrowed(number) {
            Some(number) if self.wide.is_empty() => put(&mut self.narrow, row, number, i32::MIN),
            _ => {
                self.widen();
                put(&mut self.wide, row, number, EMPTY);
            }
        }
    }

    fn append(&mut self, mut more: Numbers, rows: usize) {
        if self.wide.is_empty() && more.wide.is_empty() {
            self.narrow.resize(rows, i32::MIN);
            return self.narrow.append(&mut more.narrow);
        }
        self.widen();
        more.widen();
        self.wide.resize(rows, EMPTY);
        self.wide.append(&mut more.wide);
    }

    fn widen(&mut self) {
        let narrow = std::mem::take(&mut self.narrow).into_iter();
        self.wide.extend(narrow.map(widened));
    }
}

impl Texts {
    fn new(are_ids: bool) -> Texts {
        Texts {
            ends: vec![0],
            are_ids,
            ..Texts::default()
        }
    }

    /// The text of a row; empty if its cell is.
    pub fn get(&self, row: usize) -> &str {
        let code = self.cells.get(row).map_or(0, |code| *code as usize);
        self.of_code(code).unwrap_or_default()
    }

    /// The distinct texts by code, the empty one first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).filter_map(|code| self.of_code(code))
    }

    fn of_code(&self, code: usize) -> Option<&str> {
        let start = code.checked_sub(1).and_then(|before| self.ends.get(before));
        self.dictionary
            .get(start.copied().unwrap_or(0)..*self.ends.get(code)?)
    }

    /// Returns the code of a text, which is added if it is new.
    fn code(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        // Most rows have the text of the row before.
        let last = self.cells.last().map_or(0, |code| *code);
        if self.of_code(last as usize) == Some(text) {
            return last;
        }
        if let Some(code) = self.codes.get(text) {
            return *code;
        }
        let code = self.ends.len() as u32;
        self.dictionary.push_str(text);
        self.ends.push(self.dictionary.len());
        if !self.are_ids {
            self.codes.insert(text.to_owned(), code);
        }
        code
    }
}

fn widened(number: i32) -> i64 {
    match number {
        i32::MIN => EMPTY,
        number => number.into(),
    }
}

/// The same number in 32 bits, if it fits.
fn narrowed(number: i64) -> Option<i32> {
    match number {
        EMPTY => Some(i32::MIN),
        number => i32::try_from(number).ok().filter(|of| *of != i32::MIN),
    }
}

/// Sets a row's cell. New rows before it get `empty`; an empty cell makes none.
fn put<C: Copy + PartialEq>(cells: &mut Vec<C>, row: usize, cell: C, empty: C) {
    if cells.len() <= row && cell != empty {
        cells.resize(row + 1, empty);
    }
    if let Some(old) = cells.get_mut(row) {
        *old = cell;
    }
}
