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
    /// Adds the cell of a row behind this many to the column of this place.
    pub fn push(&mut self, cell: &Value<'_>, rows: usize, place: usize) {
        match cell {
            Value::Empty => {}
            Value::Count(count) => self.number(i64::try_from(*count).unwrap_or(i64::MAX), rows),
            Value::Nanos(nanos) => self.number(*nanos, rows),
            Value::Time(at) => self.number(at.nanos(), rows),
            Value::Bool(true) => self.word("True", rows, place),
            Value::Bool(false) => self.word("False", rows, place),
            Value::Text(text) => self.word(text, rows, place),
        }
    }

    fn number(&mut self, number: i64, rows: usize) {
        if let Store::Nothing = self {
            *self = Store::Numbers(Numbers::default());
        }
        if let Store::Numbers(numbers) = self {
            numbers.push(number, rows);
        }
    }

    fn word(&mut self, word: &str, rows: usize, place: usize) {
        if let Store::Nothing = self {
            let are_ids = IDS.iter().any(|id| *id as usize == place);
            *self = Store::Words(Words::new(are_ids));
        }
        if let Store::Words(words) = self {
            words.cells.resize(rows, 0);
            let code = words.code(word);
            words.cells.push(code);
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

    fn push(&mut self, number: i64, rows: usize) {
        match i32::try_from(number) {
            Ok(number) if self.wide.is_empty() && number != i32::MIN => {
                self.narrow.resize(rows, i32::MIN);
                self.narrow.push(number);
            }
            _ => {
                self.widen();
                self.wide.resize(rows, i64::MIN);
                self.wide.push(number);
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
