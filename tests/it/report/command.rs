//! `queuescope report`: runs as the generator left them, finished or killed; shards; a front and hops of other processes.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use queuescope::sim::config::Config;
use queuescope::sim::server::Sim;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::assert_says;
use crate::support::generator::{self, flags};
use crate::support::process::{Done, queuescope, run_aside};
use crate::support::proxy::{Front, Row, all_rows, number, workers};
use crate::support::wire::until;

/// Runs of traffic to a simulated server, in folders of their own.
struct Runs {
    sim: Sim,
    /// Where the traffic goes.
    url: String,
    folder: TempDir,
}

impl Runs {
    fn of(change: impl FnOnce(&mut Config)) -> Runs {
        let sim = generator::sim(change);
        Runs {
            url: format!("http://{}", sim.addr()),
            sim,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }

    /// The arguments of a run.
    fn load(&self, name: &str, more: &str) -> Vec<String> {
        let dir = self.path(name);
        let load = "--dataset-name random --random-input-len 20 --random-output-len 8 --seed 5";
        let given = ["traffic", "--base-url", &self.url, "--output-dir", &dir];
        let all = [&given, &flags(load)[..], &flags(more)].concat();
        all.into_iter().map(str::to_owned).collect()
    }

    async fn traffic(&self, name: &str, more: &str) -> Done {
        let args = self.load(name, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let done = run_aside(queuescope(&args)).await;
        done.assert_status(&[0, 3]);
        done
    }

    /// What is said of some folders, under flags.
    async fn report(&self, names: &[&str], more: &str) -> Done {
        let paths: Vec<String> = names.iter().map(|name| self.path(name)).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        run_aside(queuescope(
            &[&["report"], &flags(more)[..], &paths].concat(),
        ))
        .await
    }

    async fn reported(&self, names: &[&str], more: &str) -> String {
        let done = self.report(names, more).await;
        done.assert_status(&[0]);
        done.out
    }

    /// The figures of a run by its report, which are those of its summary.
    async fn figures(&self, name: &str) -> Value {
        let shown = self.reported(&[name], "--format json").await;
        let mut shown: Value = serde_json::from_str(&shown).unwrap();
        let found = shown["runs"][0]["summary"].take();
        let told = self.json(&format!("{name}/summary.json"));
        for (key, value) in told.as_object().unwrap() {
            assert_eq!(&found[key], value, "{key}");
        }
        found
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_has_the_figures_of_the_summary() {
    let runs = Runs::of(|config| config.profile.max_running_requests = 2);
    let load = "--num-prompts 40 --request-rate 80 --upstream-kind server --goodput ttft:50";
    runs.traffic("run", load).await;
    assert_eq!(runs.figures("run").await["requests"], 40);
    assert_eq!(runs.read("run/report.html"), "", "only beside words");
    // Of a window: its requests, in its time. Words come with a page.
    let edges = format!("{load} --leave-out-first 0.1 --leave-out-last 0.1");
    runs.traffic("part", &edges).await;
    assert!(runs.figures("part").await["requests"].as_u64() < Some(40));
    let text = runs.reported(&["part"], "").await;
    assert_says(&text, "figures are of the ");
    assert_says(&text, "report.html");
    assert_says(&runs.read("part/report.html"), "<html");
    let refused = runs.report(&["run"], "--format parquet").await;
    refused.assert_status(&[2]);
}

/// Who asked for figures of a part of a run does not take those of all of it for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_would_leave_nothing_is_told_wherever_figures_are() {
    let runs = Runs::of(|_| {});
    let load = "--num-prompts 1 --upstream-kind server --leave-out-first 10min --json";
    let said = "figures are of all requests: none would be left without the first 600 s";
    let done = runs.traffic("run", load).await;
    assert_says(&done.err, said);
    for format in ["text", "markdown", "json"] {
        let shown = runs.reported(&["run"], &format!("--format {format}")).await;
        assert_says(&shown, said);
    }
    assert_says(&runs.read("run/summary.json"), said);
    assert_says(&runs.read("run/report.html"), said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_killed_is_reported_as_far_as_it_came() {
    let runs = Runs::of(|_| {});
    let load = "--num-prompts 200000 --request-rate 200 --shard 1/2";
    let args = runs.load("run", load);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut command = queuescope(&args);
    command.stderr(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let lines = || runs.read("run/requests.partial.csv").lines().count();
    until("rows", || lines() > 5).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let text = runs.reported(&["run"], "").await;
    for said in ["UNFINISHED: run", " of 100000 requests had ended"] {
        assert_says(&text, said);
    }
    // It knew its settings when it began.
    let told = runs.reported(&["run"], "--format json").await;
    assert_says(&told, "\"shard\": \"1/2\"");
    assert_eq!(runs.read("run/summary.json"), "");

    let merge = format!("--merge --output-dir {}", runs.path("merged"));
    let text = runs.reported(&["run"], &merge).await;
    assert_says(&text, "INVALID: merged");
    for said in ["shards 0/2 are missing", "shard 1/2 was cut short"] {
        assert_eq!(text.matches(said).count(), 1, "said once: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_merged_are_the_run_that_one_would_have_made() {
    let runs = Runs::of(|_| {});
    let load = "--num-prompts 30 --request-rate 200 --request-id-prefix m";
    runs.traffic("whole", load).await;
    for shard in ["0/3", "1/3", "2/3"] {
        let more = format!("{load} --shard {shard}");
        runs.traffic(&shard[..1], &more).await;
    }
    let merge = format!("--merge --output-dir {}", runs.path("merged"));
    runs.reported(&["2", "0", "1"], &merge).await;
    let ids = |name: &str| -> BTreeSet<String> {
        let rows = all_rows(runs.path(&format!("{name}/requests.csv")).as_ref());
        rows.into_iter().map(|row| row["req_id"].clone()).collect()
    };
    assert_eq!(ids("merged"), ids("whole"));
    let told = runs.json("merged/summary.json");
    let counts = ["requests", "completed", "scheduled"].map(|name| &told[name]);
    assert_eq!(counts, [30; 3]);
}

/// Rows of a front that knows nothing of its hop, joined with the hop's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_of_another_process_are_joined_as_if_the_front_had_known_them() {
    let mut runs = Runs::of(|_| {});
    let hop = Front::with(&[], |config| {
        config.workers = workers(&[runs.sim.addr()]);
        config.hop_secret = Some("a secret that the front has not".into());
    })
    .await;
    let front = Front::start(hop.hop_addr()).await;
    runs.url = format!("http://{}", front.addr());
    let load = "--num-prompts 30 --request-rate 100";
    runs.traffic("run", load).await;
    let of = |path| -> BTreeMap<String, Row> {
        let rows = all_rows(path).into_iter();
        rows.map(|row| (row["req_id"].clone(), row)).collect()
    };
    let (of_front, of_hop) = (front.records(), hop.records());
    until("all rows", || {
        of(&of_front).len() == 30 && of(&of_hop).len() == 30
    })
    .await;
    let (blind, seen) = (of(&of_front), of(&of_hop));
    // What one of the rows tells of its span is lost.
    let (id, row) = blind.first_key_value().unwrap();
    let rows = std::fs::read_to_string(&of_front).unwrap();
    let rows = rows.replace(&row["span_id"], "0000000000000001");
    std::fs::write(runs.path("blind.csv"), rows).unwrap();
    std::fs::copy(&of_hop, runs.path("hop.csv")).unwrap();
    assert_eq!(row["worker"], "", "{id}");
    let join = format!("--join --output-dir {}", runs.path("joined"));
    let text = runs.reported(&["blind.csv", "hop.csv"], &join).await;
    let said = "note: 30 of 30 attempts joined to 30 of 30 requests\n";
    assert_says(&text, said);
    for row in &all_rows(runs.path("joined/requests.csv").as_ref()) {
        let (blind, hop) = (&blind[&row["req_id"]], &seen[&row["req_id"]]);
        assert_eq!(row["total_latency"], blind["total_latency"]);
        for column in ["host", "worker"] {
            assert_eq!(row[column], hop[column], "{column}");
        }
        // Both are in the test's process: their clocks are one.
        let error = number(row, "hop_clock_offset_error") + 1e-6;
        let sent = number(hop, "router_send_time");
        for (column, truth) in [
            ("queue_time_in_router", sent - number(blind, "arrival_time")),
            ("server_latency", number(blind, "finish_time") - sent),
            ("pure_queue_time", number(hop, "pure_queue_time")),
        ] {
            let apart = (number(row, column) - truth).abs();
            assert!(apart <= error, "{column}: {apart} > {error}: {row:?}");
        }
    }
    let join = join.replace("joined", "again");
    let wrong = runs.report(&["hop.csv", "blind.csv"], &join).await;
    assert_says(&wrong.err, "takes the front's file first");
}
