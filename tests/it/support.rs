//! What the tests share. One file a concern under `support/`.

pub mod admin;
pub mod clients;
pub mod collector;
pub mod delays;
pub mod docs;
mod files;
pub mod generator;
pub mod http;
pub mod http2;
pub mod listening;
pub mod observed;
pub mod pair;
pub mod process;
pub mod proxy;
pub mod recordings;
pub mod router;
pub mod spans;
pub mod tls;
pub mod upstream;
pub mod wire;

use std::path::Path;

use queuescope::table::Table;
use queuescope::table::rows::{self, SKIPPED_COLUMNS};

pub use files::files;

/// The lines of a table, each of so many cells with `|` between them.
pub fn table<const CELLS: usize>(text: &str) -> impl Iterator<Item = [&str; CELLS]> {
    text.lines().map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        cells.try_into().unwrap_or_else(|_| panic!("{line}"))
    })
}

/// The rows of a file; panics if it cannot be read.
pub fn read_rows(path: &Path) -> Table {
    let (table, _) = rows::read(&[path.to_owned()], None, SKIPPED_COLUMNS).unwrap();
    table
}

/// Fails unless this is said, and shows what was.
#[track_caller]
pub fn assert_says(text: &str, said: &str) {
    assert!(text.contains(said), "{said:?} is not in\n{text}");
}
