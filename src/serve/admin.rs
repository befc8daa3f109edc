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

use crate::client::phase::Phase;
use crate::client::shortage;
use crate::clock::NANOS;
use crate::fault::Fault;
use crate::fault::registry::Faults;
use crate::proxy::shared::Shared;
use crate::secret::Secret;

use super::live;
use super::start::Listeners;

/// How long a client may take for its request's head, and for its body.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// How long a connect to an upstream may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of a body; a fault is less than a hundred.
const BODY_LIMIT: usize = 16_384;
/// Connections at once.
const CONNECTIONS: usize = 256;

/// Large answers that are made at once.
static SERIAL: Semaphore = Semaphore::const_new(1);

type Answer = Response<Full<Bytes>>;

/// Serves until dropped.
pub(super) async fn serve(listener: Arc<TcpListener>, listeners: Listeners) {
    let mut tasks = JoinSet::new();
    let mut connections = VecDeque::new();
    let mut phase = listeners.shared.phase.subscribe();
    let listeners = Arc::new(listeners);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.wait_for(|phase| *phase == Phase::HandedOver) => break,
        };
        while tasks.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) => {
                connections.retain(|task: &AbortHandle| !task.is_finished());
                // The oldest goes: silent connections must not keep out health checks.
                if connections.len() >= CONNECTIONS {
                    connections.pop_front().iter().for_each(AbortHandle::abort);
                }
                connections.push_back(tasks.spawn(serve_connection(stream, listeners.clone())));
            }
            Err(error) => shortage::accept_failed("admin: ", &error).await,
        }
    }
    // Another process accepts now. Each open connection has one more request.
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn serve_connection(stream: TcpStream, listeners: Arc<Listeners>) {
    let service = service_fn(|request| async {
        let response = answer(request, &listeners).await;
        // No answer is kept, nor taken for what it is not, nor shown in the page of somebody else.
        let all = [
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
        ];
        let closes = *listeners.shared.phase.borrow() == Phase::HandedOver;
        let all = all
            .into_iter()
            .chain(closes.then_some((CONNECTION, "close")));
        Ok::<_, Infallible>(all.fold(response, |response, (name, value)| {
            with(response, name, value)
        }))
    });
    // A client may break off.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(request: Request<Incoming>, listeners: &Listeners) -> Answer {
    let path = request.uri().path().to_owned();
    let shared = &listeners.shared;
    if let Some(refusal) = refusal(&path, request.headers(), listeners) {
        return refusal;
    }
    let faults = path.strip_prefix("/faults");
    if let Some(what) = faults.filter(|what| what.is_empty() || what.starts_with('/')) {
        return match &shared.faults {
            Some(faults) => self::faults(request, what.trim_start_matches('/'), faults).await,
            None => text(
                StatusCode::FORBIDDEN,
                "faults are off; fault_injection = true in the config file, or --fault-injection, turns them on\n",
            ),
        };
    }
    if !is_read(&request) {
        return not_allowed("GET, HEAD");
    }
    let number = path.strip_prefix("/requests/");
    if let Some(number) = number.and_then(|name| name.strip_suffix(".json")) {
        let number = number.parse().ok();
        let recent = &shared.telemetry.recent;
        let ended = number.and_then(|number| recent.find(number));
        let lately = recent.view(0, shared.clock.now()).requests;
        return large(move || match ended {
            Some(ended) => json(&live::request(&ended, &lately)),
            None => text(
                StatusCode::NOT_FOUND,
                "no such request among the last ones; /live.json has their numbers\n",
            ),
        })
        .await;
    }
    match path.as_str() {
        "/" => page(),
        "/live.json" => live_snapshot(&request, shared).await,
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => ready(listeners).await,
        "/metrics" => {
            let metrics = shared.metrics.clone();
            large(move || text(StatusCode::OK, metrics.text())).await
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "there are / (the live page), /live.json, /requests/NUMBER.json, /healthz, /readyz, /metrics and /faults\n",
        ),
    }
}

/// Whether this process takes requests. Does not name upstreams, as it needs no token.
async fn ready(listeners: &Listeners) -> Answer {
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

/// Whether an upstream can be connected to, now or a second ago: however often it is asked for, they see one connect a second.
async fn has_upstream(listeners: &Listeners) -> bool {
    let clock = &listeners.shared.clock;
    // Other requests meanwhile wait for the same answer.
    let mut last = listeners.had_upstream.lock().await;
    if let Some((at, had)) = *last
        && clock.now().nanos_since(at) < NANOS
    {
        return had;
    }
    let upstreams = listeners.upstreams();
    let all = upstreams.iter().flat_map(|all| all.all());
    let asked: FuturesUnordered<_> = all.map(|one| one.can_connect(CONNECT_LIMIT)).collect();
    let has = asked.any(|can_connect| async move { can_connect }).await;
    *last = Some((clock.now(), has));
    has
}

/// The answer to who may not have this.
fn refusal(path: &str, headers: &HeaderMap, listeners: &Listeners) -> Option<Answer> {
    match (path, &listeners.shared.admin_token) {
        ("/healthz" | "/readyz", _) => None,
        (_, Some(token)) => (!is_allowed(headers, token)).then(unauthorized),
        // Scrapers ask by any name of a service; what they get neither changes nor shows a request.
        ("/metrics", None) => None,
        (_, None) => {
            let is_ours = is_our_name(headers, &listeners.shared.config.load().admin_hosts);
            (!is_ours).then(misdirected)
        }
    }
}

/// What is new for the live page.
async fn live_snapshot(request: &Request<Incoming>, shared: &Arc<Shared>) -> Answer {
    let query = request.uri().query();
    let after = query.and_then(|query| query.strip_prefix("after="));
    let Ok(after) = after.unwrap_or("0").parse() else {
        return text(
            StatusCode::BAD_REQUEST,
            "after: must be a request's number\n",
        );
    };
    let shared = shared.clone();
    large(move || json(&live::snapshot(&shared, after))).await
}

/// Makes an answer beside the threads that move bytes, and one at a time: many who ask at once must not take the cores from
/// requests, nor as much memory as there are of them.
async fn large(make: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    // Nobody closes it.
    let _turn = SERIAL.acquire().await;
    let made = tokio::task::spawn_blocking(make).await;
    made.unwrap_or_else(|error| text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn page() -> Answer {
    let (page, policy) = live::page();
    let answer = Answer::new(page.into());
    let answer = with(answer, CONTENT_TYPE, "text/html; charset=utf-8");
    with(answer, CONTENT_SECURITY_POLICY, &policy)
}

fn is_read(request: &Request<Incoming>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

/// Shows the faults or their log, or sets or removes the fault of one worker.
async fn faults(request: Request<Incoming>, worker: &str, faults: &Faults) -> Answer {
    match worker {
        "" | "log" if !is_read(&request) => return not_allowed("GET, HEAD"),
        "" => return json(&faults.shown()),
        "log" => return json(&faults.log()),
        _ => {}
    }
    let names = faults.names();
    if !names.iter().any(|name| name == worker) {
        let there = names.join(", ");
        let problem = format!("no worker is named \"{worker}\"; there are: {there}\n");
        return text(StatusCode::NOT_FOUND, problem);
    }
    match *request.method() {
        Method::PUT => {
            let body = Limited::new(request.into_body(), BODY_LIMIT).collect();
            let Ok(Ok(body)) = tokio::time::timeout(READ_LIMIT, body).await else {
                let problem = format!("body: must come whole, within {BODY_LIMIT} bytes\n");
                return text(StatusCode::BAD_REQUEST, problem);
            };
            match Fault::parse(&body.to_bytes()) {
                Ok(fault) => {
                    let lasts = match fault.holds_on() {
                        true => "; it holds requests until it is removed or their clients leave",
                        false => "",
                    };
                    log::warn!("worker {worker}: fault {fault:?}{lasts}");
                    faults.set(worker, Some(fault));
                    json(&faults.shown())
                }
                Err(problem) => text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
            }
        }
        Method::DELETE => {
            if faults.set(worker, None) {
                log::warn!("worker {worker}: fault removed");
            }
            json(&faults.shown())
        }
        _ => not_allowed("PUT, DELETE"),
    }
}

fn unauthorized() -> Answer {
    let problem = "needs `Authorization: Bearer TOKEN` with the proxy's admin_token; in a browser: any user, the token as \
                 the password\n";
    let answer = text(StatusCode::UNAUTHORIZED, problem);
    let answer = with(answer, WWW_AUTHENTICATE, "Bearer");
    let basic = "Basic realm=\"queuescope\", charset=\"UTF-8\"";
    with(answer, WWW_AUTHENTICATE, basic)
}

fn misdirected() -> Answer {
    let problem = "without admin_token this is answered by localhost, an IP address or a name in admin_hosts only: add the \
                   name in the URL there, or set admin_token\n";
    text(StatusCode::MISDIRECTED_REQUEST, problem)
}

fn not_allowed(methods: &str) -> Answer {
    let problem = format!("only {methods}\n");
    with(
        text(StatusCode::METHOD_NOT_ALLOWED, problem),
        ALLOW,
        methods,
    )
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Answer::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    with(answer, CONTENT_TYPE, kind)
}

fn json(value: &serde_json::Value) -> Answer {
    let answer = Answer::new(format!("{value}\n").into());
    with(answer, CONTENT_TYPE, "application/json")
}

/// An answer with one more header.
fn with(mut answer: Answer, name: HeaderName, value: &str) -> Answer {
    if let Ok(value) = HeaderValue::try_from(value) {
        answer.headers_mut().append(name, value);
    }
    answer
}

/// Whether a request with these headers knows the token: sent by a program (`Bearer`), or by a browser that asked its user for a
/// password (`Basic`).
fn is_allowed(headers: &HeaderMap, token: &Secret) -> bool {
    let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|given| std::str::from_utf8(given).ok());
    let Some((scheme, given)) = given.and_then(|given| given.split_once(' ')) else {
        return false;
    };
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => token.is(given.as_bytes()),
        "basic" => {
            let pair = BASE64_STANDARD.decode(given).unwrap_or_default();
            let pair = String::from_utf8(pair).unwrap_or_default();
            // The user's name says nothing.
            let password = pair.split_once(':').map(|(_, password)| password);
            password.is_some_and(|password| token.is(password.as_bytes()))
        }
        _ => false,
    }
}

/// Whether a request was sent to a name that nobody else can give us: localhost, an address, or one of `names`. Else a page of
/// somebody else's in a browser may ask, whose name was turned to our address (DNS rebinding).
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
