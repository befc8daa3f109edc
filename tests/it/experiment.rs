//! Experiments: as they are typed; what is started, what is done to it, and what is left of it. Deployments for tests, and an experiment
//! as a process.

mod grid;
mod kept;
mod launch;
mod pair;
mod servers;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use queuescope::experiment::launch::{CommandLine, Deployment, DeploymentSpec, Router, ServerSpec};
use queuescope::report::files::{EXPERIMENT, ExperimentFile, RUN, RunFile, RunState};
use queuescope::request::ColumnId;
use queuescope::table::Table;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::support::generator::flags;
use crate::support::process::{self, Done, PROGRAM, queuescope, run, run_aside};
use crate::support::read_rows;
use crate::support::router::Which;
use crate::support::wire::{self, PATIENCE};

/// Two simulated servers behind our balancer.
fn spec(dir: &Path) -> DeploymentSpec {
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
fn started(program: &str, line: &str) -> ServerSpec {
    ServerSpec::Started(CommandLine::new(program, &flags(line)))
}

/// Servers that run.
fn running(urls: &[String]) -> Vec<ServerSpec> {
    urls.iter().cloned().map(ServerSpec::Running).collect()
}

/// The names of the processes that write to a log below `dir`: a router changes the command that others see.
fn left(dir: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let name = |process: PathBuf| {
        let log = std::fs::read_link(process.join("fd/1")).ok()?;
        let is_ours = log.starts_with(dir);
        is_ours.then(|| std::fs::read_to_string(process.join("comm")).ok())?
    };
    processes.filter_map(|entry| name(entry.path())).collect()
}

/// The rows of so many requests to what runs, all at once or at a rate, in a folder of this name.
async fn send(deployment: &Deployment, folder: &TempDir, name: &str, more: &str) -> Table {
    let dir = folder.path().join(name);
    let line = format!(
        "traffic --base-url {} --dataset-name random --random-input-len 32 --random-output-len 16 \
         --output-dir {} {more}",
        deployment.target,
        dir.display()
    );
    let done = run_aside(queuescope(&flags(&line))).await;
    let rows = dir.join("requests.csv");
    assert!(rows.is_file(), "{done:?}");
    read_rows(&rows)
}

/// The words of a column, each once.
fn words(table: &Table, column: &str) -> BTreeSet<String> {
    let column = ColumnId::named(column).unwrap();
    let cells = (0..table.len()).map(|row| table.text(column, row).to_owned());
    cells.collect()
}

/// The hosts of the servers.
fn hosts(deployment: &Deployment) -> BTreeSet<String> {
    let servers = deployment.servers.iter();
    servers.map(|server| server.file.host.clone()).collect()
}

fn assert_nothing_is_left(dir: &Path, hosts: &BTreeSet<String>) {
    assert_eq!(left(dir), [""; 0]);
    for host in hosts {
        TcpListener::bind(host).unwrap_or_else(|error| panic!("{host}: {error}"));
    }
}

/// Servers behind hops and this router, round robin.
fn routed(which: Which, dir: &Path) -> DeploymentSpec {
    DeploymentSpec {
        router: Router::SglangRouter,
        router_program: Some(which.program()),
        hops: true,
        ..spec(dir)
    }
}

/// Quick enough for tests: a server that needs 4 ms a token, short requests.
const QUICK: &str = "base_port = 0\nengine = 'sim'\ndataset_name = 'random'\nrandom_input_len = 30\n\
    random_output_len = 8\nseed = 5\n[sim]\nprefill_floor_ms = 1.0\ndecode_step_ms = 4.0\n";

/// A folder with a plan in it.
struct Planned {
    folder: tempfile::TempDir,
}

impl Planned {
    /// A plan of these lines, and of [`QUICK`] ones.
    fn new(lines: &str) -> Planned {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plan.toml"), format!("{lines}\n{QUICK}")).unwrap();
        Planned { folder }
    }

    /// The same for `--engine sglang`, whose server this script starts, by `"$QUEUESCOPE"`; `$3` to `$6` say where it listens.
    fn by_script(script: &str, lines: &str) -> Planned {
        let plan = Planned::new(&format!(
            "env.QUEUESCOPE = '{PROGRAM}'\nmodel_path = 'm'\npython = './python'\n{lines}"
        ));
        executable(&plan.folder.path().join("python"), script);
        plan
    }

    fn command(&self, command: &str, flags: &[&str]) -> Command {
        let mut process =
            queuescope(&[&[command, "plan.toml", "--output-dir", "out"], flags].concat());
        process.current_dir(self.folder.path());
        process
    }

    /// Runs it to its end.
    fn run(&self, command: &str, flags: &[&str]) -> Done {
        run(self.command(command, flags))
    }

    /// The same, which goes well; on a busy machine it may be INVALID.
    fn ran(&self, command: &str, flags: &[&str]) -> Done {
        let done = self.run(command, flags);
        done.assert_status(&[0, 3]);
        done
    }

    /// Begins it.
    fn begin(&self, command: &str, flags: &[&str]) -> Child {
        let mut process = self.command(command, flags);
        process.stdout(Stdio::null()).stderr(Stdio::null());
        process.spawn().unwrap()
    }

    /// Goes on with it, which goes well.
    fn resumed(&self, command: &str) -> Done {
        let done = self.resume(command, &[]);
        done.assert_status(&[0, 3]);
        done
    }

    /// Goes on with it.
    fn resume(&self, command: &str, flags: &[&str]) -> Done {
        let mut process = queuescope(&[&[command, "--resume", "out"], flags].concat());
        process.current_dir(self.folder.path());
        run(process)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join("out").join(file)
    }

    fn experiment(&self) -> ExperimentFile {
        read(&self.path(EXPERIMENT)).unwrap()
    }

    /// What the run of this folder's name says of itself.
    fn run_file(&self, run: &str) -> Option<RunFile> {
        read(&self.path("runs").join(run).join(RUN))
    }

    /// Waits until the load of a run has begun.
    fn until_loaded(&self, run: &str) {
        let has_begun = |file: RunFile| file.began.is_some();
        until("the load", || self.run_file(run).is_some_and(has_begun));
    }

    /// Soon none of its processes is left.
    fn assert_nothing_is_left(&self) {
        until("their end", || left(self.folder.path()).is_empty());
    }

    fn states(&self) -> Vec<RunState> {
        self.experiment().runs.iter().map(|run| run.state).collect()
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// A script of the shell that can be run.
fn executable(path: &Path, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

/// Sends a signal and waits for the end; gives the status as a shell would.
fn end(mut child: Child, signal: Signal) -> Option<i32> {
    process::signal(&child, signal);
    child.wait().unwrap().code()
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().unwrap();
    runtime.block_on(wire::until_async(what, async || condition()));
}
