//! A new process takes the listening sockets over from the one that runs, and none of them is ever closed.
//!
//! Over a Unix socket: the new one connects; the old one sends its sockets and what each is for; the new one starts all
//! it has to, accepts, and says "ready"; the old one says "acknowledged" and stops accepting. Upon anything else (an
//! end, another message) the old one goes on serving. docs/dev/decisions/0016 tells why it is done so.

use std::io::{self, ErrorKind};
use std::iter::once;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::OptionFuture;
use socket2::SockRef;
use tokio::net::{UnixListener, UnixStream};

use crate::secret::Secret;

use super::listener::ListenSocket;
use super::shortage;

mod channel;

pub use channel::Channel;
use channel::Message;

/// The sockets that another process gave us, by what they are for.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<(String, OwnedFd)>,
    /// What its hops and its front, which drain, know each other by.
    pub hop_secret: Option<Secret>,
}

/// What a process gives to its successor.
#[derive(Debug)]
pub struct Offer {
    /// The listeners.
    pub sockets: Vec<ListenSocket>,
    /// What its hops sign with, unless a config says it.
    pub hop_secret: Option<Secret>,
}

/// A process between the one before it and the one after it.
#[derive(Debug)]
pub struct Takeover {
    /// Where.
    pub path: PathBuf,
    /// Successors connect here.
    listener: UnixListener,
    /// It gave its sockets, and serves until this process is ready.
    predecessor: Option<Channel>,
    /// It was offered the sockets, and is not ready yet.
    successor: Option<Channel>,
}

/// How long the other process may take for an answer. It may be stopped or hang.
const ANSWER: Duration = Duration::from_secs(5);
/// The name under which the takeover's own socket is handed over.
const TAKEOVER: &str = "takeover";
const NO_ANSWER: &str =
    "a process listens there but gave no answer; end it, try again, or give another path";

impl Inherited {
    /// The socket that listens at this address; of those that any port would do for, the one of this name.
    pub fn claim(&mut self, name: &str, configured: SocketAddr) -> Option<StdListener> {
        let is_it = |(of, socket): &(String, OwnedFd)| {
            let at = SockRef::from(socket).local_addr().ok();
            let at = at.and_then(|at| at.as_socket());
            let is_any = configured.port() == 0 && of == name;
            at.is_some_and(|at| at == configured || (is_any && at.ip() == configured.ip()))
        };
        self.take(is_it).map(StdListener::from)
    }

    fn take(&mut self, is_it: impl Fn(&(String, OwnedFd)) -> bool) -> Option<OwnedFd> {
        let at = self.sockets.iter().position(is_it)?;
        Some(self.sockets.swap_remove(at).1)
    }
}

impl Takeover {
    /// Asks the process behind `path` for its listeners, if one is there, and waits there for a successor from now on.
    ///
    /// # Errors
    /// When a process is there, and it does not go; or something else is there.
    pub async fn begin(path: &Path) -> io::Result<(Takeover, Inherited)> {
        let (predecessor, mut inherited) = match UnixStream::connect(path).await {
            Ok(stream) => ask(path, stream).await?,
            // A process that was killed leaves its socket behind.
            Err(error) if is_nobody(&error) => (None, Inherited::default()),
            Err(error) => return Err(error),
        };
        let listener = match inherited.take(|(of, _)| of == TAKEOVER) {
            Some(socket) => StdUnixListener::from(socket),
            None => bind(path)?,
        };
        listener.set_nonblocking(true)?;
        let takeover = Takeover {
            path: path.into(),
            listener: UnixListener::from_std(listener)?,
            predecessor,
            successor: None,
        };
        Ok((takeover, inherited))
    }

    /// Says to the process before this one that this one accepts now, and waits for it to acknowledge that. Gives what it
    /// is waited for by; `None` where there is none, or it has ended.
    ///
    /// # Errors
    /// Why the old process goes on serving: this one must not.
    pub async fn ready(&mut self) -> io::Result<Option<Channel>> {
        let Some(mut channel) = self.predecessor.take() else {
            log::info!("takeover at {}", self.path.display());
            return Ok(None);
        };
        // If it cannot be said, reading tells why.
        let ready = Message::Ready(std::process::id());
        let _ = channel.send(&ready, &[]).await;
        let late = "the running process acknowledged nothing, and may still serve";
        match channel.answer(late).await? {
            Some(Message::Acknowledged) => log::info!("took over; the other process drains"),
            None => {
                log::warn!("took over; the other process ended before it acknowledged that");
                return Ok(None);
            }
            Some(message) => return Err(unexpected(&message)),
        }
        Ok(Some(channel))
    }

    /// Waits for a successor that is ready, and gives its process id, and what must be kept: its end tells the successor
    /// that this process has ended. `offer` gives what there is when one asks. Whoever asks takes the place of one that is
    /// not ready yet. Attempts that fail are told in the log, and change nothing. Dropped, it can be called again.
    pub async fn handed_over(&mut self, offer: impl Fn() -> Offer) -> (u32, Channel) {
        loop {
            let heard = tokio::select! {
                biased;
                Some(heard) = OptionFuture::from(self.successor.as_mut().map(|channel| channel.next())) => heard,
                asks = self.listener.accept() => {
                    let offered = match asks {
                        Ok((stream, _)) => self.offer(stream, offer()).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = offered {
                        shortage::accept_failed("takeover: ", &error).await;
                    }
                    continue;
                }
            };
            let why = match heard {
                Ok(Some(Message::Ready(id))) => match self.acknowledge().await {
                    Ok(channel) => return (id, channel),
                    // The new process has ended meanwhile.
                    Err(error) => error.to_string(),
                },
                Ok(Some(message)) => format!("the new process said {message:?}"),
                Ok(None) => "the new process ended before it had taken over".into(),
                Err(error) => error.to_string(),
            };
            self.withdraw(&why).await;
        }
    }

    async fn acknowledge(&mut self) -> io::Result<Channel> {
        let gone = ErrorKind::NotConnected;
        let channel = self.successor.as_mut().ok_or(gone)?;
        channel.send(&Message::Acknowledged, &[]).await?;
        // Not before: this may be dropped, and then the successor must be refused.
        Ok(self.successor.take().ok_or(gone)?)
    }

    /// Offers the sockets to who asks by `stream`.
    async fn offer(&mut self, stream: UnixStream, offer: Offer) -> io::Result<()> {
        let why = "another process asks for the listeners";
        self.withdraw(why).await;
        let sockets = offer.sockets.iter();
        let names = sockets.clone().map(|socket| socket.name.clone());
        let message = Message::Offer {
            listeners: once(TAKEOVER.into()).chain(names).collect(),
            hop_secret: offer.hop_secret,
        };
        let sockets = sockets.map(|socket| socket.socket.as_fd());
        let sockets: Vec<_> = once(self.listener.as_fd()).chain(sockets).collect();
        let channel = self.successor.insert(Channel::new(stream)?);
        channel.send(&message, &sockets).await
    }

    /// Refuses who was offered the sockets and is not ready, if anybody: they are about to change.
    pub async fn withdraw(&mut self, why: &str) {
        if let Some(mut channel) = self.successor.take() {
            log::warn!("takeover: {why}; this process goes on");
            // It may be gone, or read nothing.
            let refused = Message::Refused(why.to_owned());
            let _ = channel.send(&refused, &[]).await;
        }
    }
}

/// What the old process offers; nothing, where it has ended.
async fn ask(path: &Path, stream: UnixStream) -> io::Result<(Option<Channel>, Inherited)> {
    let path = path.display();
    log::info!("takeover: asking the process at {path}");
    let mut channel = Channel::new(stream)?;
    let why = match channel.answer(NO_ANSWER).await {
        Ok(None) => {
            log::warn!("takeover: the process at {path} is gone; starting without it");
            return Ok((None, Inherited::default()));
        }
        Ok(Some(Message::Offer {
            listeners,
            hop_secret,
        })) => {
            let sockets = listeners.into_iter().zip(channel.sockets()).collect();
            let inherited = Inherited {
                sockets,
                hop_secret,
            };
            return Ok((Some(channel), inherited));
        }
        Ok(Some(message)) => unexpected(&message),
        Err(late) if late.kind() == ErrorKind::TimedOut => return Err(late),
        Err(error) => error,
    };
    let why = format!("{why}; if it is of another version, end it first");
    Err(io::Error::other(why))
}

/// Listens at `path`; the socket that a dead process has left there goes.
fn bind(path: &Path) -> io::Result<StdUnixListener> {
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(io::Error::other(
                "is a file, not a socket; give another path",
            ));
        }
        // Only what nobody listens at may go.
        match StdUnixStream::connect(path) {
            Err(error) if is_nobody(&error) => std::fs::remove_file(path)?,
            _ => return Err(io::Error::other(NO_ANSWER)),
        }
    }
    let listener = StdUnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

fn is_nobody(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), ConnectionRefused | NotFound)
}

fn unexpected(message: &Message) -> io::Error {
    io::Error::other(match message {
        Message::Refused(why) => format!("the running process refused: {why}"),
        message => format!("the running process said {message:?}"),
    })
}

#[cfg(test)]
mod tests;
