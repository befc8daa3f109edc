//! An experiment as a process, and what it leaves.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use queuescope::report::files::{EXPERIMENT, ExperimentFile, RUN, RunFile, RunState};
use serde::de::DeserializeOwned;

use crate::support::process::{Done, queuescope, run};
use crate::support::wire;

/// Quick enough for tests: a server that needs 4 ms a token, short requests.
pub const QUICK: &str = "base_port = 0\nengine = 'sim'\ndataset_name = 'random'\nrandom_input_len = 30\n\
    random_output_len = 8\nseed = 5\n[sim]\nprefill_floor_ms = 1.0\ndecode_step_ms = 4.0\n";

/// A folder with a plan in it.
pub struct Planned {
    pub folder: tempfile::TempDir,
}

impl Planned {
    /// A plan of these lines, and of [`QUICK`] ones.
    pub fn new(lines: &str) -> Planned {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plan.toml"), format!("{lines}\n{QUICK}")).unwrap();
        Planned { folder }
    }

    fn command(&self, command: &str, flags: &[&str]) -> Command {
        let mut process =
            queuescope(&[&[command, "plan.toml", "--output-dir", "out"], flags].concat());
        process.current_dir(self.folder.path());
        process
    }

    /// Runs it to its end.
    pub fn run(&self, command: &str, flags: &[&str]) -> Done {
        run(self.command(command, flags))
    }

    /// The same, which goes well; on a busy machine it may be INVALID.
    pub fn ran(&self, command: &str, flags: &[&str]) -> Done {
        let done = self.run(command, flags);
        done.assert_status(&[0, 3]);
        done
    }

    /// Begins it.
    pub fn begin(&self, command: &str, flags: &[&str]) -> Child {
        let mut process = self.command(command, flags);
        process.stdout(Stdio::null()).stderr(Stdio::null());
        process.spawn().unwrap()
    }

    /// Goes on with it.
    pub fn resume(&self, command: &str, flags: &[&str]) -> Done {
        let mut process = queuescope(&[&[command, "--resume", "out"], flags].concat());
        process.current_dir(self.folder.path());
        run(process)
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join("out").join(file)
    }

    pub fn experiment(&self) -> ExperimentFile {
        read(&self.path(EXPERIMENT)).unwrap()
    }

    /// What the run of this folder's name says of itself.
    pub fn run_file(&self, run: &str) -> Option<RunFile> {
        read(&self.path("runs").join(run).join(RUN))
    }

    /// Waits until the load of a run has begun.
    pub fn until_loaded(&self, run: &str) {
        let has_begun = |file: RunFile| file.began.is_some();
        until("the load", || self.run_file(run).is_some_and(has_begun));
    }

    /// Nobody listens any more where servers did.
    pub fn assert_nothing_is_left(&self) {
        let runs = self.experiment().runs.into_iter();
        let begun = runs.filter_map(|run| read::<RunFile>(&self.path(&run.dir).join(RUN)));
        let servers: Vec<_> = begun.flat_map(|run| run.servers).collect();
        assert!(!servers.is_empty());
        for server in servers {
            let host = server.url.strip_prefix("http://").unwrap();
            let is_free = || std::net::TcpListener::bind(host).is_ok();
            until("the port to be free", is_free);
        }
    }

    pub fn states(&self) -> Vec<RunState> {
        self.experiment().runs.iter().map(|run| run.state).collect()
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// A script of the shell that can be run.
pub fn executable(path: &Path, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

/// Sends a signal and waits for the end; gives the status as a shell would.
pub fn end(mut child: Child, signal: Signal) -> Option<i32> {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
    child.wait().unwrap().code()
}

pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().unwrap();
    runtime.block_on(wire::until_async(what, async || condition()));
}
