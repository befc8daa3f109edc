//! The cells of a column.

use std::collections::HashMap;

use crate::request::cell::Value;
use crate::request::{Column, ColumnId, Unit};

/// The cells of a column. Without any it takes no memory.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// Counts or nanoseconds, or the codes of texts.
    cells: Integers,
    /// The texts, if it is a column of texts, or of booleans: `True` and `False`.
    texts: Option<Texts>,
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

/// Integers or empty cells, in as few bytes each as all of them fit into: six for the times of a day, in nanoseconds.
#[derive(Clone, Debug, Default)]
struct Integers {
    rows: usize,
    /// The bytes of a cell; 0 if there are no cells.
    width: usize,
    /// The cells, little-endian, after [`WORD`] bytes: whichever cell is read, it is the end of a whole word. The smallest
    /// integer of this width is an empty cell.
    bytes: Vec<u8>,
}

/// The bytes of an `i64`.
const WORD: usize = size_of::<i64>();

/// Texts, dictionary encoded. Those of [`IDS`] are not looked up in the dictionary, as nearly all differ.
#[derive(Clone, Debug, Default)]
struct Texts {
    /// All distinct texts, one after the other.
    dictionary: String,
    /// Where each text ends in the dictionary, by code.
    ends: Vec<usize>,
    /// The code of each distinct text; empty for ids.
    codes: HashMap<String, i64, ahash::RandomState>,
    are_ids: bool,
}

impl Store {
    /// A column without cells.
    pub fn of(column: &Column) -> Store {
        let has_texts = matches!(column.unit, Unit::Text | Unit::Bool);
        let texts = has_texts.then(|| Texts {
            are_ids: IDS.contains(&column.id),
            ..Texts::default()
        });
        Store {
            texts,
            ..Store::default()
        }
    }

    /// Whether no row has a cell in this column.
    pub fn is_empty(&self) -> bool {
        self.cells.rows == 0
    }

    /// The number of a row; `None` if its cell is empty.
    pub fn number(&self, row: usize) -> Option<i64> {
        self.cells.get(row).filter(|_| self.texts.is_none())
    }

    /// The text of a row; `None` if its cell is empty.
    pub fn text(&self, row: usize) -> Option<&str> {
        self.texts.as_ref()?.of_code(self.cells.get(row)? as usize)
    }

    /// Sets the cell of a row, which may be a new one.
    pub fn put(&mut self, cell: &Value<'_>, row: usize) {
        let cell = match &mut self.texts {
            None => cell.integer(),
            Some(texts) => {
                let before = row.checked_sub(1).and_then(|row| self.cells.get(row));
                texts.code(cell.text(), before)
            }
        };
        self.cells.put(cell, row);
    }

    /// Appends the cells of the same column of another table to this one of `rows` rows.
    pub fn append(&mut self, more: Store, rows: usize) {
        let (Some(texts), Some(others)) = (&mut self.texts, &more.texts) else {
            return self.cells.append(more.cells, rows);
        };
        let codes = others.all().map(|text| texts.code(text, None));
        let codes: Vec<Option<i64>> = codes.collect();
        for row in 0..more.cells.rows {
            let code = more.cells.get(row).and_then(|code| codes[code as usize]);
            self.cells.put(code, rows + row);
        }
    }
}

impl Integers {
    /// The integer of a row, `None` if its cell is empty.
    fn get(&self, row: usize) -> Option<i64> {
        let at = (row + 1) * self.width;
        let word = self.bytes.get(at..at + WORD)?.try_into().ok()?;
        let unused = 8 * (WORD - self.width);
        let integer = i64::from_le_bytes(word) >> unused;
        (integer != i64::MIN >> unused).then_some(integer)
    }

    /// Sets a row's cell. New rows before it are empty; an empty cell makes none.
    fn put(&mut self, cell: Option<i64>, row: usize) {
        if cell.is_none() && row >= self.rows {
            return;
        }
        self.widen(cell.map_or(0, width_of));
        self.fill(row);
        if row == self.rows {
            return self.push(cell);
        }
        let (at, word) = (WORD + row * self.width, self.word(cell));
        self.bytes[at..at + self.width].copy_from_slice(&word[..self.width]);
    }

    /// Appends the cells of another column to this one of `rows` rows.
    fn append(&mut self, mut more: Integers, rows: usize) {
        if more.rows == 0 {
            return;
        }
        self.widen(more.width);
        more.widen(self.width);
        self.fill(rows);
        self.rows += more.rows;
        self.bytes.extend_from_slice(&more.bytes[WORD..]);
    }

    /// Adds empty cells, up to so many rows.
    fn fill(&mut self, rows: usize) {
        while self.rows < rows {
            self.push(None);
        }
    }

    fn push(&mut self, cell: Option<i64>) {
        self.bytes.extend_from_slice(&self.word(cell));
        self.rows += 1;
        self.bytes.truncate(WORD + self.rows * self.width);
    }

    /// A cell, followed by what a word has more.
    fn word(&self, cell: Option<i64>) -> [u8; WORD] {
        cell.unwrap_or(i64::MIN >> (8 * (WORD - self.width)))
            .to_le_bytes()
    }

    /// Makes cells of at least so many bytes.
    fn widen(&mut self, width: usize) {
        if width <= self.width {
            return;
        }
        let wider = Integers {
            rows: 0,
            width,
            bytes: vec![0; WORD],
        };
        let old = std::mem::replace(self, wider);
        (0..old.rows).for_each(|row| self.push(old.get(row)));
    }
}

/// The bytes that an integer needs, if its negative is to fit too.
fn width_of(integer: i64) -> usize {
    let bits = 1 + i64::BITS - integer.unsigned_abs().leading_zeros();
    WORD.min(bits.div_ceil(8) as usize)
}

impl Texts {
    /// The distinct texts by code.
    fn all(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).filter_map(|code| self.of_code(code))
    }

    fn of_code(&self, code: usize) -> Option<&str> {
        let start = code.checked_sub(1).and_then(|before| self.ends.get(before));
        self.dictionary
            .get(start.copied().unwrap_or(0)..*self.ends.get(code)?)
    }

    /// Returns the code of a text, which is added if it is new; `None` of the empty text. `before`: the code of the row before, of which
    /// most rows have the text.
    fn code(&mut self, text: &str, before: Option<i64>) -> Option<i64> {
        if text.is_empty() {
            return None;
        }
        if before.is_some_and(|code| self.of_code(code as usize) == Some(text)) {
            return before;
        }
        if let Some(code) = self.codes.get(text) {
            return Some(*code);
        }
        let code = self.ends.len() as i64;
        self.dictionary.push_str(text);
        self.ends.push(self.dictionary.len());
        if !self.are_ids {
            self.codes.insert(text.to_owned(), code);
        }
        Some(code)
    }
}
