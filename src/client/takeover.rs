//! A new process takes the listening sockets over from the one that started it, and none of them is ever closed.
//!
//! It inherits them, and its standard input is a line to the old process: there it reads what each socket is for, and writes
//! a byte once it accepts; then the old one stops accepting. The line's end tells each that the other has ended; before it
//! accepts, the end of the new process does, as what that has started may hold the line.
//! docs/dev/decisions/0016 tells why it is done so.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;

use command_fds::{CommandFdExt, FdMapping};
use listenfd::ListenFd;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::secret::Secret;

use super::listener::ListenSocket;

/// What a process gives to its successor, in one line of JSON besides the sockets.
#[derive(Serialize, Deserialize)]
struct Handed {
    /// What each socket is for.
    listeners: Vec<String>,
    /// In clear: it goes to a process of our own.
    hop_secret: Option<String>,
}

/// What a process has of the one before it; nothing, where there is none.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Listening sockets, by what they are for.
    sockets: Vec<(String, TcpListener)>,
    /// What its hops and its front, which drain, know each other by.
    pub hop_secret: Option<Secret>,
    /// The line to it, for [`Line::over`].
    pub predecessor: Option<StdUnixStream>,
}

/// The line to the other process.
#[derive(Debug)]
pub struct Line(UnixStream);

/// A process that was started to take over, and is not ready yet.
#[derive(Debug)]
pub struct Successor {
    process: Child,
    /// Of its process.
    pub id: u32,
    line: Line,
}

/// Says to a process that it takes over.
const TAKES_OVER: &str = "QUEUESCOPE_TAKES_OVER";
/// As sd_listen_fds(3) has it.
const FIRST: i32 = 3;

impl Inherited {
    /// What this process has inherited. To be asked for once, while it has one thread: it takes the variables that say so away.
    ///
    /// # Errors
    /// It was not all there.
    pub fn take() -> io::Result<Inherited> {
        if std::env::var_os(TAKES_OVER).is_none() {
            return Ok(Inherited::default());
        }
        Inherited::of_predecessor().map_err(|why| {
            let why =
                format!("{TAKES_OVER} is set, but no proxy started this process ({why}): unset it");
            io::Error::other(why)
        })
    }

    fn of_predecessor() -> io::Result<Inherited> {
        let line = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut text = String::new();
        // All of it was written before this process was started.
        BufReader::new(&line).read_line(&mut text)?;
        let Handed {
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

    /// What those that nobody has claimed are for, and where they listen.
    pub fn addresses(&self) -> impl Iterator<Item = (&str, SocketAddr)> {
        let all = self.sockets.iter();
        all.filter_map(|(name, at)| Some((name.as_str(), at.local_addr().ok()?)))
    }

    /// The socket that listens at this address; of those that any port would do for, the one of this name.
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
    /// Over this stream.
    ///
    /// # Errors
    /// The runtime has no room for it.
    pub fn over(stream: StdUnixStream) -> io::Result<Line> {
        stream.set_nonblocking(true)?;
        Ok(Line(UnixStream::from_std(stream)?))
    }

    /// Tells that this process accepts. It may be that nobody hears it any more.
    pub async fn ready(&mut self) {
        let _ = self.0.write_u8(b'\n').await;
    }

    /// Waits until the other process has ended.
    pub async fn ended(mut self) {
        while self.0.read_u8().await.is_ok() {}
    }
}

impl Successor {
    /// Starts `program` with these arguments, to take over these sockets, and what its hops sign with.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start(
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        sockets: &[ListenSocket],
        hop_secret: Option<Secret>,
    ) -> io::Result<Successor> {
        let (line, its_end) = StdUnixStream::pair()?;
        let hop_secret = hop_secret.map(|s| String::from_utf8_lossy(s.bytes()).into_owned());
        let handed = Handed {
            listeners: sockets.iter().map(|socket| socket.name.clone()).collect(),
            hop_secret,
        };
        let text = serde_json::to_string(&handed)? + "\n";
        (&line).write_all(text.as_bytes())?;
        let mut inherits = Vec::new();
        for (socket, child_fd) in sockets.iter().zip(FIRST..) {
            let parent_fd = socket.socket.as_fd().try_clone_to_owned()?;
            inherits.push(FdMapping {
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
            .stdin(OwnedFd::from(its_end));
        let inherits = command.fd_mappings(inherits);
        inherits.map_err(|twice| io::Error::other(twice.to_string()))?;
        let process = command.spawn()?;
        Ok(Successor {
            id: process.id().unwrap_or_default(),
            process,
            line: Line::over(line)?,
        })
    }

    /// Waits until it accepts. Dropped, it can be called again.
    ///
    /// # Errors
    /// It has ended before: how.
    pub async fn ready(&mut self) -> Result<(), String> {
        // What it has started may hold the line after it has ended.
        let ended = tokio::select! {
            biased;
            Ok(_) = self.line.0.read_u8() => self.process.try_wait().transpose(),
            ended = self.process.wait() => Some(ended),
        };
        match ended {
            None => Ok(()),
            Some(Ok(status)) => Err(format!("the successor ended: {status}")),
            Some(Err(error)) => Err(format!("the successor: {error}")),
        }
    }

    /// The line to it, which is to be kept as long as this process lives.
    pub fn into_line(self) -> Line {
        self.line
    }

    /// Ends it in good order: what it accepted meanwhile it serves.
    pub fn end(self) {
        if let Some(id) = Pid::from_raw(self.id.cast_signed()) {
            // It may have ended by itself.
            let _ = kill_process(id, Signal::TERM);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ANY: &str = "127.0.0.1:0";

    fn sockets() -> Vec<ListenSocket> {
        let any = ANY.parse().unwrap();
        let socket = |n| ListenSocket::new(&format!("worker {n}"), any, None).unwrap();
        (0..2).map(socket).collect()
    }

    fn start(script: &str) -> Successor {
        let secret = Some("sixteen bytes of it".into());
        Successor::start(Path::new("/bin/sh"), ["-c", script], &sockets(), secret).unwrap()
    }

    #[tokio::test]
    async fn a_successor_has_every_socket_and_is_ready_when_it_says_so() {
        // It reads from its standard input, and writes to it. Its last socket is open, and nothing after it.
        let mut told = start(
            r#"read -r line
               case $line in *'["worker 0","worker 1"]'*'"sixteen bytes of it"'*) ;; *) exit 1 ;; esac
               [ "$LISTEN_FDS" = 2 ] && [ -S /proc/$$/fd/4 ] && [ ! -S /proc/$$/fd/5 ] || exit 2
               echo >&0
               read -r line"#,
        );
        assert_eq!(told.ready().await, Ok(()));
        // Its end is seen there, and it ends.
        let Successor {
            mut process, line, ..
        } = told;
        drop(line);
        let ended = tokio::time::timeout(Duration::from_secs(60), process.wait());
        assert!(ended.await.is_ok());
    }

    #[tokio::test]
    async fn a_successor_that_ends_before_it_is_ready_is_told() {
        // The second leaves one behind that holds the line, until this process lets go of it.
        for script in ["exit 3", "exec 3<&0; cat <&3 >/dev/null & exit 3"] {
            let mut successor = start(script);
            let ended = tokio::time::timeout(Duration::from_secs(60), successor.ready());
            let told = Err("the successor ended: exit status: 3".into());
            assert_eq!(ended.await, Ok(told), "{script}");
        }
    }

    #[tokio::test]
    async fn sockets_are_claimed_by_their_address_or_by_name_where_any_port_will_do() {
        let all = sockets().into_iter().map(|socket| {
            let inherited = socket.socket.as_fd().try_clone_to_owned().unwrap();
            (socket.name, TcpListener::from(inherited))
        });
        let mut inherited = Inherited {
            sockets: all.collect(),
            hop_secret: Some("sixteen bytes of it".into()),
            predecessor: None,
        };
        let address = inherited.sockets[0].1.local_addr().unwrap();
        let any = ANY.parse().unwrap();
        let last = inherited.claim("worker 1", any).unwrap();
        assert_ne!(last.local_addr().unwrap(), address);
        assert!(inherited.claim("worker 1", any).is_none(), "it is taken");
        let first = inherited.claim("under another name", address).unwrap();
        assert_eq!(first.local_addr().unwrap(), address);
        let shown = format!("{inherited:?}");
        assert!(!shown.contains("sixteen"), "{shown}");
    }
}
