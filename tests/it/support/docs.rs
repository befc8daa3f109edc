//! Files and tables of documents that tests make.

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
    assert_file(page, &made);
}

/// A table with these heads.
pub fn markdown<R: AsRef<[String]>>(heads: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let plain = |row: R| {
        row.as_ref()
            .iter()
            .map(|cell| cell.replace('|', "\\|"))
            .collect()
    };
    let rows: String = rows.into_iter().map(plain).map(line).collect();
    let heads_line = line(heads.iter().map(ToString::to_string).collect());
    format!("{heads_line}|{}\n{rows}", "---|".repeat(heads.len()))
}

/// Variables by which files are written anew. The test then fails, unless nothing was to be written.
const UPDATES: [&str; 3] = ["UPDATE_DOCS", "UPDATE_GOLDEN", "UPDATE"];

/// Holds a file of the repository to what is said now.
#[track_caller]
pub fn assert_file(file: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let then = std::fs::read_to_string(&path).unwrap_or_default();
    if UPDATES.iter().any(|name| std::env::var_os(name).is_some()) {
        std::fs::write(&path, now).unwrap();
    }
    let lines = now.lines().zip(then.lines());
    let differs: Vec<_> = lines.filter(|(now, then)| now != then).take(20).collect();
    assert!(
        now == then,
        "{file} is no more what it was; if that is wanted, UPDATE_DOCS=1 writes it anew: {differs:#?}"
    );
}

/// Holds a file of cases to what is said of each now. A case is lines on end, and behind it stands, indented, what is said; lines that
/// begin with `#` name the promises.
#[track_caller]
pub fn assert_cases(file: &str, tell: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let then = std::fs::read_to_string(&path).unwrap();
    let (mut now, mut case) = (String::new(), String::new());
    for line in then.lines().chain([""]) {
        let is_input = !line.starts_with([' ', '#']) && !line.is_empty();
        if is_input {
            case += &format!("{line}\n");
        } else if !case.is_empty() {
            let said = tell(case.trim_end());
            let said = said.lines().map(|line| format!("  {line}\n"));
            now += &std::mem::take(&mut case);
            now.extend(said);
        }
        if line.starts_with('#') || line.is_empty() {
            now += &format!("{line}\n");
        }
    }
    assert_file(file, &format!("{}\n", now.trim_end()));
}
