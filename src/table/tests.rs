use std::path::{Path, PathBuf};

use super::*;
use crate::request::{Breakdown, Unseens};

impl Table {
    /// Adds a row of cells such as `host=a:1`, with a comma and a space between them; those without a value are left out.
    pub(crate) fn push_line(&mut self, line: &str) {
        let cell = |cell| {
            let (name, value) = str::split_once(cell, '=')?;
            let column = ColumnId::named(name).expect(name);
            let number = || value.parse::<f64>().expect(cell);
            let value = match column.column().unit {
                _ if value.is_empty() => return None,
                Unit::Text | Unit::Bool => Value::Text(value.into()),
                Unit::Count => Value::Count(number() as u64),
                _ => Value::Nanos((number() * NANOS as f64).round() as i64),
            };
            Some((column, value))
        };
        self.push_cells(line.split(", ").filter_map(cell));
    }

    /// The numbers of a column that are not empty.
    pub(crate) fn numbers(&self, column: ColumnId) -> Vec<f64> {
        let rows = 0..self.len();
        rows.filter_map(|row| self.number(column, row)).collect()
    }

    /// The rows of a file, as reports read it.
    pub(crate) fn read(path: &Path) -> Table {
        let read = rows::read(&[path.to_owned()], None, rows::SKIPPED_COLUMNS);
        read.unwrap().0
    }

    /// A table of such rows.
    pub(crate) fn of_lines(lines: impl IntoIterator<Item = impl AsRef<str>>) -> Table {
        let mut table = Table::default();
        let lines = lines.into_iter();
        lines.for_each(|line| table.push_line(line.as_ref()));
        table
    }
}

#[test]
fn the_first_rows_of_requests_are_found_by_id_and_index() {
    let ids = ["a#0", "a#1", "a#1", "b#1", "b#3", "c", "d#0", "e#0", "-7"];
    let table = Table::of_lines(ids.map(|id| format!("req_id={id}")));
    let firsts: Vec<usize> = (0..9).filter(|row| table.is_first(*row)).collect();
    assert_eq!(firsts, [0, 2, 3, 5, 6, 7, 8]);
    assert_eq!(table.schedule_index(8), Some(7));
    assert_eq!(table.text(ColumnId::req_id, 4), "b#3");
}

#[test]
fn appended_rows_keep_their_unreliable_clocks() {
    let mut table = Table::of_lines(["req_id=a"]);
    let mut more = table.clone();
    more.unreliable_clocks.insert(0, vec![ClockOf::Hop]);
    table.append(more);
    let expected = HashMap::from([(1, vec![ClockOf::Hop])]);
    assert_eq!(table.unreliable_clocks, expected);
}

/// Cells get wider with what is put into their column; in another row, or removed, they leave the others as they were.
#[test]
fn cells_are_what_was_put_whatever_else_is_in_their_column() {
    let edges = (0..63).flat_map(|bits| [-1, 0, 1].map(|more| (1_i64 << bits) + more));
    let edges = edges.chain([i64::MAX]);
    let numbers: Vec<i64> = edges.flat_map(|edge| [edge, -edge]).collect();
    let row = |number: i64| {
        let mut table = Table::of_lines([""]);
        let text = Value::Text(number.to_string().into());
        table.push_cells([
            (ColumnId::elapsed, Value::Nanos(number)),
            (ColumnId::error, text),
        ]);
        table
    };
    let mut table = Table::default();
    numbers.iter().for_each(|number| table.append(row(*number)));
    let none = Row::default();
    for (at, number) in numbers.iter().enumerate().rev() {
        assert_eq!(table.integer(ColumnId::elapsed, 2 * at), None);
        assert_eq!(table.integer(ColumnId::elapsed, 2 * at + 1), Some(*number));
        assert_eq!(table.text(ColumnId::error, 2 * at + 1), number.to_string());
        table.put_row(2 * at + 1, &none, |_| true);
        assert_eq!(table.value(ColumnId::error, 2 * at + 1), Value::Empty);
    }
    let empty = |row| table.integer(ColumnId::elapsed, row).is_none();
    assert!((0..=2 * numbers.len()).all(empty));
    // Times too far apart for a difference have none.
    let apart = Table::of_lines(["arrival_time=-9e9, finish_time=9e9"]);
    let nanos = apart.between(ColumnId::arrival_time, ColumnId::finish_time, 0);
    assert_eq!(nanos, None);
    // Cells get wider in a row in the middle, too.
    for number in numbers {
        let mut table = Table::of_lines(["elapsed=1e-9", "", "elapsed=3e-9"]);
        let wide = Row {
            elapsed: Some(number),
            ..Row::default()
        };
        table.put_row(1, &wide, |_| true);
        let cells = [0, 1, 2].map(|row| table.integer(ColumnId::elapsed, row));
        assert_eq!(cells, [Some(1), Some(number), Some(3)]);
    }
}

/// Rows keep their order and broken ones their line numbers, also in more chunks than there are threads.
#[test]
fn rows_of_many_chunks_are_in_order() {
    let files = Files::new();
    let mut text = "req_id,arrival_time,outcome\n".to_owned();
    for n in 2..5_000 {
        let end = if n % 1_500 == 0 { "" } else { ",ok" };
        text += &format!("{n},{n}.5{end}\n");
    }
    let path = files.with("rows.csv", &text);
    let (table, stats) = rows::read(&[path], None, &[]).unwrap();
    let read =
        (0..table.len()).map(|row| table.text(ColumnId::req_id, row).parse::<u32>().unwrap());
    let expected = (2..5_000).filter(|n| n % 1_500 != 0);
    assert!(read.eq(expected), "{} rows", table.len());
    let lines = [1_500, 3_000, 4_500]
        .map(|n| format!("rows.csv line {n}: the row is cut off: 2 of 3 cells"));
    assert_eq!(stats.examples, lines);
}

/// Of a row's columns all that its stages need are read for them, also where the row does not say itself what follows from them.
#[test]
fn stages_are_those_of_the_whole_row() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for name in ["rows.csv", "report/run/run/requests.csv"] {
        let mut table = Table::read(&data.join(name));
        let none = Row::default();
        for has_derived in [true, false] {
            for at in (0..table.len()).filter(|_| !has_derived) {
                table.put_row(at, &none, |of| {
                    [ColumnId::ended_in, ColumnId::unseen].contains(&of.id)
                });
            }
            for first in table.first_rows() {
                let of = |row: &Row| (row.last_seen(), Unseens::of(row), Breakdown::of(row));
                let whole = &table.request(first)[0];
                assert_eq!(of(&table.row(first)), of(whole), "{name} {first}");
            }
        }
    }
}

/// Files in a folder of their own.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn with(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }
}

/// The generator knows no server of a request that a hop held and that got no response; its proxy does, in all its files.
#[test]
fn hops_that_held_requests_are_added_from_the_fronts_rows() {
    let files = Files::new();
    let own = "req_id,arrival_time,outcome,host\n\
        x-0,1.4,timeout,\nx-1,1.5,ok,b:1\nx-2,1.6,timeout,\nx-3,1.1,timeout,\n";
    let front = "req_id,arrival_time,outcome,host,worker\n\
        x-0,1.5,client_abort,,server-1\nx-1,1.6,ok,a:1,server-2\nx-2,1.7,client_abort,,\n";
    let rotated = "req_id,arrival_time,outcome,host,worker\nx-3,1.2,client_abort,,server-3\n";
    files.with("proxy.csv.20261120T144800Z", rotated);
    let rows = files.with("requests.csv", own);
    let front = files.with("proxy.csv", front);
    assert_eq!(join::add_front_reports(&rows, &front, None).unwrap(), None);
    let table = Table::read(&rows);
    let workers = [0, 1, 2, 3].map(|row| table.text(ColumnId::worker, row));
    assert_eq!(workers, ["server-1", "", "", "server-3"]);
}

#[test]
fn ids_that_no_report_uses_are_read_only_for_files() {
    let text = "req_id,arrival_time,outcome,trace_id,bootstrap_room\nx-1,1,ok,t,7\n";
    let files = Files::new();
    let path = files.with("requests.csv", text);
    let ids = [ColumnId::trace_id, ColumnId::bootstrap_room];
    let read = Table::read(&path);
    assert_eq!(ids.map(|id| read.has(id)), [false; 2]);
    let (whole, _) = rows::read(&[path], None, &[]).unwrap();
    assert_eq!(ids.map(|id| whole.text(id, 0)), ["t", "7"]);
}
