//! A real Prometheus beside `scripts/keep-running.sh` with a real router.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::meaning::Said;
use super::queries::{all, compared, dashboards, filled};
use super::{read, root};
use crate::support::admin::get;
use crate::support::proxy::rows;
use crate::support::router::free_port;
use crate::support::wire::until_async;

const ROUTER: &str = ".tools/smg-1.13.0/bin/smg";
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
    let router = root().join(ROUTER);
    assert!(
        router.exists(),
        "the real router is missing: run `bash scripts/router.sh`"
    );
    let mut command = Command::new("bash");
    command.current_dir(root()).arg("scripts/keep-running.sh");
    command.args([Path::new(env!("CARGO_BIN_EXE_queuescope")), folder, &router]);
    let spawned = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    Running(spawned.unwrap())
}

/// Prometheus with our rules and the demo's targets.
fn prometheus(folder: &Path) -> (Running, SocketAddr) {
    let rules = root().join("deploy/prometheus");
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
pub async fn ask(addr: SocketAddr, query: &str) -> Vec<f64> {
    ask_of(addr, query, "").await
}

/// What it answered or would have answered at a time, as a query has that: `&time=` with seconds since 1970.
pub async fn ask_of(addr: SocketAddr, query: &str, time: &str) -> Vec<f64> {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let answer = get(addr, &format!("/api/v1/query?query={escaped}{time}"))
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
    // Prometheus misses the first of a kind of failure: the later it is asked, the less that is.
    let mut said = Vec::new();
    for _ in 0..4 {
        said.push(Said::ask(addr).await);
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    ends_in_good_order(&mut demo).await;
    // By now every row is on disk.
    let rows = rows(&folder.path().join("demo/proxy.csv"));
    let wrong: Vec<Option<String>> = said.iter().map(|said| said.wrong(&rows)).collect();
    assert!(wrong.contains(&None), "{wrong:#?}");
}

/// SIGTERM ends the demo, its router too, and there was no error.
async fn ends_in_good_order(demo: &mut Running) {
    kill(Pid::from_raw(demo.0.id().cast_signed()), Signal::SIGTERM).unwrap();
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
