//! A new process takes the listening sockets over from the one that runs, and none of them is ever closed.
//!
//! Over a Unix socket, in lines of JSON: the new one says [`Message::Hello`]; the old one sends each listening
//! socket with a [`Message::Listener`], then [`Message::All`]; the new one starts all it has to, accepts, and says
//! [`Message::Serving`]; only now the old one stops to accept, and says [`Message::Draining`]. Whatever fails
//! before leaves the old one as it was. docs/decisions/0016 tells why it is done so.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};

use super::listener::Bound;

/// What the two processes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Message {
    /// New: give me the listeners; the protocol's version.
    Hello(u32),
    /// Old: the socket that comes with this line.
    Listener { name: String, configured: String },
    /// Old: those were all, so many.
    All(usize),
    /// New: I accept from them; this is my process id.
    Serving(u32),
    /// Old: then I do no more.
    Draining,
    /// Old: no, because.
    Refused(String),
}

/// The sockets that another process gave us.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<Socket>,
}

#[derive(Debug)]
struct Socket {
    name: String,
    configured: String,
    fd: OwnedFd,
}

/// A takeover under way, in the new process.
#[derive(Debug)]
pub struct Taking {
    line: Line,
}

/// How a takeover ended for the new process.
#[derive(Debug)]
pub enum Taken {
    /// The old process drains.
    Over(Predecessor),
    /// The old process was gone before it could say so.
    Gone,
    /// The old process goes on serving: this one must not.
    Refused(String),
}

/// The old process, while it drains.
#[derive(Debug)]
pub struct Predecessor {
    line: Line,
}

/// Where a running proxy waits for its successor.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
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
    /// The other process.
    #[error("takeover: {0}")]
    Other(String),
}

/// One end of the conversation.
#[derive(Debug)]
struct Line {
    stream: UnixStream,
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
}

/// The version of what is said.
const VERSION: u32 = 1;
/// How long the other process may take for an answer that it only has to say.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a new process may take from the sockets to serving; it resolves names and opens files meanwhile.
const START: Duration = Duration::from_secs(60);
/// No line is longer.
const LONGEST: usize = 16 * 1024;
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

    fn claim_door(&mut self) -> Option<StdUnixListener> {
        let at = self.sockets.iter().position(|socket| socket.name == DOOR)?;
        Some(self.sockets.swap_remove(at).fd.into())
    }
}

impl Taking {
    /// Asks the process behind `path` for its listeners. `None`: nobody is there.
    ///
    /// # Errors
    /// When somebody is there, and it does not go.
    pub async fn begin(path: &Path) -> Result<Option<(Taking, Inherited)>, Error> {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        let stream = match UnixStream::connect(path).await {
            Ok(stream) => stream,
            // A process that was killed leaves its socket behind.
            Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => return Ok(None),
            Err(source) => {
                let path = path.into();
                return Err(Error::Path { path, source });
            }
        };
        let mut line = Line::new(stream).map_err(Error::other)?;
        let inherited = tokio::time::timeout(START, line.ask()).await;
        let inherited = inherited.map_err(|_| Error::Other("no answer".into()))??;
        Ok(Some((Taking { line }, inherited)))
    }

    /// Says that this process accepts now, and waits until the other does no more.
    pub async fn serving(mut self) -> Taken {
        let said = self.line.say(&Message::Serving(std::process::id())).await;
        let answer = async {
            said?;
            self.line.next().await
        };
        match tokio::time::timeout(ANSWER, answer).await {
            Ok(Ok(Some(Message::Draining))) => Taken::Over(Predecessor { line: self.line }),
            Ok(Ok(Some(Message::Refused(why)))) => Taken::Refused(why),
            Ok(Ok(Some(other))) => Taken::Refused(format!("it said {other:?}")),
            Ok(Ok(None) | Err(_)) => Taken::Gone,
            Err(_) => Taken::Refused("no answer".into()),
        }
    }
}

impl Predecessor {
    /// Waits until it has ended.
    pub async fn gone(mut self) {
        while matches!(self.line.next().await, Ok(Some(_))) {}
    }
}

impl Door {
    /// Opens it: the other process's, or a new one at `path`.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn open(path: &Path, inherited: &mut Inherited) -> Result<Door, Error> {
        let mut open = || {
            let listener = match inherited.claim_door() {
                Some(listener) => listener,
                None => {
                    // Nobody answered there: a process that was killed has left it.
                    match std::fs::remove_file(path) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                    let listener = StdUnixListener::bind(path)?;
                    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
                    listener
                }
            };
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        match open() {
            Ok(listener) => Ok(Door { listener }),
            Err(source) => Err(Error::Path {
                path: path.into(),
                source,
            }),
        }
    }

    /// Waits for a successor that serves. `sockets` gives the listeners there are when one asks. Attempts that
    /// fail are told in the log, and change nothing.
    pub async fn handed_over(&self, sockets: impl Fn() -> Vec<Bound>) -> Handed {
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    log::warn!("takeover: cannot accept: {error}");
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
            let offered = line.offer(sockets(), self.listener.as_fd());
            match tokio::time::timeout(START, offered).await {
                Ok(Ok(successor)) => return Handed { line, successor },
                Ok(Err(error)) => {
                    log::warn!("takeover: {error}; this process goes on");
                    line.refuse(&error.to_string()).await;
                }
                Err(_) => {
                    log::warn!("takeover: the new process took too long; this one goes on");
                    line.refuse("it took too long").await;
                }
            }
        }
    }
}

/// A successor serves, and waits to hear that this process does no more. Keep it: its end tells the successor
/// that this process has ended.
#[derive(Debug)]
pub struct Handed {
    line: Line,
    /// The successor's process id.
    pub successor: u32,
}

impl Handed {
    /// Tells the successor that this process accepts no more.
    pub async fn confirm(&mut self) {
        if let Err(error) = self.line.say(&Message::Draining).await {
            log::warn!("takeover: cannot tell process {}: {error}", self.successor);
        }
    }
}

impl Error {
    fn other(error: impl ToString) -> Error {
        Error::Other(error.to_string())
    }
}

impl Line {
    /// Only this user or root may take listeners, or give them.
    fn new(stream: UnixStream) -> io::Result<Line> {
        let theirs = stream.peer_cred()?.uid();
        let ours = rustix::process::geteuid().as_raw();
        if theirs != ours && theirs != 0 && ours != 0 {
            let why = format!("the other process is user {theirs}'s, not {ours}'s");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Line {
            stream,
            bytes: Vec::new(),
            fds: VecDeque::new(),
        })
    }

    /// The new process's part up to the sockets.
    async fn ask(&mut self) -> Result<Inherited, Error> {
        let said = self.say(&Message::Hello(VERSION)).await;
        said.map_err(Error::other)?;
        let mut inherited = Inherited::default();
        loop {
            let message = self.next().await.map_err(Error::other)?;
            match message {
                Some(Message::Listener { name, configured }) => {
                    let fd = self.fds.pop_front();
                    let fd =
                        fd.ok_or_else(|| Error::Other(format!("no socket came for {name}")))?;
                    let is_listening = rustix::net::sockopt::socket_acceptconn(&fd);
                    if !is_listening.unwrap_or(false) {
                        return Err(Error::Other(format!(
                            "the socket for {name} does not listen"
                        )));
                    }
                    inherited.sockets.push(Socket {
                        name,
                        configured,
                        fd,
                    });
                }
                Some(Message::All(count)) if count == inherited.sockets.len() => {
                    return Ok(inherited);
                }
                Some(Message::Refused(why)) => {
                    return Err(Error::Other(format!("the running process refused: {why}")));
                }
                other => {
                    let what = other.map_or("nothing".into(), |message| format!("{message:?}"));
                    return Err(Error::Other(format!("the running process said {what}")));
                }
            }
        }
    }

    /// The old process's part up to the successor's serving; gives its process id.
    async fn offer(&mut self, sockets: Vec<Bound>, door: BorrowedFd<'_>) -> io::Result<u32> {
        let odd = |message| {
            let why = match message {
                None => "the new process ended before it served".into(),
                Some(message) => format!("the new process said {message:?}"),
            };
            io::Error::other(why)
        };
        match self.next().await? {
            Some(Message::Hello(VERSION)) => {}
            other => return Err(odd(other)),
        }
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
        self.say(&Message::All(sockets.len() + 1)).await?;
        match self.next().await? {
            Some(Message::Serving(successor)) => Ok(successor),
            other => Err(odd(other)),
        }
    }

    async fn refuse(&mut self, why: &str) {
        // It may be gone.
        let refused = Message::Refused(why.into());
        let _ = tokio::time::timeout(ANSWER, self.say(&refused)).await;
    }

    async fn say(&mut self, message: &Message) -> io::Result<()> {
        self.send(message, None).await
    }

    async fn send(&mut self, message: &Message, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut text = serde_json::to_vec(message)?;
        text.push(b'\n');
        let Some(fd) = fd else {
            return self.stream.write_all(&text).await;
        };
        let fds = [fd];
        let stream = &self.stream;
        let sent = stream.async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut rights = SendAncillaryBuffer::new(&mut space);
            rights.push(SendAncillaryMessage::ScmRights(&fds));
            let text = [IoSlice::new(&text)];
            Ok(sendmsg(stream, &text, &mut rights, SendFlags::NOSIGNAL)?)
        });
        let sent = sent.await?;
        self.stream
            .write_all(text.get(sent..).unwrap_or_default())
            .await
    }

    /// The next message; `None` when the other side is gone. Sockets that came are in `fds`, in the order of
    /// their lines.
    async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.bytes) {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.bytes.len() > LONGEST {
                return Err(io::Error::other("a line without an end came"));
            }
            if self.receive().await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn receive(&mut self) -> io::Result<usize> {
        let (stream, bytes, fds) = (&self.stream, &mut self.bytes, &mut self.fds);
        let received = stream.async_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut rights = RecvAncillaryBuffer::new(&mut space);
            let mut buffer = [0; 4096];
            let mut slices = [IoSliceMut::new(&mut buffer)];
            let received = recvmsg(stream, &mut slices, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
            for message in rights.drain() {
                if let RecvAncillaryMessage::ScmRights(sockets) = message {
                    fds.extend(sockets);
                }
            }
            bytes.extend_from_slice(buffer.get(..received.bytes).unwrap_or_default());
            Ok(received.bytes)
        });
        received.await
    }
}
