//! The command `whatif`: what it prints, for people and programs, and what it refuses.

use std::path::Path;

use queuescope::clock::{NANOS, Stamp};
use queuescope::report;
use queuescope::request::cell;
use queuescope::request::columns::{COLUMNS, ColumnId};
use queuescope::request::csv::TimeBase;
use queuescope::table::Table;
use queuescope::table::cells::RowWriter;
use serde_json::{Value, json};

use super::{file, rewritten, run, said, told};
use crate::support::generator::flags;
use crate::support::{assert_says, table};

#[test]
fn what_is_read_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.csv.gz");
    std::fs::copy(file("slots16"), &rows).unwrap();
    let (load, before) = (rows.to_str().unwrap(), std::fs::read(&rows).unwrap());
    let notes = folder.path().join("notes.txt");
    std::fs::write(&notes, "mine").unwrap();
    let mine = notes.to_str().unwrap();
    for (flags, wrong) in [
        (["--html", load, "--set", "rate=1"], "is the same file as"),
        (["--profile", load, "--html", mine], "is there already"),
        (["--fit", load, "--profile", mine], "is there already"),
    ] {
        let error = run(&[&[load][..], &flags].concat()).unwrap_err();
        assert!(error.contains(wrong), "{error}");
    }
    let page = folder.path().join("page.html");
    let page = page.to_str().unwrap();
    let error = run(&[load, "--html", page, "--profile", page]).unwrap_err();
    assert!(error.contains("two outputs"), "{error}");
    assert_eq!(std::fs::read(&rows).unwrap(), before);
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "mine");
}

#[test]
fn predictions_have_every_setting_of_the_grid() {
    let shown = told(&[&file("slots16")], "--set num_gpus=1,2 --set rate=1.5");
    assert_says(&shown["validation"][0]["file"].to_string(), "slots16");
    let step = &shown["fit"]["parameters"]["decode_step_ms"];
    assert!(step["low"].as_f64() < step["value"].as_f64());
    let predictions = shown["predictions"].as_array().unwrap();
    let settings: Vec<_> = predictions
        .iter()
        .map(|one| one["settings"].clone())
        .collect();
    assert_eq!(
        settings,
        [1, 2].map(|servers| json!({"num_gpus": servers, "rate": 1.5}))
    );
    let queue = |at: usize| {
        predictions[at]["pure_queue_time_ms"]["mean"]
            .as_f64()
            .unwrap()
    };
    assert!(queue(0) > 300.0 && queue(1) < 20.0, "{shown:#}");
    for latency in ["ttft_ms", "total_latency_ms", "pure_queue_time_ms"] {
        let figures = ["mean", "p50", "p99"].map(|figure| &predictions[0][latency][figure]);
        assert!(figures.iter().all(|figure| figure.is_f64()), "{latency}");
    }
}

/// The table has the figures that programs are given, and counts who is refused.
#[test]
fn the_table_has_the_figures_of_json() {
    let load = file("slots16");
    let small = "--set max_total_tokens=600";
    let (all, shown) = (told(&[&load], small), said(&[&load], small));
    let refused = &all["predictions"][0]["refused"];
    assert!(refused.as_u64().unwrap() > 0);
    for (name, of, failed) in [
        ("measured: ", &all["loads"][0]["measured"], "0"),
        ("predicted: ", &all["predictions"][0], &refused.to_string()),
    ] {
        let line = shown.lines().find(|line| line.starts_with(name)).unwrap();
        let cells: Vec<&str> = line.split_whitespace().skip(3).collect();
        let rate = format!("{:.2}", of["request_throughput"].as_f64().unwrap());
        assert_eq!(cells[..2], [failed, &rate], "{shown}");
    }
}

/// What was measured is what the report says of it.
#[test]
fn what_was_measured_is_as_the_report_has_it() {
    let loads = ["two-servers", "slots16"].map(file);
    let asked = report::command::Args {
        dirs: loads.each_ref().map(Into::into).to_vec(),
        ..Default::default()
    };
    let of_report = report::command::run(&asked, None).unwrap();
    for load in &loads {
        let name = load.rsplit('/').next().unwrap();
        let cells = |text: &str| -> Vec<String> {
            let line = text.lines().find_map(|line| line.split_once(name));
            line.unwrap()
                .1
                .split_whitespace()
                .map(str::to_owned)
                .collect()
        };
        let shown = said(&[load], "--set rate=1");
        let table = shown.split_once("Predicted").unwrap().1;
        assert_eq!(cells(table), cells(&of_report));
    }
}

/// Flags, and what is said of them.
const REFUSED: &str = "\
--set slots | --set slots: must be KEY=VALUE
--set max_runing_requests=3 | --set max_runing_requests: is no key that can be set: use rate,
--set max_running_requests=0 | --set max_running_requests = 0: must be a whole number, 1 or more
--set num_gpus=0 | --set num_gpus = 0: must be a whole number from 1 to 1024
--set num_gpus=1.5 | --set num_gpus = 1.5: must be a whole number from 1 to 1024
--set rate=-1 | --set rate = -1: must be a number from 0.001 to 1000
--set rate=2000 | --set rate = 2000: must be a number from 0.001 to 1000
--set request_rate=2000000 | --set request_rate = 2000000: must be a number from 0.001 to 1000000
--set disable_radix_cache=3 | --set disable_radix_cache = 3: must be one of true, false
--set rate=2 --set request_rate=3 | --set rate: must be given once
--set rate=2 --set rate=3 | --set rate: must be given once
--set routing_policy=cache_aware | which prompts share a beginning
--goodput client_stall:3 | `client_stall` is no latency that is predicted: use one of ttft, e2el, tpot,
--goodput foo:3 | `foo` is no latency that is predicted: use one of ttft, e2el, tpot,
--goodput ttft | write NAME:MILLISECONDS
--goodput ttft:500 tpot:9 ttft:300 | --goodput: ttft must have one limit
--format csv | possible values: text, json
--goodput-share 0.9 | --goodput <GOAL>
--goodput ttft:9 --goodput-share 2 | must be a number from 0 to 1
FIND request_rate=3 | --set request_rate: must be given once, not with --find of the same
FIND rate=3 | must be given once, not with --find of the same, and rate not with request_rate";

#[test]
fn what_cannot_be_predicted_is_named() {
    let load = file("shared");
    let find = "--find rate --goodput ttft:500 --set";
    for [given, said] in table(REFUSED) {
        let given = given.replace("FIND", find);
        let line = [vec![load.as_str()], flags(&given)].concat();
        let error = run(&line).unwrap_err();
        assert!(error.contains(said), "{given}: {error}");
    }
}

#[test]
fn rows_that_are_left_out_and_pairs_are_told() {
    let folder = rewritten(|_| 0.0, ["cached_tokens", "many"]);
    let path = folder.path().join("rows.csv");
    let goal = "--goodput ttft:200 --set rate=2";
    let shown = said(&[path.to_str().unwrap()], goal);
    assert_says(
        &shown,
        "note: rows.csv: 1 of 240 rows cannot be read and are left out: ",
    );
    // The share of those that keep the goal is measured, and predicted.
    let kept = shown.lines().filter(|line| {
        let is_one = line.starts_with("measured: ") || line.starts_with("predicted: ");
        is_one && line.ends_with(" %")
    });
    assert_eq!(kept.count(), 2, "{shown}");
    let folder = rewritten(|_| 0.0, ["disaggregated", "True"]);
    let path = folder.path().join("rows.csv");
    let error = run(&[path.to_str().unwrap()]).unwrap_err();
    assert_says(&error, "rows.csv: ");
    assert_says(&error, "pairs are not predicted");
}

#[test]
fn as_many_servers_or_requests_as_keep_a_goal_are_found() {
    let load = file("slots16");
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let found = |what: &str, set: &str| {
        let html = page.display();
        let line = format!("--find {what} --goodput ttft:200 --set {set} --force --html {html}");
        let shown = told(&[&load], &line);
        let page = std::fs::read_to_string(&page).unwrap();
        for said in [
            "predicted, not measured",
            r#""kind":"what-if""#,
            r#""off":{"#,
        ] {
            assert!(page.contains(said), "{said}");
        }
        assert!(!page.contains("was not measured: no worker hop"));
        shown
    };
    let shown = found("servers", "rate=2");
    let one = &shown["predictions"][0];
    assert!(one["goodput_share"].as_f64().unwrap() >= 0.95, "{shown:#}");
    let servers = one["settings"]["num_gpus"].as_u64().unwrap();
    assert!((2..=4).contains(&servers), "{shown:#}");
    let shown = found("rate", "num_gpus=1");
    let rate = shown["predictions"][0]["settings"]["request_rate"].as_f64();
    assert!((8.0..13.0).contains(&rate.unwrap()), "{shown:#}");
}

/// Rows of 16 requests at once do not tell how fast 64 are.
#[test]
fn a_prediction_far_from_what_was_measured_has_a_note() {
    let load = file("slots16");
    let line = "--set rate=1,3 --set max_running_requests=16,64";
    let all = told(&[&load], line);
    let most = all["fit"]["most_running"].as_u64().unwrap();
    assert!((16..25).contains(&most), "{most}");
    let note = format!("at most {most} did in the rows of --fit");
    for prediction in all["predictions"].as_array().unwrap() {
        let is_far = prediction["settings"] == json!({"max_running_requests": 64, "rate": 3});
        let has_note = prediction["note"].to_string().contains(&note);
        assert_eq!(has_note, is_far, "{prediction}");
    }
    let shown = said(&[&load], line);
    assert_eq!(shown.matches("requests run at once").count(), 1, "{shown}");
}

/// What is not found is said with its reason, and is no success, in words as in JSON.
#[test]
fn nothing_is_found_for_a_reason() {
    let load = file("slots16");
    let flags = ["--find", "servers", "--goodput", "ttft:0.001"];
    let none = "no number of servers up to 1024 keeps ttft:0.001 in 95.0 % of the requests";
    let (shown, failed) = run(&[&[load.as_str(), "--json"][..], &flags].concat()).unwrap();
    assert_eq!(failed.as_deref(), Some(none));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["predictions"], json!([]));
    let name = &shown["loads"][0]["name"];
    let why = json!([{ "load": name, "settings": {}, "reason": none }]);
    assert_eq!(shown["not_found"], why);
    let (shown, failed) = run(&[&[load.as_str()][..], &flags].concat()).unwrap();
    assert_eq!(failed.as_deref(), Some(none));
    assert!(!shown.contains(none), "twice: {shown}");
    // Where something else is found, nothing failed, and it stands with the others.
    let found = "--find servers --goodput ttft:200 --set tokenize_ms=1,100000";
    let shown = said(&[&load], found);
    assert_says(&shown, "note: tokenize_ms=100000: no number of servers");
}

/// A part of a load does not tell what its servers had to do, and a load is not counted twice.
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
    let error = run(&[given, rows.to_str().unwrap()]).unwrap_err();
    let lies = format!(
        "{} lies in {given}, and its load would be doubled",
        rows.display()
    );
    assert_says(&error, &lies);
    let text = std::fs::read_to_string(&rows).unwrap();
    let text = text.replacen(",True,ok,", ",False,server_error,", 1);
    std::fs::write(&rows, text).unwrap();
    let name = dir.file_name().unwrap().display();
    let note = format!("note: {name}: left out: 1 row (failed, or ");
    assert_says(&said(&[given], "--set rate=2"), &note);
}

/// Several loads are predicted each by itself, but what several proxies recorded at one time came to the same servers.
#[test]
fn records_of_one_time_are_one_load_and_others_are_loads_of_their_own() {
    let (load, other) = (file("slots16"), file("shared"));
    let set = format!("--set rate=1.5 --fit {load}");
    let (whole, both) = (told(&[&load], &set), told(&[&load, &other], &set));
    let names = |told: &Value| -> Vec<String> {
        let all = told["predictions"].as_array().unwrap().iter();
        all.map(|of| of["load"].to_string()).collect()
    };
    assert_eq!(both["loads"].as_array().unwrap().len(), 2);
    assert_eq!(names(&both).len(), 2, "{both:#}");
    assert_eq!(both["predictions"][0], whole["predictions"][0]);
    let shown = said(&[&load, &other], &set);
    let name = both["loads"][1]["name"].as_str().unwrap();
    assert_says(&shown, &format!("\npredicted: {name}: rate=1.5 "));
    // The same rows, as two proxies would have them, in files that begin at different times.
    let folder = tempfile::tempdir().unwrap();
    let rows = Table::read(Path::new(&load)).unwrap();
    let write = |name: &str, is_in: &dyn Fn(usize) -> bool, side: &str| {
        let path = folder.path().join(name);
        let epoch = TimeBase::Since(Stamp::from_nanos(-1_795_000_000 * NANOS));
        let mut file = RowWriter::new(std::fs::File::create(&path).unwrap(), epoch).unwrap();
        for row in (0..rows.len()).filter(|row| is_in(*row)) {
            let cells = COLUMNS.iter().map(|column| match column.id {
                ColumnId::seen_by => cell::Value::Text(side.into()),
                // A hop does not know it.
                ColumnId::arrival_time if side == "hop" => cell::Value::Empty,
                ColumnId::pure_queue_time if name == "client-b.csv" => {
                    cell::Value::Nanos(1_000 + row as i64)
                }
                id => rows.value(id, row),
            });
            file.write_cells(cells).unwrap();
        }
        file.finish().unwrap();
        path.to_str().unwrap().to_owned()
    };
    let a = write("a.csv", &|row| row % 2 == 0, "front");
    let b = write("b.csv", &|row| row % 2 == 1, "front");
    let merged = told(&[&a, &b], &set);
    assert_eq!(merged["loads"][0]["name"], "a.csv + b.csv");
    for (name, figure) in merged["predictions"][0].as_object().unwrap() {
        if name != "load" {
            assert_eq!(figure, &whole["predictions"][0][name], "{name}");
        }
    }
    // What is there already doubles nothing in silence: a copy, a link, requests that a proxy behind another had too.
    let copy = folder.path().join("copy.csv");
    std::fs::hard_link(&a, &copy).unwrap();
    let later = write("behind.csv", &|row| row % 4 == 0, "front");
    let some = write("some.csv", &|row| row % 2 == 1 || row % 20 == 0, "front");
    // Nor does a copy of rows that do not tell on which day they were.
    let packed = folder.path().join("copy.csv.gz");
    std::fs::copy(&load, &packed).unwrap();
    for [one, twice] in [
        [&*a, copy.to_str().unwrap()],
        [&*a, &*later],
        [&*some, &*a],
        [&*load, packed.to_str().unwrap()],
    ] {
        let error = run(&[&[one, twice][..], &flags(&set)].concat()).unwrap_err();
        let names = [one, twice].map(|path| path.rsplit('/').next().unwrap());
        let are_named = names
            .iter()
            .all(|name| error.contains(name.split('.').next().unwrap()));
        assert!(are_named && error.contains("would be doubled"), "{error}");
    }
    // Clients that number theirs alike sent other requests.
    let alike =
        ["client-a.csv", "client-b.csv"].map(|name| write(name, &|row| row % 2 == 0, "front"));
    let alike = told(&alike.each_ref().map(|path| &**path), &set);
    assert_eq!(alike["loads"][0]["name"], "client-a.csv + client-b.csv");
    // Whatever order they are given in: one that overlaps two others makes one of all.
    let third = rows.len() / 3;
    let early = write("early.csv", &|row| row % 2 == 0 && row < third, "front");
    let late = write("late.csv", &|row| row % 2 == 0 && row > 2 * third, "front");
    let three = told(&[&late, &early, &b], &set);
    assert_eq!(three["loads"].as_array().unwrap().len(), 1, "{three:#}");
    // One load has no need of its name, of however many files it is.
    assert_says(&said(&[&a, &b], &set), "predicted: rate=1.5 ");
    let hop = write("hop.csv", &|row| row % 2 == 1, "hop");
    for given in [&[hop.as_str()][..], &[a.as_str(), hop.as_str()]] {
        let error = run(&[given, &flags(&set)].concat()).unwrap_err();
        assert_says(&error, "hop.csv: ");
        assert_says(&error, "report --join");
    }
}

/// Rows of servers that were hardly busy do not tell what becomes of a queue; and the table is that of `queuescope routing`.
#[test]
fn a_quiet_load_that_is_pushed_to_saturation_has_a_note() {
    let load = file("2048-64-rate5");
    let line = "--set max_running_requests=8 --set rate=1,4";
    let all = told(&[&load], line);
    let notes = |at: usize| all["predictions"][at]["note"].as_str();
    assert_eq!(notes(0), None);
    assert!(notes(1).unwrap().contains("± is too narrow"), "{all:#}");
    let shown = said(&[&load], line);
    let is_note = |line: &&str| line.starts_with("note: ") && line.contains("rate=4: ");
    let noted = shown.lines().filter(is_note);
    assert_eq!(
        noted.filter(|line| line.contains("too narrow")).count(),
        1,
        "{shown}"
    );
    let head = shown.lines().find(|line| line.starts_with("run  "));
    let heads: Vec<&str> = head
        .unwrap()
        .split("  ")
        .filter(|head| !head.is_empty())
        .collect();
    let of_runs = ["ok", "failed", "req/s", "TTFT p50", "TTFT p99", "total p99"];
    for head in of_runs {
        assert!(heads.iter().any(|of| of.trim() == head), "{heads:?}");
    }
}
