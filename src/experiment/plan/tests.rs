use std::path::Path;

use super::*;
use crate::experiment::launch::{DeploymentSpec, ServerSpec};

/// Makes a plan of `node` or `routing`; of `node example` one whose keys are given over those of the built-in example.
pub(in crate::experiment) fn plan(kind: &str, text: &str) -> Result<Plan, Error> {
    let (kind, has_example) = match kind.strip_suffix(" example") {
        Some(kind) => (kind, true),
        None => (kind, false),
    };
    let kind = ExperimentKind::named(kind).unwrap();
    let example = if has_example { kind.example() } else { "" };
    Plan::new(kind, grid::file(example)?, grid::file(text)?)
}

fn spec(settings: &Settings) -> DeploymentSpec {
    deploy::spec(settings, Path::new("/x"), Path::new("q")).unwrap()
}

/// Valid plans, each followed by its runs: what is started for them, and how they are loaded.
const VALID: &str = "tests/data/experiment/right-plans.txt";

fn describe(kind: &str, text: &str) -> String {
    let plan = plan(kind, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_is_kept(&plan);
    let runs = plan.runs.iter().map(|run| {
        let (found, load) = (spec(&run.settings), &run.settings.load);
        let servers = found.servers.iter().map(|server| match server {
            ServerSpec::Started(line) => {
                format!("\n  {} {}", line.program.display(), line.args.join(" "))
            }
            ServerSpec::Running(url) => format!("\n  {url}"),
        });
        let logs = deploy::engine_logs(&run.settings, Path::new("/x"));
        format!(
            "{}: {:?} {:?}, front {}, hops {}, port {:?}, start {:?}{}\n  [proxy] {}\n  load: rate {}, {:?} prompts, \
             seed {}, goals {:?}, headers {}, ca {:?}, logs {logs:?}\n",
            run.dir,
            found.router_name(),
            found.router_flags,
            found.front,
            found.hops,
            found.base_port,
            found.start_timeout,
            servers.collect::<String>(),
            toml::Value::from(found.proxy),
            load.request_rate,
            load.num_prompts,
            load.seed,
            run.settings.goodput(),
            load.header.len(),
            found.access.tls.ca,
        )
    });
    let notes = notes(&plan).into_iter();
    runs.chain(notes.map(|note| format!("note: {note}\n")))
        .collect()
}

fn notes(plan: &Plan) -> Vec<String> {
    deploy::ineffective_keys(plan, &plan.runs[0].settings)
}

/// A plan that is printed makes the same runs. What nobody gave is no reason for notes.
fn assert_is_kept(before: &Plan) {
    let text = before.to_toml();
    let after = plan(before.kind.name(), &text).unwrap();
    let runs = |plan: &Plan| {
        let runs = plan.runs.iter();
        let runs = runs.map(|run| (run.dir.clone(), format!("{:?}", run.settings)));
        runs.collect::<Vec<_>>()
    };
    assert_eq!(runs(before), runs(&after), "{text}");
    assert_eq!(notes(before), notes(&after), "{text}");
}

/// Compares a file of plans, `KIND: TEXT` where `\\n` ends a line, with what `describe` returns for each.
pub(in crate::experiment) fn golden(file: &str, describe: impl Fn(&str, &str) -> String) {
    let expected = std::fs::read_to_string(file).unwrap();
    let plans = expected.lines().filter(|line| !line.starts_with(' '));
    let now = plans.map(|line| {
        let (kind, text) = line.split_once(": ").unwrap();
        let found = describe(kind, &text.replace("\\n", "\n"));
        format!("{line}\n    {}\n", found.trim_end().replace('\n', "\n    "))
    });
    let now: String = now.collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file, &now).unwrap();
    }
    assert_eq!(now, expected, "{file}: UPDATE_DOCS=1 updates it");
}

#[test]
fn valid_plans_make_the_expected_runs() {
    golden(VALID, describe);
}

/// Invalid plans, each followed by its error.
const INVALID: &str = "tests/data/experiment/wrong-plans.txt";

#[test]
fn an_invalid_plan_is_refused_by_its_key_before_anything_starts() {
    golden(INVALID, |kind, text| {
        plan(kind, text).map_or_else(|error| error.to_string(), |_| "taken".to_owned())
    });
}
