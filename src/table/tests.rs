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
    for name in ["rows.csv", "golden/report/h200.csv"] {
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

    /// The notes of a join, and its rows.
    fn joined(&self, files: &[PathBuf], out: &str) -> (Vec<String>, Table) {
        let notes = join::join(files, &self.path(out)).unwrap();
        (notes, Table::read(&self.path(out)))
    }
}

#[test]
fn columns_missing_in_older_files_stay_empty_in_a_join() {
    let files = Files::new();
    let hop = "req_id,arrival_time,router_send_time,outcome,status,seen_by\n\
        x-1,1795000000.1,1795000000.1,ok,200,hop\n";
    let hop = files.with("hop.csv", hop);
    let newer = "req_id,arrival_time,first_token_time,tpot,actual_prompt_tokens,actual_output_tokens,outcome,status,seen_by";
    let row = "x-1,1795000000,1795000001,0.5,8,3,ok,200,front";
    for (last, last_token) in [
        (["", ""], None),
        ([",last_token_time", ",1795000002"], Some(2.0)),
    ] {
        let front = format!("{newer}{}\n{row}{}\n", last[0], last[1]);
        let front = files.with("front.csv", &front);
        let out = format!("{}.csv", last[0].len());
        let (_, joined) = files.joined(&[front, hop.clone()], &out);
        assert_eq!(joined.number(ColumnId::queue_time_in_router, 0), None);
        assert_eq!(joined.text(ColumnId::seen_by, 0), "front");
        assert_eq!(joined.number(ColumnId::last_token_time, 0), last_token);
        assert!(!joined.has(ColumnId::request_prompt_tokens));
    }
}

/// The hop's clock is 2 s behind, its server's 0.5 s ahead of the hop's; of one request's two attempts the first failed.
#[test]
fn hops_with_another_clock_are_joined_on_the_clock_of_their_front() {
    let files = Files::new();
    let times = |at: f64, after: &[f64]| -> String {
        let time = |after: &f64| format!(",{:.9}", at + after);
        after.iter().map(time).collect()
    };
    let mut front = "req_id,arrival_time,forwarded_time,response_head_time,first_token_time,finish_time,end_time,\
        outcome,status,attempts,span_id,seen_by\n"
        .to_owned();
    let mut hop = "req_id,arrival_time,router_send_time,response_head_time,first_token_time,finish_time,end_time,\
        queue_time_start,queue_time_end,outcome,status,worker,host,elapsed,clock_state,clock_offset,clock_offset_error,process,parent_span_id,seen_by\n"
        .to_owned();
    // The router passes on no span, begins spans of its own, and has an id of its own.
    for (n, id, span) in [
        (0, "j-0", ""),
        (1, "j-1", "00000000000000ff"),
        (2, "r-2", "0000000000000002"),
    ] {
        let at = 1_795_000_000.0 + f64::from(n);
        let front_times = times(at, &[0.0, 0.01, 0.27, 0.5, 0.9, 0.9]);
        front += &format!("j-{n}{front_times},ok,200,1,{n:016x},front\n");
        let at = at - 2.0;
        if n == 1 {
            let failed = times(at, &[0.015, 0.015]);
            hop += &format!(
                "{id}{failed},,,,,,,server_error,500,w2,10.0.0.2:1,0.01,,,,h1,{span},hop\n"
            );
        }
        let hop_times = times(at, &[0.03, 0.03, 0.25, 0.45, 0.85, 0.85, 0.05, 0.1]);
        hop +=
            &format!("{id}{hop_times},ok,200,w1,10.0.0.1:1,0.82,offset,0.5,0.001,h1,{span},hop\n");
    }
    let given = [files.with("front.csv", &front), files.with("hop.csv", &hop)];
    let (notes, table) = files.joined(&given, "out.csv");
    assert_eq!(notes, ["4 of 4 attempts joined to 3 of 3 requests"]);
    for row in 0..3 {
        for (column, expected) in [
            // The error is half of the 40 ms that both directions took.
            (ColumnId::hop_clock_offset, -2.0),
            (ColumnId::hop_clock_offset_error, 0.02),
            (ColumnId::clock_offset, -1.5),
            (ColumnId::clock_offset_error, 0.021),
            (ColumnId::queue_time_in_router, 0.03),
            (ColumnId::server_latency, 0.87),
            (ColumnId::total_latency, 0.9),
            (ColumnId::pure_queue_time, 0.05),
        ] {
            let value = table.number(column, row).unwrap_or(f64::NAN);
            assert!((value - expected).abs() < 1e-3, "{column:?}: {value}");
        }
        let at = |column| table.integer(column, row).unwrap();
        let waited = at(ColumnId::queue_time_start) - at(ColumnId::arrival_time);
        assert!((waited - NANOS / 20).abs() < NANOS / 1000, "{waited}");
        let failed = "10.0.0.2:1 server_error 500 after 0.010000 s";
        let (attempts, failed) = if row == 1 { (2.0, failed) } else { (1.0, "") };
        assert_eq!(table.number(ColumnId::attempts, row), Some(attempts));
        assert_eq!(table.text(ColumnId::failed_attempts, row), failed);
        let answered = [ColumnId::host, ColumnId::worker].map(|column| table.text(column, row));
        assert_eq!(answered, ["10.0.0.1:1", "w1"]);
    }
}

#[test]
fn attempts_are_counted_once_with_those_without_a_request() {
    let files = Files::new();
    let file = |name: &str, requests: &[(&str, &str)], side: &str| {
        let row = |(id, span): &(&str, &str)| format!("{id},1795000000.1,ok,200,{span},{side}\n");
        let rows: String = requests.iter().map(row).collect();
        let head = "req_id,arrival_time,outcome,status,span_id,seen_by";
        files.with(name, &format!("{head}\n{rows}"))
    };
    let front = file(
        "front.csv",
        &[("w-1", ""), ("x-1", ""), ("x-2", "")],
        "front",
    );
    let hop = file(
        "hop.csv",
        &[("x-1", "00000000000000a1"), ("z-1", "")],
        "hop",
    );
    let copy = file("copy.csv", &[("x-1", "00000000000000a1")], "hop");
    let other = file("other.csv", &[("y-1", ""), ("y-2", "")], "hop");
    let none = file("none.csv", &[], "hop");
    // Rotated files are always read.
    let older = file("hop.csv.20261120T144800Z", &[("x-2", "")], "hop");
    let twice = "; 1 rows of hops were given twice, and count once";
    for (hops, attempts, unmatched, more) in [
        (&[&other, &hop, &none][..], 5, 3, ""),
        // A file named twice, as by a shell pattern, is read once.
        (&[&hop, &older, &hop], 3, 1, ""),
        (&[&hop, &copy], 3, 1, twice),
    ] {
        let given = [&front].into_iter().chain(hops.iter().copied());
        let given: Vec<PathBuf> = given.cloned().collect();
        let (notes, table) = files.joined(&given, &format!("{}.csv", attempts + more.len()));
        let rest = format!("the front has no request for the other {unmatched}{more}");
        let note = format!("2 of {attempts} attempts joined to 2 of 3 requests: {rest}");
        assert_eq!(notes, [note]);
        assert!(!table.has(ColumnId::failed_attempts));
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
