//! Dashboards and rules: every query of theirs finds data in a real Prometheus that scrapes a demo.

mod live;
mod meaning;
mod queries;

use std::path::Path;
use std::process::Command;

use queuescope::request::timeline::STAGES;

use crate::support::process::run;
use queries::{dashboards, panels};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    let found = std::fs::read_to_string(root().join(path));
    found.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Their dashboard's source lists the stages by hand: colours, and which are before the first token.
#[test]
fn every_stage_that_a_proxy_measures_has_a_colour_and_a_place() {
    let source = read("grafana/panels/where.py");
    let (_, before) = source.split_once("BEFORE = (").unwrap();
    let (before, _) = before.split_once("\n)").unwrap();
    let before: Vec<&str> = before.split(['|', '"', ' ', '\n']).collect();
    let first_token = STAGES.iter().position(|stage| stage.metric == "decode");
    for (at, stage) in STAGES.iter().enumerate() {
        // Those of the generator.
        let is_shown = !["client_lag", "to_proxy"].contains(&stage.metric);
        let has_colour = source.contains(&format!("    \"{}\": ", stage.metric));
        assert_eq!(has_colour, is_shown, "{}", stage.metric);
        let is_before = is_shown && Some(at) < first_token;
        assert_eq!(
            before.contains(&stage.metric),
            is_before,
            "{}",
            stage.metric
        );
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
