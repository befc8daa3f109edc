//! The admin listener: the live page, `/healthz`, `/readyz`, `/metrics` and, where it is turned on, `/faults`.

mod access;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
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
use crate::fault::Fault;
use crate::fault::registry::Faults;
use crate::proxy::shared::Shared;

use super::live;
use super::start::Listeners;

/// How long a client may take for its request's head, and for its body.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a body; a fault is less than a hundred.
const BODY_LIMIT: usize = 16_384;
/// Connections at once.
const CONNECTIONS: usize = 256;

/// Large answers that are made at once.
static SERIAL: Semaphore = Semaphore::const_new(1);

type Answer = Response<Full<Bytes>>;

/// A connection's task, and whether it is answering a request.
type Connection = (AbortHandle, Arc<AtomicBool>);

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
            Ok((stream, _)) if has_room(&mut connections) => {
                let is_busy = Arc::new(AtomicBool::new(false));
                let task =
                    tasks.spawn(serve_connection(stream, listeners.clone(), is_busy.clone()));
                connections.push_back((task, is_busy));
            }
            Ok(_) => {}
            Err(error) => shortage::accept_failed("admin: ", &error).await,
        }
    }
    // Another process accepts now. Each open connection has one more request.
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

/// Whether there is room for one more of `connections`, the oldest first. The oldest that is not busy is closed for it:
/// silent connections must not keep out health checks.
fn has_room(connections: &mut VecDeque<Connection>) -> bool {
    connections.retain(|(task, _)| !task.is_finished());
    let silent = connections
        .iter()
        .position(|(_, is_busy)| !is_busy.load(Ordering::Relaxed));
    if connections.len() < CONNECTIONS {
        return true;
    }
    let closed = silent.and_then(|at| connections.remove(at));
    closed.inspect(|(task, _)| task.abort()).is_some()
}

async fn serve_connection(stream: TcpStream, listeners: Arc<Listeners>, is_busy: Arc<AtomicBool>) {
    let service = service_fn(|request| async {
        is_busy.store(true, Ordering::Relaxed);
        let response = answer(request, &listeners).await;
        is_busy.store(false, Ordering::Relaxed);
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
    let faults = shared.faults.as_ref();
    let worker = path
        .strip_prefix("/faults/")
        .filter(|worker| *worker != "log");
    let is_faults = worker.is_some() || matches!(&*path, "/faults" | "/faults/log");
    if let (Some(worker), Some(faults)) = (worker, faults) {
        return fault(request, worker, faults).await;
    }
    if worker.is_none() && !matches!(*request.method(), Method::GET | Method::HEAD) {
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
    match (path.as_str(), faults) {
        ("/", _) => page(),
        ("/live.json", _) => live_snapshot(&request, shared).await,
        ("/healthz", _) => text(StatusCode::OK, "ok\n"),
        ("/readyz", _) => ready(listeners).await,
        ("/metrics", _) => {
            let metrics = shared.metrics.clone();
            large(move || text(StatusCode::OK, metrics.text())).await
        }
        ("/faults", Some(faults)) => json(&faults.shown()),
        ("/faults/log", Some(faults)) => json(&faults.log()),
        (_, None) if is_faults => text(
            StatusCode::FORBIDDEN,
            "faults are off; fault_injection = true in the config file, or --fault-injection, turns them on\n",
        ),
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
    let upstreams = listeners.upstreams();
    if shared.config.load().ready_needs_upstream
        && !listeners.readiness.ask(&upstreams, &shared.clock).await
    {
        let problem = "no upstream can be connected to\n";
        return text(StatusCode::SERVICE_UNAVAILABLE, problem);
    }
    text(StatusCode::OK, "ready\n")
}

/// The answer to who may not have this.
fn refusal(path: &str, headers: &HeaderMap, listeners: &Listeners) -> Option<Answer> {
    match (path, &listeners.shared.admin_token) {
        ("/healthz" | "/readyz", _) => None,
        (_, Some(token)) => (!access::is_allowed(headers, token)).then(unauthorized),
        // Scrapers ask by any name of a service; what they get neither changes nor shows a request.
        ("/metrics", None) => None,
        (_, None) => {
            let is_ours = access::is_our_name(headers, &listeners.shared.config.load().admin_hosts);
            (!is_ours).then(misdirected)
        }
    }
}

/// What is new for the live page.
async fn live_snapshot(request: &Request<Incoming>, shared: &Arc<Shared>) -> Answer {
    let query = request.uri().query().unwrap_or_default();
    let after = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("after="));
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

/// Sets or removes the fault of one worker.
async fn fault(request: Request<Incoming>, worker: &str, faults: &Faults) -> Answer {
    let names = faults.names();
    if !names.iter().any(|name| name == worker) {
        let there = Some(names.join(", ")).filter(|names| !names.is_empty());
        let there = there.unwrap_or("none".into());
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
                    log::warn!("worker {worker}: fault {fault:?}");
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
