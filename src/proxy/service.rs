//! Pingora's hooks: what happens to a request at each phase.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::protocols::Digest;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, Result};

use crate::edge::answer::Answer;
use crate::edge::phase::Phase;
use crate::edge::shortage;
use crate::fault::registry::WorkerFaults;
use crate::request::endpoint::Endpoint;
use crate::request::head::{OUTCOME_HEADER, content_type, is_encoded, smg_worker, told_outcome};
use crate::request::outcome::Outcome;
use crate::request::stamps::{ASK_HEADER, FRONT_HEADER, HOP_HEADER, Stamps};
use crate::upstream::Upstreams;

use super::answer;
use super::context::Context;
use super::framing;
use super::identity::{self, BEGAN, REQUEST_ID, TRACEPARENT, TRACESTATE};
use super::limits;
use super::prompt;
use super::shared::StampsPolicy;
use super::shared::{Role, Shared};
use super::worker_hop::{self, HopStamps};

/// One listener's part of the proxy.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    role: Role,
    upstreams: Arc<ArcSwap<Upstreams>>,
    faults: Option<Arc<WorkerFaults>>,
}

/// Request header with the secret of `stamps = "token"`.
const TOKEN_HEADER: &str = "x-queuescope-token";

/// How long what is left of a request body is read after we answered ourselves, so that the client can
/// read the answer before the connection closes.
const LAST_READ: Duration = Duration::from_secs(1);

impl Service {
    /// A listener that sends to the present `upstreams`.
    pub fn new(shared: Arc<Shared>, role: Role, upstreams: Arc<ArcSwap<Upstreams>>) -> Service {
        let faults = shared.faults_of(&role);
        Service {
            shared,
            role,
            upstreams,
            faults,
        }
    }

    fn is_draining(&self) -> bool {
        *self.shared.phase.borrow() > Phase::Serving
    }

    fn may_have_stamps(&self, request: &RequestHeader, context: &Context) -> bool {
        let header = |name| request.headers.get(name).map(http::HeaderValue::as_bytes);
        if header(ASK_HEADER) != Some(b"1") {
            return false;
        }
        let settings = self.shared.settings.load();
        match settings.stamps {
            StampsPolicy::Loopback => context.client().is_some_and(|ip| ip.is_loopback()),
            StampsPolicy::Token => {
                let token = settings.stamps_token.as_ref();
                token
                    .zip(header(TOKEN_HEADER))
                    .is_some_and(|(token, given)| token.is(given))
            }
            StampsPolicy::Never => false,
        }
    }

    /// What the front learns from a request's head.
    fn begin(&self, request: &RequestHeader, context: &mut Context) {
        if identity::request_id(&request.headers).is_none() {
            context.made_id = Some(identity::new_request_id());
        }
        let endpoint = generates(request);
        context.begin_trace(&request.headers, endpoint.is_some());
        context.sends_stamps = self.may_have_stamps(request, context);
        match endpoint {
            Some(endpoint) => {
                let id = context.request_id(request);
                context.watch(endpoint, id.unwrap_or_else(identity::new_request_id));
            }
            None => self.shared.metrics.passed_through(request.uri.path()),
        }
    }

    /// Takes off what other processes of ours stamped: another front's stamps are not for this one's clients, and a
    /// hop's are for this front. Gives the hop's, if it is one of ours.
    fn take_stamps(
        &self,
        head: &mut ResponseHeader,
        request: &RequestHeader,
        context: &Context,
    ) -> Option<Stamps> {
        head.remove_header(FRONT_HEADER);
        let id = context.request_id(request);
        let key = &self.shared.hop_key;
        match worker_hop::take_hop_stamps(head, &id.unwrap_or_default(), key) {
            HopStamps::Absent => None,
            HopStamps::Verified(stamps) => stamps,
            HopStamps::Unverified => {
                self.shared.metrics.hop_stamps_refused();
                self.shared.unsigned_stamps.call_once(|| {
                    log::warn!(
                        "{}: answered with an {HOP_HEADER} that no hop of ours has signed for that request: taken off \
                         and not used. If a hop of yours in another process wrote it, give both processes the same \
                         hop_secret (and let the router pass {REQUEST_ID} on). Logged once; \
                         queuescope_hop_stamps_refused_total counts",
                        context.upstream
                    );
                });
                None
            }
        }
    }
}

/// Where a request generates, if it does.
fn generates(request: &RequestHeader) -> Option<Endpoint> {
    let endpoint = Endpoint::from_path(request.uri.path());
    // SGLang takes PUT on `/generate` for POST.
    endpoint.filter(|_| matches!(request.method, http::Method::POST | http::Method::PUT))
}

#[async_trait]
impl ProxyHttp for Service {
    type CTX = Context;

    fn new_ctx(&self) -> Context {
        Context::new(self.shared.clone(), self.role.clone())
    }

    fn init_downstream_modules(&self, _modules: &mut HttpModules) {
        // Pingora's own would add compression.
    }

    async fn early_request_filter(
        &self,
        session: &mut Session,
        context: &mut Context,
    ) -> Result<()> {
        // A client that wants to close keeps its wish.
        let limits = self.shared.settings.load().limits;
        context.keeps_alive = session.get_keepalive().is_some();
        if context.keeps_alive {
            session.set_keepalive(Some(limits.client_idle_s));
        }
        session.set_read_timeout(Some(limits.client_read));
        session.set_write_timeout(Some(limits.client_write));
        if self.role == Role::Front {
            self.begin(session.req_header(), context);
        } else {
            let request = session.req_header();
            let endpoint = generates(request);
            context.begin_trace(&request.headers, endpoint.is_some());
            if let Some(endpoint) = endpoint {
                context.watch_attempt(endpoint, identity::request_id(&request.headers));
            }
        }
        if self.shared.limits_clients_of(&self.role) {
            limits::check_head(session, &limits, &self.shared.metrics)?;
        }
        framing::of_request(session.req_header())
    }

    async fn request_filter(&self, session: &mut Session, context: &mut Context) -> Result<bool> {
        if let Some(faults) = &self.faults {
            let generates = generates(session.req_header()).is_some();
            context.fault.request(faults, session, generates).await?;
        }
        Ok(false)
    }

    async fn upstream_peer(
        &self,
        session: &mut Session,
        context: &mut Context,
    ) -> Result<Box<HttpPeer>> {
        let over = context.route.over(|| self.upstreams.load_full());
        if over.ask_for_prompt() && context.prompt.is_none() {
            prompt::read(
                session,
                context,
                generates(session.req_header()),
                &self.shared,
            )
            .await?;
        }
        let next = context
            .route
            .next(context.prompt.as_deref().unwrap_or_default());
        let (upstreams, chosen) = next.ok_or_else(|| Error::new_in(pingora::InternalError))?;
        if let Some(by) = chosen.by() {
            self.shared.metrics.chosen(by);
        }
        chosen.upstream().name().clone_into(&mut context.upstream);
        Ok(Box::new(upstreams.peer(chosen)))
    }

    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        reused: bool,
        _peer: &HttpPeer,
        _fd: std::os::unix::io::RawFd,
        _digest: Option<&Digest>,
        context: &mut Context,
    ) -> Result<()> {
        context.connected(reused);
        Ok(())
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        context: &mut Context,
        mut error: Box<Error>,
    ) -> Box<Error> {
        // Out of sockets or ports of our own says nothing about the upstream.
        let is_ours = shortage::mark(&mut error);
        if is_ours {
            let trace = context.trace.as_ref().map_or("none", |trace| &trace.id);
            log::warn!(
                "{}; trace_id={trace}",
                shortage::words(&error, &context.upstream)
            );
        }
        context.note_unconnected();
        let is_theirs = answer::is_connect(error.etype()) && !is_ours;
        // Nothing was sent: another upstream may take it.
        error.set_retry(context.route.connection_failed(is_theirs));
        error
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        context: &mut Context,
        reused: bool,
    ) -> Box<Error> {
        error.retry.decide_reuse(reused);
        let is_idempotent = session.req_header().method.is_idempotent();
        let is_whole = !session.as_ref().retry_buffer_truncated();
        let can_resend = is_whole && session.response_written().is_none();
        let again = can_resend && context.route.broke(&error, is_idempotent);
        error.set_retry(again);
        context.sending_failed(again);
        error
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        context: &mut Context,
    ) -> Result<()> {
        if let Some(length) = framing::one_length(&request.headers) {
            request.insert_header(CONTENT_LENGTH, length)?;
        }
        // The record has it, and hops join by it: `Connection` may not take it away.
        if !request.headers.contains_key(REQUEST_ID)
            && let Some(id) = session.get_header(REQUEST_ID)
        {
            request.insert_header(REQUEST_ID, id)?;
        }
        if self.role == Role::Front {
            if let Some(id) = &context.made_id {
                request.insert_header(REQUEST_ID, id)?;
            }
            request.remove_header(ASK_HEADER);
            request.remove_header(TOKEN_HEADER);
        }
        if context.trace_is_new {
            // What came speaks of a trace that this one does not continue (W3C Trace Context, 3.3).
            request.insert_header(TRACESTATE, BEGAN)?;
        }
        if let Some(parent) = context.attempt_began() {
            request.insert_header(TRACEPARENT, parent)?;
        }
        Ok(())
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        context: &mut Context,
    ) -> Result<()> {
        context.request_body(body.as_deref().unwrap_or_default(), end_of_stream);
        if self.shared.limits_clients_of(&self.role) {
            let limits = &self.shared.settings.load().limits;
            limits::check_body(session, limits, end_of_stream, &self.shared.metrics)?;
        }
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        head: &mut ResponseHeader,
        context: &mut Context,
    ) -> Result<()> {
        context.route.answered();
        let hop = match self.role {
            Role::Front => self.take_stamps(head, session.req_header(), context),
            Role::Hop(_) => None,
        };
        if head.status.is_informational() {
            return Ok(());
        }
        if hop.is_some() {
            context.hop_outcome(told_outcome(&head.headers));
        } else {
            // Only our own proxies judge; a hop's word goes on to the client.
            head.remove_header(OUTCOME_HEADER);
        }
        let smg_worker = match self.role {
            Role::Front => smg_worker(&head.headers),
            Role::Hop(_) => None,
        };
        context.served_by(hop, smg_worker);
        let (kind, encoded) = (content_type(&head.headers), is_encoded(&head.headers));
        context.response_head(head.status.as_u16(), kind, encoded);
        Ok(())
    }

    fn upstream_response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        context: &mut Context,
    ) -> Result<Option<Duration>> {
        context.response_body(body.as_deref().unwrap_or_default(), end_of_stream);
        let held = context.fault.piece(body);
        let is_empty = body.as_ref().is_none_or(Bytes::is_empty);
        context.passed_on(is_empty, end_of_stream, held);
        Ok(held)
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        head: &mut ResponseHeader,
        context: &mut Context,
    ) -> Result<()> {
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            context.upgraded();
        }
        if head.status.is_informational() {
            return Ok(());
        }
        let speaks_chunks = session.req_header().version >= Version::HTTP_11;
        if self.is_draining() {
            session.set_keepalive(None);
        } else if context.keeps_alive {
            // Pingora gives the connection up at a `100 Continue`, before which no body can have come.
            let limits = self.shared.settings.load().limits;
            session.set_keepalive(Some(limits.client_idle_s));
        }
        if !speaks_chunks && head.remove_header(&TRANSFER_ENCODING).is_some() {
            // To HTTP/1.0 the end of the connection is the end of the body.
            session.set_keepalive(None);
            context.ends_by_close = true;
        }
        framing::of_response(head)?;
        if context.is_at_hop() {
            let key = &self.shared.hop_key;
            worker_hop::put_hop_stamps(head, &context.stamps(), session.req_header(), key);
            return Ok(());
        }
        if let Some(id) = &context.made_id
            && !head.headers.contains_key(REQUEST_ID)
        {
            head.insert_header(REQUEST_ID, id)?;
        }
        if context.sends_stamps {
            worker_hop::put_front_stamps(head, &context.stamps());
        }
        Ok(())
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        context: &mut Context,
    ) -> FailToProxy {
        if session.response_written().is_some() {
            context.response_cut();
            return failed(0);
        }
        let Some(answer) = answer::of_error(error) else {
            return failed(0);
        };
        let outcome = context.answered(answer.status, error);
        // Whatever goes wrong now, the client is gone.
        let _ = self.send(&answer, outcome, session, context).await;
        failed(answer.status)
    }

    async fn logging(&self, _session: &mut Session, error: Option<&Error>, context: &mut Context) {
        context.ended(error);
    }

    fn suppress_error_log(&self, _session: &Session, _context: &Context, _error: &Error) -> bool {
        // It is in the record and the counters.
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _context: &Context,
        _error: &Error,
        _what: ProxyWarnLogContext,
    ) -> bool {
        true
    }
}

impl Service {
    async fn send(
        &self,
        answer: &Answer,
        outcome: Outcome,
        session: &mut Session,
        context: &Context,
    ) -> Result<()> {
        let body = Bytes::from(answer.body());
        // A made id stands for a sent one that was empty.
        let made_id = context.made_id.as_ref().map(|id| id.as_bytes().to_vec());
        let sent_id = || Some(session.get_header(REQUEST_ID)?.as_bytes().to_vec());
        let mut head = answer::head(
            answer,
            body.len(),
            &made_id.or_else(sent_id).unwrap_or_default(),
        )?;
        head.insert_header(OUTCOME_HEADER, outcome.name())?;
        if context.is_at_hop() {
            let key = &self.shared.hop_key;
            worker_hop::put_hop_stamps(&mut head, &context.stamps(), session.req_header(), key);
        } else if context.sends_stamps {
            worker_hop::put_front_stamps(&mut head, &context.stamps());
        }
        session.set_keepalive(None);
        session.write_response_header(Box::new(head), false).await?;
        session.write_response_body(Some(body), true).await?;
        // Closing on unread bytes would reset the connection under the answer.
        if !session.is_body_done() {
            let rest = session.downstream_session.drain_request_body();
            let _ = tokio::time::timeout(LAST_READ, rest).await;
        }
        Ok(())
    }
}

fn failed(error_code: u16) -> FailToProxy {
    FailToProxy {
        error_code,
        can_reuse_downstream: false,
    }
}
