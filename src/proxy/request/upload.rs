//! A request's body as it is read: held to the limits, and kept so as to be sent again.

use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use pingora::protocols::http::v1::client::HttpSession;
use pingora::{Error, ErrorType};

use crate::client::answer::Refusal;
use crate::client::exchange::Exchange;
use crate::clock::Stamp;
use crate::proxy::failure::Failure;
use crate::request::prompt_blocks::PromptBlocks;

use super::Request;

/// The body of a request.
#[derive(Debug)]
pub(super) struct Upload {
    /// All pieces so far, while they may have to be sent to another upstream.
    pub(super) kept: Option<Vec<Bytes>>,
    /// Bytes so far.
    pub(super) bytes: u64,
    /// How long pieces were waited for, in sum.
    pub(super) waited_nanos: i64,
    /// The next one has been waited for since.
    pub(super) since: Stamp,
    /// It has been read to its end.
    pub(super) is_over: bool,
    /// An upstream broke before that, and no more of it was read.
    pub(super) is_cut: bool,
}

/// Bytes that are kept to be sent again.
const KEEPS: usize = 64 * 1024;
/// How long the rest of a body is waited for that no server takes: routers send it with the head.
const ROOM_WAIT: Duration = Duration::from_secs(2);
/// Bytes of a body after which no more of a prompt is read.
const PROMPT: usize = 32 * 1024;

impl Upload {
    pub(super) fn new(at: Stamp) -> Upload {
        Upload {
            kept: Some(Vec::new()),
            bytes: 0,
            waited_nanos: 0,
            since: at,
            is_over: false,
            is_cut: false,
        }
    }

    /// A piece came.
    pub(super) fn came(&mut self, bytes: usize, is_end: bool, at: Stamp) {
        self.waited_nanos += at.nanos_since(self.since).max(0);
        self.since = at;
        self.bytes += bytes as u64;
        self.is_over = is_end;
    }

    /// Keeps a piece that has not been sent yet.
    pub(super) fn hold(&mut self, piece: Bytes) {
        if let Some(kept) = self.kept.as_mut().filter(|_| !piece.is_empty()) {
            kept.push(piece);
        }
    }

    /// Keeps a piece that was sent, if it is not too much.
    pub(super) fn keep(&mut self, piece: Bytes) {
        let kept: usize = self.kept.iter().flatten().map(Bytes::len).sum();
        match kept + piece.len() <= KEEPS {
            true => self.hold(piece),
            false => self.kept = None,
        }
    }
}

impl Request<'_> {
    /// The hashes of the blocks that a prompt begins with: read from the body until they are known, [`PROMPT`] bytes
    /// have come, or the body is over. None where it cannot be waited for: a client that expects `100 Continue` waits
    /// itself, and hears it of the upstream.
    pub(super) async fn read_prompt(&mut self, client: &mut Exchange) -> Result<Vec<u64>, Failure> {
        let mut prompt = PromptBlocks::default();
        let began = self.shared.clock.now();
        if client.head().headers.contains_key(EXPECT) {
            return Ok(prompt.into_blocks());
        }
        self.upload.since = began;
        let read = self.read_blocks(client, &mut prompt).await;
        self.context.prompt_waited(began);
        read.map(|()| prompt.into_blocks())
    }

    async fn read_blocks(
        &mut self,
        client: &mut Exchange,
        prompt: &mut PromptBlocks,
    ) -> Result<(), Failure> {
        let mut read = 0;
        while read < PROMPT && !prompt.is_known() && !self.upload.is_over {
            let piece = tokio::time::timeout(
                self.limits.client_read_timeout_s.get(),
                self.read_piece(client),
            );
            let piece = piece
                .await
                .map_err(|_| Failure::Refused(Refusal::BodySilent))??;
            prompt.feed(&piece);
            read += piece.len();
            self.upload.hold(piece);
        }
        Ok(())
    }

    /// The next piece of the body, where no upstream takes it yet.
    async fn read_piece(&mut self, client: &mut Exchange) -> Result<Bytes, Failure> {
        let piece = client.session.read_request_body().await;
        let piece = piece.map_err(Failure::of_body)?;
        let is_end = piece.is_none() || client.session.is_body_done();
        let piece = piece.unwrap_or_default();
        self.uploaded(&piece, is_end)?;
        Ok(piece)
    }

    /// Reads the rest of a body that a hop's server does not take: it says of which sending this is one of two legs, and must do so
    /// before the router hears of the failure, and sends again. Not where it cannot be waited for, as in [`Request::read_prompt`].
    pub(super) async fn read_room(&mut self, client: &mut Exchange) {
        if client.head().headers.contains_key(EXPECT) {
            return;
        }
        let began = self.shared.clock.now();
        if std::mem::take(&mut self.upload.is_cut) {
            self.upload.is_over = false;
        }
        let all = async {
            while self.context.may_have_room() && !self.upload.is_over {
                self.read_piece(client).await?;
            }
            Ok::<(), Failure>(())
        };
        let _ = tokio::time::timeout(ROOM_WAIT, all).await;
        self.context.room_waited(began);
    }

    /// A piece of the request's body was read: held to the limits.
    pub(super) fn uploaded(&mut self, piece: &[u8], is_end: bool) -> Result<(), Failure> {
        self.context.request_body(piece, is_end);
        let now = self.shared.clock.now();
        self.upload.came(piece.len(), is_end, now);
        if self.upload.bytes > self.limits.request_body_max_bytes.get() {
            return Err(Failure::Refused(Refusal::BodyTooLarge));
        }
        let waited = u64::try_from(self.upload.waited_nanos).unwrap_or(0);
        if !is_end && Duration::from_nanos(waited) > self.limits.client_body_timeout_s.get() {
            return Err(Failure::Refused(Refusal::BodyTooSlow));
        }
        Ok(())
    }

    /// Sends pieces of the request's body, and its end once it is over. Where that fails the rest is not wanted; an answer may
    /// still come.
    pub(super) async fn send(
        &mut self,
        client: &mut Exchange,
        up: &mut HttpSession,
        pieces: &[Bytes],
    ) -> Result<(), Failure> {
        if self.response.unsent.is_some() {
            return Ok(());
        }
        let is_over = self.upload.is_over;
        let sending = async {
            // One of no bytes would end the body.
            for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
                up.write_body(piece).await?;
            }
            if is_over {
                // Pingora holds this write to no limit.
                let limit = up.write_timeout.unwrap_or(Duration::MAX);
                let ended = pingora::time::timeout(limit, up.finish_body()).await;
                ended.map_err(|_| Error::new(ErrorType::WriteTimedout))??;
            }
            Ok::<(), Box<Error>>(())
        };
        let sent = tokio::select! {
            biased;
            sent = sending => sent,
            () = client.gone() => return Err(Failure::ClientGone),
        };
        if let Err(error) = sent {
            self.response.unsent = Some(error);
            self.upload.is_cut = !is_over;
            self.upload.is_over = true;
        }
        Ok(())
    }
}

/// The next piece of a request's body; or, where it is over, the client's leaving.
pub(super) async fn body_or_leaving(
    client: &mut Exchange,
    uploading: bool,
) -> Result<Option<Bytes>, Failure> {
    if uploading {
        return client
            .session
            .read_request_body()
            .await
            .map_err(Failure::of_body);
    }
    client.stream_ended().await;
    Err(Failure::ClientGone)
}
