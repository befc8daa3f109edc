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
use tokio::time::{Sleep, sleep};

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
    /// The connection to it, for [`Line::over`].
    pub predecessor: Option<StdUnixStream>,
}

/// The connection to the other process.
#[derive(Debug)]
pub struct Line(UnixStream);

/// A process that was started to take over and is not ready yet.
#[derive(Debug)]
pub struct Successor {
    process: Child,
    /// The process id.
    pub id: u32,
    line: Line,
    /// When it has taken too long.
    limit: Pin<Box<Sleep>>,
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

impl Line {
    /// Registers the connection with the runtime.
    ///
    /// # Errors
    /// The runtime cannot take it.
    pub fn over(stream: StdUnixStream) -> io::Result<Line> {
        stream.set_nonblocking(true)?;
        Ok(Line(UnixStream::from_std(stream)?))
    }

    /// Reports that this process accepts. The other one may have ended.
    pub async fn ready(&mut self) {
        let _ = self.0.write_u8(b'\n').await;
    }

    /// Waits until the other process has ended.
    pub async fn ended(mut self) {
        while self.0.read_u8().await.is_ok() {}
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
            process,
            line: Line::over(line)?,
            limit: Box::pin(sleep(START_TIMEOUT)),
        })
    }

    /// Waits until it accepts. May be dropped and called again. One that takes too long is killed.
    ///
    /// # Errors
    /// It ended before, and how.
    pub async fn ready(&mut self) -> Result<(), String> {
        // A child of it may hold the line after it has ended.
        let ended = tokio::select! {
            biased;
            Ok(_) = self.line.0.read_u8() => self.process.try_wait().transpose(),
            ended = self.process.wait() => Some(ended),
            () = &mut self.limit => {
                // It may not even see a SIGTERM. This fails if it has ended.
                let _ = self.process.kill().await;
                let limit = START_TIMEOUT.as_secs();
                return Err(format!("the successor was not ready after {limit} s: killed"));
            }
        };
        match ended {
            None => Ok(()),
            Some(Ok(status)) => Err(format!("the successor ended: {status}")),
            Some(Err(error)) => Err(format!("the successor: {error}")),
        }
    }

    /// Returns the line to it, to be kept as long as this process lives.
    pub fn into_line(self) -> Line {
        self.line
    }

    /// Has it drain: it serves what it accepted meanwhile.
    pub fn end(self) {
        if let Some(id) = Pid::from_raw(self.id.cast_signed()) {
            // This fails if it has ended.
            let _ = kill_process(id, Signal::TERM);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

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
        // The script reads and writes its standard input. Its last socket is open, and nothing after it.
        let mut successor = start(
            r#"read -r line
               case $line in *'["worker 0","worker 1"]'*'"sixteen bytes of it"'*) ;; *) exit 1 ;; esac
               [ "$LISTEN_FDS" = 2 ] && [ -S /proc/$$/fd/4 ] && [ ! -S /proc/$$/fd/5 ] || exit 2
               echo >&0
               read -r line"#,
        );
        assert_eq!(successor.ready().await, Ok(()));
        // It sees the line's end, and ends.
        let Successor {
            mut process, line, ..
        } = successor;
        drop(line);
        let ended = tokio::time::timeout(Duration::from_secs(60), process.wait());
        assert!(ended.await.is_ok());
    }

    #[tokio::test]
    async fn a_successor_that_ends_before_it_is_ready_is_an_error() {
        // The second one leaves a child that holds the line, until this process closes it.
        for script in ["exit 3", "exec 3<&0; cat <&3 >/dev/null & exit 3"] {
            let mut successor = start(script);
            let ended = tokio::time::timeout(Duration::from_secs(60), successor.ready());
            let error = Err("the successor ended: exit status: 3".into());
            assert_eq!(ended.await, Ok(error), "{script}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_that_hangs_is_killed() {
        // It would not end by itself, nor by SIGTERM.
        let mut successor = start("trap '' TERM; exec sleep 1000");
        let error = successor.ready().await.unwrap_err();
        assert!(error.contains("not ready after 60 s"), "{error}");
        let ended = successor.process.try_wait().unwrap();
        assert_eq!(ended.map(|status| status.signal()), Some(Some(9)));
    }
}
