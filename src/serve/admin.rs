//! The admin listener: `/healthz`, `/readyz`, `/metrics` and, where it is turned on, `/faults`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONNECTION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::edge::phase::Phase;
use crate::edge::shortage;
use crate::fault::Fault;
use crate::fault::registry::Faults;
use crate::proxy::shared::Shared;
use crate::upstream::Upstreams;

use super::readiness::Readiness;

/// How long a client may take for its request's head, and for its body.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a body; a fault is less than a hundred.
const BODY_LIMIT: usize = 16_384;
/// Connections at once.
const CONNECTIONS: usize = 256;

type Answer = Response<Full<Bytes>>;

/// Tells the upstreams as they are now.
pub type Present = Box<dyn Fn() -> Vec<Arc<Upstreams>> + Send + Sync>;

/// What answers are made from.
struct Desk {
    shared: Arc<Shared>,
    readiness: Readiness,
    upstreams: Present,
}

/// Connections, the oldest first.
#[derive(Debug, Default)]
struct Visitors(VecDeque<Visitor>);

#[derive(Debug)]
struct Visitor {
    task: AbortHandle,
    /// It has asked something that is not answered yet.
    is_asking: Arc<AtomicBool>,
}

/// Serves until dropped.
pub async fn serve(listener: Arc<TcpListener>, shared: Arc<Shared>, upstreams: Present) {
    let mut connections = JoinSet::new();
    let mut visitors = Visitors::default();
    let mut phase = shared.phase.subscribe();
    let desk = Arc::new(Desk {
        shared,
        readiness: Readiness::default(),
        upstreams,
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.wait_for(|phase| *phase == Phase::HandedOver) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                let helps = shortage::remedy(&error);
                log::warn!("admin: cannot accept a connection: {error}{helps}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if !visitors.make_room() {
            continue;
        }
        let is_asking = Arc::new(AtomicBool::new(false));
        let task = connections.spawn(visit(stream, desk.clone(), is_asking.clone()));
        visitors.0.push_back(Visitor { task, is_asking });
    }
    // Another process accepts now. Those who are connected here may ask once more.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn visit(stream: TcpStream, desk: Arc<Desk>, is_asking: Arc<AtomicBool>) {
    let service = service_fn(|request| async {
        is_asking.store(true, Ordering::Relaxed);
        let mut response = answer(request, &desk).await;
        is_asking.store(false, Ordering::Relaxed);
        if *desk.shared.phase.borrow() == Phase::HandedOver {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        Ok::<_, Infallible>(response)
    });
    // A client that breaks off is its own affair.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl Visitors {
    /// Whether there is room for one more. Where there is none, the one that has asked nothing for longest goes: those
    /// who are silent must not keep out those who ask.
    fn make_room(&mut self) -> bool {
        self.0.retain(|visitor| !visitor.task.is_finished());
        if self.0.len() < CONNECTIONS {
            return true;
        }
        let is_silent = |visitor: &Visitor| !visitor.is_asking.load(Ordering::Relaxed);
        let silent = self.0.iter().position(is_silent);
        let gone = silent.and_then(|at| self.0.remove(at));
        gone.inspect(|visitor| visitor.task.abort()).is_some()
    }
}

async fn answer(request: Request<Incoming>, desk: &Desk) -> Answer {
    let path = request.uri().path().to_owned();
    let shared = &*desk.shared;
    match path.as_str() {
        "/healthz" => get(&request).unwrap_or_else(|| text(StatusCode::OK, "ok\n")),
        "/readyz" => match get(&request) {
            Some(refused) => refused,
            None => ready(desk).await,
        },
        _ if !is_allowed(&request, shared) => unauthorized(),
        "/metrics" => get(&request).unwrap_or_else(|| match shared.metrics.text() {
            Ok(metrics) => text(StatusCode::OK, metrics),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }),
        "/faults" => match &shared.faults {
            Some(faults) => get(&request).unwrap_or_else(|| json(&faults.shown())),
            None => faults_are_off(),
        },
        _ => match (path.strip_prefix("/faults/"), &shared.faults) {
            (Some("log"), Some(faults)) if get(&request).is_none() => json(&faults.log()),
            (Some(worker), Some(faults)) => fault(request, worker, faults).await,
            (Some(_), None) => faults_are_off(),
            (None, _) => text(
                StatusCode::NOT_FOUND,
                "there are /healthz, /readyz, /metrics and /faults\n",
            ),
        },
    }
}

/// An answer to any other method than GET.
fn get(request: &Request<Incoming>) -> Option<Answer> {
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    (!is_get).then(|| not_allowed("GET, HEAD"))
}

/// Whether requests may be sent here. Which upstreams there are is for those who have the token.
async fn ready(desk: &Desk) -> Answer {
    let shared = &desk.shared;
    if *shared.phase.borrow() != Phase::Serving {
        return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    let upstreams = (desk.upstreams)();
    if shared.settings.load().ready_needs_upstream
        && !desk.readiness.ask(&upstreams, &shared.clock).await
    {
        let wrong = "no upstream can be connected to\n";
        return text(StatusCode::SERVICE_UNAVAILABLE, wrong);
    }
    text(StatusCode::OK, "ready\n")
}

fn is_allowed(request: &Request<Incoming>, shared: &Shared) -> bool {
    let Some(token) = &shared.admin_token else {
        return true;
    };
    let given = request.headers().get(AUTHORIZATION);
    let given = given.and_then(|value| value.as_bytes().split_at_checked(7));
    given.is_some_and(|(scheme, given)| scheme.eq_ignore_ascii_case(b"bearer ") && token.is(given))
}

/// Sets or takes away the fault of one worker.
async fn fault(request: Request<Incoming>, worker: &str, faults: &Faults) -> Answer {
    let Some(found) = faults.find(worker) else {
        let names = faults.names().join(", ");
        let there = if names.is_empty() {
            "none".into()
        } else {
            names
        };
        let wrong = format!("no worker is named \"{worker}\"; there are: {there}\n");
        return text(StatusCode::NOT_FOUND, wrong);
    };
    match *request.method() {
        Method::PUT => {
            let body = Limited::new(request.into_body(), BODY_LIMIT).collect();
            let Ok(Ok(body)) = tokio::time::timeout(READ_LIMIT, body).await else {
                let wrong = format!("body: must come whole, within {BODY_LIMIT} bytes\n");
                return text(StatusCode::BAD_REQUEST, wrong);
            };
            match Fault::parse(&body.to_bytes()) {
                Ok(fault) => {
                    log::warn!("worker {worker}: fault {fault:?}");
                    found.set(fault);
                    json(&faults.shown())
                }
                Err(wrong) => text(StatusCode::BAD_REQUEST, format!("{wrong}\n")),
            }
        }
        Method::DELETE => {
            if found.clear() {
                log::warn!("worker {worker}: fault taken away");
            }
            json(&faults.shown())
        }
        _ => not_allowed("PUT, DELETE"),
    }
}

fn faults_are_off() -> Answer {
    let wrong = "faults are off; fault_injection = true in the config file, or --fault-injection, turns \
                 them on\n";
    text(StatusCode::FORBIDDEN, wrong)
}

fn unauthorized() -> Answer {
    let wrong = "needs `Authorization: Bearer TOKEN` with the proxy's admin_token\n";
    let mut answer = text(StatusCode::UNAUTHORIZED, wrong);
    let scheme = HeaderValue::from_static("Bearer");
    answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    answer
}

fn not_allowed(methods: &'static str) -> Answer {
    let wrong = format!("only {methods}\n");
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, wrong);
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
