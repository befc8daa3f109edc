//! The rows of a run, by column: what `requests.csv` or a proxy's records hold.

use std::collections::HashMap;
use std::path::Path;

use crate::request::column::Unit;
use crate::request::columns::COLUMNS;

/// Rows of requests, by column. A cell that is empty is `NaN`, or the empty text.
#[derive(Clone, Debug, Default)]
pub struct Table {
    len: usize,
    numbers: HashMap<&'static str, Vec<f64>>,
    texts: HashMap<&'static str, Texts>,
}

/// A column of words, each distinct one kept once.
#[derive(Clone, Debug, Default)]
struct Texts {
    words: Vec<String>,
    codes: HashMap<String, u32>,
    cells: Vec<u32>,
}

impl Table {
    /// Reads a file of rows.
    ///
    /// # Errors
    /// It cannot be read, or is no file of rows.
    pub fn read(path: &Path) -> Result<Table, csv::Error> {
        let mut reader = csv::Reader::from_path(path)?;
        let header = reader.headers()?.clone();
        let columns: Vec<_> = header
            .iter()
            .map(|name| COLUMNS.iter().find(|column| column.name == name))
            .collect();
        let mut table = Table::default();
        for row in reader.records() {
            let row = row?;
            for (column, cell) in columns.iter().zip(&row) {
                let Some(column) = column else { continue };
                match column.unit {
                    Unit::Text | Unit::Bool => {
                        table.texts.entry(column.name).or_default().push(cell);
                    }
                    _ => {
                        let value = cell.parse().unwrap_or(f64::NAN);
                        table.numbers.entry(column.name).or_default().push(value);
                    }
                }
            }
            table.len += 1;
        }
        Ok(table)
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A column of numbers, times or durations (seconds); empty where the file has no such column.
    pub fn numbers(&self, column: &str) -> &[f64] {
        self.numbers.get(column).map_or(&[], Vec::as_slice)
    }

    /// A cell of a column of words; `True` and `False` are words.
    pub fn text(&self, column: &str, row: usize) -> &str {
        let texts = self.texts.get(column);
        let word = texts.and_then(|texts| {
            let code = *texts.cells.get(row)?;
            texts.words.get(code as usize)
        });
        word.map_or("", String::as_str)
    }

    /// The place in the schedule of the request of a row: the number behind the last `-` of its id (before `#`).
    /// Rows of two runs with the same place are a pair.
    pub fn place(&self, row: usize) -> Option<usize> {
        let id = self.text("req_id", row);
        let id = id.split_once('#').map_or(id, |(id, _)| id);
        id.rsplit_once('-')?.1.parse().ok()
    }
}

impl Texts {
    fn push(&mut self, cell: &str) {
        let code = match self.codes.get(cell) {
            Some(code) => *code,
            None => {
                let code = self.words.len() as u32;
                self.words.push(cell.to_owned());
                self.codes.insert(cell.to_owned(), code);
                code
            }
        };
        self.cells.push(code);
    }
}
