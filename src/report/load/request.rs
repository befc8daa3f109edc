//! The rows of a request.

use std::ops::Range;

/// A request of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The index of its first row.
    pub row: u32,
    /// The number of its rows.
    pub rows: u32,
    /// Whether it succeeded.
    pub is_ok: bool,
    /// Whether it arrived within the window.
    pub is_inside: bool,
    /// Whether it ended within the window.
    pub ends_inside: bool,
}

impl Request {
    /// The index of its first row.
    pub fn row(&self) -> usize {
        self.row as usize
    }

    /// The indices of its rows.
    pub fn rows(&self) -> Range<usize> {
        self.row()..self.row() + self.rows as usize
    }
}
