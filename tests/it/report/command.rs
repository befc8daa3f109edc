//! `queuescope report`: runs as the generator left them, finished or killed; shards.

use std::process::{Command, Stdio};

use queuescope::sim::Sim;
use queuescope::sim::config::Config;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::assert_says;
use crate::support::generator::{self, flags};
use crate::support::process::{Done, queuescope, run_aside};
use crate::support::wire::until;

/// Runs of traffic to a simulated server, in folders of their own.
struct Runs {
    sim: Sim,
    folder: TempDir,
}

impl Runs {
    fn of(change: impl FnOnce(&mut Config)) -> Runs {
        Runs {
            sim: generator::sim(change),
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

    /// A run of traffic.
    fn command(&self, name: &str, more: &str) -> Command {
        let load = "--dataset-name random --random-input-len 20 --random-output-len 8 --seed 5";
        let url = format!("http://{}", self.sim.addr());
        let mut command = queuescope(&["traffic", "--base-url", &url, "--output-dir"]);
        let args = flags(load).into_iter().chain(flags(more));
        command.arg(self.path(name)).args(args);
        command
    }

    async fn traffic(&self, name: &str, more: &str) -> Done {
        let done = run_aside(self.command(name, more)).await;
        done.assert_status(&[0, 3]);
        done
    }

    /// What is said of some folders, under flags.
    async fn report(&self, names: &[&str], more: &str) -> Done {
        let mut command = queuescope(&["report"]);
        let paths = names.iter().map(|name| self.path(name));
        command.args(flags(more)).args(paths);
        run_aside(command).await
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
async fn a_report_has_the_figures_of_a_run_of_its_window_and_of_its_shards() {
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

    // Shards merged are the run that one would have made.
    for shard in ["0", "1"] {
        let load = format!("--num-prompts 30 --request-rate 200 --shard {shard}/2");
        runs.traffic(shard, &load).await;
    }
    let merge = format!("--merge --output-dir {}", runs.path("merged"));
    runs.reported(&["1", "0"], &merge).await;
    let told = runs.json("merged/summary.json");
    let counts = ["requests", "completed", "scheduled"].map(|name| &told[name]);
    assert_eq!(counts, [30; 3]);

    // Who asked for figures of a part of a run does not take those of all of it for them.
    let load = "--num-prompts 1 --upstream-kind server --leave-out-first 10min --json";
    let said = "figures are of all requests: none would be left without the first";
    let done = runs.traffic("whole", load).await;
    assert_says(&done.err, said);
    for format in ["text", "markdown", "json"] {
        let format = format!("--format {format}");
        let shown = runs.reported(&["whole"], &format).await;
        assert_says(&shown, said);
    }
    assert_says(&runs.read("whole/summary.json"), said);
    assert_says(&runs.read("whole/report.html"), said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_killed_is_reported_as_far_as_it_came() {
    let runs = Runs::of(|_| {});
    let load = "--num-prompts 200000 --request-rate 200 --shard 1/2";
    let mut command = runs.command("run", load);
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
    let done = runs.report(&["run"], &merge).await;
    done.assert_status(&[2]);
    assert_says(&done.err, "the shard did not come to its end");
}
