//! The admin listener: the live page, `/healthz`, `/readyz`, `/metrics` and, where it is turned on, `/faults`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use crate::client::listener::{Phase, accept};
use crate::clock::NANOS;
use crate::fault::{Fault, Faults};
use crate::secret::Secret;
use crate::terminal::escaped_in_json;

use super::live;
use super::start::Listeners;

/// The time limit for a request's head, and for its body.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit of a connect to an upstream.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The most bytes of a request's body; a fault has less than a hundred.
const MAX_BODY: usize = 16_384;
/// The most open connections.
const MAX_CONNECTIONS: usize = 256;

/// Large responses are made one at a time.
static LARGE_RESPONSE: Semaphore = Semaphore::const_new(1);

type AdminResponse = Response<Full<Bytes>>;

/// Serves the admin listener until this process is replaced, or the future is dropped.
pub(super) async fn serve(listener: Arc<TcpListener>, listeners: Arc<Listeners>) {
    let mut tasks = JoinSet::new();
    let mut connections = VecDeque::new();
    let mut phase = listeners.shared.phase.subscribe();
    loop {
        let (stream, _) = tokio::select! {
            accepted = accept(&listener, &mut tasks, "admin: ") => accepted,
            _ = phase.wait_for(|phase| *phase == Phase::HandedOver) => break,
        };
        connections.retain(|task: &AbortHandle| !task.is_finished());
        // The oldest is closed, so that silent connections do not keep out health checks.
        if connections.len() >= MAX_CONNECTIONS {
            connections.pop_front().iter().for_each(AbortHandle::abort);
        }
        connections.push_back(tasks.spawn(serve_connection(stream, listeners.clone())));
    }
    // The successor accepts now. Open connections may send one more request each.
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn serve_connection(stream: TcpStream, listeners: Arc<Listeners>) {
    let service = service_fn(|request| async {
        let response = respond(request, &listeners).await;
        Ok::<_, Infallible>(match *listeners.shared.phase.borrow() {
            Phase::HandedOver => with_header(response, CONNECTION, "close"),
            _ => response,
        })
    });
    // An error means that the client disconnected.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond(request: Request<Incoming>, listeners: &Listeners) -> AdminResponse {
    let path = request.uri().path().to_owned();
    let shared = listeners.shared.clone();
    if let Some(refusal) = refusal(&path, request.headers(), listeners) {
        return refusal;
    }
    let worker = path
        .strip_prefix("/faults/")
        .filter(|name| !name.is_empty());
    if let Some((worker, faults)) = worker.zip(shared.faults.as_ref()) {
        return change_fault(request, worker, faults).await;
    }
    if worker.is_none() && !matches!(*request.method(), Method::GET | Method::HEAD) {
        return not_allowed("GET, HEAD");
    }
    let number = path.strip_prefix("/requests/");
    if let Some(number) = number.and_then(|name| name.strip_suffix(".json")) {
        let number: u64 = number.parse().unwrap_or(0);
        let of = shared.telemetry.clone();
        return large(move || match live::request(&of.recent, &of.waits, number) {
            Some(request) => json(&request),
            None => text(
                StatusCode::NOT_FOUND,
                "no such request among the last ones; /live.json has their numbers\n",
            ),
        })
        .await;
    }
    match path.as_str() {
        "/" => {
            let (page, policy) = live::page();
            let response = answer(StatusCode::OK, "text/html; charset=utf-8", page);
            with_header(response, CONTENT_SECURITY_POLICY, &policy)
        }
        "/live.json" => {
            let after = request.uri().query();
            let after = after.and_then(|query| query.strip_prefix("after=")?.parse().ok());
            large(move || json(&live::snapshot(&shared, after.unwrap_or(0)))).await
        }
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => ready(listeners).await,
        "/metrics" => large(move || text(StatusCode::OK, shared.metrics.text())).await,
        path if path == "/faults" || path.starts_with("/faults/") => match &shared.faults {
            Some(faults) => json(&faults.to_json()),
            None => text(
                StatusCode::FORBIDDEN,
                "faults are off; fault_injection = true in the config file, or --fault-injection, turns them on\n",
            ),
        },
        _ => text(
            StatusCode::NOT_FOUND,
            "there are / (the live page), /live.json, /requests/NUMBER.json, /healthz, /readyz, /metrics and /faults\n",
        ),
    }
}

/// Responds whether this process takes requests. Names no upstream, as it needs no token.
async fn ready(listeners: &Listeners) -> AdminResponse {
    let shared = &listeners.shared;
    if *shared.phase.borrow() != Phase::Serving {
        return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    if shared.config.load().ready_needs_upstream && !has_upstream(listeners).await {
        let problem = "no upstream can be connected to\n";
        return text(StatusCode::SERVICE_UNAVAILABLE, problem);
    }
    text(StatusCode::OK, "ready\n")
}

/// Whether an upstream can be connected to. The result is kept for a second, so that upstreams see at most one connect a second.
async fn has_upstream(listeners: &Listeners) -> bool {
    let clock = &listeners.shared.clock;
    // Other requests wait meanwhile, for the same result.
    let mut last = listeners.had_upstream.lock().await;
    if let Some((at, had)) = *last
        && clock.now().nanos_since(at) < NANOS
    {
        return had;
    }
    let upstreams = listeners.upstreams();
    let all = upstreams.iter().flat_map(|all| &all.all);
    let tries: FuturesUnordered<_> = all.map(|one| one.can_connect(CONNECT_TIMEOUT)).collect();
    let has = tries.any(|can_connect| async move { can_connect }).await;
    *last = Some((clock.now(), has));
    has
}

/// The response that refuses a request; `None` if it is allowed.
fn refusal(path: &str, headers: &HeaderMap, listeners: &Listeners) -> Option<AdminResponse> {
    match (path, &listeners.shared.admin_token) {
        ("/healthz" | "/readyz", _) => None,
        (_, Some(token)) => (!is_allowed(headers, token)).then(unauthorized),
        // Scrapers use any host name of a service. Metrics neither change nor show a request.
        ("/metrics", None) => None,
        (_, None) => {
            let is_ours = is_our_name(headers, &listeners.shared.config.load().admin_hosts);
            (!is_ours).then(misdirected)
        }
    }
}

/// Makes a large response on a blocking thread, one at a time: many clients must not take the cores from proxied requests, nor much
/// memory.
async fn large(make: impl FnOnce() -> AdminResponse + Send + 'static) -> AdminResponse {
    // Never fails, as the semaphore is never closed.
    let _permit = LARGE_RESPONSE.acquire().await;
    let made = tokio::task::spawn_blocking(make).await;
    made.unwrap_or_else(|error| text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// Sets or removes the fault of a worker.
async fn change_fault(request: Request<Incoming>, worker: &str, faults: &Faults) -> AdminResponse {
    let names = faults.names();
    if !names.iter().any(|name| name == worker) {
        let names = names.join(", ");
        let problem = format!("no worker is named \"{worker}\"; there are: {names}\n");
        return text(StatusCode::NOT_FOUND, problem);
    }
    match *request.method() {
        Method::PUT => {
            let body = Limited::new(request.into_body(), MAX_BODY).collect();
            let Ok(Ok(body)) = tokio::time::timeout(READ_TIMEOUT, body).await else {
                let problem = format!("body: must come whole, within {MAX_BODY} bytes\n");
                return text(StatusCode::BAD_REQUEST, problem);
            };
            match Fault::parse(&body.to_bytes()) {
                Ok(fault) => {
                    log::warn!("worker {worker}: fault {}", serde_json::json!(fault));
                    faults.set(worker, Some(fault));
                    json(&faults.to_json())
                }
                Err(problem) => text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
            }
        }
        Method::DELETE => {
            if faults.set(worker, None) {
                log::warn!("worker {worker}: fault removed");
            }
            json(&faults.to_json())
        }
        _ => not_allowed("PUT, DELETE"),
    }
}

fn unauthorized() -> AdminResponse {
    let problem = "needs `Authorization: Bearer TOKEN` with the proxy's admin_token; in a browser: any user, the token as \
                 the password\n";
    let response = text(StatusCode::UNAUTHORIZED, problem);
    let response = with_header(response, WWW_AUTHENTICATE, "Bearer");
    with_header(
        response,
        WWW_AUTHENTICATE,
        "Basic realm=\"queuescope\", charset=\"UTF-8\"",
    )
}

fn misdirected() -> AdminResponse {
    let problem = "without admin_token this is answered by localhost, an IP address or a name in admin_hosts only: add the \
                   name in the URL there, or set admin_token\n";
    text(StatusCode::MISDIRECTED_REQUEST, problem)
}

fn not_allowed(methods: &str) -> AdminResponse {
    let response = text(StatusCode::METHOD_NOT_ALLOWED, format!("only {methods}\n"));
    with_header(response, ALLOW, methods)
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> AdminResponse {
    answer(status, "text/plain; version=0.0.4; charset=utf-8", body)
}

fn json(value: &serde_json::Value) -> AdminResponse {
    // The page shows texts of clients and servers unchanged.
    let text = escaped_in_json(&value.to_string()).into_owned() + "\n";
    answer(StatusCode::OK, "application/json", text)
}

fn answer(status: StatusCode, kind: &str, body: impl Into<Bytes>) -> AdminResponse {
    let response = Response::builder()
        .status(status)
        .header(CONTENT_TYPE, kind)
        .header(CACHE_CONTROL, "no-store")
        .header(X_CONTENT_TYPE_OPTIONS, "nosniff")
        .header(REFERRER_POLICY, "no-referrer");
    // Never fails, as all of its headers are valid.
    response.body(Full::new(body.into())).unwrap_or_default()
}

/// Adds a header to a response.
fn with_header(mut response: AdminResponse, name: HeaderName, value: &str) -> AdminResponse {
    if let Ok(value) = HeaderValue::try_from(value) {
        response.headers_mut().append(name, value);
    }
    response
}

/// Whether a request has the token: as `Bearer`, or as the password of `Basic`, which browsers ask their user for.
fn is_allowed(headers: &HeaderMap, token: &Secret) -> bool {
    let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|given| std::str::from_utf8(given).ok());
    let Some((scheme, given)) = given.and_then(|given| given.split_once(' ')) else {
        return false;
    };
    if scheme.eq_ignore_ascii_case("bearer") {
        return token.matches(given.as_bytes());
    }
    let pair = BASE64_STANDARD.decode(given).unwrap_or_default();
    // Any user name is accepted.
    let password = pair.splitn(2, |byte| *byte == b':').nth(1);
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    is_basic && password.is_some_and(|password| token.matches(password))
}

/// Whether a request's host is localhost, an IP address, or one of `names`. By any other name a page of another site may send it, whose
/// name was pointed at our address (DNS rebinding).
fn is_our_name(headers: &HeaderMap, names: &[String]) -> bool {
    let given = headers.get(HOST).map(|host| host.as_bytes());
    let Some(given) = given.and_then(|host| Authority::try_from(host).ok()) else {
        return false;
    };
    let host = given.host();
    let host = host.strip_suffix('.').unwrap_or(host);
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let mut ours = names.iter().map(String::as_str).chain(["localhost"]);
    address.parse::<IpAddr>().is_ok() || ours.any(|name| name.eq_ignore_ascii_case(host))
}
