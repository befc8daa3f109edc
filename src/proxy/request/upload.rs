//! A request's body as it is read: held to the limits.

use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use pingora::ErrorType;
use pingora::time::tokio_timeout as timeout;

use crate::client::exchange::Exchange;
use crate::client::limits::Refusal;
use crate::proxy::failure::Failure;
use crate::request::prompt_blocks;

use super::{Request, nanoseconds};

/// The body of a request, as far as it was read.
#[derive(Debug, Default)]
pub(super) struct Upload {
    /// What was read of it before an upstream was chosen.
    pub(super) unsent: Vec<u8>,
    /// How long pieces were waited for, in sum.
    waited: Duration,
    /// Whether all of it was read.
    pub(super) is_over: bool,
    /// Whether a piece of it is being sent. No more is read until that is over.
    pub(super) is_sending: bool,
}

/// How long the rest of a body is read that no server takes; routers send it with the head.
const ROOM_TIMEOUT: Duration = Duration::from_secs(2);
/// The most bytes of a body that are read for its prompt.
const MAX_PROMPT_BYTES: usize = 32 * 1024;

impl Request<'_> {
    /// Reads the body until the hashes of the blocks that its prompt begins with are known, and returns these. None of a client
    /// that expects `100 Continue`: it sends nothing before the upstream's.
    pub(super) async fn read_prompt(&mut self, client: &mut Exchange) -> Result<Vec<u64>, Failure> {
        if client.head().headers.contains_key(EXPECT) {
            return Ok(Vec::new());
        }
        let began = self.shared.clock.now();
        self.upload_waits_since = began;
        let blocks = async {
            let (mut start, mut enough) = (None, MAX_PROMPT_BYTES);
            while self.upload.unsent.len() < enough && !self.upload.is_over {
                let limit = self.limits.client_read_timeout_s.get();
                let piece = timeout(limit, self.read_piece(client)).await;
                let piece = piece.map_err(|_| Failure::Refused(Refusal::BodyTooSlow))??;
                let unsent = &mut self.upload.unsent;
                let searched = unsent.len();
                unsent.extend_from_slice(&piece);
                start = start.or_else(|| prompt_blocks::start(unsent, searched));
                enough = start.map_or(enough, |start| enough.min(start + prompt_blocks::MAX_BYTES));
            }
            let prompt = start.map(|start| &self.upload.unsent[start..]);
            Ok(prompt.map_or_else(Vec::new, prompt_blocks::hashes))
        };
        let blocks = blocks.await;
        self.context.prompt_read(began);
        blocks
    }

    /// Reads the next piece of the body.
    async fn read_piece(&mut self, client: &mut Exchange) -> Result<Bytes, Failure> {
        let piece = body_or_close(client, true).await?;
        self.take_piece(piece, client)
    }

    /// Reads the rest of a body that a hop's server does not take, for the room that makes this one of two legs: the router must
    /// not learn of the failure, and send again, before that is known. Not of a client that expects `100 Continue`.
    pub(super) async fn read_room(&mut self, client: &mut Exchange) {
        if !self.context.may_have_room() || client.head().headers.contains_key(EXPECT) {
            return;
        }
        let began = self.shared.clock.now();
        let all = async {
            while self.context.may_have_room() && !self.upload.is_over {
                self.read_piece(client).await?;
            }
            Ok::<(), Failure>(())
        };
        let _ = timeout(ROOM_TIMEOUT, all).await;
        self.context.room_wait_ended(began);
    }

    /// Takes a piece of the body that was read, `None` at its end, and holds it to the limits.
    pub(super) fn take_piece(
        &mut self,
        piece: Option<Bytes>,
        client: &mut Exchange,
    ) -> Result<Bytes, Failure> {
        let is_end = piece.is_none() || client.session.is_body_done();
        let piece = piece.unwrap_or_default();
        self.context.request_body(&piece, is_end);
        let now = self.shared.clock.now();
        let upload = &mut self.upload;
        upload.waited += nanoseconds(now.nanos_since(self.upload_waits_since));
        self.upload_waits_since = now;
        upload.is_over = is_end;
        if client.session.was_upgraded() {
            // It is no body: no limit of one holds.
            return Ok(piece);
        }
        if self.context.request_bytes > self.limits.request_body_max_bytes.get() {
            return Err(Failure::Refused(Refusal::BodyTooLarge));
        }
        if !is_end && upload.waited > self.limits.client_body_timeout_s.get() {
            return Err(Failure::Refused(Refusal::BodyTooSlow));
        }
        Ok(piece)
    }
}

/// Reads the next piece of the request's body; or, where none is taken, waits until the client closes the stream.
pub(super) async fn body_or_close(
    client: &mut Exchange,
    takes_body: bool,
) -> Result<Option<Bytes>, Failure> {
    if takes_body {
        let piece = client.session.read_request_body().await;
        return piece.map_err(|error| match error.etype() {
            ErrorType::ReadError | ErrorType::ConnectionClosed | ErrorType::H2Error => {
                Failure::ClientGone
            }
            // It is not framed as its head says.
            _ => Failure::Refused(Refusal::BrokenHead),
        });
    }
    client.stream_closed().await;
    Err(Failure::ClientGone)
}
