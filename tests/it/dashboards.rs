//! Dashboards and rules: their queries, as they are sent; every one finds data in a real Prometheus that scrapes a demo, and in one beside
//! `scripts/keep-running.sh` with a real router. What rules and a panel make of made series: `deploy/prometheus/tests/`. That the metrics
//! hold what the rows say: `metrics.rs`.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use queuescope::request::STAGES;
use serde_json::Value;

use crate::support::admin::get;
use crate::support::process::{Done, PROGRAM, run, signal};
use crate::support::router::{Which, free_port};
use crate::support::wire::until_async;

fn read(path: &str) -> String {
    let found = std::fs::read_to_string(path);
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
    check.args(["grafana/generate.py", "--check"]);
    run(check).assert_status(&[0]);
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
    let promtool = |args: &[&str]| {
        let mut command = Command::new("promtool");
        command.args(args).current_dir("deploy/prometheus");
        let done = command.output().unwrap_or_else(|error| {
            panic!("promtool ({error}): install Prometheus: `bash scripts/test.sh` does")
        });
        Done::from(done).assert_status(&[0]);
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
    // The expression of a panel is tested there too.
    assert!(tests.contains(&panel("Went well")));
    for alert in alerts {
        let named = format!("alertname: {alert}\n");
        let cases = tests.split("- eval_time: ");
        let cases = cases.filter(|case| case.contains(&named));
        let (fires, not): (Vec<&str>, Vec<&str>) =
            cases.partition(|case| case.contains("exp_alerts"));
        assert!(!fires.is_empty() && !not.is_empty(), "{alert}");
    }
}

/// The dashboards of `grafana/dashboards`, by file name.
fn dashboards() -> Vec<(String, Value)> {
    let folder = std::fs::read_dir("grafana/dashboards").unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let boards: Vec<(String, Value)> = names
        .map(|name| {
            let text = read(&format!("grafana/dashboards/{name}"));
            (name, serde_json::from_str(&text).unwrap())
        })
        .collect();
    assert_eq!(boards.len(), 3);
    boards
}

/// The panels that show something.
fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    let panels = board["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row")
}

/// Every query of a dashboard, with its variables in it; those of the variables themselves as the series they come from.
fn all(board: &Value) -> impl Iterator<Item = String> {
    let targets = panels(board).flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    let variables = variables.filter_map(|variable| {
        let query = variable["query"]["query"].as_str()?;
        let (metric, label) = query
            .strip_prefix("label_values(")?
            .strip_suffix(')')?
            .split_once(", ")?;
        Some(format!("group by ({label}) ({metric}{{{label}!=\"\"}})"))
    });
    queries.chain(variables)
}

/// A query with everything chosen, and with one model, worker and endpoint chosen.
fn filled(query: &str) -> [String; 2] {
    let fill = |model, worker, endpoint| {
        query
            .replace("$__rate_interval", "1m")
            .replace("$model", model)
            .replace("$worker", worker)
            .replace("$endpoint", endpoint)
            .replace("$front", ".*")
    };
    let chosen = fill("demo-8b", "server-1", "/v1/chat/completions");
    assert!(
        !chosen.replace("$1", "").contains('$'),
        "a variable without a value: {chosen}"
    );
    [fill(".*", ".*", ".*"), chosen]
}

/// The query of a panel, with everything chosen.
fn panel(title: &str) -> String {
    let boards = dashboards();
    let mut panels = boards.iter().flat_map(|(_, board)| panels(board));
    let panel = panels.find(|panel| panel["title"] == title).unwrap();
    let [query, _] = filled(panel["targets"][0]["expr"].as_str().unwrap());
    query
}

/// Picks what never happens in the demo: an alert that asks for it is asked for all.
const NEVER: &str = r#"{reason!="openai_stream"}"#;

/// What an alert compares, without the limits: each side must have a value for the alert to ever fire.
fn compared(alert: &str) -> Vec<String> {
    let alert = alert.replace(NEVER, "");
    let parts = alert.split(" and ");
    let sides = parts.flat_map(|part| {
        let limits = [" > ", " < ", " == "];
        let limit = limits.iter().find_map(|limit| part.split_once(limit));
        let (left, right) = limit.unwrap_or_else(|| panic!("no limit in {part}"));
        [left.to_owned(), right.to_owned()]
    });
    sides.filter(|side| side.parse::<f64>().is_err()).collect()
}

/// How often all that have found nothing yet are asked again, with a second between: more than a minute's windows.
const ROUNDS: usize = 120;

/// A child that is ended when it is dropped, with its own.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

fn demo(folder: &Path) -> Running {
    let mut command = Command::new("bash");
    command.arg("scripts/keep-running.sh");
    command.args([Path::new(PROGRAM), folder, &Which::Smg113.program()]);
    let spawned = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    Running(spawned.unwrap())
}

/// Prometheus with our rules and the demo's targets.
fn prometheus(folder: &Path) -> (Running, SocketAddr) {
    let rules = std::path::absolute("deploy/prometheus").unwrap();
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: ['{0}/recording-rules.yml', '{0}/alert-rules.yml']\n\
         scrape_configs:\n- job_name: demo\n  file_sd_configs:\n  - files: ['{1}/demo/targets.json']\n",
        rules.display(),
        folder.display(),
    );
    let file = folder.join("prometheus.yml");
    std::fs::write(&file, config).unwrap();
    let addr = free_port();
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", file.display()));
    let data = folder.join("data");
    command.arg(format!("--storage.tsdb.path={}", data.display()));
    command.arg(format!("--web.listen-address={addr}"));
    let child = command.stderr(Stdio::null()).spawn();
    let child = child.unwrap_or_else(|error| {
        panic!("prometheus ({error}): install it: `bash scripts/test.sh` does")
    });
    (Running(child), addr)
}

/// What Prometheus answers a query with; it must be one that it understands.
async fn ask(addr: SocketAddr, query: &str) -> Vec<f64> {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let answer = get(addr, &format!("/api/v1/query?query={escaped}"))
        .await
        .json();
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    let data = &answer["data"];
    let number = |value: &Value| value[1].as_str().unwrap().parse().unwrap();
    if data["resultType"] == "scalar" {
        return vec![number(&data["result"])];
    }
    let found = data["result"].as_array().unwrap().iter();
    found.map(|series| number(&series["value"])).collect()
}

/// The rules that Prometheus has loaded: kind and expression.
async fn rules(addr: SocketAddr) -> Vec<(String, String)> {
    let answer = get(addr, "/api/v1/rules").await.json();
    let groups = answer["data"]["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rules
        .map(|rule| (text(&rule["type"]), text(&rule["query"])))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_of_every_panel_and_rule_finds_data() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = demo(&folder.path().join("demo"));
    let targets = folder.path().join("demo/targets.json");
    until_async("the demo's targets", async || {
        assert_eq!(demo.0.try_wait().unwrap(), None, "the demo ended");
        targets.exists()
    })
    .await;
    let (_prometheus, addr) = prometheus(folder.path());
    until_async("Prometheus", async || {
        let listens = tokio::net::TcpStream::connect(addr).await.is_ok();
        listens && get(addr, "/-/ready").await.status() == 200
    })
    .await;

    let rules = rules(addr).await;
    let written = ["recording-rules.yml", "alert-rules.yml"].map(|file| {
        let text = read(&format!("deploy/prometheus/{file}"));
        text.matches("expr: ").count()
    });
    assert_eq!(rules.len(), written.iter().sum::<usize>());
    let mut pending: Vec<(String, String)> = Vec::new();
    for (kind, query) in rules {
        if kind == "alerting" {
            ask(addr, &query).await;
            let sides = compared(&query).into_iter();
            pending.extend(sides.map(|side| (query.clone(), side)));
        } else {
            pending.push((kind, query));
        }
    }
    for (name, board) in dashboards() {
        let both = all(&board).flat_map(|query| filled(&query));
        pending.extend(both.map(|query| (name.clone(), query)));
    }
    let queries = pending.len();
    assert!(queries > 150, "{queries}");
    for _ in 0..ROUNDS {
        let mut nothing = Vec::new();
        for (place, query) in pending {
            // A quantile or share of nothing is no number.
            let found = ask(addr, &query).await;
            if !found.iter().any(|value| value.is_finite()) {
                nothing.push((place, query));
            }
        }
        pending = nothing;
        if pending.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let what = format!("of {queries} queries these found nothing");
    assert!(pending.is_empty(), "{what}: {pending:#?}");
    // What a server does with a request is seen apart, of streamed chat by its traces: the grey band is as good as none. Rows of a
    // machine that is held up may go out before the spans come.
    let stage = "sum(queuescope_stage_duration_seconds_sum{stage=~\"PLACE\"} or vector(0))";
    let share = |place| {
        let (of, all) = (stage.replace("PLACE", place), stage.replace("PLACE", ".*"));
        async move { ask(addr, &format!("{of} / {all}")).await[0] }
    };
    assert!(share("server").await < 0.02, "{}", share("server").await);
    // The load rises and falls: the router queue is short before its first crowd.
    for place in ["router_queue", "server_queue"] {
        until_async(place, async || share(place).await > 0.02).await;
    }
    ends_in_good_order(&mut demo).await;
}

/// SIGTERM ends the demo, its router too, and there was no error.
async fn ends_in_good_order(demo: &mut Running) {
    signal(&demo.0, Signal::SIGTERM);
    let mut status = None;
    until_async("the demo's end", async || {
        status = demo.0.try_wait().unwrap();
        status.is_some()
    })
    .await;
    let mut said = String::new();
    let mut stderr = demo.0.stderr.take().unwrap();
    // It ends only when the router, which has no other, is gone as well.
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(status.unwrap().code(), Some(0), "{said}");
    // A warning may tell of a machine that has too much to do.
    let mut errors = said.lines().filter(|line| !line.contains(" WARN "));
    assert_eq!(errors.next(), None, "{said}");
}
