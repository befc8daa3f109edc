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
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, killpg, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::command::CommandLine;
use super::failure::{What, failure, is_hopeless, said};
use crate::terminal;

/// A process by its name.
#[derive(Debug)]
pub(in crate::experiment) struct Process {
    /// `server-1`, `router`, `proxy`.
    pub(super) name: String,
    pub(super) command: CommandLine,
    pub(super) log: PathBuf,
    state: Mutex<State>,
    /// Queuescope's own, the keeper.
    program: PathBuf,
    /// Who is told when it ends and nobody ended it.
    failures: UnboundedSender<anyhow::Error>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    /// It is not to be started again.
    is_closed: bool,
}

/// A process that runs, or has ended.
#[derive(Debug)]
struct Running {
    /// Signals for its group, a byte each. The keeper ends the group in order when nobody holds this end.
    signals: PipeWriter,
    /// Its end comes when nothing of the group is left.
    gone: PipeReader,
    /// How it ended; told when nothing of its group is left.
    ended: watch::Receiver<Option<ExitStatus>>,
}

/// How long a child may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(10);
/// How often the log of something that starts is read.
const READ_EVERY: Duration = Duration::from_secs(1);
/// How often something that starts is asked whether it is ready.
const ASK_EVERY: Duration = Duration::from_millis(50);

impl Process {
    /// One that is not started yet.
    pub(super) fn new(
        name: &str,
        command: CommandLine,
        log: PathBuf,
        program: PathBuf,
        failures: UnboundedSender<anyhow::Error>,
    ) -> Arc<Process> {
        Arc::new(Process {
            name: name.to_owned(),
            command,
            log,
            program,
            state: Mutex::default(),
            failures,
        })
    }

    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started, runs already, or was stopped for good.
    pub(super) fn start(self: &Arc<Process>) -> anyhow::Result<()> {
        let mut state = self.state.lock();
        ensure!(!state.is_closed, "{}: was stopped", self.name);
        ensure!(state.running.is_none(), "{}: runs already", self.name);
        let cannot = || format!("{}: cannot start `{}`", self.name, self.command);
        let (heard, signals) = io::pipe().with_context(cannot)?;
        let (gone, kept) = io::pipe().with_context(cannot)?;
        let keeper = self.keeper(heard, kept).with_context(cannot)?;
        let (tell, ended) = watch::channel(None);
        tokio::spawn(watch_end(keeper, Arc::downgrade(self), tell));
        state.running = Some(Running {
            signals,
            gone,
            ended,
        });
        Ok(())
    }

    /// Adds what it says to its log, which begins with the command.
    fn keeper(&self, signals: PipeReader, kept: PipeWriter) -> io::Result<Child> {
        let line = &self.command;
        // A server may say what it was told.
        let mode = if line.secrets().is_empty() {
            0o666
        } else {
            0o600
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

    /// Waits until `is_ready` says so.
    ///
    /// # Errors
    /// It ended, or was not ready after `limit`.
    pub(super) async fn ready(
        &self,
        limit: Duration,
        is_ready: impl AsyncFn() -> bool,
    ) -> anyhow::Result<()> {
        let stopped = || format!("{}: was stopped", self.name);
        let ended = self
            .state
            .lock()
            .running
            .as_ref()
            .map(|running| running.ended.clone());
        let what = tokio::select! {
            biased;
            status = gone(ended.with_context(stopped)?) => What::Ended(status.with_context(stopped)?),
            asked = timeout(limit, until(is_ready)) => match asked {
                Ok(()) => return Ok(()),
                Err(_) => What::NotReady(limit),
            },
            () = self.hopeless() => What::Hopeless,
        };
        Err(self.failure(what))
    }

    /// Waits until its log says what it does not recover from.
    async fn hopeless(&self) {
        loop {
            sleep(READ_EVERY).await;
            if is_hopeless(&said(&self.log, &self.command.to_string())) {
                return;
            }
        }
    }

    /// Kills it; it may be started again. Returns when it is gone.
    pub(super) async fn kill(&self) {
        let running = self.state.lock().running.take();
        if let Some(running) = running {
            running.signal(Signal::SIGKILL);
            gone(running.ended.clone()).await;
        }
    }

    /// Ends it for good: asks it to, and kills it if it does not. Returns when it is gone.
    pub(super) async fn stop(&self) {
        let Some(ended) = self.closed(Signal::SIGTERM) else {
            return;
        };
        if timeout(GRACE, gone(ended.clone())).await.is_err() {
            self.closed(Signal::SIGKILL);
            gone(ended).await;
        }
    }

    /// From now on it is not to be started again; what runs of it gets this signal.
    fn closed(&self, signal: Signal) -> Option<watch::Receiver<Option<ExitStatus>>> {
        let mut state = self.state.lock();
        state.is_closed = true;
        let running = state.running.as_ref()?;
        running.signal(signal);
        Some(running.ended.clone())
    }

    /// Kills it for good. The second call waits until nothing of it lives, without a runtime.
    pub(super) fn end(&self) -> impl FnOnce() + use<> {
        self.closed(Signal::SIGKILL);
        let running = self.state.lock().running.take();
        move || {
            let gone = running.map(|mut running| io::copy(&mut running.gone, &mut io::sink()));
            // Its end is all there is to read.
            drop(gone);
        }
    }

    fn failure(&self, what: What) -> anyhow::Error {
        failure(&self.name, &self.command, what, &self.log)
    }
}

impl Running {
    /// Sends its whole group a signal.
    fn signal(&self, signal: Signal) {
        // One that is gone needs none.
        let _ = (&self.signals).write_all(&[signal as u8]);
    }
}

/// Waits for an end.
async fn gone(mut ended: watch::Receiver<Option<ExitStatus>>) -> Option<ExitStatus> {
    // The sender tells before it goes.
    let status = ended.wait_for(Option::is_some).await.ok()?;
    *status
}

/// Waits for the end of a keeper; tells of one that nobody wanted.
async fn watch_end(
    mut keeper: Child,
    process: Weak<Process>,
    tell: watch::Sender<Option<ExitStatus>>,
) {
    let status = keeper.wait().await.unwrap_or_default();
    tell.send_replace(Some(status));
    let Some(process) = process.upgrade() else {
        return;
    };
    let is_ours = |running: &Running| running.ended.same_channel(&tell.subscribe());
    let state = process.state.lock();
    if !state.is_closed && state.running.as_ref().is_some_and(is_ours) {
        // Nobody may be left to be told.
        let _ = process.failures.send(process.failure(What::Ended(status)));
    }
}

/// Asks until it is so.
pub(super) async fn until(is_so: impl AsyncFn() -> bool) {
    while !is_so().await {
        sleep(ASK_EVERY).await;
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
    for _ in 0..GRACE.as_millis() / ASK_EVERY.as_millis() {
        match waitpid(of_group, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => std::thread::sleep(ASK_EVERY),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    if let Some(signal) = status.signal() {
        let _ = Signal::try_from(signal).and_then(raise);
    }
    ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}
