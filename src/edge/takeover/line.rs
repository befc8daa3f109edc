//! What the two processes of a takeover say to each other, and how it comes across.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, Serializer};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use crate::secret::Secret;

/// What the two processes say to each other, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Message {
    /// New: give me the listeners; the protocol's version.
    Hello(u32),
    /// Old: I am here; my process id. The sockets may take a while.
    Here(u32),
    /// Old: the socket that comes with this line.
    Listener { name: String, configured: String },
    /// Old: by this my front and my hops know each other, who will have requests in common with yours.
    HopSecret(#[serde(serialize_with = "bare")] Secret),
    /// Old: those were all, so many.
    All(usize),
    /// New: I accept from them; this is my process id.
    Serving(u32),
    /// Old: then I do no more, once you have heard this.
    Draining,
    /// New: I have heard it.
    Heard,
    /// Old, at any time: no, because.
    Refused(String),
}

/// One end of the conversation.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    bytes: Vec<u8>,
    /// Sockets that came, in the order of their lines.
    pub(super) fds: VecDeque<OwnedFd>,
}

/// The version of what is said.
pub(super) const VERSION: u32 = 2;
/// How long the other process may take for an answer that it only has to say.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// How long whoever connects may take for its first word.
pub(super) const HELLO: Duration = Duration::from_millis(500);
/// No line is longer.
const LONGEST: usize = 16 * 1024;

/// The line is between processes of one user.
fn bare<S: Serializer>(secret: &Secret, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&String::from_utf8_lossy(secret.bytes()))
}

/// Whether listeners may go between a process of user `ours` and one of user `theirs`. Root can do all that the
/// user can; but nobody gives root a socket.
fn may(ours: u32, theirs: u32) -> bool {
    theirs == ours || theirs == 0
}

impl Line {
    /// Only this user or root may take listeners, or give them.
    pub(super) fn new(stream: UnixStream) -> io::Result<Line> {
        let theirs = stream.peer_cred()?.uid();
        let ours = rustix::process::geteuid().as_raw();
        if !may(ours, theirs) {
            let why = format!("the other process is user {theirs}'s, not {ours}'s");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Line {
            stream,
            bytes: Vec::new(),
            fds: VecDeque::new(),
        })
    }

    pub(super) async fn refuse(&mut self, why: &str) {
        // It may be gone.
        let refused = Message::Refused(why.into());
        let _ = tokio::time::timeout(ANSWER, self.say(&refused)).await;
    }

    pub(super) async fn say(&mut self, message: &Message) -> io::Result<()> {
        self.send(message, None).await
    }

    pub(super) async fn send(
        &mut self,
        message: &Message,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
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
    pub(super) async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            if let Some(message) = self.came()? {
                return Ok(Some(message));
            }
            if self.bytes.len() > LONGEST {
                return Err(io::Error::other("a line without an end came"));
            }
            if self.receive().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// A message that has come already.
    pub(super) fn came(&mut self) -> io::Result<Option<Message>> {
        let Some(end) = memchr::memchr(b'\n', &self.bytes) else {
            return Ok(None);
        };
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        Ok(Some(serde_json::from_slice(&line)?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_and_root_are_trusted() {
        assert!(may(1000, 1000) && may(0, 0) && may(1000, 0));
        assert!(!may(1000, 1001) && !may(0, 1000), "root trusts no user");
    }
}
