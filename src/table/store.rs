//! The cells of a column.

use std::collections::HashMap;

use crate::request::cell::Value;
use crate::request::columns::ColumnId;

/// The cells of a column, which are of one kind.
#[derive(Clone, Debug, Default)]
pub enum Store {
    /// No row has one.
    #[default]
    Nothing,
    /// Counts or nanoseconds.
    Numbers(Numbers),
    /// `True` and `False` are words too.
    Words(Words),
}

/// Columns whose words are different in every row.
const IDS: [ColumnId; 5] = [
    ColumnId::req_id,
    ColumnId::trace_id,
    ColumnId::engine_id,
    ColumnId::span_id,
    ColumnId::parent_span_id,
];

/// A column of numbers: in half the room as long as all fit. Who has none has the least that there is.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    narrow: Vec<i32>,
    wide: Vec<i64>,
}

/// A column of words, kept in one piece of memory: each distinct one once, but for those that are different in every row.
#[derive(Clone, Debug, Default)]
pub struct Words {
    text: String,
    /// Where each word ends; the first is the empty one.
    ends: Vec<usize>,
    /// The places of words in `ends`; of words that are all different nothing.
    codes: HashMap<String, u32, ahash::RandomState>,
    are_ids: bool,
    cells: Vec<u32>,
}

impl Store {
    /// Puts a cell into a row of the column: into a new one, or in the place of what it had.
    pub fn put(&mut self, cell: &Value<'_>, row: usize, column: ColumnId) {
        match cell {
            Value::Empty => match self {
                Store::Nothing => {}
                Store::Numbers(numbers) => numbers.clear(row),
                Store::Words(words) => words.clear(row),
            },
            Value::Count(count) => self.number(i64::try_from(*count).unwrap_or(i64::MAX), row),
            Value::Nanos(nanos) => self.number(*nanos, row),
            Value::Time(at) => self.number(at.nanos(), row),
            Value::Bool(true) => self.word("True", row, column),
            Value::Bool(false) => self.word("False", row, column),
            Value::Text(text) => self.word(text, row, column),
        }
    }

    fn number(&mut self, number: i64, row: usize) {
        if let Store::Nothing = self {
            *self = Store::Numbers(Numbers::default());
        }
        if let Store::Numbers(numbers) = self {
            numbers.put(number, row);
        }
    }

    fn word(&mut self, word: &str, row: usize, column: ColumnId) {
        if let Store::Nothing = self {
            *self = Store::Words(Words::new(IDS.contains(&column)));
        }
        if let Store::Words(words) = self {
            let code = words.code(word);
            put(&mut words.cells, row, code, 0);
        }
    }

    /// Adds the cells of rows behind this many.
    pub fn append(&mut self, more: Store, rows: usize) {
        if let Store::Nothing = self {
            *self = match &more {
                Store::Nothing => Store::Nothing,
                Store::Numbers(_) => Store::Numbers(Numbers::default()),
                Store::Words(more) => Store::Words(Words::new(more.are_ids)),
            };
        }
        match (self, more) {
            (Store::Numbers(numbers), Store::Numbers(more)) => numbers.append(more, rows),
            (Store::Words(words), Store::Words(more)) => {
                words.cells.resize(rows, 0);
                let codes: Vec<u32> = more.all().map(|word| words.code(word)).collect();
                let cells = more
                    .cells
                    .iter()
                    .filter_map(|code| codes.get(*code as usize));
                words.cells.extend(cells);
            }
            _ => {}
        }
    }
}

impl Numbers {
    /// That of a row.
    pub fn get(&self, row: usize) -> Option<i64> {
        match self.narrow.get(row) {
            Some(number) => Some(i64::from(*number)).filter(|_| *number != i32::MIN),
            None => self
                .wide
                .get(row)
                .copied()
                .filter(|number| *number != i64::MIN),
        }
    }

    fn put(&mut self, number: i64, row: usize) {
        match i32::try_from(number) {
            Ok(number) if self.wide.is_empty() && number != i32::MIN => {
                put(&mut self.narrow, row, number, i32::MIN);
            }
            _ => {
                self.widen();
                put(&mut self.wide, row, number, i64::MIN);
            }
        }
    }

    fn clear(&mut self, row: usize) {
        if let Some(number) = self.narrow.get_mut(row) {
            *number = i32::MIN;
        } else if let Some(number) = self.wide.get_mut(row) {
            *number = i64::MIN;
        }
    }

    fn append(&mut self, mut more: Numbers, rows: usize) {
        if self.wide.is_empty() && more.wide.is_empty() {
            self.narrow.resize(rows, i32::MIN);
            return self.narrow.append(&mut more.narrow);
        }
        self.widen();
        more.widen();
        self.wide.resize(rows, i64::MIN);
        self.wide.append(&mut more.wide);
    }

    fn widen(&mut self) {
        let narrow = std::mem::take(&mut self.narrow).into_iter();
        let wide = |number: i32| {
            if number == i32::MIN {
                i64::MIN
            } else {
                number.into()
            }
        };
        self.wide.extend(narrow.map(wide));
    }
}

impl Words {
    fn new(are_ids: bool) -> Words {
        Words {
            ends: vec![0],
            are_ids,
            ..Words::default()
        }
    }

    fn clear(&mut self, row: usize) {
        if let Some(code) = self.cells.get_mut(row) {
            *code = 0;
        }
    }

    /// The word of a row; the empty one where it has none.
    pub fn get(&self, row: usize) -> &str {
        self.at(self.row_code(row)).unwrap_or_default()
    }

    /// The place of a row's word among [`Words::all`].
    pub fn row_code(&self, row: usize) -> usize {
        self.cells.get(row).map_or(0, |code| *code as usize)
    }

    /// The different words, the empty one first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).filter_map(|code| self.at(code))
    }

    fn at(&self, code: usize) -> Option<&str> {
        let before = code.checked_sub(1).and_then(|before| self.ends.get(before));
        self.text
            .get(before.copied().unwrap_or(0)..*self.ends.get(code)?)
    }

    fn code(&mut self, word: &str) -> u32 {
        // Most rows have the word of the row before.
        let last = self.cells.last().map_or(0, |code| *code);
        if word.is_empty() {
            return 0;
        }
        if self.at(last as usize) == Some(word) {
            return last;
        }
        if let Some(code) = self.codes.get(word) {
            return *code;
        }
        let code = self.ends.len() as u32;
        self.text.push_str(word);
        self.ends.push(self.text.len());
        if !self.are_ids {
            self.codes.insert(word.to_owned(), code);
        }
        code
    }
}

/// Puts a cell where it belongs; rows before it that had none get that.
fn put<C: Copy>(cells: &mut Vec<C>, row: usize, cell: C, none: C) {
    if cells.len() <= row {
        cells.resize(row + 1, none);
    }
    cells[row] = cell;
}
