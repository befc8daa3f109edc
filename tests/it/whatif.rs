//! What rows of a real GPU teach, and how near predictions of the other runs come.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Parser;
use queuescope::report::reader;
use queuescope::whatif::command::{self, Args};
use queuescope::whatif::fit::{Fit, Replayed, compared};
use queuescope::whatif::load::Load;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    args: Args,
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h200/rows");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn file(name: &str) -> String {
    let all = files();
    let found = all
        .iter()
        .find(|path| path.display().to_string().contains(name));
    found.unwrap().display().to_string()
}

fn run(flags: &[&str]) -> Result<(String, Option<String>), String> {
    let args = Flags::try_parse_from([&["whatif"], flags].concat())
        .unwrap()
        .args;
    command::run(&args).map_err(|error| error.to_string())
}

/// Each run, and what the others taught of it.
fn predicted_by_others(loads: &[Load]) -> Vec<Replayed> {
    let one = |at: usize| {
        let others: Vec<Load> = loads
            .iter()
            .enumerate()
            // Two servers that share a GPU are in one run alone: what that costs is of itself.
            .filter(|(other, load)| *other != at || load.servers.len() > 1)
            .map(|(_, load)| load.clone())
            .collect();
        Fit::of(&others).unwrap().replay(&loads[at])
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..loads.len())
            .map(|at| scope.spawn(move || one(at)))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn runs_of_a_real_gpu_are_predicted_by_the_others() {
    let loaded = reader::load(&files()).unwrap();
    let loads: Vec<Load> = loaded.runs.iter().map(Load::of).collect();
    let limits: Vec<_> = loads.iter().flat_map(|load| load.slots.clone()).collect();
    assert_eq!(
        limits,
        [None, None, None, None, Some(16), None, None, None],
        "the only run that waited had 16 slots"
    );
    let mut table =
        "| run | | TTFT p50 | TTFT p99 | total p50 | total p99 | queue mean | done a second |\n"
            .to_owned();
    table += "|---|---|---|---|---|---|---|---|\n";
    let mut off = Vec::new();
    for run in predicted_by_others(&loads) {
        let (measured, predicted) = (compared(&run.measured), compared(&run.predicted));
        for (name, what, figures) in [
            (run.name.as_str(), "H200", measured),
            ("", "predicted", predicted),
        ] {
            let _ = write!(table, "| {name} | {what} |");
            for (at, figure) in figures.into_iter().enumerate() {
                let shown = if at < 5 { figure * 1e3 } else { figure };
                let digits = if shown < 100.0 { 2 } else { 0 };
                let _ = write!(table, " {shown:.digits$} |");
            }
            table += "\n";
        }
        let bounds = [
            (0.15, 0.015),
            (0.3, 0.05),
            (0.15, 0.015),
            (0.3, 0.05),
            (0.15, 0.015),
            (0.02, 0.0),
        ];
        for (at, (share, seconds)) in bounds.into_iter().enumerate() {
            let apart = (predicted[at] - measured[at]).abs();
            if apart > share * measured[at] && apart > seconds {
                off.push((run.name.clone(), at));
            }
        }
    }
    assert!(off.is_empty(), "{off:?}\n{table}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/WHATIF.md");
    let written = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = written.split_once("<!-- table: whatif -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- end -->\n").unwrap();
    let page = format!("{before}<!-- table: whatif -->\n{table}<!-- end -->\n{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(&path, &page).unwrap();
    }
    assert!(
        page == written,
        "docs/WHATIF.md is stale: run `UPDATE_DOCS=1 cargo test whatif`\n{table}"
    );
}

#[test]
fn predictions_for_programs_have_every_setting_of_the_grid() {
    let load = file("slots16");
    let flags = [
        load.as_str(),
        "--set",
        "num_gpus=1,2",
        "--set",
        "rate=1.5",
        "--format",
        "json",
    ];
    let (shown, refused) = run(&flags).unwrap();
    assert_eq!(refused, None);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(
        shown["validation"][0]["file"]
            .as_str()
            .unwrap()
            .contains("slots16")
    );
    let step = &shown["fit"]["parameters"]["decode_step_ms"];
    assert!(step["low"].as_f64() < step["value"].as_f64());
    let predictions = shown["predictions"].as_array().unwrap();
    let settings: Vec<_> = predictions.iter().map(|one| &one["settings"]).collect();
    assert_eq!(
        settings[0],
        &serde_json::json!({"num_gpus": 1, "rate": 1.5})
    );
    assert_eq!(
        settings[1],
        &serde_json::json!({"num_gpus": 2, "rate": 1.5})
    );
    let queue = |at: usize| {
        predictions[at]["pure_queue_time_ms"]["mean"]
            .as_f64()
            .unwrap()
    };
    assert!(queue(0) > 300.0 && queue(1) < 20.0, "{shown:#}");
    for latency in ["ttft_ms", "total_latency_ms", "pure_queue_time_ms"] {
        for figure in ["mean", "p50", "p99"] {
            assert!(
                predictions[0][latency][figure].is_f64(),
                "{latency} {figure}"
            );
        }
    }
    assert!(predictions[0]["request_throughput"].is_f64());
}

#[test]
fn settings_that_cannot_be_are_named() {
    let load = file("shared");
    for (setting, said) in [
        ("slots", "must be KEY=VALUE"),
        ("max_runing_requests=3", "is max_running_requests meant?"),
        (
            "max_running_requests=0",
            "must be a whole number, 1 or more",
        ),
        ("num_gpus=0", "must be a whole number from 1 to 1024"),
        ("rate=-1", "must be a number above 0"),
        (
            "routing_policy=cache_aware",
            "which prompts share a beginning",
        ),
        (
            "servers_per_gpu=2",
            "what they have of a GPU is learnt there",
        ),
    ] {
        let error = run(&[load.as_str(), "--set", setting]).unwrap_err();
        assert!(
            error.starts_with("--set ") && error.contains(said),
            "{error}"
        );
    }
}
