//! Dashboards and rules: every query of theirs finds data in a real Prometheus that scrapes a demo.

mod live;
mod meaning;
mod queries;

use std::path::Path;
use std::process::Command;

use queuescope::request::STAGES;

use crate::support::process::run;
use queries::{dashboards, panels};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    let found = std::fs::read_to_string(root().join(path));
    found.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Their dashboard's source names those after the first token, and those with a colour of their own.
#[test]
fn the_stages_that_a_dashboard_names_are_there() {
    let source = read("grafana/panels/where.py");
    let between = |from, to| {
        let (_, rest) = source.split_once(from).unwrap();
        rest.split_once(to).unwrap().0
    };
    let others = ["proxy", "server", "client_stall"];
    let is_known = |name: &str| {
        let mut stages = STAGES.iter().map(|stage| stage.metric).chain(others);
        stages.any(|known| known == name)
    };
    let colours = between("\nCOLORS = {", "\n}").lines().skip(1);
    for line in colours {
        let name = line.split('"').nth(1).unwrap();
        assert!(is_known(name), "{name}");
    }
    let mut after = STAGES.iter().map(|stage| stage.metric);
    after.find(|metric| *metric == "router_return");
    let after: Vec<&str> = after.chain(["client_stall"]).collect();
    assert_eq!(between("\nAFTER = \"", "\"\n"), after.join("|"));
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
    let alerts = rules
        .lines()
        .filter_map(|line| line.split_once("- alert: "));
    let alerts: Vec<&str> = alerts.map(|(_, name)| name).collect();
    assert_eq!(alerts.len(), rules.matches("summary: ").count());
    for alert in alerts {
        let named = format!("alertname: {alert}\n");
        let cases = tests.split("- eval_time: ");
        let cases = cases.filter(|case| case.contains(&named));
        let (fires, not): (Vec<&str>, Vec<&str>) =
            cases.partition(|case| case.contains("exp_alerts"));
        assert!(!fires.is_empty() && !not.is_empty(), "{alert}");
    }
}
