//! What a plan says of servers, and what they tell.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::signal::Signal;
use queuescope::experiment::launch::{Access, Deployment, DeploymentSpec, EngineName, Router};
use queuescope::request::columns::ColumnId;
use queuescope::table::Table;

use super::deployed::{running, spec, words};
use super::started::{Planned, end, executable};
use crate::support::upstream::{Step, Upstream};
use crate::support::wire::json_response;

const BUSY: &str = "400 Bad Request";

/// A server that answers the questions to empty its cache in turn with these, and all others well.
async fn flushed_with(answers: &'static [&'static str]) -> Upstream {
    let asked = AtomicUsize::new(0);
    Upstream::start(move |_, seen| {
        let is_flush = seen.head.starts_with("POST /flush_cache");
        let step = match is_flush {
            true => {
                let n = asked.fetch_add(1, Ordering::Relaxed);
                let status = answers[n.min(answers.len() - 1)];
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").into_bytes()
            }
            // What a router says of its servers.
            false => json_response(r#"{"workers": [{"is_healthy": true}]}"#),
        };
        vec![Step::Send(step)]
    })
    .await
}

#[tokio::test]
async fn caches_of_servers_that_ran_before_are_emptied() {
    let folder = tempfile::tempdir().unwrap();
    for (answers, kept) in [
        (&[BUSY, BUSY, "200 OK"][..], None),
        (&["404 Not Found"][..], Some("it answered 404")),
    ] {
        let server = flushed_with(answers).await;
        let url = format!("http://{}", server.addr);
        let direct = DeploymentSpec {
            engine: EngineName::External,
            servers: running(std::slice::from_ref(&url)),
            router: Router::None,
            front: false,
            access: Access {
                api_key: Some("Bearer S3cret".parse().unwrap()),
                ..Access::default()
            },
            ..spec(folder.path())
        };
        // Behind a router that runs already, of whose servers nothing is said: it is asked in their place.
        let routed = DeploymentSpec {
            servers: Vec::new(),
            router: Router::External,
            router_url: Some(url),
            ..direct.clone()
        };
        for (wanted, asks) in [(direct, answers.len()), (routed, answers.len() + 1)] {
            let deployment = Deployment::start(&wanted).await.unwrap();
            let told = &deployment.kept_caches;
            match kept {
                None => assert_eq!(told, &[""; 0]),
                Some(why) => assert!(told.len() == 1 && told[0].ends_with(why), "{told:?}"),
            }
            let seen = server.seen();
            let asked = seen.iter().map(|seen| seen.head.to_lowercase());
            let asked = asked.filter(|head| head.starts_with("post /flush_cache"));
            // Behind a key, too.
            let by_key = asked.filter(|head| head.contains("authorization: bearer s3cret"));
            assert_eq!(by_key.count(), asks);
            deployment.stop().await;
        }
    }
}

/// A router, as far as a deployment asks: tries its worker, then hands all on to it, also the question for its workers.
const ROUTER: &str = "#!/bin/sh\n\"$QUEUESCOPE\" probe \"${13}\"\nexec \"$QUEUESCOPE\" proxy --listen \"$3:$5\" --admin 127.0.0.1:0 --upstream \"${13}\"\n";

#[tokio::test]
async fn caches_are_empty_before_a_router_asks_servers_through_their_hops() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("smg");
    let script = ROUTER.replace("$QUEUESCOPE", env!("CARGO_BIN_EXE_queuescope"));
    std::fs::write(&program, script).unwrap();
    executable(&program);
    // It takes its time: long enough for a router to be there, were one started meanwhile.
    let server = flushed_with(&[BUSY, BUSY, BUSY, BUSY, "200 OK"]).await;
    let wanted = DeploymentSpec {
        engine: EngineName::External,
        servers: running(&[format!("http://{}", server.addr)]),
        router: Router::SglangRouter,
        router_program: Some(program),
        policy: "random".into(),
        hops: true,
        ..spec(folder.path())
    };
    let deployment = Deployment::start(&wanted).await.unwrap();
    assert_eq!(deployment.kept_caches, [""; 0]);
    let seen = server.seen();
    let place = |begin: &str| {
        let mut all = seen.iter();
        all.position(|seen| seen.head.starts_with(begin)).unwrap()
    };
    let flushes = seen.iter();
    let flushes = flushes.filter(|seen| seen.head.starts_with("POST /flush_cache"));
    assert_eq!(flushes.count(), 5);
    // The five follow each other, and only then comes what came by router and hop.
    assert!(
        place("POST /generate") >= place("POST /flush_cache") + 5,
        "{:?}",
        seen.iter().map(|seen| &seen.head).collect::<Vec<_>>()
    );
    deployment.stop().await;
}

#[test]
fn a_run_that_kept_a_cache_is_marked_and_not_compared() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(flushed_with(&["404 Not Found"]));
    let plan = Planned::new("max_concurrency = [1, 2]\nnum_prompts = 5");
    let url = format!("http://{}", server.addr);
    let flags = ["--engine", "external", "--servers", &url];
    let done = plan.run("node", &flags);
    for run in plan.experiment().runs {
        let file = plan.run_file(run.dir.strip_prefix("runs/").unwrap());
        assert!(file.unwrap().kept_cache, "{}", done.err);
    }
    let told = "was not emptied before the run: it answered 404";
    assert_eq!(done.err.matches(told).count(), 2, "{}", done.err);
    let told = "is not compared: a server kept its cache from before the run";
    let compared = std::fs::read_to_string(plan.path("comparison.json")).unwrap();
    assert!(compared.contains(told), "{compared}\n{}", done.out);
}

/// The folder of the only run of twenty chats with these keys and flags.
fn chat(command: &str, lines: &str, flags: &[&str]) -> (Planned, PathBuf) {
    let plan = Planned::new(&format!(
        "{lines}backend = 'sglang-oai-chat'\nmax_running_requests = 1\nrequest_rate = 100\nnum_prompts = 20"
    ));
    plan.run(command, flags).assert_status(&[0, 3]);
    let run = plan.path(&plan.experiment().runs[0].dir);
    (plan, run)
}

#[test]
fn a_chat_experiment_shows_the_servers_queue() {
    let routed = "num_gpus = 2\nrouting_policy = 'round_robin'\n";
    for (command, lines, files) in [
        ("node", "", &["requests.csv"][..]),
        ("routing", routed, &["requests.csv", "proxy.csv"]),
    ] {
        let (plan, run) = chat(command, lines, &[]);
        let servers = plan.run_file("01-run").unwrap().servers;
        let hosts: BTreeSet<String> = servers.into_iter().map(|server| server.host).collect();
        for file in files {
            let table = Table::read(&run.join(file)).unwrap();
            let sources = words(&table, "timing_source");
            assert_eq!(
                (table.len(), sources),
                (20, BTreeSet::from(["log".to_owned()]))
            );
            assert_eq!(words(&table, "host"), hosts, "{file}");
            let number = |column, row| table.number(column, row).unwrap();
            let mut longest = 0.0_f64;
            for row in 0..20 {
                // On the generator's own clock: between what it sent and what it read.
                let end = number(ColumnId::queue_time_end, row);
                assert!(number(ColumnId::arrival_time, row) <= end, "{file}");
                assert!(end <= number(ColumnId::finish_time, row), "{file}");
                let waited = number(ColumnId::pure_queue_time, row);
                assert!(waited >= 0.0, "{file}: {waited}");
                longest = longest.max(waited);
            }
            assert!(
                longest > 0.05,
                "one at a time, and nobody waited: {longest}"
            );
        }
        let summary = std::fs::read_to_string(run.join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        assert_eq!(summary["latency"]["pure_queue_time"]["count"], 20);
    }
    // Who says otherwise is heeded.
    let off = ["--set", "sim.export_metrics_to_file=false"];
    let (_plan, run) = chat("node", "", &off);
    let table = Table::read(&run.join("requests.csv")).unwrap();
    let waited = table.numbers(ColumnId::pure_queue_time);
    assert!(waited.iter().all(|waited| waited.is_nan()));
}

/// As `conda run` does: a process that starts the server as its own child, and waits.
const WRAPPER: &str = "#!/bin/sh\n\"$QUEUESCOPE\" sim \"$3\" \"$4\" \"$5\" \"$6\" &\nwait\n";

#[test]
fn a_server_behind_a_shell_ends_with_an_experiment_that_is_killed() {
    let program = env!("CARGO_BIN_EXE_queuescope");
    let plan = Planned::new(&format!(
        "env.QUEUESCOPE = '{program}'\nenv.HOW = 'a b'\nmodel_path = 'm'\nrequest_rate = 20\nnum_prompts = 400\n\
         python = './python'"
    ));
    let wrapper = plan.folder.path().join("python");
    std::fs::write(&wrapper, WRAPPER).unwrap();
    plan.executable("python");
    let process = plan.begin("node", &["--engine", "sglang"]);
    plan.until_loaded("01-run");
    let command = &plan.run_file("01-run").unwrap().processes[0].command;
    let typed = format!("HOW='a b' QUEUESCOPE={program} ./python -m sglang.launch_server");
    assert!(command.starts_with(&typed), "{command}");
    end(process, Signal::SIGKILL);
    plan.assert_nothing_is_left();
}
