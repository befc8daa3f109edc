//! Tables of documents that tests make.

use std::path::Path;

/// Held while a page is read and written: it may have several tables.
static PAGES: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Holds the table of this name of a page to `table`, or writes it there.
pub fn has_table(page: &str, name: &str, table: &str) {
    let _alone = PAGES.lock();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let written = std::fs::read_to_string(&path).unwrap();
    let begin = format!("<!-- table: {name} -->\n");
    let (before, rest) = written.split_once(&begin).unwrap();
    let (_, after) = rest.split_once("<!-- end -->\n").unwrap();
    let made = format!("{before}{begin}{table}<!-- end -->\n{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(&path, &made).unwrap();
    }
    assert!(
        made == written,
        "{page} is stale: run `UPDATE_DOCS=1 cargo test h200`\n{table}"
    );
}
