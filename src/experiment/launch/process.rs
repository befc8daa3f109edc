//! A process of a run, which may be ended and started again, and leaves nothing behind: a keeper of its own starts it as the leader
//! of a process group, and ends the group with it, or with us.

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
use tokio::time::{sleep, timeout};

use super::ask::{Asked, until};
use super::command::CommandLine;
use super::failure::{cannot_listen, failure};
use super::spec::DeploymentSpec;
use crate::report::files::LOGS;
use crate::terminal;

/// A process by its name. Dropped, it is killed; that returns when nothing of it is left.
#[derive(Debug)]
pub(in crate::experiment) struct Process {
    /// `server-1`, `router`, `proxy`.
    pub(super) name: String,
    pub(super) command: CommandLine,
    pub(super) log: PathBuf,
    /// Queuescope's own, the keeper.
    program: PathBuf,
    state: watch::Sender<State>,
    keeper: Mutex<Option<Keeper>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Not started, or ended as it was to.
    Down,
    Up,
    /// It was told to end.
    Ending,
    /// It ended, of itself or by a signal of somebody else's.
    Ended(ExitStatus),
}

/// The keeper of what was started last.
#[derive(Debug)]
struct Keeper {
    /// Signals for the group, a byte each. The keeper ends the group in order when nobody holds this end.
    signals: PipeWriter,
    /// Its end comes when nothing of the group is left.
    gone: PipeReader,
}

/// How long a child may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(10);
/// How often is looked whether a group is gone; for what a log says a tenth as often.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Process {
    /// One that is not started yet.
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
    /// It cannot be started, or runs already.
    pub(super) fn start(&self) -> anyhow::Result<()> {
        let is_down = *self.state.borrow() == State::Down;
        ensure!(is_down, "{}: runs already", self.name);
        let cannot = || format!("{}: cannot start `{}`", self.name, self.command);
        let (heard, signals) = io::pipe().with_context(cannot)?;
        let (gone, kept) = io::pipe().with_context(cannot)?;
        let mut child = self.keeper(heard, kept).with_context(cannot)?;
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

    /// Adds what it says to its log, which begins with the command.
    fn keeper(&self, signals: PipeReader, kept: PipeWriter) -> io::Result<Child> {
        let line = &self.command;
        // A server may say what it was told.
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
            // What it said last is in the log, whatever ends it.
            .env("PYTHONUNBUFFERED", "1")
            .envs(line.env.iter().map(|(name, value)| (name, value)))
            .env_remove("NOTIFY_SOCKET")
            .stdin(signals)
            .stdout(kept)
            .stderr(log)
            // Ctrl-C at the terminal is ours: children are ended in order.
            .process_group(0)
            .spawn()
    }

    /// Waits until it is ready, as `ask` tells.
    ///
    /// # Errors
    /// It ended, or was not ready after `limit`.
    pub(super) async fn ready(
        &self,
        limit: Duration,
        ask: impl AsyncFn() -> Asked,
    ) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            error = self.failed() => Err(error),
            () = self.cannot_listen() => Err(self.failure("cannot serve", None)),
            asked = until(limit, ask) => {
                asked.map_err(|why| self.failure(&format!("was not ready ({why})"), None))
            }
        }
    }

    /// Waits until it says that it cannot have its port: SGLang goes on without serving then.
    async fn cannot_listen(&self) {
        while !cannot_listen(&self.log, &self.command) {
            sleep(10 * LOOK_EVERY).await;
        }
    }

    /// Waits until it ends and nobody ended it; says why.
    pub(super) async fn failed(&self) -> anyhow::Error {
        let mut states = self.state.subscribe();
        loop {
            if let State::Ended(status) = *states.borrow_and_update() {
                return self.failure(&format!("ended ({status})"), Some(status));
            }
            // The sender is this process's own.
            let _ = states.changed().await;
        }
    }

    fn failure(&self, happened: &str, status: Option<ExitStatus>) -> anyhow::Error {
        failure(&self.name, &self.command, &self.log, happened, status)
    }

    /// Kills it; it may be started again. Returns when it is gone.
    pub(super) async fn kill(&self) {
        self.signal(Signal::SIGKILL);
        self.gone().await;
    }

    /// Ends it: asks it to, and kills it if it does not. Returns when it is gone.
    pub(super) async fn stop(&self) {
        self.signal(Signal::SIGTERM);
        if timeout(GRACE, self.gone()).await.is_err() {
            self.kill().await;
        }
    }

    /// Sends its whole group a signal by which it is to end.
    pub(super) fn signal(&self, signal: Signal) {
        self.state.send_modify(|state| {
            *state = match state {
                State::Up | State::Ending => State::Ending,
                State::Down | State::Ended(_) => State::Down,
            }
        });
        if let Some(keeper) = &*self.keeper.lock() {
            // One that is gone needs none.
            let _ = (&keeper.signals).write_all(&[signal as u8]);
        }
    }

    async fn gone(&self) {
        let mut states = self.state.subscribe();
        // The sender is this process's own.
        let _ = states.wait_for(|state| *state != State::Ending).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Some(keeper) = self.keeper.get_mut() {
            // Its end is all there is to read.
            let _ = io::copy(&mut keeper.gone, &mut io::sink());
        }
    }
}

/// The subcommand of a keeper.
pub const KEEPER: &str = "end-with-parent";

/// What a keeper does: runs a command as the leader of a process group of its own, which gets the signals that come by standard
/// input, and in order those that end it when that ends. Ends as the command did, when nothing of the group is left. What the
/// command says goes to standard error.
pub fn keep(command: &[OsString]) -> ExitCode {
    // Who loses its parent is then ours to wait for.
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
            terminal::complain(&format!("cannot execute {program}: {error}\n"));
            return ExitCode::from(127);
        }
    };
    // The system has no greater number.
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
            std::thread::sleep(GRACE);
            let _ = killpg(group, Signal::SIGKILL);
        }
        std::thread::sleep(GRACE);
        // It hangs in the kernel: nobody is to wait for it.
        std::process::exit(128 + Signal::SIGKILL as i32);
    });
    let status = child.wait().unwrap_or_default();
    let _ = killpg(group, Signal::SIGKILL);
    let of_group = Pid::from_raw(-group.as_raw());
    for _ in 0..GRACE.as_millis() / LOOK_EVERY.as_millis() {
        match waitpid(of_group, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => std::thread::sleep(LOOK_EVERY),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    if let Some(signal) = status.signal() {
        let _ = Signal::try_from(signal).and_then(raise);
    }
    ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}
