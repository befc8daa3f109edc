//! One request, from its head to its end: held to the limits, given to an upstream, relayed, and answered by ourselves
//! where that fails.

use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Method, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ReusableHttpStream;
use pingora::time::tokio_timeout as timeout;
use pingora::upstreams::peer::Peer;
use tokio::sync::SemaphorePermit;

use crate::client::exchange::Exchange;
use crate::client::limits::{ErrorResponse, Limits, Refusal};
use crate::clock::Stamp;
use crate::config::proxy::StampsPolicy;
use crate::fault::{Injected, Kind};
use crate::request::{End, Endpoint, FRONT_HEADER, HOP_HEADER, OUTCOME_HEADER, Outcome};
use crate::upstream::connection::Connection;
use crate::upstream::{Chosen, Upstreams};

use super::context::Context;
use super::failure::{self, Failure};
use super::heads;
use super::identity::{self, BEGAN, REQUEST_ID, TRACEPARENT, TRACESTATE};
use super::shared::{Role, Service, Shared};

use self::relay::Response;
use self::upload::Upload;

mod relay;
mod upload;

/// A request in the proxy.
struct Request<'a> {
    service: &'a Service,
    shared: &'a Shared,
    limits: Limits,
    context: Context,
    /// `None` if it is no generation request.
    endpoint: Option<Endpoint>,
    /// Its id: the client's, else the one that we made.
    id: Option<String>,
    /// Whether we made the id, as the client sent none.
    has_made_id: bool,
    /// Whether the client asked for our stamps and may have them.
    sends_stamps: bool,
    /// The version of HTTP that it came by.
    version: Version,
    /// Whether the client's connection may serve another request.
    keeps_alive: bool,
    fault: Option<Injected>,
    upload: Upload,
    response: Response,
    /// Since when the next piece of the body is waited for.
    upload_waits_since: Stamp,
    /// When the upstream last sent or took something.
    last_activity: Stamp,
}

/// The most upstreams that a request is tried at.
const MAX_TRIES: usize = 64;

/// Serves a request to its end. Returns its connection where another request may follow.
pub async fn serve(service: &Service, mut client: Box<Exchange>) -> Option<ReusableHttpStream> {
    let mut request = Request::new(service, &client);
    let Err(failure) = request.forward(&mut client).await else {
        request.context.end(End::Complete);
        drop(request);
        client.drain().await;
        return client.session.finish().await.ok().flatten();
    };
    let (response, end) = failure.response_and_end(&request.context.upstream);
    if request.endpoint.is_none()
        && service.role == Role::Front
        && let End::Failed(outcome, reason) = &end
    {
        // It has no row, which would be logged. Of those at a hop most are a router's checks of a server's health.
        let (path, id) = (client.head().uri.path(), request.id.as_deref());
        let trace = request.context.trace.map(|trace| trace.id_text());
        failure::log(path, *outcome, reason, id.unwrap_or(""), trace.as_deref());
    }
    let mut is_answered = false;
    if !request.response.has_begun {
        request.read_room(&mut client).await;
        if let (Some(response), End::Failed(outcome, _)) = (response, &end) {
            is_answered = request.answer(response, *outcome, &mut client).await;
        }
    }
    request.context.end(end);
    if is_answered {
        client.drain().await;
    }
    let resets = match failure {
        // Else the kernel would hold what the client does not read.
        Failure::ClientStalled => true,
        Failure::Injected if !request.response.has_begun => true,
        // Only a reset shows a cut to a client that takes the connection's end for the body's.
        _ => request.response.has_begun && request.response.ends_by_close,
    };
    drop(request);
    if resets {
        client.reset();
    }
    if !matches!(failure, Failure::ClientGone) {
        client.break_off().await;
    }
    None
}

/// Refuses a stream of HTTP/2 beyond the limit on connections: its client may send the request again.
pub fn refuse(service: &Service, mut client: Exchange) {
    let mut request = Request::new(service, &client);
    let failure = Failure::Refused(Refusal::TooManyConnections);
    request.context.end(failure.response_and_end("").1);
    client
        .session
        .shutdown_with_reason(h2::Reason::REFUSED_STREAM);
}

impl<'a> Request<'a> {
    /// Takes id, trace and endpoint from the head, and starts recording.
    fn new(service: &'a Service, client: &Exchange) -> Request<'a> {
        let (shared, head, role) = (&*service.shared, client.head(), &service.role);
        let endpoint = generation_endpoint(head);
        let sent_id = identity::request_id(&head.headers);
        let has_made_id = sent_id.is_none() && *role == Role::Front;
        let id = sent_id.or_else(|| has_made_id.then(identity::new_request_id));
        let mut context = Context::new(service.shared.clone(), role.clone(), client.arrival);
        context.begin_trace(&head.headers, endpoint.is_some());
        match endpoint {
            Some(endpoint) => context.start_recording(endpoint, id.as_deref(), &head.headers),
            None => context.expect_server_info(head.uri.path()),
        }
        Request {
            service,
            shared,
            limits: shared.limits(role),
            context,
            endpoint,
            id,
            has_made_id,
            sends_stamps: *role == Role::Front && may_have_stamps(shared, client),
            version: head.version,
            keeps_alive: client.session.get_keepalive().is_some(),
            fault: None,
            upload: Upload::default(),
            response: Response::default(),
            upload_waits_since: client.arrival,
            last_activity: client.arrival,
        }
    }

    async fn forward(&mut self, client: &mut Exchange) -> Result<(), Failure> {
        if self.endpoint.is_none() && self.context.is_counted() {
            self.shared.metrics.passed_through.with(&[]).inc();
        }
        self.check(client)?;
        self.inject(client).await?;
        self.exchange(client).await
    }

    /// Injects the fault of its worker, if there is one.
    async fn inject(&mut self, client: &mut Exchange) -> Result<(), Failure> {
        let Some(mut injected) = self.service.inject(self.endpoint.is_some()) else {
            return Ok(());
        };
        match injected.fault.kind {
            Kind::Refuse | Kind::Reset => return Err(Failure::Injected),
            Kind::Stall => hold(&mut injected, client).await?,
            Kind::Slow | Kind::Cut => self.fault = Some(injected),
        }
        Ok(())
    }

    /// Holds the head, and the length that it announces, to the limits and to what can be passed on safely.
    fn check(&self, client: &Exchange) -> Result<(), Failure> {
        // That of HTTP/2 was held to it before.
        let http1 = client.session.as_http1();
        let head_bytes = http1.map_or(0, |http1| http1.get_headers_raw_bytes().len());
        if head_bytes as u64 > self.limits.request_head_max_bytes.get() {
            return Err(Failure::Refused(Refusal::HeadTooLarge));
        }
        let length = client.head().headers.get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
        if length.is_some_and(|length| length > self.limits.request_body_max_bytes.get()) {
            return Err(Failure::Refused(Refusal::BodyTooLarge));
        }
        heads::check(client.head()).map_err(Failure::Refused)
    }

    /// Tries one upstream after another until one has answered. A reload meanwhile does not change which they are.
    async fn exchange(&mut self, client: &mut Exchange) -> Result<(), Failure> {
        if client.session.is_body_done() {
            self.context.request_body(&[], true);
            self.upload.is_over = true;
        }
        let has_body = !client.session.is_body_empty();
        let upstreams = self.service.upstreams.load_full();
        let prompt = match self.endpoint {
            Some(_) if upstreams.needs_prompt() => self.read_prompt(client).await?,
            _ => Vec::new(),
        };
        let _slot = self.wait_for_slot(&upstreams, client).await?;
        let mut last_failure = Failure::Internal("no upstream is left".to_owned());
        let mut tried = Vec::new();
        while tried.len() < MAX_TRIES
            && let Some(mut chosen) = upstreams.choose(&tried, &prompt)
        {
            if let Some(by) = chosen.by {
                self.shared.metrics.chosen.with(&[by.name()]).inc();
            }
            let upstream = &chosen.upstream;
            self.context
                .set_upstream(upstream.name(), &upstream.address);
            let connecting = self.connect(&upstreams, &mut chosen);
            let (connection, is_reused) = match unless_gone(client, connecting).await? {
                Ok(connected) => connected,
                Err(failure) => {
                    last_failure = failure;
                    tried.push(chosen.index);
                    continue;
                }
            };
            self.context.connected(is_reused);
            let head = self.upstream_head(client.head(), has_body);
            let head = head.map_err(|_| Failure::Refused(Refusal::BrokenHead))?;
            let up = (connection, &*chosen.peer);
            let Err(mut failure) = self.relay(client, up, head).await else {
                return Ok(());
            };
            if !self.can_resend(&mut failure, is_reused, client.head()) {
                return Err(failure);
            }
            last_failure = failure;
        }
        Err(last_failure)
    }

    /// Waits until the upstreams may have one more request, where there is a limit.
    async fn wait_for_slot<'u>(
        &mut self,
        upstreams: &'u Upstreams,
        client: &mut Exchange,
    ) -> Result<Option<SemaphorePermit<'u>>, Failure> {
        let Some(slots) = upstreams.slots.as_ref().filter(|_| self.endpoint.is_some()) else {
            return Ok(None);
        };
        let began = self.context.begin_queueing();
        let limit = Some(upstreams.rules.queue_timeout_s.get()).filter(|limit| !limit.is_zero());
        let slot = timeout(limit.unwrap_or(Duration::MAX), slots.acquire());
        let slot = unless_gone(client, slot).await;
        self.context.exclude_since(began);
        let slot = slot?.map_err(|_| Failure::Refused(Refusal::QueuedTooLong));
        slot.map(Result::ok)
    }

    /// Connects to an upstream, at one of its addresses. Returns whether the connection served a request before.
    async fn connect(
        &mut self,
        upstreams: &Upstreams,
        chosen: &mut Chosen,
    ) -> Result<(Connection, bool), Failure> {
        let (connector, idle) = (&self.service.connector, &self.service.idle);
        let began = self.shared.clock.now();
        loop {
            if let Some(kept) = idle.take(chosen.peer.reuse_hash()) {
                return Ok((kept, true));
            }
            // On the heap: it would be half of what each request holds, to its end.
            let error = match Box::pin(connector.new_stream(&*chosen.peer)).await {
                Ok(stream) => {
                    chosen.upstream.restore("a request has connected");
                    return Ok((Connection::new(stream), false));
                }
                Err(error) => error.into_up(),
            };
            if let Some(shortage) = Failure::of_shortage(&error, &self.context.upstream) {
                return Err(shortage);
            }
            if !upstreams.connect_failed(chosen) {
                let (_, outcome, _) = failure::of_connection(&error);
                self.context.upstream_unreachable(began, outcome);
                return Err(Failure::Upstream(error));
            }
        }
    }

    /// Whether a request whose connection failed is sent again: an idempotent one without a body that generates nothing, if none
    /// of a response arrived and Pingora finds that the kept connection was closed before the request arrived. Any other may have run.
    fn can_resend(&self, failure: &mut Failure, is_reused: bool, head: &RequestHeader) -> bool {
        let Failure::Upstream(error) = failure else {
            return false;
        };
        error.retry.decide_reuse(is_reused);
        let may = self.endpoint.is_none() && head.method.is_idempotent() && error.retry();
        may && !self.response.has_arrived && self.context.request_bytes == 0
    }

    /// Returns the head of this attempt, with our id and our span in it.
    fn upstream_head(
        &mut self,
        received: &RequestHeader,
        has_body: bool,
    ) -> pingora::Result<RequestHeader> {
        let mut head = heads::to_upstream(received, has_body)?;
        if self.service.role == Role::Front {
            if let Some(id) = self.id.as_ref().filter(|_| self.has_made_id) {
                head.insert_header(REQUEST_ID, id)?;
            }
            head.remove_header(&heads::STAMPS);
            head.remove_header(&heads::TOKEN);
        }
        let trace = self.context.trace;
        if trace.is_some_and(|trace| trace.parent.is_none()) {
            // A received state is of a trace that this one does not continue (W3C Trace Context, 3.3).
            head.insert_header(TRACESTATE, BEGAN)?;
        }
        if let Some(parent) = self.context.begin_sending() {
            head.insert_header(TRACEPARENT, parent)?;
        }
        Ok(head)
    }

    /// Sends a response of our own, for an exchange with that outcome. Returns whether the client took it.
    async fn answer(
        &mut self,
        response: ErrorResponse,
        outcome: Outcome,
        client: &mut Exchange,
    ) -> bool {
        self.context.answer(response.status, outcome);
        let Ok((mut head, body)) = response.head_and_body() else {
            return false;
        };
        // The record's id may be cut. One that we made stands for an empty one that was sent.
        let made = self.id.as_deref().filter(|_| self.has_made_id);
        let sent = client.head().headers.get(&identity::ID);
        if let Some(id) = made.map(str::as_bytes).or(sent.map(HeaderValue::as_bytes)) {
            let _ = head.insert_header(REQUEST_ID, id);
        }
        let _ = head.insert_header(OUTCOME_HEADER, outcome.name());
        self.put_stamps(&mut head);
        self.response.has_begun = true;
        let limit = self.write_limit(client);
        client.answer(head, body, limit).await
    }

    /// How long the client may hold up the next write.
    fn write_limit(&self, client: &Exchange) -> Duration {
        // An upgraded connection may live for days: no sum counts there.
        let waited = match client.session.was_upgraded() {
            true => 0,
            false => self.context.timing.write_wait,
        };
        let stall_limit = self.limits.client_stall_timeout_s.get();
        stall_limit.saturating_sub(nanoseconds(waited))
    }

    /// Puts our stamps on the head of a response: a hop's for the front, a front's for the client that asked.
    fn put_stamps(&self, head: &mut ResponseHeader) {
        let stamps = || self.context.stamps().render();
        let (name, value) = match self.service.role {
            // Nobody reads the stamps of a router's own requests to a server.
            Role::Hop(_) if self.endpoint.is_none() => return,
            Role::Hop(_) => {
                let id = self.id.as_deref().unwrap_or_default();
                (HOP_HEADER, self.shared.hop_key.sign(id, &stamps()))
            }
            Role::Front if self.sends_stamps => (FRONT_HEADER, stamps()),
            Role::Front => return,
        };
        // Stamps that are not valid in a header are left out: they fail no request.
        let _ = head.insert_header(name, value);
    }
}

/// Whether a client asks for our stamps and may have them.
fn may_have_stamps(shared: &Shared, client: &Exchange) -> bool {
    let headers = &client.head().headers;
    let header = |name: &HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    if header(&heads::STAMPS) != Some(b"1") {
        return false;
    }
    let config = shared.config.load();
    let token = || config.stamps_token.as_ref().zip(header(&heads::TOKEN));
    match config.stamps {
        StampsPolicy::Loopback => client.peer.ip().to_canonical().is_loopback(),
        StampsPolicy::Token => token().is_some_and(|(token, given)| token.matches(given)),
        StampsPolicy::Never => false,
    }
}

/// Waits for a fault: for its time, or until it is removed.
async fn hold(fault: &mut Injected, client: &mut Exchange) -> Result<(), Failure> {
    let time = fault.fault.ms.map(|ms| Duration::from_millis(ms.0.get()));
    let removed = timeout(time.unwrap_or(Duration::MAX), fault.removed());
    unless_gone(client, removed).await.map(drop)
}

/// Waits for something as long as the client stays, which is looked at only where that is not there yet.
async fn unless_gone<T>(
    client: &mut Exchange,
    awaited: impl Future<Output = T>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        awaited = awaited => Ok(awaited),
        () = client.gone() => Err(Failure::ClientGone),
    }
}

/// Returns a time that has passed.
fn nanoseconds(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// Returns the endpoint of a generation request.
fn generation_endpoint(request: &RequestHeader) -> Option<Endpoint> {
    let endpoint = Endpoint::from_path(request.uri.path());
    // SGLang takes PUT on `/generate` for POST.
    endpoint.filter(|_| matches!(request.method, Method::POST | Method::PUT))
}
