//! What `queuescope report` says of fixed rows, in every format: `tests/data/golden/report/`, written anew with `UPDATE=1`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use queuescope::report::command::{Args, Format, run};
use serde_json::{Value, json};

use super::made::{MADE, Made, put};
use crate::support::docs::assert_file;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/golden/report");

fn summary() -> Value {
    json!({ "duration": 8.0, "scheduled": 120, "offered_rate": 18.0, "started_at": 1_795_000_000.25,
        "config": { "request_rate": 18.0, "arrival": "poisson", "max_concurrency": null }, "goodput_goals_ms": { "ttft": 400.0, "tpot": 20.0 },
        "verdict": { "grade": "VALID", "reasons": [] }, "warnings": [] })
}

/// What the report says, with the folder's own name out of it; its page goes there, if anywhere.
fn said(folder: &Path, format: Format, dirs: &[&str], html: Option<PathBuf>) -> String {
    let args = Args {
        dirs: dirs.iter().map(|dir| folder.join(dir)).collect(),
        format,
        no_html: html.is_none(),
        html,
        ..Args::default()
    };
    let reported = run(&args, None).unwrap();
    reported.replace(folder.to_str().unwrap(), "DIR")
}

fn pinned(name: &str, said: &str) {
    assert_file(&format!("{GOLDEN}/{name}"), said);
}

/// The same with long series as their length, sum and first values.
fn squeezed(value: &mut Value) {
    match value {
        Value::Object(members) => members.values_mut().for_each(squeezed),
        Value::Array(all) if all.len() > 12 && all.iter().all(Value::is_number) => {
            let sum: f64 = all.iter().filter_map(Value::as_f64).sum();
            *value = json!([all.len(), format!("{sum:.9}"), all[1], all[2]]);
        }
        Value::Array(all) => all.iter_mut().for_each(squeezed),
        _ => {}
    }
}

/// The page of some folders, with the JSON beside it: `scripts/report-shots.sh` opens it in a browser.
fn page(name: &str, folder: &Path, dirs: &[&str]) {
    let pages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
    std::fs::create_dir_all(&pages).unwrap();
    let html = pages.join(format!("{name}.html"));
    let json = said(folder, Format::Json, dirs, Some(html));
    put(&pages, &format!("{name}.json"), &json);
}

const FORMATS: [(Format, &str); 4] = [
    (Format::Text, "txt"),
    (Format::Markdown, "md"),
    (Format::Csv, "csv"),
    (Format::Json, "json"),
];

/// Some folders in all these formats, and their page.
fn pinned_in(formats: &[(Format, &str)], name: &str, folder: &Path, dirs: &[&str]) {
    for (format, end) in formats {
        let mut said = said(folder, *format, dirs, None);
        if *end == "json" {
            let mut value: Value = serde_json::from_str(&said).unwrap();
            squeezed(&mut value);
            said = format!("{value:#}\n");
        }
        pinned(&format!("{name}.{end}"), &said);
    }
    page(name, folder, dirs);
}

fn all_formats(name: &str, folder: &Path, dirs: &[&str]) {
    pinned_in(&FORMATS, name, folder, dirs);
}

#[test]
fn a_run_of_real_servers() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    Made { requests: 1, ..MADE }.write(&dir, json!({}), &json!({
        "scheduled": 40, "offered_rate": 12.0, "config": { "request_rate": 12.0 }, "goodput_goals_ms": { "ttft": 300.0 },
        "window": { "from_s": 0.5, "to_s": 3.0, "left_out_first": 4, "left_out_last": 5, "rule": "without the first 0.5 s" },
        "verdict": { "grade": "DEGRADED", "reasons": ["the event loop woke late"] }, "warnings": ["a warning of the run"],
        "time_spent": { "unseen": { "engine_first_token": 4 } } }));
    let rows = std::fs::read_to_string(Path::new(GOLDEN).join("h200.csv")).unwrap();
    put(&dir, "requests.csv", &rows);
    let mut series = "time,source,server,metric,value\n".to_owned();
    for second in 0..4 {
        writeln!(series, "{second},metrics,server-1,running,{}", 3 + second).unwrap();
        writeln!(series, "{second},metrics,server-2,queued,{second}").unwrap();
    }
    put(&dir, "series.csv", &series);
    all_formats("run", folder.path(), &["run"]);
}

#[test]
fn two_runs_against_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let slow = Made {
        requests: 600,
        ..MADE
    };
    let quick = Made {
        serves: 0.05,
        fails: 60,
        seed: 8,
        ..slow
    };
    for (made, name, policy) in [(slow, "slow", "random"), (quick, "quick", "shortest")] {
        let dir = folder.path().join(name);
        made.write(&dir, json!({ "policy": policy }), &summary());
    }
    all_formats("pair", folder.path(), &["slow", "quick"]);
}

#[test]
fn an_experiment_of_a_grid_and_a_search() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("grid");
    let mut runs = Vec::new();
    for (n, serves) in [(1, 0.1), (2, 0.06), (4, 0.02)] {
        for (policy, seed) in [("random", 7), ("shortest", 9)] {
            let label = format!("policy={policy}, max_running_requests={n}");
            let settings = json!({ "policy": policy, "max_running_requests": n });
            let run = format!("runs/{policy}-{n}");
            let made = Made {
                serves,
                seed,
                requests: 80,
                ..MADE
            };
            made.write(&dir.join(&run), settings.clone(), &summary());
            runs.push(json!({ "dir": run, "label": label, "settings": settings, "repeat": 0, "state": "done" }));
        }
    }
    let pinned_experiment = |name: &str, file: &Value| {
        put(&dir, "experiment.json", &file.to_string());
        pinned_in(&FORMATS[..3], name, folder.path(), &["grid"]);
        let made = std::fs::read(dir.join("comparison.json")).unwrap();
        let made: Value = serde_json::from_slice(&made).unwrap();
        let parts = json!({ "experiment": made["experiment"], "comparison": made["comparison"], "not_compared": made["not_compared"] });
        pinned(&format!("{name}.json"), &format!("{parts:#}\n"));
    };
    let mut file = json!({ "kind": "routing", "began": 1_795_000_000.0, "keys": ["max_running_requests", "policy"], "runs": runs });
    pinned_experiment("grid", &file);
    // Runs of a search are not compared.
    file["runs"].as_array_mut().unwrap().truncate(2);
    file["max_rate"] = json!({ "goodput": ["ttft:500"], "share": 0.99, "met": 12.0, "missed": null, "invalid": 14.0,
        "trials": [{ "rate": 12.0, "drawn": 11.9, "kept": 0.995, "result": "met" }, { "rate": 14.0, "drawn": 13.1, "kept": 0.99, "result": "invalid" }] });
    pinned_experiment("search", &file);
}

#[test]
fn servers_that_were_disturbed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("faults");
    let disturbed = Made {
        requests: 500,
        down: (10.0, 14.0),
        ..MADE
    };
    disturbed.write(&dir, json!({}), &summary());
    let faults = "time,server,kind,event\n10.0,server-2,kill,down\n12.5,server-2,kill,up\n14.0,server-2,kill,ready\n20.0,server-1,refuse,down\n";
    put(&dir, "faults.csv", faults);
    all_formats("faults", folder.path(), &["faults"]);
}

/// What stands in rows is text on the page, whatever it says.
const HOSTILE: &str =
    "<img src=x onerror=console.error(1)></script><script>console.error(2)</script>";

#[test]
fn a_run_that_was_cut_short_and_rows_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("cut");
    std::fs::create_dir(&dir).unwrap();
    let rows = Made { fails: 3, ..MADE }
        .rows()
        .replacen("g-3,True", "g-3,True,\"more", 1)
        .replace(",seen_by,", ",seen_of,")
        .replace("alas", HOSTILE)
        .replace(",m,", &format!(",{HOSTILE},"));
    put(&dir, "requests.partial.csv", &rows[..rows.len() - 40]);
    let begun = json!({ "scheduled": 500, "config": { "seed": 1 }, "offered_rate": 18.0 });
    put(&dir, "begun.json", &begun.to_string());
    let faults = "time,server,kind,event\nnever,server-2,kill,down\n";
    put(&dir, "faults.csv", faults);
    all_formats("cut", folder.path(), &["cut"]);
}

/// Rows of a proxy, of before there was a column of outcomes; some of several sequences.
#[test]
fn records_of_a_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "req_id,success,host,arrival_time,router_send_time,finish_time,server_latency,total_latency,queue_time_in_router,ttft_observed,first_token_time\n".to_owned();
    for n in 0..40 {
        let at = 1_795_000_000.5 + 0.3 * f64::from(n);
        for index in 0..2 {
            let (host, mark) = (n % 3, if n % 3 == 0 { '#' } else { '-' });
            let id = format!("r{n}{mark}{index}");
            let success = if n % 7 == 6 { "False" } else { "True" };
            writeln!(
                text,
                "{id},{success},10.0.0.{host}:1,{at:.9},{:.9},{:.9},0.900000000,1.000000000,0.100000000,0.5{index}0000000,{:.9}",
                at + 0.1,
                at + 1.0,
                at + 0.5 + 0.01 * f64::from(index)
            )
            .unwrap();
        }
    }
    put(folder.path(), "records.csv", &text);
    all_formats("records", folder.path(), &["records.csv"]);
}
