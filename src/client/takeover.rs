//! A new process takes the listening sockets over from the one that runs, and none of them is ever closed.
//!
//! Over a Unix socket: the new one connects; the old one sends its sockets and what each is for; the new one starts all
//! it has to, accepts, and says "ready"; the old one says "acknowledged" and stops accepting. Upon anything else (an
//! end, a time-out, another message) the old one goes on serving. docs/decisions/0016 tells why it is done so.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use socket2::SockRef;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, watch};

use crate::secret::Secret;

use super::accept;
use super::listener::ListenSocket;

mod channel;

use channel::{Channel, Listeners, Message, Purpose};

/// The sockets that another process gave us.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<Socket>,
    /// What its hops and its front, which drain, know each other by.
    hop_secret: Option<Secret>,
}

#[derive(Debug)]
struct Socket {
    purpose: Purpose,
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

/// The old process, in the new one.
#[derive(Debug)]
pub struct Takeover {
    channel: Channel,
}

/// Where a running proxy waits for its successor.
#[derive(Debug)]
pub struct TakeoverListener {
    listener: UnixListener,
    /// Read while an offer is made and while a successor that is ready is told so, written by whoever changes the sockets.
    turn: RwLock<()>,
    /// Ends the offers of sockets that are about to change.
    changes: watch::Sender<()>,
}

/// A successor serves. Keep it: its end tells the successor that this process has ended.
#[derive(Debug)]
pub struct HandedOver {
    #[expect(dead_code, reason = "held for its end")]
    channel: Channel,
    /// The successor's process id.
    pub successor: u32,
}

/// A process that has said that it is ready, its id, and what keeps the listeners as they were offered.
type Ready<'a> = (Channel, u32, RwLockReadGuard<'a, ()>);

/// Why a takeover did not come about: the path, or the other process.
#[derive(Debug, thiserror::Error)]
#[error("takeover = \"{path}\": {why}")]
pub struct Error {
    path: PathBuf,
    why: String,
}

/// The version of what is said.
const VERSION: u32 = 3;
/// How long the running process may take for an answer. It may be stopped or hang.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a new process may take from the sockets to "ready"; it resolves names and opens files meanwhile.
const START: Duration = Duration::from_secs(60);
/// Processes that are offered the sockets at a time.
const ASKING: usize = 64;
/// The name under which the takeover's own socket is handed over.
const TAKEOVER: &str = "takeover";
const CHANGED: &str = "its config was reloaded meanwhile; start again";
const NO_ANSWER: &str =
    "a process listens there but gave no answer; end it, try again, or give another path";

impl Inherited {
    /// The socket that was configured under this name with this address; else any that has the address, if
    /// only one can have it.
    pub fn claim(&mut self, name: &str, configured: SocketAddr) -> Option<StdListener> {
        let address = configured.to_string();
        let has_address = |socket: &Socket| socket.purpose.configured == address;
        let same = |socket: &Socket| socket.purpose.name == name && has_address(socket);
        let at = self.sockets.iter().position(same).or_else(|| {
            let at = self.sockets.iter().position(has_address);
            at.filter(|_| configured.port() != 0)
        });
        Some(self.sockets.swap_remove(at?).fd.into())
    }

    /// What the other process's hops sign with.
    pub fn hop_secret(&self) -> Option<Secret> {
        self.hop_secret.clone()
    }

    fn claim_takeover(&mut self) -> Option<StdUnixListener> {
        let is_it = |socket: &Socket| socket.purpose.name == TAKEOVER;
        let at = self.sockets.iter().position(is_it)?;
        Some(self.sockets.swap_remove(at).fd.into())
    }
}

impl Takeover {
    /// Asks the process behind `path` for its listeners. `None`: nobody is there.
    ///
    /// # Errors
    /// When somebody is there, and it does not go; or something else is there.
    pub async fn begin(path: &Path) -> Result<Option<(Takeover, Inherited)>, Error> {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        let stream = match UnixStream::connect(path).await {
            Ok(stream) => stream,
            // A process that was killed leaves its socket behind.
            Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => {
                removable(path)?;
                return Ok(None);
            }
            Err(error) => return Err(Error::at(path, &error)),
        };
        log::info!("takeover: asking the process at {}", path.display());
        let other = |why: &str| Error::other(path, why);
        let mut channel = Channel::new(stream).map_err(|error| other(&error.to_string()))?;
        match tokio::time::timeout(ANSWER, inherited(&mut channel)).await {
            Ok(Ok(Some(inherited))) => Ok(Some((Takeover { channel }, inherited))),
            Ok(Ok(None)) => {
                let path = path.display();
                log::warn!("takeover: the process at {path} is gone; starting without it");
                Ok(None)
            }
            Ok(Err(why)) => Err(other(&why)),
            Err(_) => Err(other(NO_ANSWER)),
        }
    }

    /// Says that this process accepts now, and waits for the other to acknowledge it. `None`: the other has ended.
    ///
    /// # Errors
    /// Why the old process goes on serving: this one must not.
    pub async fn ready(mut self) -> Result<Option<Takeover>, String> {
        // If it cannot be said, reading tells why.
        let _ = self.channel.send(&Message::Ready(std::process::id())).await;
        match tokio::time::timeout(ANSWER, self.channel.next()).await {
            Ok(Ok(Some(Message::Acknowledged))) => Ok(Some(self)),
            Ok(Ok(None)) => Ok(None),
            Ok(Ok(Some(message))) => Err(unexpected(&message)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the running process acknowledged nothing, and may still serve".into()),
        }
    }

    /// Waits until the old process has ended.
    pub async fn ended(mut self) {
        while let Ok(Some(_)) = self.channel.next().await {}
    }
}

/// The sockets that the old process offers. `None`: it has ended.
async fn inherited(channel: &mut Channel) -> Result<Option<Inherited>, String> {
    let hint = |why: String| format!("{why}; if it is of another version, end it first");
    let offer = match channel.next().await {
        Ok(None) => return Ok(None),
        Ok(Some(Message::Offer(offer))) if offer.version == VERSION => offer,
        Ok(Some(Message::Offer(Listeners { version, .. }))) => {
            let why = format!(
                "the running process hands over by version {version}, this one takes over by {VERSION}"
            );
            return Err(hint(why));
        }
        Ok(Some(message)) => return Err(hint(unexpected(&message))),
        Err(error) => return Err(hint(error.to_string())),
    };
    let fds = channel.sockets(offer.listeners.len()).await;
    let Some(fds) = fds.map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let mut sockets = Vec::new();
    for (purpose, fd) in offer.listeners.into_iter().zip(fds) {
        check(&purpose, &fd)?;
        sockets.push(Socket { purpose, fd });
    }
    Ok(Some(Inherited {
        sockets,
        hop_secret: offer.hop_secret,
    }))
}

/// Whether a socket that a dead process has left may be removed from `path`.
fn removable(path: &Path) -> Result<bool, Error> {
    let occupied = |what: &str| Err(Error::other(path, format!("{what}; give another path")));
    let there = match std::fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::at(path, &error)),
    };
    if !there.file_type().is_socket() {
        return occupied("is a file, not a socket");
    }
    let ours = rustix::process::geteuid().as_raw();
    if there.uid() != ours {
        return occupied(&format!("is a socket of user {}, not {ours}", there.uid()));
    }
    Ok(true)
}

impl TakeoverListener {
    /// The other process's, or a new one at `path`.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn open(path: &Path, inherited: &mut Inherited) -> Result<TakeoverListener, Error> {
        let listener = match inherited.claim_takeover() {
            Some(listener) => Ok(listener),
            None => bind(path, removable(path)?),
        };
        let opened = listener.and_then(|listener| {
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        });
        let listener = opened.map_err(|error| Error::at(path, &error))?;
        Ok(TakeoverListener {
            listener,
            turn: RwLock::new(()),
            changes: watch::Sender::new(()),
        })
    }

    /// Leave to change the listeners: no successor is offered them while it is held, and whoever was and is not ready yet
    /// is refused: it may be silent for a minute. `None`: one takes over, just now.
    pub fn turn(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let turn = self.turn.try_write().ok()?;
        self.changes.send_replace(());
        Some(turn)
    }

    /// Waits for the first successor that is ready, of all that ask. `offer` gives what there is when one does. Attempts that
    /// fail are told in the log, and change nothing.
    pub async fn handed_over(&self, offer: impl Fn() -> Offer) -> HandedOver {
        let taken = watch::Sender::new(false);
        let mut asking = FuturesUnordered::new();
        loop {
            let accepted = tokio::select! {
                Some(ready) = asking.next() => {
                    let ready: Option<Ready<'_>> = ready;
                    let Some((mut channel, successor, _turn)) = ready else { continue };
                    // It fails if the new process has ended meanwhile.
                    if let Err(error) = in_time(ANSWER, channel.send(&Message::Acknowledged)).await {
                        log::warn!("takeover: {error}; this process goes on");
                        continue;
                    }
                    taken.send_replace(true);
                    let others = async { while asking.next().await.is_some() {} };
                    let _ = tokio::time::timeout(ANSWER, others).await;
                    return HandedOver { channel, successor };
                }
                accepted = self.listener.accept(), if asking.len() < ASKING => accepted,
            };
            match accepted {
                Ok((stream, _)) => asking.push(self.ready(stream, &offer, taken.subscribe())),
                Err(error) => accept::failed("takeover: ", &error).await,
            }
        }
    }

    /// The sockets are offered to who asks by `stream`; gives its process id once it is ready.
    async fn ready(
        &self,
        stream: UnixStream,
        offer: &impl Fn() -> Offer,
        mut taken: watch::Receiver<bool>,
    ) -> Option<Ready<'_>> {
        let mut channel = match Channel::new(stream) {
            Ok(channel) => channel,
            Err(error) => {
                log::warn!("takeover: {error}");
                return None;
            }
        };
        let (mut changes, offer) = {
            let _turn = self.turn.read().await;
            (self.changes.subscribe(), offer())
        };
        let why = tokio::select! {
            biased;
            _ = taken.wait_for(|taken| *taken) => "another process has taken over".to_owned(),
            _ = changes.changed() => CHANGED.to_owned(),
            ready = hand_over(&mut channel, offer, self.listener.as_fd()) => match ready {
                Ok(successor) => match (self.turn.try_read(), changes.has_changed()) {
                    (Ok(turn), Ok(false)) => return Some((channel, successor, turn)),
                    _ => CHANGED.to_owned(),
                },
                Err(error) => {
                    log::warn!("takeover: {error}; this process goes on");
                    error.to_string()
                }
            },
        };
        if why == CHANGED {
            log::warn!("takeover: an offer is withdrawn: the config is reloaded");
        }
        // It may be gone, or read nothing.
        let _ = in_time(ANSWER, channel.send(&Message::Refused(why))).await;
        None
    }
}

/// The old process's part until the new one is ready; gives its process id.
async fn hand_over(
    channel: &mut Channel,
    offer: Offer,
    takeover: BorrowedFd<'_>,
) -> io::Result<u32> {
    let mut listeners = vec![Purpose {
        name: TAKEOVER.into(),
        configured: String::new(),
    }];
    let mut fds = vec![takeover];
    for bound in &offer.sockets {
        listeners.push(Purpose {
            name: bound.name.clone(),
            configured: bound.configured.to_string(),
        });
        fds.push(bound.socket.as_fd());
    }
    let message = Message::Offer(Listeners {
        version: VERSION,
        listeners,
        hop_secret: offer.hop_secret,
    });
    let ready = in_time(START, async {
        channel.send(&message).await?;
        channel.send_sockets(&fds).await?;
        channel.next().await
    });
    Err(io::Error::other(match ready.await? {
        Some(Message::Ready(successor)) => return Ok(successor),
        Some(message) => format!("the new process said {message:?}"),
        None => "the new process ended before it had taken over".into(),
    }))
}

async fn in_time<T>(limit: Duration, done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| Err(io::Error::other("the new process took too long"));
    tokio::time::timeout(limit, done).await.unwrap_or_else(late)
}

fn bind(path: &Path, is_left: bool) -> io::Result<StdUnixListener> {
    if is_left {
        // Only what nobody listens at may go.
        match StdUnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => return Err(io::Error::other(NO_ANSWER)),
        }
    }
    let listener = StdUnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

impl Error {
    /// The process at `path`, and what is wrong with it.
    pub fn other(path: &Path, why: impl Into<String>) -> Error {
        Error {
            path: path.into(),
            why: why.into(),
        }
    }

    fn at(path: &Path, source: &io::Error) -> Error {
        let right = "give a path in a folder where this user may write";
        Error::other(path, format!("{source}; {right}"))
    }
}

fn unexpected(message: &Message) -> String {
    match message {
        Message::Refused(why) => format!("the running process refused: {why}"),
        message => format!("the running process said {message:?}"),
    }
}

/// Whether this is the listening socket that it is said to be.
fn check(purpose: &Purpose, fd: &OwnedFd) -> Result<(), String> {
    let Purpose { name, configured } = purpose;
    let listens = rustix::net::sockopt::socket_acceptconn(fd);
    if !listens.unwrap_or(false) {
        return Err(format!("the socket for {name} does not listen"));
    }
    let at = SockRef::from(fd).local_addr();
    let at = at.map_err(|error| format!("the socket for {name}: {error}"))?;
    let is_right = if name == TAKEOVER {
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

#[cfg(test)]
mod tests;
