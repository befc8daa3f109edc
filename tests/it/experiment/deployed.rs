//! Deployments for tests, and what they leave.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use queuescope::experiment::launch::{CommandLine, Deployment, DeploymentSpec, Router, ServerSpec};
use queuescope::request::columns::ColumnId;
use queuescope::table::Table;
use tempfile::TempDir;

use crate::support::process::{queuescope, run_aside};
use crate::support::wire::PATIENCE;

/// Two simulated servers behind our balancer.
pub fn spec(dir: &Path) -> DeploymentSpec {
    let program = Path::new(env!("CARGO_BIN_EXE_queuescope"));
    DeploymentSpec {
        // A router is a Python that begins: on a busy machine that takes its time.
        start_timeout: Some(PATIENCE),
        router: Router::Builtin,
        policy: "round_robin".into(),
        front: true,
        servers: sims(&["--tokenize-ms", "0"]),
        program: program.into(),
        dir: dir.into(),
        ..DeploymentSpec::default()
    }
}

/// Two simulated servers.
pub fn sims(flags: &[&str]) -> Vec<ServerSpec> {
    let line = CommandLine::new(env!("CARGO_BIN_EXE_queuescope"), &["sim"]).with(flags);
    vec![ServerSpec::Started(line); 2]
}

/// Servers that run.
pub fn running(urls: &[String]) -> Vec<ServerSpec> {
    urls.iter().cloned().map(ServerSpec::Running).collect()
}

/// An SGLang of this Python.
pub fn sglang(python: &str, flags: Vec<String>) -> Vec<ServerSpec> {
    let line = CommandLine::new(python, &["-m", "sglang.launch_server"]);
    vec![ServerSpec::Started(line.with(flags))]
}

/// The names of the processes that write to a log below `dir`: a router changes the command that others see.
pub fn left(dir: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let writes = |process: &PathBuf| {
        std::fs::read_link(process.join("fd/1")).is_ok_and(|log| log.starts_with(dir))
    };
    let writers = processes.map(|process| process.path()).filter(writes);
    writers
        .filter_map(|process| std::fs::read_to_string(process.join("comm")).ok())
        .collect()
}

/// The rows of so many requests to what runs, all at once or at a rate, in a folder of this name.
pub async fn send(deployment: &Deployment, folder: &TempDir, name: &str, more: &str) -> Table {
    let dir = folder.path().join(name);
    let line = format!(
        "traffic --base-url {} --dataset-name random --random-input-len 32 --random-output-len 16 \
         --output-dir {} {more}",
        deployment.target,
        dir.display()
    );
    let done = run_aside(queuescope(&line.split(' ').collect::<Vec<_>>())).await;
    assert!(dir.join("requests.csv").is_file(), "{done:?}");
    Table::read(&dir.join("requests.csv")).unwrap()
}

/// The words of a column, each once.
pub fn words(table: &Table, column: &str) -> BTreeSet<String> {
    (0..table.len())
        .map(|row| table.text(ColumnId::named(column).unwrap(), row).to_owned())
        .collect()
}

/// The hosts of the servers.
pub fn hosts(deployment: &Deployment) -> BTreeSet<String> {
    let servers = deployment.servers.iter();
    servers.map(|server| server.file.host.clone()).collect()
}

pub fn assert_nothing_is_left(dir: &Path, hosts: &BTreeSet<String>) {
    assert_eq!(left(dir), [""; 0]);
    for host in hosts {
        TcpListener::bind(host).unwrap_or_else(|error| panic!("{host}: {error}"));
    }
}

/// Two servers behind hops and the real router, with this policy.
pub fn routed(policy: &str, dir: &Path) -> DeploymentSpec {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/sglang-router-0.3.2/bin/smg");
    assert!(
        program.exists(),
        "the real router is missing ({program:?}): run `bash scripts/router.sh`"
    );
    DeploymentSpec {
        router: Router::SglangRouter,
        router_program: Some(program),
        policy: policy.into(),
        hops: true,
        ..spec(dir)
    }
}
