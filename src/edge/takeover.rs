//! A new process takes the listening sockets over from the one that runs, and none of them is ever closed.
//!
//! Over a Unix socket, in lines of JSON: the new one says [`Message::Hello`]; the old one says [`Message::Here`], sends
//! each listening socket with a [`Message::Listener`], then [`Message::All`]; the new one starts all it has to, accepts,
//! and says [`Message::Serving`]; the old one says [`Message::Draining`], the new one [`Message::Heard`], and only now the
//! old one stops to accept. Whatever fails before leaves the old one as it was. docs/decisions/0016 tells why it is
//! done so.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, MutexGuard};

use crate::secret::Secret;

use super::listener::ListenSocket;
use super::shortage;

mod line;

use line::{ANSWER, HELLO, Line, Message, VERSION};

/// The sockets that another process gave us.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<Socket>,
    /// What its hops and its front, which drain, know each other by.
    hop_secret: Option<Secret>,
}

#[derive(Debug)]
struct Socket {
    name: String,
    configured: String,
    fd: OwnedFd,
}

/// What a process gives to its successor.
#[derive(Debug)]
pub struct Offer {
    /// The listeners.
    pub sockets: Vec<ListenSocket>,
    /// What its hops sign with, unless a config says it.
    pub hop_secret: Option<Secret>,
}

/// A takeover under way, in the new process.
#[derive(Debug)]
pub struct Taking {
    line: Line,
}

/// How a takeover ended for the new process, which serves.
#[derive(Debug)]
pub enum Taken {
    /// The old process drains.
    Over(Predecessor),
    /// The old process says nothing. This one has the sockets, and goes on.
    Silent(Predecessor),
    /// The old process was gone before it could say so.
    Gone,
    /// The old process goes on serving: this one must not.
    Refused(String),
}

/// The old process, until it has ended.
#[derive(Debug)]
pub struct Predecessor {
    line: Line,
}

/// Where a running proxy waits for its successor.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    /// Held by an offer of the sockets, and by whoever changes them.
    turn: Mutex<()>,
}

/// Why a takeover did not come about.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket itself.
    #[error("takeover = \"{path}\": {source}; give a path in a folder where this user may write")]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something else is at the path.
    #[error("takeover = \"{path}\": {what}; give another path")]
    Occupied {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: String,
    },
    /// The other process.
    #[error("takeover = \"{path}\": {why}")]
    Other {
        /// The path.
        path: PathBuf,
        /// What went wrong with it.
        why: String,
    },
}

/// How long a running process may take to say that it is there, and for the last word. It may be stopped or hang: who
/// comes after it must not.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a new process may take from the sockets to serving; it resolves names and opens files meanwhile.
const START: Duration = Duration::from_secs(60);
/// The name under which the door itself is handed over.
const DOOR: &str = "takeover";

impl Inherited {
    /// The socket that was configured under this name with this address; else any that has the address, if
    /// only one can have it.
    pub fn claim(&mut self, name: &str, configured: SocketAddr) -> Option<StdListener> {
        let address = configured.to_string();
        let same = |socket: &Socket| socket.name == name && socket.configured == address;
        let at = self.sockets.iter().position(same).or_else(|| {
            let moved = |socket: &Socket| socket.configured == address;
            let at = self.sockets.iter().position(moved);
            at.filter(|_| configured.port() != 0)
        });
        Some(self.sockets.swap_remove(at?).fd.into())
    }

    /// What the other process's hops sign with.
    pub fn hop_secret(&self) -> Option<Secret> {
        self.hop_secret.clone()
    }

    fn claim_door(&mut self) -> Option<StdUnixListener> {
        let at = self.sockets.iter().position(|socket| socket.name == DOOR)?;
        Some(self.sockets.swap_remove(at).fd.into())
    }
}

impl Taking {
    /// Asks the process behind `path` for its listeners. `None`: nobody is there, or nobody who answers.
    ///
    /// # Errors
    /// When somebody is there, and it does not go; or something else is there.
    pub async fn begin(path: &Path) -> Result<Option<(Taking, Inherited)>, Error> {
        use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
        let stream = match UnixStream::connect(path).await {
            Ok(stream) => stream,
            // A process that was killed leaves its socket behind.
            Err(error) if matches!(error.kind(), ConnectionRefused | NotFound | WouldBlock) => {
                removable(path)?;
                return Ok(None);
            }
            Err(source) => {
                let path = path.into();
                return Err(Error::Path { path, source });
            }
        };
        log::info!("takeover: asking the process at {}", path.display());
        let other = |why: String| Error::other(path, why);
        let line = Line::new(stream);
        let mut line = line.map_err(|error| other(error.to_string()))?;
        let alone = |why: &str| {
            let path = path.display();
            log::warn!("takeover: the process at {path} {why}; starting without it");
            Ok(None)
        };
        match tokio::time::timeout(PATIENCE, line.greet()).await {
            Ok(Ok(Some(Message::Here(pid)))) => log::info!("takeover: process {pid} is there"),
            Ok(Ok(Some(message))) => return Err(other(unexpected(message))),
            Ok(Ok(None)) => return alone("is gone"),
            Ok(Err(error)) => return alone(&format!("gave no answer: {error}")),
            Err(_) => return alone("gives no answer"),
        }
        match tokio::time::timeout(START, line.ask()).await {
            Ok(Ok(Some(inherited))) => Ok(Some((Taking { line }, inherited))),
            Ok(Ok(None)) => alone("is gone"),
            Ok(Err(why)) => Err(other(why)),
            Err(_) => Err(other("the running process gave no listeners".into())),
        }
    }

    /// Says that this process accepts now, and waits for the other to say that it will not.
    pub async fn serving(mut self) -> Taken {
        let said = self.line.say(&Message::Serving(std::process::id())).await;
        let answer = async {
            said?;
            self.line.next().await
        };
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(Some(Message::Draining))) => {}
            Ok(Ok(Some(message))) => return Taken::Refused(unexpected(message)),
            Ok(Ok(None) | Err(_)) => return Taken::Gone,
            Err(_) => return Taken::Silent(Predecessor { line: self.line }),
        }
        // This process may have been stopped for so long that the other has changed its mind.
        if let Ok(Some(message)) = self.line.came() {
            return Taken::Refused(unexpected(message));
        }
        match self.line.say(&Message::Heard).await {
            Ok(()) => Taken::Over(Predecessor { line: self.line }),
            Err(_) => Taken::Gone,
        }
    }
}

impl Predecessor {
    /// Waits until it has ended, and lets it drain if it comes to that only now, as long as this process `serves`:
    /// of two that end nobody would be left.
    pub async fn gone(mut self, serves: impl Fn() -> bool) {
        while let Ok(Some(message)) = self.line.next().await {
            match message {
                // The line ends here, and the other goes on.
                Message::Draining if !serves() => return,
                Message::Draining => {
                    log::info!("takeover: the process before this one drains now");
                    // If it is gone, the next message tells.
                    let _ = self.line.say(&Message::Heard).await;
                }
                other => log::warn!(
                    "takeover: the process before this one goes on serving, too ({}); end one of them",
                    unexpected(other)
                ),
            }
        }
    }
}

/// Whether a socket that a dead process has left may be removed from `path`.
fn removable(path: &Path) -> Result<bool, Error> {
    let occupied = |what: String| {
        let path = path.into();
        Err(Error::Occupied { path, what })
    };
    let there = match std::fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => {
            let path = path.into();
            return Err(Error::Path { path, source });
        }
    };
    if !there.file_type().is_socket() {
        return occupied("is a file, not a socket".into());
    }
    let ours = rustix::process::geteuid().as_raw();
    if there.uid() != ours {
        return occupied(format!("is a socket of user {}, not {ours}", there.uid()));
    }
    Ok(true)
}

impl Door {
    /// Opens it: the other process's, or a new one at `path`.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn open(path: &Path, inherited: &mut Inherited) -> Result<Door, Error> {
        let listener = match inherited.claim_door() {
            Some(listener) => Ok(listener),
            None => bind(path, removable(path)?),
        };
        let opened = listener.and_then(|listener| {
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        });
        match opened {
            Ok(listener) => Ok(Door {
                listener,
                turn: Mutex::new(()),
            }),
            Err(source) => Err(Error::Path {
                path: path.into(),
                source,
            }),
        }
    }

    /// Leave to change the listeners: no successor is offered them while it is held. `None`: one is, just now.
    pub fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock().ok()
    }

    /// Waits for a successor that serves, and knows that this process is about to stop. `offer` gives what there is
    /// when one asks. Attempts that fail are told in the log, and change nothing.
    pub async fn handed_over(&self, offer: impl Fn() -> Offer) -> Handed {
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    let helps = shortage::remedy(&error);
                    log::warn!("takeover: cannot accept: {error}{helps}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let mut line = match Line::new(stream) {
                Ok(line) => line,
                Err(error) => {
                    log::warn!("takeover: {error}");
                    continue;
                }
            };
            let offered = async {
                line.meet().await?;
                let _turn = self.turn.lock().await;
                let offered = line.offer(offer(), self.listener.as_fd());
                let successor = tokio::time::timeout(START, offered).await;
                let successor = successor.unwrap_or_else(|_| Err(late()))?;
                line.part().await?;
                Ok::<u32, io::Error>(successor)
            };
            match offered.await {
                Ok(successor) => return Handed { line, successor },
                Err(error) => {
                    log::warn!("takeover: {error}; this process goes on");
                    line.refuse(&error.to_string()).await;
                }
            }
        }
    }
}

fn bind(path: &Path, is_left: bool) -> io::Result<StdUnixListener> {
    if is_left {
        // Only what nobody listens at may go.
        match StdUnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => {
                return Err(io::Error::other(
                    "a process listens there but gave no answer; end it, or give another path",
                ));
            }
        }
    }
    let listener = StdUnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

/// A successor serves, and knows that this process does no more. Keep it: its end tells the successor that this
/// process has ended.
#[derive(Debug)]
pub struct Handed {
    #[expect(dead_code, reason = "held for its end")]
    line: Line,
    /// The successor's process id.
    pub successor: u32,
}

impl Error {
    /// The process at `path`, and what is wrong with it.
    pub fn other(path: &Path, why: impl Into<String>) -> Error {
        Error::Other {
            path: path.into(),
            why: why.into(),
        }
    }
}

fn unexpected(message: Message) -> String {
    match message {
        Message::Refused(why) => format!("the running process refused: {why}"),
        message => format!("the running process said {message:?}"),
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the new process took too long")
}

fn odd(message: Option<Message>) -> io::Error {
    io::Error::other(match message {
        None => "the new process ended before it had taken over".into(),
        Some(message) => format!("the new process said {message:?}"),
    })
}

/// Whether this is the listening socket that it is said to be.
fn check(name: &str, configured: &str, fd: &OwnedFd) -> Result<(), String> {
    let listens = rustix::net::sockopt::socket_acceptconn(fd);
    if !listens.unwrap_or(false) {
        return Err(format!("the socket for {name} does not listen"));
    }
    let at = SockRef::from(fd).local_addr();
    let at = at.map_err(|error| format!("the socket for {name}: {error}"))?;
    let is_right = if name == DOOR {
        at.is_unix()
    } else {
        let wanted: Option<SocketAddr> = configured.parse().ok();
        let ports = |at: u16, wanted: u16| wanted == 0 || at == wanted;
        at.as_socket()
            .zip(wanted)
            .is_some_and(|(at, wanted)| at.ip() == wanted.ip() && ports(at.port(), wanted.port()))
    };
    if is_right {
        Ok(())
    } else {
        Err(format!("the socket for {name} is not at {configured}"))
    }
}

impl Line {
    /// The new process's first word, and the answer.
    async fn greet(&mut self) -> io::Result<Option<Message>> {
        self.say(&Message::Hello(VERSION)).await?;
        self.next().await
    }

    /// The new process's part up to the sockets. `None`: the other has ended.
    async fn ask(&mut self) -> Result<Option<Inherited>, String> {
        let mut inherited = Inherited::default();
        loop {
            match self.next().await {
                Ok(Some(Message::Listener { name, configured })) => {
                    let fd = self.fds.pop_front();
                    let fd = fd.ok_or_else(|| format!("no socket came for {name}"))?;
                    check(&name, &configured, &fd)?;
                    inherited.sockets.push(Socket {
                        name,
                        configured,
                        fd,
                    });
                }
                Ok(Some(Message::HopSecret(secret))) => inherited.hop_secret = Some(secret),
                Ok(Some(Message::All(count))) if count == inherited.sockets.len() => {
                    return Ok(Some(inherited));
                }
                Ok(Some(message)) => return Err(unexpected(message)),
                Ok(None) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// The old process's first words: quick, so that the new one knows that somebody is there.
    async fn meet(&mut self) -> io::Result<()> {
        // One who says nothing must not keep a successor waiting.
        let next = tokio::time::timeout(HELLO, self.next()).await;
        match next.unwrap_or_else(|_| Err(late()))? {
            Some(Message::Hello(VERSION)) => self.say(&Message::Here(std::process::id())).await,
            other => Err(odd(other)),
        }
    }

    /// The old process's last words. Only when the new one has heard them it is sure that one of the two serves.
    async fn part(&mut self) -> io::Result<()> {
        self.say(&Message::Draining).await?;
        let next = tokio::time::timeout(ANSWER, self.next()).await;
        match next.unwrap_or_else(|_| Err(late()))? {
            Some(Message::Heard) => Ok(()),
            other => Err(odd(other)),
        }
    }

    /// The old process's part up to the successor's serving; gives its process id.
    async fn offer(&mut self, offer: Offer, door: BorrowedFd<'_>) -> io::Result<u32> {
        let Offer {
            sockets,
            hop_secret,
        } = offer;
        for bound in &sockets {
            let message = Message::Listener {
                name: bound.name.clone(),
                configured: bound.configured.to_string(),
            };
            self.send(&message, Some(bound.socket.as_fd())).await?;
        }
        let message = Message::Listener {
            name: DOOR.into(),
            configured: String::new(),
        };
        self.send(&message, Some(door)).await?;
        if let Some(secret) = hop_secret {
            self.say(&Message::HopSecret(secret)).await?;
        }
        self.say(&Message::All(sockets.len() + 1)).await?;
        match self.next().await? {
            Some(Message::Serving(successor)) => Ok(successor),
            other => Err(odd(other)),
        }
    }
}

#[cfg(test)]
mod tests;
