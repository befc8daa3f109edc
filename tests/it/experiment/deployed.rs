//! Deployments for tests, and what they leave.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use queuescope::experiment::launch::{CommandLine, Deployment, DeploymentSpec, Router, ServerSpec};
use queuescope::request::ColumnId;
use queuescope::table::Table;
use tempfile::TempDir;

use crate::support::generator::flags;
use crate::support::process::{PROGRAM, queuescope, run_aside};
use crate::support::router::Which;
use crate::support::wire::PATIENCE;

/// Two simulated servers behind our balancer.
pub fn spec(dir: &Path) -> DeploymentSpec {
    DeploymentSpec {
        // A router is a Python that begins: on a busy machine that takes its time.
        start_timeout: PATIENCE,
        router: Router::Builtin,
        policy: "round_robin".into(),
        front: true,
        servers: vec![started(PROGRAM, "sim --tokenize-ms 0"); 2],
        program: PROGRAM.into(),
        dir: dir.into(),
        ..DeploymentSpec::default()
    }
}

/// A server by this program and these words.
pub fn started(program: &str, line: &str) -> ServerSpec {
    ServerSpec::Started(CommandLine::new(program, &flags(line)))
}

/// Servers that run.
pub fn running(urls: &[String]) -> Vec<ServerSpec> {
    urls.iter().cloned().map(ServerSpec::Running).collect()
}

/// The names of the processes that write to a log below `dir`: a router changes the command that others see.
pub fn left(dir: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let name = |process: PathBuf| {
        let log = std::fs::read_link(process.join("fd/1")).ok()?;
        let is_ours = log.starts_with(dir);
        is_ours.then(|| std::fs::read_to_string(process.join("comm")).ok())?
    };
    processes.filter_map(|entry| name(entry.path())).collect()
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
    let done = run_aside(queuescope(&flags(&line))).await;
    Table::read(&dir.join("requests.csv")).unwrap_or_else(|_| panic!("{done:?}"))
}

/// The words of a column, each once.
pub fn words(table: &Table, column: &str) -> BTreeSet<String> {
    let column = ColumnId::named(column).unwrap();
    let cells = (0..table.len()).map(|row| table.text(column, row).to_owned());
    cells.collect()
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

/// Servers behind hops and this router, round robin.
pub fn routed(which: Which, dir: &Path) -> DeploymentSpec {
    DeploymentSpec {
        router: Router::SglangRouter,
        router_program: Some(which.program()),
        hops: true,
        ..spec(dir)
    }
}
