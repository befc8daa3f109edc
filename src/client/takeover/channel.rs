//! What the two processes of a takeover say to each other, and how it and the sockets come across.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, Serializer};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::secret::Secret;

use super::ANSWER;

/// What the two processes say, in this order: a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Message {
    /// Old: these are my listeners, whose sockets came just before.
    /// Its name has the version of what is said: another version knows it as nothing.
    #[serde(rename = "offer 5")]
    Offer {
        /// What each is for, in the order of the sockets.
        listeners: Vec<String>,
        /// By this the old process's front and hops know each other, who will have requests in common with the new one's.
        #[serde(serialize_with = "in_clear")]
        hop_secret: Option<Secret>,
    },
    /// New: I accept from them; this is my process id.
    Ready(u32),
    /// Old: then I stop accepting.
    Acknowledged,
    /// Old, instead of any of its messages: I go on serving, because.
    Refused(String),
}

/// One end of the conversation: its end tells the other process that this one has ended.
#[derive(Debug)]
pub struct Channel {
    pub(super) stream: UnixStream,
    bytes: Vec<u8>,
    sockets: Vec<OwnedFd>,
}

/// No line is longer.
const LONGEST: usize = 1 << 20;
/// As many sockets as the kernel lets go with one message.
const SOCKETS: usize = 253;

/// It goes to a process of the same user.
fn in_clear<S: Serializer>(secret: &Option<Secret>, to: S) -> Result<S::Ok, S::Error> {
    let text = secret.as_ref().map(|s| String::from_utf8_lossy(s.bytes()));
    text.serialize(to)
}

/// Whether listeners may go between a process of user `ours` and one of user `theirs`. Root can do all that the
/// user can; but nobody gives root a socket.
fn may(ours: u32, theirs: u32) -> bool {
    theirs == ours || theirs == 0
}

impl Channel {
    /// Only this user or root may take listeners, or give them.
    pub(super) fn new(stream: UnixStream) -> io::Result<Channel> {
        let theirs = stream.peer_cred()?.uid();
        let ours = rustix::process::geteuid().as_raw();
        if !may(ours, theirs) {
            let why = format!("the other process is user {theirs}'s, not {ours}'s");
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        Ok(Channel {
            stream,
            bytes: Vec::new(),
            sockets: Vec::new(),
        })
    }

    /// Sends sockets, each time as many as go with an empty line, and a message. The kernel takes all of it at once.
    pub(super) async fn send(
        &mut self,
        message: &Message,
        sockets: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        for some in sockets.chunks(SOCKETS) {
            let send = || send_sockets(&self.stream, some);
            self.stream.async_io(Interest::WRITABLE, send).await?;
        }
        self.stream.write_all(&line).await
    }

    /// The next message; `None` when the other side is gone.
    pub(super) async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.bytes) {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                if end > 0 {
                    return Ok(Some(serde_json::from_slice(&line)?));
                }
            } else if self.bytes.len() > LONGEST {
                return Err(io::Error::other("a line without an end came"));
            } else if !self.receive().await? {
                return Ok(None);
            }
        }
    }

    /// The same, within the time for an answer.
    pub(super) async fn answer(&mut self, late: &'static str) -> io::Result<Option<Message>> {
        let late = |_| Err(io::Error::new(ErrorKind::TimedOut, late));
        timeout(ANSWER, self.next()).await.unwrap_or_else(late)
    }

    /// The sockets that came before the last message.
    pub(super) fn sockets(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.sockets)
    }

    /// Waits until the other process has ended.
    pub async fn ended(mut self) {
        while let Ok(Some(_)) = self.next().await {}
    }

    /// Takes what has come; `false` at the end.
    async fn receive(&mut self) -> io::Result<bool> {
        let (stream, bytes, sockets) = (&self.stream, &mut self.bytes, &mut self.sockets);
        let receive = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS))];
            let mut rights = RecvAncillaryBuffer::new(&mut space);
            let mut buffer = [0; 4096];
            let mut slices = [IoSliceMut::new(&mut buffer)];
            let received = recvmsg(stream, &mut slices, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
            for message in rights.drain() {
                if let RecvAncillaryMessage::ScmRights(all) = message {
                    sockets.extend(all);
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) {
                let why = "not all sockets came: too many open files?";
                return Err(io::Error::other(why));
            }
            bytes.extend_from_slice(buffer.get(..received.bytes).unwrap_or_default());
            Ok(received.bytes > 0)
        };
        match stream.async_io(Interest::READABLE, receive).await {
            // It ended before it had read all.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(false),
            received => received,
        }
    }
}

fn send_sockets(stream: &UnixStream, sockets: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    rights.push(SendAncillaryMessage::ScmRights(sockets));
    let line = [IoSlice::new(b"\n")];
    Ok(sendmsg(stream, &line, &mut rights, SendFlags::NOSIGNAL)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_and_root_are_trusted() {
        assert!(may(1000, 1000) && may(0, 0) && may(1000, 0));
        assert!(!may(1000, 1001) && !may(0, 1000), "root trusts no user");
    }
}
