//! `queuescope report`: runs as the generator left them, finished or killed; shards; a front and hops of other processes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;

use queuescope::report::reader;
use queuescope::request::columns::ColumnId;
use serde_json::Value;

use crate::support::assert_says;
use crate::support::generator::{self, flags};
use crate::support::process::{Done, queuescope, run_aside};
use crate::support::proxy::{Front, Row, all_rows, number, workers};
use crate::support::wire::until;

async fn report(args: &[&str]) -> Done {
    let done = run_aside(queuescope(&[&["report"], args].concat())).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    done
}

/// Traffic to a simulated server, into a folder.
async fn traffic(url: &str, dir: &Path, more: &str) -> Done {
    let dir = dir.to_str().unwrap();
    let load = "--dataset-name random --random-input-len 20 --random-output-len 8 --seed 5";
    let mut args = vec!["traffic", "--base-url", url, "--output-dir", dir];
    args.extend(flags(load));
    args.extend(flags(more));
    let done = run_aside(queuescope(&args)).await;
    assert!(matches!(done.code, Some(0 | 3)), "{done:?}");
    done
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The leaves that differ by more than rounding does.
fn differing(path: &str, a: &Value, b: &Value, out: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(members), Value::Object(_)) => {
            for (name, value) in members {
                differing(&format!("{path}/{name}"), value, &b[name], out);
            }
        }
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            if (a - b).abs() > 1e-9 * a.abs().max(1.0) {
                out.push(format!("{path}: {a} {b}"));
            }
        }
        (Value::Array(_), Value::Array(_)) => {}
        (a, b) if a == b => {}
        (a, b) => out.push(format!("{path}: {a} {b}")),
    }
}

/// Figures of a run's report that its summary has otherwise.
async fn not_alike(dir: &Path) -> Vec<String> {
    let shown = report(&[dir.to_str().unwrap(), "--format", "json"]).await;
    let found: Value = serde_json::from_str(&shown.out).unwrap();
    let (told, mut out) = (json(&dir.join("summary.json")), Vec::new());
    differing("", &told, &found["runs"][0]["summary"], &mut out);
    // No column tells when the engine was done.
    out.retain(|leaf| !leaf.contains("running"));
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_has_the_figures_of_the_summary() {
    let sim = generator::sim(|config| config.profile.max_running_requests = 2);
    let url = format!("http://{}", sim.addr());
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let more = "--num-prompts 40 --request-rate 80 --upstream-kind server --goodput ttft:50";
    traffic(&url, &dir, more).await;
    let path = dir.to_str().unwrap();
    assert_eq!(not_alike(&dir).await, [""; 0]);
    assert!(!dir.join("report.html").exists(), "only beside words");

    // Of a window: its requests, in its time. Words come with a page.
    let part = folder.path().join("part");
    let edges = format!("{more} --leave-out-first 0.1 --leave-out-last 0.1");
    traffic(&url, &part, &edges).await;
    assert_eq!(not_alike(&part).await, [""; 0]);
    let text = report(&[part.to_str().unwrap()]).await.out;
    assert_says(&text, "figures are of the ");
    assert_says(&text, "report.html");
    let page = std::fs::read_to_string(part.join("report.html")).unwrap();
    assert_says(&page, "<html");
    let refused = run_aside(queuescope(&["report", path, "--format", "parquet"])).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
}

/// Who asked for figures of a part of a run does not take those of all of it for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_would_leave_nothing_is_told_wherever_figures_are() {
    let sim = generator::sim(|_| {});
    let url = format!("http://{}", sim.addr());
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let path = dir.to_str().unwrap();
    let load = "--num-prompts 1 --upstream-kind server --leave-out-first 10min --json";
    let said = "figures are of all requests: none would be left without the first 600 s";
    let done = traffic(&url, &dir, load).await;
    assert_says(&done.err, said);
    assert_says(&done.err, "1 request in ");
    let told = json(&dir.join("summary.json"));
    let warnings = told["warnings"].as_array().unwrap();
    assert!(warnings.contains(&said.into()), "{warnings:?}");
    for format in ["text", "markdown", "json"] {
        let shown = report(&[path, "--format", format]).await;
        assert_says(&shown.out, said);
    }
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    assert_says(&page, said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_killed_is_reported_as_far_as_it_came() {
    let sim = generator::sim(|_| {});
    let url = format!("http://{}", sim.addr());
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let path = dir.to_str().unwrap();
    let mut args = vec!["traffic", "--base-url", &url, "--output-dir", path];
    let load = "--dataset-name random --random-input-len 20 --random-output-len 8";
    args.extend(flags(load));
    args.extend(flags("--num-prompts 200000 --request-rate 200 --shard 1/2"));
    let mut command = queuescope(&args);
    let mut child = command
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let partial = dir.join("requests.partial.csv");
    let lines = || std::fs::read_to_string(&partial).map_or(0, |text| text.lines().count());
    until("rows", || lines() > 5).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let text = report(&[path]).await.out;
    for said in [
        "UNFINISHED: run",
        "[UNFINISHED]",
        " of 100000 requests had ended",
    ] {
        assert_says(&text, said);
    }
    // It knew its settings when it began.
    let text = report(&["--format", "json", path]).await.out;
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["runs"][0]["summary"]["config"]["shard"], "1/2");
    assert!(!dir.join("summary.json").exists());

    let merged = folder.path().join("merged");
    let out = merged.to_str().unwrap();
    let text = report(&["--merge", "--output-dir", out, path]).await.out;
    assert_says(&text, "INVALID: merged");
    for said in ["shards 0/2 are missing", "shard 1/2 was cut short"] {
        assert_eq!(text.matches(said).count(), 1, "said once: {text}");
    }
    assert!(text.matches("[INVALID]").count() > 2, "{text}");
    assert!(!text.contains("Nothing is wrong"), "{text}");
    let text = report(&["--format", "markdown", out]).await.out;
    let (_, of_run) = text.split_once("## merged (INVALID)").unwrap();
    // Each table has the mark, and nothing else has it.
    let count = |what: &str| of_run.matches(what).count();
    assert_eq!(count("**[INVALID]**\n\n|"), count("| :-- |"), "{text}");
    assert_eq!(count("**[INVALID]**"), count("| :-- |"), "{text}");
    assert_eq!(text.matches("shards 0/2 are missing").count(), 1, "{text}");
    let summary = json(&merged.join("summary.json"));
    assert_eq!(summary["verdict"]["grade"], "INVALID");
    assert_eq!(summary["scheduled"], 100_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_merged_are_the_run_that_one_would_have_made() {
    let sim = generator::sim(|_| {});
    let url = format!("http://{}", sim.addr());
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let load = "--num-prompts 30 --request-rate 200 --request-id-prefix m";
    traffic(&url, &at("whole"), load).await;
    for shard in 0..3 {
        let more = format!("{load} --shard {shard}/3");
        traffic(&url, &at(&format!("s{shard}")), &more).await;
    }
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    let (a, b, c, merged) = (path("s0"), path("s1"), path("s2"), path("merged"));
    let args = ["--merge", "--output-dir", &merged, &c, &a, &b];
    report(&args).await;
    let ids = |name: &str| -> BTreeSet<String> {
        let rows = all_rows(&at(name).join("requests.csv")).into_iter();
        rows.map(|row| row["req_id"].clone()).collect()
    };
    assert_eq!(ids("merged"), ids("whole"));
    let told = json(&at("merged").join("summary.json"));
    let counts = ["requests", "completed", "scheduled"].map(|name| &told[name]);
    assert_eq!(counts, [30; 3]);
    let lists = ["merged_from", "machines"].map(|name| told[name].as_array().map(Vec::len));
    assert_eq!(lists, [Some(3); 2]);
    // Arrivals go up, and count from the first shard's beginning.
    let loaded = reader::load(&[at("merged")]).unwrap();
    let arrivals = loaded.runs[0].table.numbers(ColumnId::arrival_time);
    assert!(arrivals.is_sorted(), "{arrivals:?}");

    let (whole, out) = (path("whole"), path("refused"));
    let head = ["report", "--merge", "--output-dir", &out, &a];
    for (more, said) in [
        (&[&*b, &a][..], "each of one run's shards is given once"),
        (&[&whole], "no shard: the run was made without --shard"),
    ] {
        let refused = run_aside(queuescope(&[&head, more].concat())).await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert_says(&refused.err, said);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_of_another_process_are_joined_as_if_the_front_had_known_them() {
    let sim = generator::sim(|_| {});
    let hop = Front::with(&[], |config| {
        config.workers = workers(&[sim.addr()]);
        config.hop_secret = Some("a secret that the front has not".into());
    })
    .await;
    let front = Front::start(hop.hop_addr()).await;
    let url = format!("http://{}", front.addr());
    let folder = tempfile::tempdir().unwrap();
    let load = "--num-prompts 30 --request-rate 100";
    traffic(&url, &folder.path().join("run"), load).await;
    let (of_front, of_hop) = (front.records(), hop.records());
    let is_written = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count() == 31;
    until("all rows", || is_written(&of_front) && is_written(&of_hop)).await;
    let of = |rows: Vec<Row>| -> BTreeMap<String, Row> {
        let by_id = rows.into_iter().map(|row| (row["req_id"].clone(), row));
        by_id.collect()
    };
    let (blind, seen) = (of(all_rows(&of_front)), of(all_rows(&of_hop)));
    assert!(blind.values().all(|row| row["worker"].is_empty()));
    // Two rows are missing at the hop, and one of the front has lost its span.
    let lines = |path: &Path| -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let (mut front_lines, mut hop_lines) = (lines(&of_front), lines(&of_hop));
    hop_lines.drain(1..3);
    let is_kept = |row: &Row| {
        hop_lines
            .iter()
            .any(|line| line.starts_with(&format!("{},", row["req_id"])))
    };
    let (kept, missing): (Vec<&Row>, Vec<&Row>) = blind.values().partition(|row| is_kept(row));
    for line in &mut front_lines {
        *line = line.replace(&kept[0]["span_id"], "0000000000000001");
    }
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("blind.csv"), front_lines.join("\n") + "\n").unwrap();
    std::fs::write(at("hop.csv"), hop_lines.join("\n") + "\n").unwrap();
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    let (blind_file, hop_file, out) = (path("blind.csv"), path("hop.csv"), path("joined"));
    let text = report(&["--join", "--output-dir", &out, &blind_file, &hop_file])
        .await
        .out;
    for said in [
        "note: 28 attempts at 28 of 30 requests joined: 27 by the front's span, 1 by the request's id\n",
        "note: 2 requests of the front that no hop has a row of: 2 ok\n",
        "note: clocks of hops are known to ± ",
        "30 requests in ",
    ] {
        assert_says(&text, said);
    }
    for row in &all_rows(&at("joined/requests.csv")) {
        let (blind, hop) = (&blind[&row["req_id"]], &seen[&row["req_id"]]);
        for column in ["total_latency", "arrival_time", "trace_id", "tpot"] {
            assert_eq!(row[column], blind[column], "{column}");
        }
        if missing.iter().any(|of| of["req_id"] == row["req_id"]) {
            assert_eq!(row["router_send_time"], "");
            continue;
        }
        for column in ["host", "worker"] {
            assert_eq!(row[column], hop[column], "{column}");
        }
        // Both are in the test's process: their clocks are one.
        let error = number(row, "hop_clock_offset_error") + 1e-6;
        let sent = number(hop, "router_send_time");
        for (column, truth) in [
            ("router_send_time", sent),
            ("queue_time_in_router", sent - number(blind, "arrival_time")),
            ("server_latency", number(blind, "finish_time") - sent),
            ("pure_queue_time", number(hop, "pure_queue_time")),
        ] {
            let apart = (number(row, column) - truth).abs();
            assert!(apart <= error, "{column}: {apart} > {error}: {row:?}");
        }
    }
    let wrong = [
        "report",
        "--join",
        "--output-dir",
        &path("no"),
        &hop_file,
        &blind_file,
    ];
    let wrong = run_aside(queuescope(&wrong)).await;
    assert_says(&wrong.err, "takes the front's file first");
}
