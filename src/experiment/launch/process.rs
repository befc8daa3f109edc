//! A process of a run, which may be ended and started again, and leaves nothing behind: it leads a process group, which ends
//! with it, and it ends with us.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::command::CommandLine;
use super::failure::{What, failure, is_hopeless, said};
use crate::clock::{Clock, NANOS};

/// A process by its name.
#[derive(Debug)]
pub(in crate::experiment) struct Process {
    /// `server-1`, `router`, `proxy`.
    pub(super) name: String,
    pub(super) command: CommandLine,
    pub(super) log: PathBuf,
    state: Mutex<State>,
    /// Queuescope's own, which ends what it started should we be killed.
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

/// A child that runs, or has ended. Its number is its group's.
#[derive(Clone, Debug)]
pub(super) struct Running {
    group: Pid,
    /// How it ended; told when nothing of its group is left.
    ended: watch::Receiver<Option<ExitStatus>>,
}

/// How long a child may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(10);
/// How long the kernel may take to end a group that was killed, nanoseconds.
const DYING: i64 = 5 * NANOS;
/// How often a group that was killed is looked at, nanoseconds.
const LOOK: i64 = NANOS / 500;
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

    /// Starts it. To be called in the thread that waits for the whole experiment, or in a task: the system kills a child when
    /// the thread ends that started it.
    ///
    /// # Errors
    /// It cannot be started, runs already, or was stopped for good.
    pub(super) fn start(self: &Arc<Process>) -> anyhow::Result<()> {
        let mut state = self.state.lock();
        ensure!(!state.is_closed, "{}: was stopped", self.name);
        ensure!(state.running.is_none(), "{}: runs already", self.name);
        let cannot = || format!("{}: cannot start `{}`", self.name, self.command);
        let child = self.spawned().with_context(cannot)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let group = Pid::from_raw(group.with_context(cannot)?);
        let (tell, ended) = watch::channel(None);
        let watcher = self.watcher(group);
        tokio::spawn(reap(child, group, watcher, Arc::downgrade(self), tell));
        state.running = Some(Running { group, ended });
        Ok(())
    }

    /// Adds what it says to its log, which begins with the command.
    fn spawned(&self) -> io::Result<Child> {
        let line = &self.command;
        // A server may say what it was told.
        let mode = if line.secrets().is_empty() {
            0o666
        } else {
            0o600
        };
        let mut options = OpenOptions::new();
        let mut log: File = options
            .create(true)
            .append(true)
            .mode(mode)
            .open(&self.log)?;
        writeln!(log, "$ {line}")?;
        let mut command = match ends_with_us() {
            true => Command::new("setpriv"),
            false => Command::new(&line.program),
        };
        if ends_with_us() {
            command
                .args(["--pdeathsig", "KILL", "--"])
                .arg(&line.program);
        }
        command
            .args(&line.args)
            // What it said last is in the log, whatever ends it.
            .env("PYTHONUNBUFFERED", "1")
            .envs(line.env.iter().map(|(name, value)| (name, value)))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C at the terminal is ours: children are ended in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }

    /// A process that ends the group when we are gone: then nobody holds the other end of its standard input. The system itself
    /// ends but the process that we started, which may be a shell around a server.
    fn watcher(&self, group: Pid) -> Option<Child> {
        let mut process = Command::new(&self.program);
        process.args([WATCHER, &group.to_string()]);
        process.stdin(Stdio::piped()).stdout(Stdio::null());
        // Whatever is sent to our own group does not reach it.
        let watcher = process.stderr(Stdio::null()).process_group(0).spawn();
        let failed = |error: &io::Error| {
            let program = self.program.display();
            log::warn!(
                "what runs behind a shell would outlive a kill of this process: {program}: {error}"
            );
        };
        watcher.inspect_err(failed).ok()
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
        let running = self.state.lock().running.clone().with_context(stopped)?;
        let what = tokio::select! {
            biased;
            status = running.gone() => What::Ended(status.with_context(stopped)?),
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
            running.gone().await;
        }
    }

    /// Ends it for good: asks it to, and kills it if it does not. Returns when it is gone.
    pub(super) async fn stop(&self) {
        let Some(running) = self.close() else { return };
        running.signal(Signal::SIGTERM);
        if timeout(GRACE, running.gone()).await.is_err() {
            running.signal(Signal::SIGKILL);
            running.gone().await;
        }
    }

    /// It is not to be started again. Gives what is to be ended.
    pub(super) fn close(&self) -> Option<Running> {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.running.take()
    }

    fn failure(&self, what: What) -> anyhow::Error {
        failure(&self.name, &self.command, what, &self.log)
    }
}

impl Running {
    /// Sends its whole group a signal, if it has not ended.
    pub(super) fn signal(&self, signal: Signal) {
        if self.ended.borrow().is_none() {
            // A group that is gone needs none.
            let _ = killpg(self.group, signal);
        }
    }

    /// Waits for its end.
    async fn gone(&self) -> Option<ExitStatus> {
        let mut ended = self.ended.clone();
        // The sender tells before it goes.
        let status = ended.wait_for(Option::is_some).await.ok()?;
        *status
    }

    /// Waits until nothing of it lives, without a runtime.
    pub(super) fn until_gone(&self) {
        until_gone(self.group, DYING);
    }
}

/// Waits for the end of `child` and ends what is left of its group; tells of an end that nobody wanted.
async fn reap(
    mut child: Child,
    group: Pid,
    watcher: Option<Child>,
    process: Weak<Process>,
    tell: watch::Sender<Option<ExitStatus>>,
) {
    let status = child.wait().await.unwrap_or_default();
    let _ = killpg(group, Signal::SIGKILL);
    // It only waits: who is told may be another.
    let _ = spawn_blocking(move || until_gone(group, DYING)).await;
    // Before the number may be somebody else's.
    if let Some(mut watcher) = watcher {
        let _ = watcher.kill().await;
    }
    tell.send_replace(Some(status));
    let Some(process) = process.upgrade() else {
        return;
    };
    let is_current = |running: &Running| running.group == group;
    if process
        .state
        .lock()
        .running
        .as_ref()
        .is_some_and(is_current)
    {
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

/// Whether the system can be told to kill children when we are killed.
fn ends_with_us() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let mut probe = std::process::Command::new("setpriv");
        probe.args(["--pdeathsig", "KILL", "--", "true"]);
        let probe = probe.stdin(Stdio::null()).stdout(Stdio::null());
        let status = probe.stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    })
}

/// The subcommand of a watcher.
pub const WATCHER: &str = "end-with-parent";

/// What a watcher does: waits for the end of standard input, then ends a process group in order, and kills what does not end.
pub fn end_with_parent(group: i32) {
    // However it ends, nobody is there any more.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    let group = Pid::from_raw(group);
    for (signal, nanos) in [
        (Signal::SIGTERM, GRACE.as_nanos() as i64),
        (Signal::SIGKILL, DYING),
    ] {
        let _ = killpg(group, signal);
        until_gone(group, nanos);
    }
}

/// Waits until nothing of a group lives, for so long at most.
fn until_gone(group: Pid, nanos: i64) {
    let clock = Clock::system();
    let end = clock.now().plus_nanos(nanos);
    while has_members(group) && clock.now() < end {
        clock.sleep_until(clock.now().plus_nanos(LOOK));
    }
}

/// Whether a process of this group lives, of those that are not dead already.
fn has_members(group: Pid) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut stats =
        processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    stats.any(|stat| is_member(&stat, group))
}

/// Whether a line of `/proc/PID/stat` is of a living member: `PID (name) STATE PARENT GROUP …`.
fn is_member(stat: &str, group: Pid) -> bool {
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' '));
    let Some((Some(state), Some(its))) = fields.map(|mut fields| (fields.next(), fields.nth(1)))
    else {
        return false;
    };
    its.parse() == Ok(group.as_raw()) && !matches!(state, "Z" | "X")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    /// A shell that runs `script`, and what it wrote when there are so many lines.
    async fn started(folder: &Path, script: &str) -> (Arc<Process>, Running, Vec<String>) {
        let command = CommandLine {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: Vec::new(),
        };
        let log = tempfile::NamedTempFile::new_in(folder).unwrap();
        let (_, log) = log.keep().unwrap();
        let (failures, _) = unbounded_channel();
        let process = Process::new("sh", command, log.clone(), "/bin/false".into(), failures);
        process.start().unwrap();
        let running = process.state.lock().running.clone().unwrap();
        loop {
            let text = std::fs::read_to_string(&log).unwrap();
            if text.lines().count() >= 2 {
                let lines = text.lines().map(str::to_owned).collect();
                return (process, running, lines);
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn its_whole_group_ends_with_it_however_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        for end in ["stop", "kill", "itself"] {
            // Of the group: the shell, and a process of its own that hears no SIGTERM.
            let script = match end {
                "itself" => "sleep 1000 & echo $!",
                _ => "(trap '' TERM; sleep 1000) & echo $!; wait",
            };
            let (process, running, said) = started(folder.path(), script).await;
            assert!(said[0].starts_with("$ sh -c "), "{said:?}");
            match end {
                "stop" => process.stop().await,
                "kill" => process.kill().await,
                _ => assert!(running.gone().await.unwrap().success()),
            }
            assert!(running.gone().await.is_some());
            assert!(!has_members(running.group), "{end}");
            let own = format!("/proc/{}", running.group);
            assert!(!Path::new(&own).exists(), "{end}: not reaped");
        }
    }

    #[tokio::test]
    async fn one_that_hears_no_sigterm_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let deaf = "trap '' TERM; echo deaf; while :; do sleep 1; done";
        let (process, running, _) = started(folder.path(), deaf).await;
        tokio::time::pause();
        process.stop().await;
        assert!(!has_members(running.group));
    }

    #[test]
    fn members_are_told_from_the_dead_and_from_others() {
        let group = Pid::from_raw(40);
        assert!(is_member("41 (a) b) S 1 40 40 0", group));
        assert!(!is_member("41 (a) Z 1 40 40 0", group));
        assert!(!is_member("41 (a) S 40 41 40 0", group));
        assert!(!is_member("", group));
    }
}
