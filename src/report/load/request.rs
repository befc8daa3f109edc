//! A request of a table, as figures are taken of it.

use std::ops::Range;

/// A request of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Its first row.
    pub row: u32,
    /// How many it has.
    pub rows: u32,
    /// Whether it went well.
    pub is_ok: bool,
    /// Whether it arrived in the time that the figures are of.
    pub is_inside: bool,
    /// Whether it ended in it.
    pub ends_inside: bool,
}

impl Request {
    /// Its first row.
    pub fn row(&self) -> usize {
        self.row as usize
    }

    /// All of them.
    pub fn rows(&self) -> Range<usize> {
        self.row()..self.row() + self.rows as usize
    }
}
