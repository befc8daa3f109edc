//! Dashboards and rules: every name in them is one that somebody has, and every query of theirs finds data in a real
//! Prometheus that scrapes a demo.

mod live;
mod meaning;
mod queries;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use queuescope::telemetry::prometheus::METRICS;

use crate::support::process::run;
use queries::{dashboards, metrics_in, panels};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    let found = std::fs::read_to_string(root().join(path));
    found.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names that a scrape's text tells the types of.
fn typed_names(scrape: &str) -> impl Iterator<Item = String> {
    let types = scrape
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
}

/// Every metric that a query may name: ours, SGLang's and the routers' as recorded, those that rules make.
fn known() -> BTreeSet<String> {
    let rules = read("deploy/prometheus/recording-rules.yml");
    let made = rules.lines().filter_map(|line| line.split_once("record: "));
    let ours = METRICS.iter();
    let mut known: BTreeSet<String> = ours.map(|metric| metric.name.to_owned()).collect();
    known.extend(made.map(|(_, name)| name.to_owned()));
    for scrape in [
        "tests/data/sglang-0.5.23/info_metrics.body",
        "tests/data/smg/metrics-1.13.0.txt",
        "tests/data/smg/metrics-0.3.2.txt",
    ] {
        known.extend(typed_names(&read(scrape)));
    }
    known.insert("up".to_owned());
    known
}

/// The name without what Prometheus adds to a histogram's.
fn family<'a>(known: &BTreeSet<String>, name: &'a str) -> &'a str {
    let parts = ["_bucket", "_sum", "_count"];
    let bare = parts.iter().find_map(|part| name.strip_suffix(part));
    bare.filter(|bare| known.contains(*bare)).unwrap_or(name)
}

#[test]
fn every_metric_in_dashboards_and_rules_is_one_that_is_there() {
    let known = known();
    assert!(known.len() > 100, "{known:?}");
    let mut texts: Vec<(String, String)> = Vec::new();
    for (name, board) in dashboards() {
        texts.extend(queries::all(&board).map(|query| (name.clone(), query)));
    }
    for rules in ["recording-rules.yml", "alert-rules.yml"] {
        let text = read(&format!("deploy/prometheus/{rules}"));
        texts.extend(queries::of_rules(&text).map(|query| (rules.to_owned(), query)));
    }
    let mut used = BTreeSet::new();
    for (place, query) in &texts {
        let names = metrics_in(query);
        assert!(!names.is_empty(), "{place}: no metric in {query}");
        for name in names {
            let family = family(&known, &name).to_owned();
            assert!(
                known.contains(&family),
                "{place}: nobody has {name}: {query}"
            );
            used.insert(family);
        }
    }
    for ours in ["queuescope_", "gen_ai_", "sglang:", "smg_", "process_"] {
        assert!(used.iter().any(|name| name.starts_with(ours)), "{ours}");
    }
}

#[test]
fn dashboards_are_as_generated_and_every_panel_says_how_to_read_it() {
    let mut check = Command::new("python3");
    check.arg(root().join("grafana/generate.py")).arg("--check");
    let done = run(check);
    assert_eq!(done.code, Some(0), "{}", done.err);
    for (name, board) in dashboards() {
        for panel in panels(&board) {
            let title = panel["title"].as_str().unwrap();
            let about = panel["description"].as_str().unwrap();
            assert!(about.len() > 30, "{name}: {title}: {about}");
            assert!(panel["gridPos"]["x"].as_u64() < Some(24), "{name}: {title}");
        }
    }
}

#[test]
fn rules_are_valid_and_every_alert_has_a_case_that_fires_and_one_that_does_not() {
    let folder = root().join("deploy/prometheus");
    let promtool = |args: &[&str]| {
        let mut command = Command::new("promtool");
        command.args(args).current_dir(&folder);
        let done = command.output().unwrap_or_else(|error| {
            panic!("promtool ({error}): install Prometheus: `bash scripts/test.sh` does")
        });
        let said = String::from_utf8_lossy(&done.stdout).into_owned()
            + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "promtool {args:?}: {said}");
    };
    promtool(&["check", "config", "prometheus.yml"]);
    promtool(&["test", "rules", "tests/requests.yml", "tests/figures.yml"]);
    let tests =
        read("deploy/prometheus/tests/requests.yml") + &read("deploy/prometheus/tests/figures.yml");
    let rules = read("deploy/prometheus/alert-rules.yml");
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.split_once("- alert: "))
        .map(|(_, name)| name)
        .collect();
    assert_eq!(alerts.len(), rules.matches("summary: ").count());
    for alert in alerts {
        let cases: Vec<&str> = tests.split("- eval_time: ").collect();
        let named = format!("alertname: {alert}\n");
        let (fires, not): (Vec<&str>, Vec<&str>) = cases
            .iter()
            .filter(|case| case.contains(&named))
            .partition(|case| case.contains("exp_alerts"));
        assert!(!fires.is_empty() && !not.is_empty(), "{alert}");
    }
}
