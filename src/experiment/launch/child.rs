//! A child process that leaves nothing behind: it leads a process group, which ends with it, and it ends with us.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clock::{Clock, NANOS};

use super::command::CommandLine;

/// A child that runs, or has ended. Dropping it kills it and waits until it is gone.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
    /// Whether the number `pid` may be somebody else's by now.
    is_reaped: Arc<Mutex<bool>>,
    ended: watch::Receiver<Option<ExitStatus>>,
    reaper: JoinHandle<()>,
}

/// How a child ends; seen when nothing of its group is left.
pub(super) type Ended = watch::Receiver<Option<ExitStatus>>;

/// How long a child may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(10);
/// How long the kernel may take to end a group that was killed, nanoseconds.
const DYING: i64 = 5 * NANOS;
/// How often a group that was killed is looked at, nanoseconds.
const LOOK: i64 = NANOS / 500;

impl Child {
    /// Starts `command`, which adds what it says to `log`. `program` is queuescope: it ends the whole group should we be killed,
    /// where the system ends but the process that we started, which may be a shell around a server.
    ///
    /// # Errors
    /// It cannot be started, or the log cannot be written.
    pub(super) fn spawn(
        command: &CommandLine,
        log: &Path,
        program: Option<&Path>,
    ) -> io::Result<Child> {
        let mut options = OpenOptions::new();
        // A server may say what it was told.
        let mode = if command.secrets().is_empty() {
            0o666
        } else {
            0o600
        };
        let mut log = options.create(true).append(true).mode(mode).open(log)?;
        writeln!(log, "$ {command}")?;
        let is_reaped = Arc::new(Mutex::new(false));
        let (told, ended) = watch::channel(None);
        let (sender, started) = mpsc::sync_channel(1);
        let mut process = prepare(command, &log)?;
        let reaped = is_reaped.clone();
        let program = program.map(Path::to_owned);
        // The system kills the child when the thread that started it ends: so this one does both, start and wait.
        let reaper = std::thread::Builder::new()
            .name("reaper".to_owned())
            .spawn(move || {
                let child = process.spawn();
                let started = child.as_ref().map(std::process::Child::id);
                // Whoever asked waits for it.
                let _ = sender.send(started.map_err(|error| io::Error::from(error.kind())));
                if let Ok(child) = child {
                    let watcher = program.and_then(|program| watcher(&program, child.id()));
                    told.send_replace(Some(reap(child, watcher, &reaped)));
                }
            })?;
        let pid = started.recv().map_err(io::Error::other)??;
        Ok(Child {
            pid: Pid::from_raw(i32::try_from(pid).map_err(io::Error::other)?),
            is_reaped,
            ended,
            reaper,
        })
    }

    /// Its number, and its group's.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Tells when it has ended.
    pub(super) fn ended(&self) -> Ended {
        self.ended.clone()
    }

    /// Sends its whole group a signal, if it has not ended.
    pub(super) fn signal(&self, signal: Signal) {
        let is_reaped = self.is_reaped.lock();
        if !*is_reaped {
            // A group that is gone needs none.
            let _ = killpg(self.pid, signal);
        }
    }

    /// Asks it to end, and kills it if it does not. Returns when it is gone.
    pub(super) async fn stop(self) {
        self.signal(Signal::SIGTERM);
        if timeout(GRACE, gone(self.ended())).await.is_err() {
            self.kill().await;
        }
    }

    /// Kills it. Returns when it is gone.
    pub(super) async fn kill(self) {
        self.signal(Signal::SIGKILL);
        gone(self.ended()).await;
    }
}

/// Waits for the end of a child; gives its status.
pub(super) async fn gone(mut ended: Ended) -> Option<ExitStatus> {
    // The sender tells before it goes.
    let status = ended.wait_for(Option::is_some).await.ok()?;
    *status
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let clock = Clock::system();
        let end = clock.now().plus_nanos(DYING);
        while !self.reaper.is_finished() && clock.now() < end {
            clock.sleep_until(clock.now().plus_nanos(LOOK));
        }
    }
}

fn prepare(command: &CommandLine, log: &File) -> io::Result<Command> {
    let mut process = match ends_with_us() {
        true => Command::new("setpriv"),
        false => Command::new(&command.program),
    };
    if ends_with_us() {
        process
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&command.program);
    }
    process
        .args(&command.args)
        // What it said last is in the log, whatever ends it.
        .env("PYTHONUNBUFFERED", "1")
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        // Ctrl-C at the terminal is ours: children are ended in order.
        .process_group(0);
    Ok(process)
}

/// Whether the system can be told to kill children when we are killed.
pub(super) fn ends_with_us() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let mut probe = Command::new("setpriv");
        probe.args(["--pdeathsig", "KILL", "--", "true"]);
        probe
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    })
}

/// The subcommand of a watcher.
pub const WATCHER: &str = "end-with-parent";

/// A process that ends the group when we are gone: then nobody holds the other end of its standard input.
fn watcher(program: &Path, group: u32) -> Option<std::process::Child> {
    let mut process = Command::new(program);
    process.args([WATCHER, &group.to_string()]);
    process.stdin(Stdio::piped()).stdout(Stdio::null());
    // Whatever is sent to our own group does not reach it.
    let watcher = process.stderr(Stdio::null()).process_group(0).spawn();
    let failed = |error: &io::Error| {
        log::warn!(
            "what runs behind a shell would outlive a kill of this process: {}: {error}",
            program.display()
        );
    };
    watcher.inspect_err(failed).ok()
}

/// What a watcher does: waits for the end of standard input, then ends a process group in order, and kills what does not end.
pub fn end_with_parent(group: i32) {
    // However it ends, nobody is there any more.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    let group = Pid::from_raw(group);
    let clock = Clock::system();
    for (signal, nanos) in [
        (Signal::SIGTERM, GRACE.as_nanos() as i64),
        (Signal::SIGKILL, DYING),
    ] {
        let _ = killpg(group, signal);
        until_gone(group, &clock, nanos);
    }
}

/// Waits until nothing of a group lives, for so long at most.
fn until_gone(group: Pid, clock: &Clock, nanos: i64) {
    let end = clock.now().plus_nanos(nanos);
    while has_members(group) && clock.now() < end {
        clock.sleep_until(clock.now().plus_nanos(LOOK));
    }
}

/// Waits for the end of `child` and ends what is left of its group.
fn reap(
    mut child: std::process::Child,
    watcher: Option<std::process::Child>,
    is_reaped: &Mutex<bool>,
) -> ExitStatus {
    let pid = Pid::from_raw(child.id() as i32);
    // Until it is reaped its number is nobody else's.
    while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
        == Err(nix::Error::EINTR)
    {}
    let mut is_reaped = is_reaped.lock();
    let _ = killpg(pid, Signal::SIGKILL);
    until_gone(pid, &Clock::system(), DYING);
    // Before the number may be somebody else's.
    if let Some(mut watcher) = watcher {
        let _ = watcher.kill();
        let _ = watcher.wait();
    }
    *is_reaped = true;
    // It has ended: this cannot fail, nor wait.
    child.wait().unwrap_or_default()
}

/// Whether a process of this group lives, of those that are not dead already.
fn has_members(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return false;
    };
    let stats = processes
        .flatten()
        .filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    stats.into_iter().any(|stat| is_member(&stat, group))
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
    use super::*;

    fn sh(script: &str) -> CommandLine {
        CommandLine {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: Vec::new(),
        }
    }

    /// The lines that a process wrote, when there are so many.
    async fn lines(log: &Path, count: usize) -> Vec<String> {
        loop {
            let text = std::fs::read_to_string(log).unwrap();
            if text.lines().count() >= count {
                return text.lines().map(str::to_owned).collect();
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn its_whole_group_ends_with_it_however_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let deaf = "trap '' TERM; sleep 1000 & echo $!; wait";
        for (number, end) in ["stop", "kill", "drop", "itself"].iter().enumerate() {
            let log = folder.path().join(format!("{number}.log"));
            // Of the group: the shell, and a process of its own that hears no SIGTERM.
            let script = match *end {
                "itself" => "sleep 1000 & echo $!".to_owned(),
                "stop" => "(trap '' TERM; sleep 1000) & echo $!; wait".to_owned(),
                _ => deaf.to_owned(),
            };
            let child = Child::spawn(&sh(&script), &log, None).unwrap();
            let said = lines(&log, 2).await;
            assert!(said[0].starts_with("$ sh -c "), "{said:?}");
            let (pid, ended) = (child.pid(), child.ended());
            match *end {
                "stop" => child.stop().await,
                "kill" => child.kill().await,
                "drop" => drop(child),
                _ => assert!(gone(child.ended()).await.unwrap().success()),
            }
            assert!(gone(ended).await.is_some());
            assert!(!has_members(pid), "{end}");
            assert!(
                !Path::new(&format!("/proc/{pid}")).exists(),
                "{end}: not reaped"
            );
        }
    }

    #[tokio::test]
    async fn one_that_hears_no_sigterm_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let child = Child::spawn(
            &sh("trap '' TERM; echo deaf; while :; do sleep 1; done"),
            &log,
            None,
        )
        .unwrap();
        lines(&log, 2).await;
        let pid = child.pid();
        tokio::time::pause();
        child.stop().await;
        assert!(!has_members(pid));
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
