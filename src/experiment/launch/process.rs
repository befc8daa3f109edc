//! A child process of a run, which can be stopped and started again. A *keeper* process starts it as the leader of a process group and
//! ends the whole group when the process ends or when we do, even if we are killed. The error of one that ended or was not ready in time has
//! its command, the end of its log, and the likely cause.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use nix::sys::prctl::{set_child_subreaper, set_name, set_pdeathsig};
use nix::sys::signal::{Signal, killpg, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use super::access::poll;
use super::spec::{CommandLine, DeploymentSpec};
use crate::report::files::LOGS;
use crate::secret::MASK;
use crate::terminal;

/// A named process. Dropping it kills its group and waits until that is gone.
#[derive(Debug)]
pub(in crate::experiment) struct Process {
    /// `server-1`, `router`, `proxy`.
    pub(super) name: String,
    pub(super) command: CommandLine,
    log: PathBuf,
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

    /// Makes its error. `happened` says what happened to it.
    fn failure(&self, happened: &str) -> anyhow::Error {
        let (name, command, log) = (&self.name, &self.command, self.log.display());
        let read = tail(&self.log);
        let output = String::from_utf8_lossy(read.as_deref().unwrap_or_default());
        // Of this start alone, as the log may have earlier ones.
        let earlier = output.rsplit_once(&format!("$ {command}\n"));
        let mut output = earlier.map_or(&*output, |(_, output)| output).to_owned();
        for secret in command.secrets() {
            output = output.replace(secret, MASK);
        }
        let is_text = |line: &&str| !line.trim().is_empty();
        let lines: Vec<&str> = output.lines().filter(is_text).collect();
        let tail = match (&read, &lines[lines.len().saturating_sub(MAX_LINES)..]) {
            (Err(error), _) => format!(" (cannot be read: {error})"),
            (_, []) => " (empty)".to_owned(),
            (_, tail) => format!(", which ends with\n  {}", tail.join("\n  ")),
        };
        let is_silent = read.is_ok() && lines.is_empty();
        let hint = match *self.state.borrow() {
            State::Ended(status) if is_silent && status.code().is_some() => {
                "it wrote nothing: is this the right program?"
            }
            _ => "its log may say why",
        };
        let cause = cause(&format!("{happened}\n{output}")).unwrap_or_else(|| hint.to_owned());
        anyhow!("{name} {happened}: {cause}\n  command: {command}\n  log: {log}{tail}")
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

/// Texts of which a line of the log contains one (separated by `|`), the cause, and the remedy.
type KnownFailure = (&'static str, &'static str, &'static str);

/// Error messages of SGLang 0.5.23, torch, transformers, Python, the router and our own programs, the most certain causes first.
const KNOWN_FAILURES: [KnownFailure; 10] = [
    (
        "address already in use|Address already in use|Port is already in use",
        "the port is in use",
        "End what listens there (`ss -ltnp` shows it), or give another base_port.",
    ),
    (
        "No module named 'sglang|No module named sglang",
        "this Python has no SGLang",
        "Give the Python of the environment that SGLang is installed in, or `pip install sglang`.",
    ),
    (
        "cannot execute ",
        "the program is not there",
        "Give its path, or install it.",
    ),
    (
        "unrecognized arguments:|unexpected argument '|invalid choice:|expected one argument|invalid int value:|\
         invalid float value:",
        "it does not know an argument, or its value",
        "Correct or leave out what the line names; the program's --help lists what it takes.",
    ),
    (
        "ot enough memory. Please try to increase --mem-fraction-static",
        "weights leave no room for the KV cache within mem_fraction_static of the GPU's memory",
        "Raise mem_fraction_static, or take more GPUs a server (tp_size), a smaller model or quantized weights.",
    ),
    (
        "CUDA out of memory|CUDA error: out of memory|torch.OutOfMemoryError|HIP out of memory",
        "the GPU's memory ran out",
        "Lower mem_fraction_static or max_running_requests, take more GPUs a server (tp_size), and see with `nvidia-smi` \
         who else uses the GPU.",
    ),
    (
        "exit code: -9|exit code -9|signal: 9 (SIGKILL)|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|\
         MemoryError",
        "the host's memory ran out, or somebody killed it",
        "Free memory on this machine or start fewer servers on it; `dmesg -T | grep -i oom` shows what the system killed.",
    ),
    (
        "No accelerator (CUDA|No CUDA GPUs are available|invalid device ordinal|Found no NVIDIA driver|\
         Torch not compiled with CUDA enabled",
        "the GPU is not there",
        "See with `nvidia-smi` which there are: the servers take tp_size GPUs each, from gpu_id on; without any GPU give \
         engine = \"sim\".",
    ),
    (
        "We couldn't connect to 'https://huggingface.co'|You are trying to access a gated repo|401 Client Error|\
         403 Client Error|is not a local folder and is not a valid model identifier|Repo id must be in the form|\
         does not appear to have a file named|Repository Not Found",
        "the model was not found, or the hub gives no access to it",
        "Give model_path as a folder that holds the model, or as a name on the Hugging Face hub that this machine reaches \
         (HF_TOKEN for a gated one).",
    ),
    (
        "ModuleNotFoundError: No module named|ImportError: cannot import name",
        "a Python module is missing, or of another version",
        "Install what the line names, or give the Python of the environment that SGLang was installed in.",
    ),
];

/// How many lines of the log an error shows.
const MAX_LINES: usize = 20;
/// How many bytes of the log are searched for a cause. SGLang prints more than a screen after it.
const MAX_LOG_BYTES: u64 = 65_536;
/// How many characters of a line are shown with the cause.
const MAX_LINE_CHARS: usize = 200;

/// Reads the last bytes of a log, which may be large.
fn tail(log: &Path) -> io::Result<Vec<u8>> {
    let mut log = File::open(log)?;
    let end = log.metadata()?.len();
    log.seek(SeekFrom::Start(end.saturating_sub(MAX_LOG_BYTES)))?;
    let mut bytes = Vec::new();
    log.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the likely cause and its remedy, if the output shows a known failure.
fn cause(output: &str) -> Option<String> {
    KNOWN_FAILURES.iter().find_map(|(texts, cause, remedy)| {
        let has_one = |line: &&str| texts.split('|').any(|text| line.contains(text));
        // The last such line, as programs retry in other ways after a first failure.
        let line = output.lines().rev().find(has_one)?.trim();
        let mut shown: String = line.chars().take(MAX_LINE_CHARS).collect();
        if shown.len() < line.len() {
            shown.push('…');
        }
        Some(format!("{cause} (\"{shown}\"). {remedy}"))
    })
}

/// The subcommand that runs a keeper.
pub const KEEPER: &str = "end-with-parent";

/// Runs a keeper: starts a command as the leader of a process group, whose output goes to standard error. Signals from standard input
/// are sent to the group; at the end of standard input, SIGTERM and later SIGKILL. Ends when the group is gone, with the command's
/// status.
pub fn keep(command: &[OsString]) -> ExitCode {
    // So that `killall -9 queuescope` leaves the keepers, which then end their groups.
    let _ = set_name(c"keeper");
    // So that orphaned grandchildren can be waited for here.
    let _ = set_child_subreaper(true);
    let started = io::stderr().as_fd().try_clone_to_owned().and_then(|log| {
        let mut kept = std::process::Command::new("/proc/self/exe");
        let keeper = std::process::id().to_string();
        kept.args([KEEPER, "--kept-by", &keeper, "--"])
            .args(command);
        let kept = kept.process_group(0).stdin(Stdio::null());
        kept.stdout(log).spawn()
    });
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let program = command.first().map_or(KEEPER.as_ref(), OsString::as_os_str);
            return cannot_execute(program, &error);
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
        // The first SIGSEGV or SIGBUS only removes the runtime's own handler.
        for _ in 0..2 {
            let _ = Signal::try_from(signal).and_then(raise);
        }
    }
    ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}

/// Becomes a command. The system kills it with its keeper, should that be killed, too.
pub fn be_kept(keeper: u32, command: &[OsString]) -> ExitCode {
    let _ = set_pdeathsig(Signal::SIGKILL);
    if std::os::unix::process::parent_id() != keeper {
        // It was killed before.
        return ExitCode::from(128 + Signal::SIGKILL as u8);
    }
    let (program, args) = command.split_first().unzip();
    let program = program.cloned().unwrap_or_default();
    let mut command = std::process::Command::new(&program);
    cannot_execute(&program, &command.args(args.unwrap_or_default()).exec())
}

fn cannot_execute(program: &OsStr, error: &io::Error) -> ExitCode {
    let program = program.display();
    terminal::print_error(&format!("cannot execute {program}: {error}\n"));
    ExitCode::from(127)
}

#[cfg(test)]
mod tests;
