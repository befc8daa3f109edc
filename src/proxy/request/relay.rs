//! Relays a request and its response between client and upstream, in one loop.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::OptionFuture;
use http::header::TRANSFER_ENCODING;
use http::{HeaderValue, StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::HttpTask;
use pingora::protocols::http::v1::client::HttpSession;
use pingora::time::tokio_timeout as timeout;
use pingora::upstreams::peer::{HttpPeer, Peer};
use pingora::{Error, ErrorType};

use crate::client::exchange::{Exchange, NotWritten, Part};
use crate::client::limits::Refusal;
use crate::clock::Stamp;
use crate::fault::Kind;
use crate::proxy::failure::Failure;
use crate::proxy::heads;
use crate::proxy::identity::{self, REQUEST_ID};
use crate::proxy::shared::Role;
use crate::request::{HOP_HEADER, Stamps};
use crate::upstream::connection::Connection;

use super::upload::body_or_close;
use super::{Request, hold, nanoseconds};

/// A response, as far as it was read and written.
#[derive(Default)]
pub(super) struct Response {
    /// Whether any of it was read, be it a `100 Continue`.
    pub(super) has_arrived: bool,
    /// Whether its final head was passed on, or ours was sent.
    pub(super) has_begun: bool,
    /// Whether all of it was read.
    pub(super) is_read: bool,
    /// Whether its body ends with the client's connection.
    pub(super) ends_by_close: bool,
    /// What was read while a write was pending.
    read_ahead: VecDeque<Part>,
    /// The buffer for the next piece; a piece that was written returns it.
    buffer: Vec<u8>,
    /// Why no more of it can be read, once what was read has been passed on.
    read_error: Option<Box<Error>>,
    /// Why the request's body could not be sent. No more of it is read then.
    pub(super) upload_error: Option<Box<Error>>,
}

/// The most parts of a response that are read while a write to the client is pending, and the most bytes.
const MAX_READ_AHEAD: usize = 4;
const MAX_READ_AHEAD_BYTES: usize = 64 * 1024;
/// The least capacity of a buffer: most allocators have that at hand, and most pieces fit.
const MIN_CAPACITY: usize = 1024;
/// The most capacity of a buffer that is used again.
const MAX_CAPACITY: usize = 8 * 1024;
/// A piece of more bytes waits for no other to be written with.
const MAX_GATHERED: usize = MAX_CAPACITY / 2;

/// Whether a head of this status is the last of its response.
fn is_final(status: StatusCode) -> bool {
    !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS
}

impl Response {
    /// Reads a head, or a piece of the body. If it `gathers`, a piece is all that has arrived by now: many events become one write.
    async fn read(&mut self, up: &mut HttpSession, gathers: bool) -> pingora::Result<Part> {
        if let Some(error) = self.read_error.take() {
            return Err(error);
        }
        if !up.get_status().is_some_and(is_final)
            && let HttpTask::Header(head, is_end) = up.read_response_task().await?
        {
            if head.status == StatusCode::SWITCHING_PROTOCOLS && !up.was_upgraded() {
                // Nobody asked for it: client and upstream would not agree on what follows.
                return Err(Error::new_up(ErrorType::InvalidHTTPHeader));
            }
            return Ok(Part::Head(head, is_end));
        }
        self.buffer.clear();
        self.buffer.reserve(MIN_CAPACITY);
        let mut next = Some(up.read_body_ref().await);
        while let Some(read) = next {
            match read {
                Ok(Some(piece)) => self.buffer.extend_from_slice(piece),
                Err(error) if self.buffer.is_empty() => return Err(error),
                end => {
                    self.read_error = end.err();
                    break;
                }
            }
            let is_enough = !gathers || self.buffer.len() > MAX_GATHERED || up.is_body_done();
            next = if is_enough {
                None
            } else {
                up.read_body_ref().now_or_never()
            };
        }
        let is_end = up.is_body_done() && self.read_error.is_none();
        Ok(Part::Body(std::mem::take(&mut self.buffer), is_end))
    }
}

/// Returns what sends a piece of a request's body, if there is anything to send.
fn send(
    connection: &Connection,
    peer: &HttpPeer,
    piece: Bytes,
    is_chunked: bool,
    is_last: bool,
) -> Option<impl Future<Output = pingora::Result<()>> + use<>> {
    let limit = peer.options.write_timeout.unwrap_or(Duration::MAX);
    // A last piece that is empty is the end of chunks.
    let has_any = is_chunked && is_last || !piece.is_empty();
    let connection = connection.clone();
    has_any.then_some(async move {
        let sent = timeout(limit, connection.send(piece, is_chunked, is_last)).await;
        let sent = sent.map_err(|_| Error::new(ErrorType::WriteTimedout))?;
        sent.map_err(|error| Error::because(ErrorType::WriteError, "the body", error))
    })
}

impl Request<'_> {
    /// Sends the request to a connected upstream, and its response to the client.
    pub(super) async fn relay(
        &mut self,
        client: &mut Exchange,
        (connection, peer): (Connection, &HttpPeer),
        head: RequestHeader,
    ) -> Result<(), Failure> {
        let is_chunked = head.headers.contains_key(TRANSFER_ENCODING);
        let up = self.send_head(&connection, peer, head).await?;
        let unsent = std::mem::take(&mut self.upload.unsent).into();
        // A response is read meanwhile: it may come before the body's end.
        let is_over = self.upload.is_over;
        let mut sending = pin!(send(&connection, peer, unsent, is_chunked, is_over));
        let mut closed = pin!(client.closed());
        // For all reads.
        let mut timer = pin!(tokio::time::sleep(self.time_left(peer, false)?));
        let (mut up, mut next) = (Some((up, connection)), None);
        loop {
            self.upload.is_sending = sending.is_some();
            if let Some((up, connection)) = up.take_if(|_| self.response.is_read) {
                // Before the client has all of the response, so that its next request finds the connection. No handle of it stays here.
                sending.set(None);
                self.release(up, connection, peer).await;
            }
            let ahead = &mut self.response.read_ahead;
            if let Some(part) = next.take().or_else(|| ahead.pop_front()) {
                let mut sent = None;
                let send_on = async {
                    sent = OptionFuture::from(sending.as_mut().as_pin_mut()).await;
                    pending().await
                };
                let up = up.as_mut().map(|(up, _)| up);
                self.pass(part, client, up, send_on).await?;
                if let Some(sent) = sent {
                    sending.set(None);
                    self.sent(sent, client);
                }
                continue;
            }
            let Some((up, connection)) = &mut up else {
                return Ok(());
            };
            let upload = &self.upload;
            let may_send = !upload.is_sending && self.response.upload_error.is_none();
            let takes_body = !upload.is_over && may_send;
            let done = tokio::select! {
                biased;
                Some(sent) = OptionFuture::from(sending.as_mut().as_pin_mut()) => {
                    sending.set(None);
                    self.sent(sent, client);
                    Ok(())
                }
                // Never after the end: `up` is given up then.
                read = self.response.read(up, self.fault.is_none()) => {
                    if let Some(fault) = self.fault.as_mut().filter(|one| one.fault.kind == Kind::Slow)
                        && matches!(&read, Ok(Part::Body(piece, _)) if !piece.is_empty())
                    {
                        hold(fault, client).await?;
                    }
                    next = Some(self.take_response(read).map_err(Failure::Upstream)?);
                    Ok(())
                }
                piece = body_or_close(client, takes_body) => {
                    let piece = self.take_piece(piece?, client)?;
                    let is_upgraded = client.session.was_upgraded();
                    // The client's end of an upgraded connection is the end of both.
                    self.response.is_read |= is_upgraded && self.upload.is_over;
                    let is_chunked = is_chunked && !is_upgraded;
                    sending.set(send(connection, peer, piece, is_chunked, self.upload.is_over));
                    Ok(())
                }
                () = &mut closed, if !takes_body => Err(Failure::ClientGone),
                () = &mut timer => {
                    let next = self.time_left(peer, takes_body && !client.session.was_upgraded());
                    next.map(|next| timer.set(tokio::time::sleep(next)))
                }
            };
            done?;
        }
    }

    /// Sends the head. Only from then on client and server may be too slow, not while the request queued or its connection was made.
    async fn send_head(
        &mut self,
        connection: &Connection,
        peer: &HttpPeer,
        head: RequestHeader,
    ) -> Result<HttpSession, Failure> {
        let mut up = HttpSession::new(Box::new(connection.clone()));
        up.write_timeout = peer.options.write_timeout;
        up.write_request_header(Box::new(head))
            .await
            .map_err(|error| Failure::Upstream(error.into_up()))?;
        let now = self.shared.clock.now();
        (self.last_activity, self.upload_waits_since) = (now, now);
        Ok(up)
    }

    /// A piece of the request's body was sent. If not, no more is sent, but a response may still come, unless its upstream took nothing
    /// for too long and has not answered. Nor does an upgraded connection go on then: it would one way only.
    fn sent(&mut self, sent: pingora::Result<()>, client: &Exchange) {
        let now = self.shared.clock.now();
        (self.last_activity, self.upload_waits_since) = (now, now);
        let Err(error) = sent else { return };
        let may_go_on = self.response.has_begun && !client.session.was_upgraded();
        if *error.etype() == ErrorType::WriteTimedout && !may_go_on {
            self.response.read_error.get_or_insert(error);
        } else {
            self.response.upload_error = Some(error);
        }
    }

    /// Keeps the connection for another request, if all of this one was sent.
    async fn release(&self, mut up: HttpSession, connection: Connection, peer: &HttpPeer) {
        let upload = &self.upload;
        if up.was_upgraded() && !upload.is_sending {
            // For the end of TLS to be told. The server may take nothing any more.
            let limit = peer.options.write_timeout.unwrap_or(Duration::MAX);
            let _ = timeout(limit, up.shutdown()).await;
            return;
        }
        if !upload.is_over || upload.is_sending || self.response.upload_error.is_some() {
            return;
        }
        up.respect_keepalive();
        if up.reuse().await.is_some() {
            let time = peer.options.idle_timeout.unwrap_or_default();
            let idle = &self.service.idle;
            idle.put(peer.reuse_hash(), connection, time);
        }
    }

    /// Returns how long client and upstream may surely be silent yet, or which of them was for too long.
    fn time_left(&self, peer: &HttpPeer, takes_body: bool) -> Result<Duration, Failure> {
        let max_silence = peer.options.read_timeout.unwrap_or(Duration::MAX);
        let client_limit = self.limits.client_read_timeout_s.get();
        let now = self.shared.clock.now();
        let left = |since: Stamp, limit: Duration| {
            let left = limit.saturating_sub(nanoseconds(now.nanos_since(since)));
            Some(left).filter(|left| !left.is_zero())
        };
        // From now on another limit may hold.
        let mut next = max_silence.min(client_limit);
        if takes_body {
            let since = self.last_activity.max(self.upload_waits_since);
            let too_slow = Failure::Refused(Refusal::BodyTooSlow);
            next = next.min(left(since, client_limit).ok_or(too_slow)?);
        }
        if !self.upload.is_sending {
            let silent = || Failure::Upstream(Error::new_up(ErrorType::ReadTimedout));
            next = next.min(left(self.last_activity, max_silence).ok_or_else(silent)?);
        }
        Ok(next)
    }

    /// Takes what was just read from upstream.
    fn take_response(&mut self, read: pingora::Result<Part>) -> pingora::Result<Part> {
        let at = self.shared.clock.now();
        let why = |error| self.response.upload_error.take().unwrap_or(error).into_up();
        let mut part = read.map_err(why)?;
        self.last_activity = at;
        match &mut part {
            Part::Head(head, is_end) => self.take_head(head, *is_end, at)?,
            Part::Body(piece, is_end) => {
                if let Some(fault) = &mut self.fault {
                    // What is cut off counts as not read.
                    fault.cut(piece);
                    *is_end &= !fault.is_cut;
                }
                self.response.is_read = *is_end;
                self.context.response_body(piece, *is_end, at);
            }
        }
        Ok(part)
    }

    /// Takes a head, and makes it fit for the client.
    fn take_head(
        &mut self,
        head: &mut ResponseHeader,
        is_end: bool,
        at: Stamp,
    ) -> pingora::Result<()> {
        self.response.has_arrived = true;
        let hop = match self.service.role {
            Role::Front => self.take_stamps(head),
            Role::Hop(_) => None,
        };
        if head.status.is_informational() {
            return Ok(());
        }
        self.response.is_read = is_end;
        if hop.is_none() {
            // Only a proxy of ours may state an outcome; a hop's is passed on to the client.
            head.remove_header(&heads::OUTCOME);
        }
        self.context.response_head(head, hop, at);
        self.response.ends_by_close = heads::to_client(head, is_end, self.version)?;
        if let Some(id) = self.id.as_ref().filter(|_| self.has_made_id)
            && !head.headers.contains_key(&identity::ID)
        {
            head.insert_header(REQUEST_ID, id)?;
        }
        self.put_stamps(head);
        Ok(())
    }

    /// Removes the stamps of other proxies of ours: another front's are not for this one's clients, a hop's are for this front.
    /// Returns those that a hop of ours signed.
    fn take_stamps(&self, head: &mut ResponseHeader) -> Option<Stamps> {
        head.remove_header(&heads::STAMPS);
        let (key, id) = (&self.shared.hop_key, self.id.as_deref().unwrap_or_default());
        let mut values = head.headers.get_all(&heads::HOP).iter();
        let parsed = |value: &HeaderValue| Stamps::parse(key.verify(id, value.to_str().ok()?)?);
        let stamps = values.find_map(parsed);
        if head.remove_header(&heads::HOP).is_some() && stamps.is_none() {
            self.shared.metrics.hop_stamps_refused.with(&[]).inc();
            log::warn!(
                "{}: answered with an {HOP_HEADER} without a valid signature or of another version: removed, not used. If a hop of \
                 yours in another process wrote it, give both processes the same hop_secret (and let the router pass {REQUEST_ID} on) and version",
                self.context.upstream,
            );
        }
        stamps
    }

    /// Passes a part of the response on to the client, with what an injected fault does to it. While the write is pending, reads ahead
    /// from `up` and runs `send_on`.
    async fn pass(
        &mut self,
        part: Part,
        client: &mut Exchange,
        up: Option<&mut HttpSession>,
        send_on: impl Future<Output = Infallible>,
    ) -> Result<(), Failure> {
        if let Part::Head(head, _) = &part {
            if is_final(head.status) {
                self.response.has_begun = true;
                let closes = self.service.stopped.is_cancelled() || self.response.ends_by_close;
                // Set again: Pingora turns keep-alive off at a `100 Continue`.
                let keeps = self.keeps_alive && !closes;
                client
                    .session
                    .set_keepalive(keeps.then_some(self.limits.client_idle_timeout_s.get()));
            } else if self.version < Version::HTTP_11 {
                // RFC 9110, section 15.2.
                return Ok(());
            }
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                // The client may send what it likes from now on.
                self.upload.is_over = false;
            }
        }
        let limit = self.write_limit(client);
        let read_ahead = self.read_ahead(up);
        let meanwhile = async { tokio::join!(read_ahead, send_on).0 };
        let written = client.write(part, limit, meanwhile).await;
        if let Some(since) = self.context.timing.write_pending_since {
            let now = self.shared.clock.now();
            self.context.timing.write_over(now);
            // Nothing of the request's body was read meanwhile.
            let pending = now.nanos_since(since);
            self.upload_waits_since = self.upload_waits_since.plus_nanos(pending);
            self.last_activity = now;
        }
        let buffer = written.map_err(|error| match error {
            NotWritten::Stalled => Failure::ClientStalled,
            NotWritten::ClientGone => Failure::ClientGone,
        })?;
        if (1..=MAX_CAPACITY).contains(&buffer.capacity()) {
            self.response.buffer = buffer;
        }
        if self.fault.as_ref().is_some_and(|fault| fault.is_cut) {
            return Err(Failure::Injected);
        }
        Ok(())
    }

    /// Reads on while a write to the client is pending, up to what may be kept. Never ends.
    async fn read_ahead(&mut self, mut up: Option<&mut HttpSession>) -> Infallible {
        let clock = &self.shared.clock;
        self.context.timing.write_pending_since = Some(clock.now());
        while !self.response.is_read
            && self.fault.is_none()
            && let Some(up) = up.as_deref_mut()
        {
            let ahead = &self.response.read_ahead;
            let bytes = ahead.iter().map(|part| match part {
                Part::Head(..) => 0,
                Part::Body(piece, _) => piece.len(),
            });
            if ahead.len() >= MAX_READ_AHEAD || bytes.sum::<usize>() >= MAX_READ_AHEAD_BYTES {
                self.context.timing.read_paused_since = Some(clock.now());
                break;
            }
            let read = self.response.read(up, true).await;
            match self.take_response(read) {
                Ok(part) => self.response.read_ahead.push_back(part),
                Err(error) => {
                    // What was read before is passed on first.
                    self.response.read_error = Some(error);
                    break;
                }
            }
        }
        pending().await
    }
}
