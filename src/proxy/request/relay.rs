//! A request and its response passed on between client and upstream, in one loop.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderValue, Method, StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::HttpTask;
use pingora::protocols::http::v1::client::HttpSession;
use pingora::upstreams::peer::{HttpPeer, Peer};
use pingora::{Error, ErrorType};

use crate::client::answer::Refusal;
use crate::client::exchange::{Exchange, Part, Unwritten};
use crate::clock::Stamp;
use crate::proxy::failure::Failure;
use crate::proxy::heads;
use crate::proxy::identity::{self, REQUEST_ID};
use crate::proxy::shared::Role;
use crate::request::stamps::{HOP_HEADER, Stamps};

use super::upload::body_or_leaving;
use super::{Request, hold};

/// A response as far as it has come.
pub(super) struct Response {
    /// What its request says of it.
    method: Method,
    version: Version,
    /// When the upstream was last heard of.
    heard: Stamp,
    /// Something of it has come, be it a `100 Continue`.
    pub(super) has_come: bool,
    /// The client was sent its final head.
    pub(super) has_begun: bool,
    /// All of it has been read.
    is_whole: bool,
    /// Its body ends with the client's connection.
    pub(super) ends_by_close: bool,
    /// What was read while a write was pending.
    ahead: VecDeque<Part>,
    ahead_bytes: usize,
    /// Room for the next piece, used again and again.
    space: Vec<u8>,
    /// Why no more of it can be read, once what came before has been passed on.
    broken: Option<Box<Error>>,
    /// The request's body could not be sent.
    pub(super) unsent: Option<Box<Error>>,
}

/// Parts of a response that are read while a write to the client is pending, and their bytes.
const AHEAD: usize = 4;
const AHEAD_BYTES: usize = 64 * 1024;
/// The room for a first piece; a larger one is more than most allocators keep at hand.
const FIRST_SPACE: usize = 1024;
/// The room for a piece that is kept for the next.
const SPACE: usize = 8 * 1024;
/// A piece of more bytes is passed on as it is.
const GATHERED: usize = SPACE / 2;

impl Response {
    pub(super) fn new(client: &Exchange, at: Stamp) -> Response {
        let head = client.head();
        Response {
            method: head.method.clone(),
            version: head.version,
            heard: at,
            has_come: false,
            has_begun: false,
            is_whole: false,
            ends_by_close: false,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            space: Vec::with_capacity(FIRST_SPACE),
            broken: None,
            unsent: None,
        }
    }

    /// What comes next from `up`: a head, or a piece of the body in `space`; and whether it is the end. If it `gathers`,
    /// a piece has all that has come by now, for one write of many events that were read at once.
    async fn read(
        &mut self,
        up: &mut HttpSession,
        gathers: bool,
    ) -> pingora::Result<(Option<Box<ResponseHeader>>, bool)> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let is_final =
            |head: StatusCode| !head.is_informational() || head == StatusCode::SWITCHING_PROTOCOLS;
        if !up.get_status().is_some_and(is_final)
            && let HttpTask::Header(head, is_end) = up.read_response_task().await?
        {
            return Ok((Some(head), is_end));
        }
        self.space.clear();
        let mut read = up.read_body_ref().await;
        while let Ok(Some(piece)) = read {
            self.space.extend_from_slice(piece);
            if !gathers || self.space.len() > GATHERED || up.is_body_done() {
                return Ok((None, up.is_body_done()));
            }
            let Some(next) = up.read_body_ref().now_or_never() else {
                return Ok((None, false));
            };
            read = next;
        }
        match read {
            Err(error) if self.space.is_empty() => Err(error),
            read => {
                self.broken = read.err();
                Ok((None, up.is_body_done() && self.broken.is_none()))
            }
        }
    }
}

impl Request<'_> {
    /// Sends the request to an upstream that is connected, and its response to the client.
    pub(super) async fn relay(
        &mut self,
        client: &mut Exchange,
        (mut up, peer): (HttpSession, &HttpPeer),
        head: RequestHeader,
    ) -> Result<(), Failure> {
        // One timer of ours is for all reads.
        up.read_timeout = None;
        up.write_timeout = peer.options.write_timeout;
        let silence = peer.options.read_timeout.unwrap_or(Duration::MAX);
        let upstream = |error: Box<Error>| Failure::Upstream(error.into_up());
        up.write_request_header(Box::new(head))
            .await
            .map_err(upstream)?;
        // Another upstream gets the rest, too.
        if std::mem::take(&mut self.upload.is_cut) {
            self.upload.is_over = false;
        }
        let kept = self.upload.kept.clone().unwrap_or_default();
        self.send(client, &mut up, &kept).await?;
        let now = self.shared.clock.now();
        (self.response.heard, self.upload.since) = (now, now);
        let mut left = pin!(client.left());
        let mut timer = pin!(tokio::time::sleep(
            silence.min(self.limits.client_read_timeout_s.get())
        ));
        loop {
            if let Some(came) = self.response.ahead.pop_front() {
                self.pass(came, client, Some(&mut up)).await?;
                continue;
            }
            let uploading = !self.upload.is_over;
            if self.response.is_whole && !uploading {
                self.release(up, peer).await;
                return Ok(());
            }
            tokio::select! {
                biased;
                read = self.response.read(&mut up, self.fault.is_none()), if !self.response.is_whole => {
                    let at = self.shared.clock.now();
                    let came = self.came(read, up.was_upgraded(), at)?;
                    if self.response.is_whole && self.upload.is_over {
                        // Before the client has all of it: its next request finds the connection.
                        self.release(up, peer).await;
                        return self.pass(came, client, None).await;
                    }
                    self.pass(came, client, Some(&mut up)).await?;
                }
                piece = body_or_leaving(client, uploading) => {
                    let had_answer = self.response.is_whole;
                    let sent = match piece {
                        Ok(piece) => self.upload_piece(piece, client, &mut up).await,
                        Err(failure) => Err(failure),
                    };
                    match sent {
                        // It has its answer, which did not wait for the rest.
                        Err(_) if had_answer => return Ok(()),
                        sent => sent?,
                    }
                }
                () = &mut left, if !uploading => return Err(Failure::ClientGone),
                () = &mut timer => {
                    let next = match self.quiet(silence, uploading) {
                        Err(_) if self.response.is_whole => return Ok(()),
                        next => next?,
                    };
                    timer.set(tokio::time::sleep(next));
                }
            }
        }
    }

    /// Keeps the connection for another request, if all of this one was sent.
    async fn release(&self, mut up: HttpSession, peer: &HttpPeer) {
        if self.response.unsent.is_some() {
            return;
        }
        up.respect_keepalive();
        if let Some(stream) = up.reuse().await {
            let time = peer.options.idle_timeout.unwrap_or_default();
            self.service.idle.put(peer.reuse_hash(), stream, time);
        }
    }

    /// Until when nothing need be heard; or who was silent for too long.
    fn quiet(&self, silence: Duration, uploading: bool) -> Result<Duration, Failure> {
        let now = self.shared.clock.now();
        let left = |since: Stamp, limit: Duration| {
            let quiet = u64::try_from(now.nanos_since(since)).unwrap_or(0);
            limit
                .checked_sub(Duration::from_nanos(quiet))
                .filter(|left| !left.is_zero())
        };
        let heard = self.response.heard;
        let mut next = Duration::MAX;
        if uploading {
            let since = heard.max(self.upload.since);
            next = left(since, self.limits.client_read_timeout_s.get())
                .ok_or(Failure::Refused(Refusal::BodySilent))?;
        }
        if !self.response.is_whole {
            next = next.min(left(heard, silence).ok_or(Failure::UpstreamSilent)?);
        }
        Ok(next)
    }

    /// Takes in a piece of the request's body, and sends it on.
    async fn upload_piece(
        &mut self,
        piece: Option<Bytes>,
        client: &mut Exchange,
        up: &mut HttpSession,
    ) -> Result<(), Failure> {
        let is_end = piece.is_none() || client.session.is_body_done();
        let piece = piece.unwrap_or_default();
        self.uploaded(&piece, is_end)?;
        if client.session.was_upgraded() {
            up.maybe_upgrade_body_writer();
            // The client's end of such a connection is the end of both.
            self.response.is_whole |= is_end;
        }
        self.send(client, up, std::slice::from_ref(&piece)).await?;
        self.upload.keep(piece);
        let now = self.shared.clock.now();
        (self.response.heard, self.upload.since) = (now, now);
        Ok(())
    }

    /// Takes in what was read from upstream at `at`.
    fn came(
        &mut self,
        read: pingora::Result<(Option<Box<ResponseHeader>>, bool)>,
        is_upgraded: bool,
        at: Stamp,
    ) -> Result<Part, Failure> {
        let (head, is_end) = read.map_err(|error| {
            let error = self.response.unsent.take().unwrap_or(error);
            Failure::Upstream(error.into_up())
        })?;
        self.response.heard = at;
        if let Some(mut head) = head {
            self.head_came(&mut head, is_end, is_upgraded, at)?;
            return Ok(Part::Head(head, is_end));
        }
        let piece = std::mem::take(&mut self.response.space);
        self.response.is_whole = is_end;
        self.context.response_body(&piece, is_end, at);
        if self.fault.is_none() {
            self.context.passed_on(piece.is_empty(), is_end, at);
        }
        Ok(Part::Body(piece, is_end))
    }

    /// Takes in a head, and makes it fit for the client.
    fn head_came(
        &mut self,
        head: &mut ResponseHeader,
        is_end: bool,
        is_upgraded: bool,
        at: Stamp,
    ) -> Result<(), Failure> {
        self.response.has_come = true;
        let hop = match self.service.role {
            Role::Front => self.take_stamps(head),
            Role::Hop(_) => None,
        };
        let is_switch = head.status == StatusCode::SWITCHING_PROTOCOLS;
        if is_switch && !is_upgraded {
            // What follows would be read in two ways.
            let error = Error::explain(
                ErrorType::InvalidHTTPHeader,
                "101 without an upgrade request",
            );
            return Err(Failure::Upstream(error.into_up()));
        }
        if head.status.is_informational() {
            return Ok(());
        }
        self.response.is_whole = is_end;
        if hop.is_none() {
            // Only our own proxies judge; a hop's word goes on to the client.
            head.remove_header(&heads::OUTCOME);
        }
        self.context.response_head(head, hop, at);
        let request = (&self.response.method, self.response.version);
        let bad = |_| Failure::Internal("a header cannot be written");
        self.response.ends_by_close = heads::to_client(head, is_end, request).map_err(bad)?;
        if let Some(id) = self.id.as_ref().filter(|_| self.has_made_id)
            && !head.headers.contains_key(&identity::ID)
        {
            head.insert_header(REQUEST_ID, id).map_err(bad)?;
        }
        self.put_stamps(head);
        Ok(())
    }

    /// Takes off what other processes of ours stamped: another front's stamps are not for this one's clients, and a
    /// hop's are for this front. Gives the hop's, if it is one of ours.
    fn take_stamps(&self, head: &mut ResponseHeader) -> Option<Stamps> {
        head.remove_header(&heads::STAMPS);
        let values = head.headers.get_all(&heads::HOP).iter();
        let texts: Vec<_> = values.map(HeaderValue::to_str).collect();
        if texts.is_empty() {
            return None;
        }
        let (key, id) = (&self.shared.hop_key, self.id.as_deref().unwrap_or_default());
        let mut ours = texts.into_iter().flatten();
        let stamps = ours.find_map(|text| Stamps::parse(key.verified(id, text)?));
        head.remove_header(&heads::HOP);
        if stamps.is_none() {
            let refused = &self.shared.metrics.hop_stamps_refused;
            refused.with(&[]).inc();
            self.shared.unsigned_stamps.call_once(|| {
                log::warn!(
                    "{}: answered with an {HOP_HEADER} without a valid signature or of another version: removed, not used. If a hop of \
                     yours in another process wrote it, give both processes the same hop_secret (and let the router pass {REQUEST_ID} on) and version. Logged once; {} counts",
                    self.context.upstream,
                    refused.name()
                );
            });
        }
        stamps
    }

    /// Writes what came to the client.
    async fn pass(
        &mut self,
        mut part: Part,
        client: &mut Exchange,
        up: Option<&mut HttpSession>,
    ) -> Result<(), Failure> {
        let (mut is_switch, mut is_cut, mut is_end) = (false, false, false);
        match &mut part {
            Part::Head(head, _) => {
                is_switch = head.status == StatusCode::SWITCHING_PROTOCOLS;
                if is_switch || !head.status.is_informational() {
                    self.response.has_begun = true;
                    self.upload.kept = None;
                    let closes = self.service.listener.is_closing() || self.response.ends_by_close;
                    // Pingora gives the connection up at a `100 Continue`, before which no body can have come.
                    let keeps = self.keeps_alive && !closes;
                    client
                        .session
                        .set_keepalive(keeps.then_some(self.limits.client_idle_timeout_s.get()));
                }
            }
            Part::Body(piece, is_last) => {
                self.response.ahead_bytes = self.response.ahead_bytes.saturating_sub(piece.len());
                if let Some(fault) = &mut self.fault {
                    let held;
                    (held, is_cut) = fault.piece(piece);
                    if held.is_some() {
                        hold(fault, held, client).await?;
                    }
                    let now = self.shared.clock.now();
                    self.context.passed_on(piece.is_empty(), *is_last, now);
                }
                *is_last &= !is_cut;
                is_end = *is_last;
            }
        }
        let space = self.write(part, client, up).await?;
        if (1..=SPACE).contains(&space.capacity()) {
            self.response.space = space;
        }
        if is_cut {
            return Err(Failure::Injected);
        }
        if is_switch {
            // What the client sends from now on is for the upstream, and no body.
            self.limits = self.limits.clone().lifted();
            self.upload.is_over = false;
            self.upload.since = self.shared.clock.now();
        }
        // Either end of an upgraded connection is the end of both.
        self.upload.is_over |= is_end && client.session.was_upgraded();
        Ok(())
    }

    async fn write(
        &mut self,
        part: Part,
        client: &mut Exchange,
        up: Option<&mut HttpSession>,
    ) -> Result<Vec<u8>, Failure> {
        let write = self.limits.client_write_timeout_s.get();
        let stalled = u64::try_from(self.context.time.pending()).unwrap_or(0);
        let stall = (self.limits.client_stall_timeout_s.get())
            .saturating_sub(Duration::from_nanos(stalled));
        let read_on = self.read_on(up);
        let written = client.write(part, stall.min(write), read_on).await;
        if self.context.time.is_on() {
            let now = self.shared.clock.now();
            self.context.time.over(now);
            self.response.heard = now;
        }
        written.map_err(|why| match why {
            Unwritten::TooSlow if stall <= write => Failure::ClientStalled,
            Unwritten::TooSlow => Failure::ClientTookNothing,
            Unwritten::Ended(failure) => failure,
            Unwritten::Gone => Failure::ClientGone,
        })
    }

    /// Reads on while a write to the client is pending, as far as is kept. Ends only by a failure.
    async fn read_on(&mut self, up: Option<&mut HttpSession>) -> Failure {
        let clock = &self.shared.clock;
        self.context.time.began(clock.now());
        let Some(up) = up else {
            return pending().await;
        };
        while !self.response.is_whole && self.fault.is_none() {
            let Response {
                ahead, ahead_bytes, ..
            } = &self.response;
            if ahead.len() >= AHEAD || *ahead_bytes >= AHEAD_BYTES {
                self.context.time.full(clock.now());
                break;
            }
            let read = self.response.read(up, true).await;
            let at = clock.now();
            let came = match self.came(read, up.was_upgraded(), at) {
                Ok(came) => came,
                // What was read before goes first.
                Err(Failure::Upstream(error)) => {
                    self.response.broken = Some(error);
                    break;
                }
                Err(failure) => return failure,
            };
            if let Part::Body(piece, _) = &came {
                self.response.ahead_bytes += piece.len();
            }
            self.response.ahead.push_back(came);
        }
        pending().await
    }
}
