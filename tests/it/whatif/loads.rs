//! Which files are loads of the command `whatif`, and what of their requests counts.

use std::path::Path;

use queuescope::clock::{NANOS, Stamp};
use queuescope::request::cell;
use queuescope::request::columns::{COLUMNS, ColumnId};
use queuescope::request::csv::TimeBase;
use queuescope::table::Table;
use queuescope::table::cells::RowWriter;

use super::{file, rewritten, run, said, told};
use crate::support::assert_says;

/// A part of a load does not tell what its servers had to do.
#[test]
fn parts_of_loads_are_refused() {
    let folder = rewritten(|_| 0.0, ["x", ""]);
    let (dir, rows) = (folder.path(), folder.path().join("requests.csv"));
    std::fs::rename(dir.join("rows.csv"), &rows).unwrap();
    let config = |text: &str| std::fs::write(dir.join("summary.json"), text).unwrap();
    config(r#"{"config": {"shard": "0/2"}}"#);
    let given = dir.to_str().unwrap();
    let error = run(&[given, "--set", "rate=2"]).unwrap_err();
    assert_says(&error, "is shard 0/2 of a load");
    assert_says(&error, "queuescope report --merge");
    // All of it is in this one.
    config(r#"{"config": {"shard": "0/1"}}"#);
    let all = said(&[given], "--set rate=2");
    assert!(!all.contains("left out: 1 row"), "{all}");
    let text = std::fs::read_to_string(&rows).unwrap();
    let text = text.replacen(",True,ok,", ",False,server_error,", 1);
    std::fs::write(&rows, text).unwrap();
    let name = dir.file_name().unwrap().display();
    let note = format!("note: {name}: left out: 1 row (failed, or ");
    assert_says(&said(&[given], "--set rate=2"), &note);
}

/// Writes some of a load's rows as a proxy of this side would, with times of the epoch.
fn recorded(folder: &Path, name: &str, side: &str, is_in: impl Fn(usize) -> bool) -> String {
    let rows = Table::read(Path::new(&file("slots16"))).unwrap();
    let path = folder.join(name);
    let epoch = TimeBase::Since(Stamp::from_nanos(-1_795_000_000 * NANOS));
    let mut out = RowWriter::new(std::fs::File::create(&path).unwrap(), epoch).unwrap();
    for row in (0..rows.len()).filter(|row| is_in(*row)) {
        let cells = COLUMNS.iter().map(|column| match column.id {
            ColumnId::seen_by => cell::Value::Text(side.into()),
            // A hop does not know it.
            ColumnId::arrival_time if side == "hop" => cell::Value::Empty,
            id => rows.value(id, row),
        });
        out.write_cells(cells).unwrap();
    }
    out.finish().unwrap();
    path.to_str().unwrap().to_owned()
}

/// Several loads are predicted each by itself, under its name.
#[test]
fn several_loads_are_predicted_each_by_itself() {
    let (load, other) = (file("slots16"), file("shared"));
    let set = format!("--set rate=1.5 --fit {load}");
    let (whole, both) = (told(&[&load], &set), told(&[&load, &other], &set));
    assert_eq!(both["predictions"].as_array().map(Vec::len), Some(2));
    assert_eq!(both["predictions"][0], whole["predictions"][0]);
    let shown = said(&[&load, &other], &set);
    let name = both["loads"][1]["name"].as_str().unwrap();
    assert_says(&shown, &format!("\npredicted: {name}: rate=1.5 "));
}

#[test]
fn rows_of_hops_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let hop = recorded(folder.path(), "hop.csv", "hop", |row| row % 2 == 1);
    let error = run(&[&hop]).unwrap_err();
    assert_says(
        &error,
        "hop.csv: no request went well and tells its arrival",
    );
}

/// A request of several sequences arrives once and is answered once, but all of them have to be made.
#[test]
fn a_request_of_several_sequences_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, fit) = (folder.path(), file("slots16"));
    let one = recorded(dir, "one.csv", "front", |row| row % 2 == 0);
    let text = std::fs::read_to_string(&one).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    let mut several = format!("{head}\n");
    for row in rows.lines() {
        let (id, rest) = row.split_once(',').unwrap();
        for index in 0..3 {
            several += &format!("{id}#{index},{rest}\n");
        }
    }
    let path = dir.join("several.csv");
    std::fs::write(&path, several).unwrap();
    let path = path.to_str().unwrap();
    let page = dir.join("page.html").display().to_string();
    let line = format!("--set max_running_requests=128 --fit {fit}");
    let of = |path: &str, set: &str| told(&[path], &format!("--set {set} {line}"));
    let rate = |all: &serde_json::Value| {
        all["predictions"][0]["request_throughput"]
            .as_f64()
            .unwrap()
    };
    let (was, is) = (of(&one, "rate=1"), of(path, "rate=1"));
    assert_eq!(is["loads"][0]["requests"], 120);
    assert!((rate(&is) / rate(&was) - 1.0).abs() < 0.05, "{is:#}");
    let slower = of(path, "request_rate=2");
    assert!((rate(&slower) / 2.0 - 1.0).abs() < 0.05, "{slower:#}");
    let p50 = |all: &serde_json::Value| all["predictions"][0]["total_latency_ms"]["p50"].as_f64();
    assert!(p50(&is) > p50(&was), "{is:#}");
    let shown = said(
        &[path],
        &format!("--set rate=1 {line} --html {page} --goodput ttft:60000"),
    );
    for of in ["measured: ", "predicted: "] {
        let cells = shown
            .lines()
            .find_map(|line| line.strip_prefix(of))
            .unwrap();
        let cells: Vec<&str> = cells.split_whitespace().collect();
        assert_eq!(cells[1..3], ["120", "0"], "{shown}");
        assert_says(&cells.join(" "), " 100.0 %");
    }
}

/// Data-parallel ranks of one host have queues and slots of their own, as servers have.
#[test]
fn ranks_are_predicted_as_servers_are() {
    let folder = tempfile::tempdir().unwrap();
    let rows = Table::read(Path::new(&file("two-servers"))).unwrap();
    let first = rows.text(ColumnId::host, 0).to_owned();
    let path = folder.path().join("ranks.csv");
    let base = TimeBase::Since(Stamp::from_nanos(0));
    let mut out = RowWriter::new(std::fs::File::create(&path).unwrap(), base).unwrap();
    for row in 0..rows.len() {
        let rank = u64::from(rows.text(ColumnId::host, row) != first);
        let cells = COLUMNS.iter().map(|column| match column.id {
            ColumnId::host => cell::Value::Text((&*first).into()),
            ColumnId::dp_rank => cell::Value::Count(rank),
            id => rows.value(id, row),
        });
        out.write_cells(cells).unwrap();
    }
    out.finish().unwrap();
    let [servers, ranks] = [&file("two-servers"), path.to_str().unwrap()]
        .map(|path| told(&[path], "--set num_gpus=2,3"));
    for (is, was) in ["predictions", "validation"].map(|of| (&ranks[of], &servers[of])) {
        for (is, was) in is.as_array().unwrap().iter().zip(was.as_array().unwrap()) {
            for name in ["ttft_ms", "request_throughput", "predicted"] {
                assert_eq!(is[name], was[name]);
            }
        }
    }
}
