//! A new process takes the listening sockets over from the one that started it, so that none is ever closed.
//!
//! It inherits the sockets. Its standard input is a connection to the old process: it reads there what each socket is for, and
//! writes a byte once it accepts; then the old process stops accepting. When the connection ends, the other process has ended.
//! Before the byte, the old process waits for the new one's exit instead, as a child of that one may hold the connection.
//! The reasons are in docs/dev/decisions/0016.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use listenfd::ListenFd;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::secret::Secret;

use super::listener::ListenSocket;

/// What a process sends to its successor besides the sockets, in one line of JSON.
#[derive(Serialize, Deserialize)]
struct Handover {
    /// The key of each socket.
    listeners: Vec<String>,
    /// Not encrypted: the successor is a process of our own.
    hop_secret: Option<String>,
}

/// What a process inherits from its predecessor; nothing if there is none.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Listening sockets by their keys.
    sockets: Vec<(String, TcpListener)>,
    /// The secret that its hops, which drain, sign with.
    pub hop_secret: Option<Secret>,
    /// The connection to it.
    pub predecessor: Option<StdUnixStream>,
}

/// A process that was started to take over and does not accept yet.
pub struct Successor {
    /// The process id.
    pub id: u32,
    /// Waits until it accepts, and returns the line to it, to be kept as long as this process lives. Fails if it ended before, or took
    /// too long and was killed.
    pub accepting: Pin<Box<dyn Future<Output = Result<UnixStream, String>>>>,
}

/// The environment variable that is set for a process that takes over.
const TAKES_OVER: &str = "QUEUESCOPE_TAKES_OVER";
/// The first inherited file descriptor: sd_listen_fds(3).
const FIRST_FD: i32 = 3;
/// How long a successor may take until it accepts. A start looks names up, and takes a second or two.
const START_TIMEOUT: Duration = Duration::from_secs(60);

impl Inherited {
    /// Takes what this process inherited. To be called once, while there is one thread: it removes environment variables.
    ///
    /// # Errors
    /// Something is missing.
    pub fn take() -> io::Result<Inherited> {
        if std::env::var_os(TAKES_OVER).is_none() {
            return Ok(Inherited::default());
        }
        Inherited::of_predecessor().map_err(|why| {
            io::Error::other(format!(
                "{TAKES_OVER} is set, but no proxy started this process ({why}): unset it"
            ))
        })
    }

    fn of_predecessor() -> io::Result<Inherited> {
        let line = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut text = String::new();
        // It was written before this process was started: this does not block.
        BufReader::new(&line).read_line(&mut text)?;
        let Handover {
            listeners,
            hop_secret,
        } = serde_json::from_str(&text)?;
        let mut inherited = ListenFd::from_env();
        let mut sockets = Vec::new();
        for (at, name) in listeners.into_iter().enumerate() {
            let socket = inherited.take_tcp_listener(at)?;
            sockets.push((name, socket.ok_or(io::ErrorKind::NotFound)?));
        }
        Ok(Inherited {
            sockets,
            hop_secret: hop_secret.map(|secret| secret.as_str().into()),
            predecessor: Some(line),
        })
    }

    /// Closes the sockets that nobody has claimed, and reports to the predecessor, if there is one, that this process accepts. Returns
    /// the line to it.
    ///
    /// # Errors
    /// The runtime cannot take the line.
    pub async fn report_accepting(self) -> io::Result<Option<UnixStream>> {
        drop(self.sockets);
        let mut line = self.predecessor.map(registered).transpose()?;
        if let Some(line) = &mut line {
            // The other one may have ended.
            let _ = line.write_u8(b'\n').await;
        }
        Ok(line)
    }

    /// Takes the socket that listens at this address; for port 0, the one with this name.
    pub fn claim(&mut self, name: &str, configured: SocketAddr) -> Option<TcpListener> {
        let is_it = |(of, socket): &(String, TcpListener)| {
            let is_any = configured.port() == 0 && of == name;
            let at = socket.local_addr().ok();
            at.is_some_and(|at| at == configured || (is_any && at.ip() == configured.ip()))
        };
        let at = self.sockets.iter().position(is_it)?;
        Some(self.sockets.swap_remove(at).1)
    }
}

impl Successor {
    /// Starts `program` with these arguments, to take over these sockets and the secret that hops sign with.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start(
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        sockets: &[ListenSocket],
        hop_secret: Option<Secret>,
    ) -> io::Result<Successor> {
        let (line, child_line) = StdUnixStream::pair()?;
        let hop_secret = hop_secret.map(|s| String::from_utf8_lossy(s.bytes()).into_owned());
        let handover = Handover {
            listeners: sockets.iter().map(|socket| socket.name.clone()).collect(),
            hop_secret,
        };
        let text = serde_json::to_string(&handover)? + "\n";
        (&line).write_all(text.as_bytes())?;
        let mut mappings = Vec::new();
        for (socket, child_fd) in sockets.iter().zip(FIRST_FD..) {
            let parent_fd = socket.socket.as_fd().try_clone_to_owned()?;
            mappings.push(FdMapping {
                parent_fd,
                child_fd,
            });
        }
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env(TAKES_OVER, "1")
            .env("LISTEN_FDS", sockets.len().to_string())
            .env_remove("LISTEN_PID")
            .env_remove("LISTEN_FDS_FIRST_FD")
            .stdin(OwnedFd::from(child_line));
        let mapped = command.fd_mappings(mappings);
        mapped.map_err(|collision| io::Error::other(collision.to_string()))?;
        let process = command.spawn()?;
        Ok(Successor {
            id: process.id().unwrap_or_default(),
            accepting: Box::pin(accepting(process, registered(line)?)),
        })
    }

    /// Has it drain: it serves what it accepted meanwhile.
    pub fn end(self) {
        if let Some(id) = Pid::from_raw(self.id.cast_signed()) {
            // This fails if it has ended.
            let _ = kill_process(id, Signal::TERM);
        }
    }
}

async fn accepting(mut process: Child, mut line: UnixStream) -> Result<UnixStream, String> {
    // A child of it may hold the line after it has ended.
    let ended = tokio::select! {
        biased;
        Ok(_) = line.read_u8() => process.try_wait().transpose(),
        ended = process.wait() => Some(ended),
        () = sleep(START_TIMEOUT) => {
            // It may not even see a SIGTERM. This fails if it has ended.
            let _ = process.kill().await;
            let limit = START_TIMEOUT.as_secs();
            return Err(format!("the successor was not ready after {limit} s: killed"));
        }
    };
    match ended {
        None => Ok(line),
        Some(Ok(status)) => Err(format!("the successor ended: {status}")),
        Some(Err(error)) => Err(format!("the successor: {error}")),
    }
}

/// Registers a line with the runtime.
fn registered(line: StdUnixStream) -> io::Result<UnixStream> {
    line.set_nonblocking(true)?;
    UnixStream::from_std(line)
}

/// Waits until the process at the other end of a line has ended.
pub async fn ended(mut line: UnixStream) {
    while line.read_u8().await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Successor {
        let any = "127.0.0.1:0".parse().unwrap();
        let socket = |n| ListenSocket::new(&format!("worker {n}"), any, None).unwrap();
        let sockets = [0, 1].map(socket);
        let secret = Some("sixteen bytes of it".into());
        Successor::start(Path::new("/bin/sh"), ["-c", script], &sockets, secret).unwrap()
    }

    #[tokio::test]
    async fn a_successor_has_every_socket_and_is_ready_when_it_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let end = folder.path().join("end");
        // The script reads and writes its standard input. Its last socket is open, and nothing after it.
        let script = r#"read -r line
               case $line in *'["worker 0","worker 1"]'*'"sixteen bytes of it"'*) ;; *) exit 1 ;; esac
               [ "$LISTEN_FDS" = 2 ] && [ -S /proc/$$/fd/4 ] && [ ! -S /proc/$$/fd/5 ] || exit 2
               echo >&0
               read -r line; : >"$END""#;
        let successor = start(&script.replace("$END", end.to_str().unwrap()));
        let line = successor.accepting.await.unwrap();
        assert!(!end.exists());
        // It sees the line's end.
        drop(line);
        while !end.exists() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_successor_that_ends_before_it_is_ready_is_an_error() {
        // The second one leaves a child that holds the line, until this process closes it.
        for script in ["exit 3", "exec 3<&0; cat <&3 >/dev/null & exit 3"] {
            let ended = start(script).accepting;
            let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
            let error = ended.unwrap().unwrap_err();
            assert_eq!(error, "the successor ended: exit status: 3", "{script}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_that_hangs_is_killed() {
        // It would not end by itself, nor by SIGTERM.
        let successor = start("trap '' TERM; exec sleep 1000");
        let error = successor.accepting.await.unwrap_err();
        assert!(error.contains("not ready after 60 s"), "{error}");
        assert!(!Path::new(&format!("/proc/{}", successor.id)).exists());
    }
}
