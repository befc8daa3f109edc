//! `queuescope proxy` as a process of its own.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::admin::{get, metric};
use super::assert_says;
use super::wire::{PATIENCE, until_async};

/// The process, and where it listens. It is killed when dropped.
pub struct Process {
    pub child: Child,
    pub lines: Receiver<String>,
    /// What it said until it told where it listens.
    pub begun: Vec<String>,
    pub front: SocketAddr,
    pub hops: Vec<SocketAddr>,
    pub admin: SocketAddr,
    pub folder: Arc<TempDir>,
}

/// The service manager's socket in a process's folder.
pub const NOTIFY: &str = "notify.sock";

impl Process {
    /// A front to `upstream` on free ports, with a records file in a folder of its own.
    pub fn start(upstream: SocketAddr, extra: &[&str]) -> Process {
        Process::before(upstream, Command::new(PROGRAM), extra)
    }

    /// The same under a limit, in the words of the shell's `ulimit`.
    pub fn limited(ulimit: &str, upstream: SocketAddr, extra: &[&str]) -> Process {
        Process::before(upstream, limited(ulimit), extra)
    }

    fn before(upstream: SocketAddr, command: Command, extra: &[&str]) -> Process {
        let upstream = format!("http://{upstream}");
        let args = [&["--upstream", &upstream], extra].concat();
        Process::by(command, Arc::new(tempfile::tempdir().unwrap()), &args)
    }

    /// One on free ports, or on those that it takes over, with its records in `folder`.
    pub fn in_folder(folder: Arc<TempDir>, args: &[&str]) -> Process {
        Process::by(Command::new(PROGRAM), folder, args)
    }

    /// One in `folder` by a command of the caller's. Of one that has hops alone `front` is nowhere.
    pub fn by(mut command: Command, folder: Arc<TempDir>, args: &[&str]) -> Process {
        // A service manager, where a test plays one.
        let listen = ["--listen", "127.0.0.1:0"];
        let notify = Some(folder.path().join(NOTIFY)).filter(|socket| socket.exists());
        let child = command
            .args(["proxy", "--admin", "127.0.0.1:0"])
            .args(listen.iter().filter(|_| !args.contains(&"--listen")))
            .arg("--records")
            .arg(folder.path().join("records.csv"))
            .args(args)
            .env_remove("RUST_LOG")
            .env_remove("NOTIFY_SOCKET")
            .envs(notify.map(|socket| ("NOTIFY_SOCKET", socket)))
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let lines = lines_of(child.stderr.take().unwrap());
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut process = Process {
            child,
            lines,
            begun: Vec::new(),
            front: nowhere,
            hops: Vec::new(),
            admin: nowhere,
            folder,
        };
        loop {
            let line = process.lines.recv_timeout(PATIENCE).expect("its listeners");
            process.begun.push(line.clone());
            let Some((what, rest)) = line.split_once(" on http://") else {
                continue;
            };
            let addr = rest.split(' ').next().unwrap().parse().unwrap();
            match what.rsplit(' ').next().unwrap() {
                "front" => process.front = addr,
                "admin" => process.admin = addr,
                _ => process.hops.push(addr),
            }
            if process.admin.port() > 0 {
                return process;
            }
        }
    }

    pub fn records(&self) -> PathBuf {
        self.folder.path().join("records.csv")
    }

    pub fn signal(&self, signal: Signal) {
        self::signal(&self.child, signal);
    }

    /// Waits until it says this; gives the line.
    pub fn says(&self, piece: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect(piece);
            if line.contains(piece) {
                return line;
            }
        }
    }

    /// The value of a metric; 0 when it is not there.
    pub async fn metric(&self, name: &str) -> u64 {
        metric(&get(self.admin, "/metrics").await.text(), name) as u64
    }

    pub async fn ready(&self) -> u16 {
        get(self.admin, "/readyz").await.status()
    }

    pub async fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        until_async("its end", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process.
pub fn signal(process: &Child, signal: Signal) {
    kill(Pid::from_raw(process.id().cast_signed()), signal).unwrap();
}

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_queuescope");

/// What a command said, and its exit code.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    /// It ended with one of these statuses; else all that it said is shown.
    #[track_caller]
    pub fn assert_status(&self, any: &[i32]) {
        let is_one = self.code.is_some_and(|code| any.contains(&code));
        assert!(is_one, "{:?}\n{}\n{}", self.code, self.out, self.err);
    }

    /// It was refused as wrong, with these words.
    #[track_caller]
    pub fn assert_refused(&self, words: &str) {
        self.assert_status(&[2]);
        assert_says(&self.err, words);
    }

    /// A run of traffic went well; on a busy machine it may be INVALID, for its own lateness alone.
    pub fn assert_ran(&self) {
        self.assert_status(&[0, 3]);
        let said = format!("{} {}", self.out, self.err);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_late = [
            "were sent more than",
            "event loop woke",
            "longer than the schedule",
        ];
        let is_late = is_late.iter().any(|why| said.contains(why));
        assert!(self.code == Some(0) || is_late, "{said}");
    }
}

/// `queuescope` with these arguments.
pub fn queuescope(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    let command_line = command.args(args).env_remove("RUST_LOG");
    command_line.env_remove("OPENAI_API_KEY");
    command
}

/// Runs a command to its end.
pub fn run(mut command: Command) -> Done {
    command.output().unwrap().into()
}

impl From<Output> for Done {
    fn from(done: Output) -> Done {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Done {
            code: done.status.code(),
            out: text(done.stdout),
            err: text(done.stderr),
        }
    }
}

/// The same beside servers of the test's own runtime.
pub async fn run_aside(command: Command) -> Done {
    tokio::task::spawn_blocking(|| run(command)).await.unwrap()
}

/// The program under a limit, in the words of the shell's `ulimit`.
pub fn limited(ulimit: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit {ulimit} && exec \"$0\" \"$@\"");
    command.args(["-c", &script, PROGRAM]);
    command
}

/// The lines that come, as they come.
pub fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    lines
}
