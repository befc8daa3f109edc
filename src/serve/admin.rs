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
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinError, JoinSet};

use crate::client::accept;
use crate::client::phase::Phase;
use crate::fault::Fault;
use crate::fault::registry::Faults;
use crate::proxy::shared::Shared;
use crate::upstream::Upstreams;

use super::live;
use super::readiness::Readiness;

/// How long a client may take for its request's head, and for its body.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a body; a fault is less than a hundred.
const BODY_LIMIT: usize = 16_384;
/// Connections at once.
const CONNECTIONS: usize = 256;

/// Large answers that are made at once.
static SERIAL: Semaphore = Semaphore::const_new(1);

type Answer = Response<Full<Bytes>>;

/// Gives the upstreams that `/readyz` asks.
pub type CurrentUpstreams = Box<dyn Fn() -> Vec<Arc<Upstreams>> + Send + Sync>;

struct Admin {
    shared: Arc<Shared>,
    readiness: Readiness,
    upstreams: CurrentUpstreams,
}

/// A connection's task, and whether it is answering a request.
type Connection = (AbortHandle, Arc<AtomicBool>);

/// Serves until dropped.
pub async fn serve(listener: Arc<TcpListener>, shared: Arc<Shared>, upstreams: CurrentUpstreams) {
    let mut tasks = JoinSet::new();
    let mut connections = VecDeque::new();
    let mut phase = shared.phase.subscribe();
    let admin = Arc::new(Admin {
        shared,
        readiness: Readiness::default(),
        upstreams,
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.wait_for(|phase| *phase == Phase::HandedOver) => break,
        };
        while tasks.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) if has_room(&mut connections) => {
                let is_busy = Arc::new(AtomicBool::new(false));
                let task = tasks.spawn(serve_connection(stream, admin.clone(), is_busy.clone()));
                connections.push_back((task, is_busy));
            }
            Ok(_) => {}
            Err(error) => accept::failed("admin: ", &error).await,
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

async fn serve_connection(stream: TcpStream, admin: Arc<Admin>, is_busy: Arc<AtomicBool>) {
    let service = service_fn(|request| async {
        is_busy.store(true, Ordering::Relaxed);
        let mut response = answer(request, &admin).await;
        is_busy.store(false, Ordering::Relaxed);
        // No answer is kept, nor taken for what it is not, nor shown in the page of somebody else.
        let all = [
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
        ];
        let closes = *admin.shared.phase.borrow() == Phase::HandedOver;
        for (name, value) in all
            .into_iter()
            .chain(closes.then_some((CONNECTION, "close")))
        {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        Ok::<_, Infallible>(response)
    });
    // A client may break off.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(request: Request<Incoming>, admin: &Admin) -> Answer {
    let path = request.uri().path().to_owned();
    let shared = &admin.shared;
    if let Some(refusal) = refusal(&path, request.headers(), shared) {
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
        let ended = number
            .parse()
            .ok()
            .and_then(|number| shared.telemetry.recent.find(number));
        return json_answer(move || ended.as_ref().map(live::request)).await;
    }
    match (path.as_str(), faults) {
        ("/", _) => page(),
        ("/live.json", _) => live_snapshot(&request, shared).await,
        ("/healthz", _) => text(StatusCode::OK, "ok\n"),
        ("/readyz", _) => ready(admin).await,
        ("/metrics", _) => {
            let metrics = shared.metrics.clone();
            match run_blocking_serially(move || metrics.text()).await {
                Ok(metrics) => text(StatusCode::OK, metrics),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            }
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
async fn ready(admin: &Admin) -> Answer {
    let shared = &admin.shared;
    if *shared.phase.borrow() != Phase::Serving {
        return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    let upstreams = (admin.upstreams)();
    if shared.settings.load().ready_needs_upstream
        && !admin.readiness.ask(&upstreams, &shared.clock).await
    {
        let problem = "no upstream can be connected to\n";
        return text(StatusCode::SERVICE_UNAVAILABLE, problem);
    }
    text(StatusCode::OK, "ready\n")
}

/// The answer to who may not have this.
fn refusal(path: &str, headers: &HeaderMap, shared: &Shared) -> Option<Answer> {
    match (path, &shared.admin_token) {
        ("/healthz" | "/readyz", _) => None,
        (_, Some(token)) => (!access::is_allowed(headers, token)).then(unauthorized),
        // Scrapers ask by any name of a service; what they get neither changes nor shows a request.
        ("/metrics", None) => None,
        (_, None) => {
            let is_ours = access::is_our_name(headers, &shared.settings.load().admin_hosts);
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
    json_answer(move || Some(live::snapshot(&shared, after))).await
}

/// Makes an answer beside the threads that move bytes, and one at a time: many who ask at once must not take the cores from
/// requests, nor as much memory as there are of them.
async fn run_blocking_serially<T: Send + 'static>(
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    // Nobody closes it.
    let _turn = SERIAL.acquire().await;
    tokio::task::spawn_blocking(make).await
}

async fn json_answer(make: impl FnOnce() -> Option<serde_json::Value> + Send + 'static) -> Answer {
    match run_blocking_serially(make).await {
        Ok(Some(value)) => json(&value),
        Ok(None) => {
            let problem = "no such request among the last ones; /live.json has their numbers\n";
            text(StatusCode::NOT_FOUND, problem)
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn page() -> Answer {
    let (page, policy) = live::page();
    let mut answer = with_type(StatusCode::OK, "text/html; charset=utf-8", page.into());
    if let Ok(policy) = HeaderValue::try_from(policy) {
        answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

/// Sets or removes the fault of one worker.
async fn fault(request: Request<Incoming>, worker: &str, faults: &Faults) -> Answer {
    let Some(found) = faults.find(worker) else {
        let names = faults.names().join(", ");
        let there = if names.is_empty() {
            "none".into()
        } else {
            names
        };
        let problem = format!("no worker is named \"{worker}\"; there are: {there}\n");
        return text(StatusCode::NOT_FOUND, problem);
    };
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
                    found.set(fault);
                    json(&faults.shown())
                }
                Err(problem) => text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
            }
        }
        Method::DELETE => {
            if found.clear() {
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
    let mut answer = text(StatusCode::UNAUTHORIZED, problem);
    for scheme in ["Bearer", "Basic realm=\"queuescope\", charset=\"UTF-8\""] {
        let scheme = HeaderValue::from_static(scheme);
        answer.headers_mut().append(WWW_AUTHENTICATE, scheme);
    }
    answer
}

fn misdirected() -> Answer {
    let problem = "without admin_token this is for who asks by localhost, an IP address or a name in admin_hosts: add the \
                   name in the URL there, or set admin_token\n";
    text(StatusCode::MISDIRECTED_REQUEST, problem)
}

fn not_allowed(methods: &'static str) -> Answer {
    let problem = format!("only {methods}\n");
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, problem);
    let methods = HeaderValue::from_static(methods);
    answer.headers_mut().insert(ALLOW, methods);
    answer
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    with_type(status, kind, body.into())
}

fn json(value: &serde_json::Value) -> Answer {
    let body = format!("{value}\n").into();
    with_type(StatusCode::OK, "application/json", body)
}

fn with_type(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
