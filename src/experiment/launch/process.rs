//! A child process of a run, which can be stopped and started again. A *keeper* process starts it as the leader of a process group and
//! ends the whole group when the process ends or when we do, even if we are killed.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, killpg, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use super::access::poll;
use super::failure::failure;
use super::spec::{CommandLine, DeploymentSpec};
use crate::report::files::LOGS;
use crate::terminal;

/// A named process. Dropping it kills its group and waits until that is gone.
#[derive(Debug)]
pub(in crate::experiment) struct Process {
    /// `server-1`, `router`, `proxy`.
    pub(super) name: String,
    pub(super) command: CommandLine,
    pub(super) log: PathBuf,
    /// The program of queuescope, which is also the keeper.
    program: PathBuf,
    state: watch::Sender<State>,
    keeper: Mutex<Option<Keeper>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Not started, or stopped by us.
    Down,
    Up,
    /// We sent it a signal to stop.
    Stopping,
    /// It ended by itself or by another's signal.
    Ended(ExitStatus),
}

/// The pipes to the keeper.
#[derive(Debug)]
struct Keeper {
    /// Signals for the group, a byte each. When this end is closed, the keeper stops the group.
    signals: PipeWriter,
    /// Is closed when the group is gone.
    gone: PipeReader,
}

/// How long a process may take to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the keeper looks whether a group is gone.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Process {
    /// Makes a process that is not started yet.
    pub(super) fn new(name: String, command: CommandLine, spec: &DeploymentSpec) -> Process {
        Process {
            log: spec.dir.join(LOGS).join(format!("{name}.log")),
            name,
            command,
            program: spec.program.clone(),
            state: watch::Sender::new(State::Down),
            keeper: Mutex::default(),
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started, or is running.
    pub(super) fn start(&self) -> anyhow::Result<()> {
        let is_down = *self.state.borrow() == State::Down;
        ensure!(is_down, "{}: runs already", self.name);
        let cannot = || format!("{}: cannot start `{}`", self.name, self.command);
        let (stdin, signals) = io::pipe().with_context(cannot)?;
        let (gone, stdout) = io::pipe().with_context(cannot)?;
        let mut child = self.spawn_keeper(stdin, stdout).with_context(cannot)?;
        *self.keeper.lock() = Some(Keeper { signals, gone });
        self.state.send_replace(State::Up);
        let state = self.state.clone();
        tokio::spawn(async move {
            let status = child.wait().await.unwrap_or_default();
            state.send_modify(|state| {
                *state = match state {
                    State::Up => State::Ended(status),
                    _ => State::Down,
                }
            });
        });
        Ok(())
    }

    /// Starts the keeper, with the process's output appended to its log, behind the command.
    fn spawn_keeper(&self, stdin: PipeReader, stdout: PipeWriter) -> io::Result<Child> {
        let line = &self.command;
        // A server may log its arguments.
        let mode = match line.secrets()[..] {
            [] => 0o666,
            _ => 0o600,
        };
        let mut log = OpenOptions::new();
        let mut log = log.create(true).append(true).mode(mode).open(&self.log)?;
        writeln!(log, "$ {line}")?;
        let mut keeper = Command::new(&self.program);
        keeper.args([KEEPER, "--"]).arg(&line.program);
        keeper
            .args(&line.args)
            // So that its last output is in the log, however it ends.
            .env("PYTHONUNBUFFERED", "1")
            .envs(line.env.iter().map(|(name, value)| (name, value)))
            .env_remove("NOTIFY_SOCKET")
            .stdin(stdin)
            .stdout(stdout)
            .stderr(log)
            // Ctrl-C at the terminal must not reach the children, which are stopped in order.
            .process_group(0)
            .spawn()
    }

    /// Polls `check` until the process is ready.
    ///
    /// # Errors
    /// It ended, or was not ready within `limit`.
    pub(super) async fn ready(
        &self,
        limit: Duration,
        check: impl AsyncFn() -> Result<(), String>,
    ) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            error = self.failed() => Err(error),
            polled = poll(limit, check) => {
                polled.map_err(|reason| self.failure(&format!("was not ready ({reason})")))
            }
        }
    }

    /// Waits until it ends without our doing. Returns why.
    pub(super) async fn failed(&self) -> anyhow::Error {
        let mut states = self.state.subscribe();
        loop {
            if let State::Ended(status) = *states.borrow_and_update() {
                return self.failure(&format!("ended ({status})"));
            }
            // Cannot fail, as `self` has the sender.
            let _ = states.changed().await;
        }
    }

    fn failure(&self, happened: &str) -> anyhow::Error {
        failure(&self.name, &self.command, &self.log, happened)
    }

    /// Kills its group and waits until it is gone. It can be started again.
    pub(super) async fn kill(&self) {
        self.signal(Signal::SIGKILL);
        self.gone().await;
    }

    /// Stops its group by SIGTERM, and by SIGKILL if that takes too long. Waits until it is gone.
    pub(super) async fn stop(&self) {
        self.signal(Signal::SIGTERM);
        if timeout(STOP_TIMEOUT, self.gone()).await.is_err() {
            self.kill().await;
        }
    }

    /// Sends its group a signal to stop.
    pub(super) fn signal(&self, signal: Signal) {
        self.state.send_modify(|state| {
            *state = match state {
                State::Up | State::Stopping => State::Stopping,
                State::Down | State::Ended(_) => State::Down,
            }
        });
        if let Some(keeper) = &*self.keeper.lock() {
            // Fails if the keeper is gone.
            let _ = (&keeper.signals).write_all(&[signal as u8]);
        }
    }

    async fn gone(&self) {
        let mut states = self.state.subscribe();
        // Cannot fail, as `self` has the sender.
        let _ = states.wait_for(|state| *state != State::Stopping).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Some(keeper) = self.keeper.get_mut() {
            // Waits for the end of the pipe; nothing is written to it.
            let _ = io::copy(&mut keeper.gone, &mut io::sink());
        }
    }
}

/// The subcommand that runs a keeper.
pub const KEEPER: &str = "end-with-parent";

/// Runs a keeper: starts a command as the leader of a process group, whose output goes to standard error. Signals from standard input
/// are sent to the group; at the end of standard input, SIGTERM and later SIGKILL. Ends when the group is gone, with the command's
/// status.
pub fn keep(command: &[OsString]) -> ExitCode {
    // So that orphaned grandchildren can be waited for here.
    let _ = set_child_subreaper(true);
    let (program, args) = command.split_first().unzip();
    let program = program.cloned().unwrap_or_default();
    let started = io::stderr().as_fd().try_clone_to_owned().and_then(|log| {
        let mut command = std::process::Command::new(&program);
        command.args(args.unwrap_or_default()).process_group(0);
        command.stdin(Stdio::null()).stdout(log).spawn()
    });
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let program = program.display();
            terminal::print_error(&format!("cannot execute {program}: {error}\n"));
            return ExitCode::from(127);
        }
    };
    // The system's process ids fit.
    let group = Pid::from_raw(child.id().cast_signed());
    std::thread::spawn(move || {
        let mut signals = io::stdin().lock().bytes().map_while(Result::ok);
        let is_killed = signals.any(|signal| {
            let signal = Signal::try_from(i32::from(signal)).ok();
            let _ = killpg(group, signal);
            signal == Some(Signal::SIGKILL)
        });
        if !is_killed {
            let _ = killpg(group, Signal::SIGTERM);
            std::thread::sleep(STOP_TIMEOUT);
            let _ = killpg(group, Signal::SIGKILL);
        }
        std::thread::sleep(STOP_TIMEOUT);
        // The command hangs in the kernel: do not wait for it.
        std::process::exit(128 + Signal::SIGKILL as i32);
    });
    let status = child.wait().unwrap_or_default();
    let _ = killpg(group, Signal::SIGKILL);
    let of_group = Pid::from_raw(-group.as_raw());
    for _ in 0..STOP_TIMEOUT.as_millis() / POLL_INTERVAL.as_millis() {
        match waitpid(of_group, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => std::thread::sleep(POLL_INTERVAL),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    if let Some(signal) = status.signal() {
        let _ = Signal::try_from(signal).and_then(raise);
    }
    ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}
