//! From path and method to reply.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, SERVER, VARY};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Frame, Incoming};
use serde::Deserialize;
use serde_json::Value;

use crate::request::endpoint::Endpoint;

use super::call::{Call, RefusalKind};
use super::failures::{Failures, Fate};
use super::info;
use super::outside::Of;
use super::reply::{EngineStopped, Reply, never};
use super::served::Named;
use super::shared::Shared;
use super::wire::{DONE, QUEUE_FULL, Receipt, error_body};

/// The longest request body taken.
const MAX_BODY: usize = 256 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

type Body = UnsyncBoxBody<Bytes, EngineStopped>;

/// A stream whose events are known.
struct KnownEvents(VecDeque<Bytes>);

impl hyper::body::Body for KnownEvents {
    type Data = Bytes;
    type Error = EngineStopped;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EngineStopped>>> {
        Poll::Ready(self.0.pop_front().map(|event| Ok(Frame::data(event))))
    }
}

/// Answers one request. An error is the server's end: hyper closes the connection on it.
pub(super) async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, EngineStopped> {
    let path = request.uri().path();
    if let Some(endpoint) = Endpoint::from_path(path).filter(|endpoint| served(*endpoint)) {
        if ![Method::POST, Method::PUT].contains(request.method()) {
            return Ok(wrong_method("POST, PUT"));
        }
        return generation(shared, endpoint, request).await;
    }
    if path == "/abort_request" {
        if request.method() != Method::POST {
            return Ok(wrong_method("POST"));
        }
        return Ok(abort(&shared, request).await);
    }
    if path == "/set_trace_level" {
        return Ok(set_trace_level(&shared, request.uri().query()));
    }
    if path == "/sim/failures" {
        return Ok(failures(&shared, request).await);
    }
    if path == "/flush_cache" {
        if ![Method::GET, Method::POST].contains(request.method()) {
            return Ok(wrong_method("GET, POST"));
        }
        return Ok(flush(&shared).await);
    }
    let Some(body) = told(&shared, path).await else {
        return Ok(detail(StatusCode::NOT_FOUND, "Not Found"));
    };
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return Ok(wrong_method("GET"));
    }
    Ok(body)
}

fn served(endpoint: Endpoint) -> bool {
    matches!(
        endpoint,
        Endpoint::Generate | Endpoint::Completions | Endpoint::Chat
    )
}

/// What the server tells of itself at `path`.
async fn told(shared: &Shared, path: &str) -> Option<Response<Body>> {
    let config = &shared.config;
    let now = shared.clock.now();
    let value = match path {
        "/health" | "/health_generate" => return Some(plain(StatusCode::OK, None, Bytes::new())),
        "/model_info" | "/get_model_info" => info::model_info(config),
        "/server_info" | "/get_server_info" => info::server_info(config, shared.addr.port()),
        "/v1/models" => info::models(config, now),
        "/v1/loads" => info::loads(config, now, &shared.driver.load().await),
        "/metrics" if config.metrics => {
            let text = shared.metrics.text(&shared.driver.load().await);
            return Some(plain(StatusCode::OK, Some(METRICS), text.into()));
        }
        _ => return None,
    };
    Some(json(StatusCode::OK, value.to_string()))
}

async fn generation(
    shared: Arc<Shared>,
    endpoint: Endpoint,
    request: Request<Incoming>,
) -> Result<Response<Body>, EngineStopped> {
    let named = Named {
        x_request_id: text_of(request.headers(), "x-request-id"),
        traceparent: text_of(request.headers(), "traceparent"),
        tracestate: text_of(request.headers(), "tracestate"),
    };
    let body = match Limited::new(request.into_body(), MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            let message = format!("The request body cannot be read: {error}");
            let body = error_body(&message, "Bad Request", 400);
            return Ok(json(StatusCode::BAD_REQUEST, body));
        }
    };
    let fate = shared.fates.next();
    if fate == Fate::Unavailable {
        let body = error_body("The server was told to fail.", "503", 503);
        return Ok(json(StatusCode::SERVICE_UNAVAILABLE, body));
    }
    let received = shared.clock.now();
    let generate = endpoint == Endpoint::Generate;
    let parsed = Call::parse(endpoint, &body, &shared.defaults);
    if let Err(refusal) = &parsed {
        let receipt = Receipt::bare(received);
        let of = Of {
            wire: &shared.wire,
            named: &named,
            receipt: &receipt,
        };
        // What is no request at all never gets to the tokenizer.
        if refusal.kind == RefusalKind::Unfit {
            shared.outside.refused(&of, shared.clock.now());
        }
    }
    let call = match parsed {
        Ok(call) => call,
        Err(refusal) if refusal.stream && generate => {
            let said = [refusal.event().into(), Bytes::from_static(DONE.as_bytes())];
            return Ok(events(KnownEvents(said.into())));
        }
        Err(refusal) => return Ok(json(StatusCode::BAD_REQUEST, refusal.body(generate))),
    };
    let stream = call.stream;
    let reply = Reply::begin(shared, call, &body, named, received, fate);
    if stream && generate {
        return Ok(events(reply.stream()));
    }
    if stream {
        return Ok(events(reply.stream().opened().await?));
    }
    Ok(match reply.whole().await? {
        Some(body) => plain(StatusCode::OK, Some(JSON), body),
        None => json(
            StatusCode::SERVICE_UNAVAILABLE,
            error_body(QUEUE_FULL, "503", 503),
        ),
    })
}

/// `?level=N`, as the real server has it: what is told of requests from now on.
fn set_trace_level(shared: &Shared, query: Option<&str>) -> Response<Body> {
    let level = query.and_then(|query| query.strip_prefix("level="));
    match level.and_then(|level| level.parse::<u8>().ok()) {
        Some(level) if level <= 3 => {
            shared.outside.set_trace_level(level);
            plain(StatusCode::OK, None, Bytes::new())
        }
        _ => detail(
            StatusCode::UNPROCESSABLE_ENTITY,
            "level must be 0, 1, 2 or 3",
        ),
    }
}

/// The shares of `--fail-*`, told by GET and set by POST; the simulator's own path.
async fn failures(shared: &Shared, request: Request<Incoming>) -> Response<Body> {
    if request.method() == Method::POST {
        let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes);
        let parsed = body.map(|bytes| serde_json::from_slice::<Failures>(&bytes));
        let checked = match parsed {
            Ok(Ok(wanted)) => wanted.validate().map(|()| wanted),
            Ok(Err(error)) => return detail(StatusCode::BAD_REQUEST, &error.to_string()),
            Err(error) => return detail(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        match checked {
            Ok(wanted) => shared.fates.set(wanted),
            Err(error) => return detail(StatusCode::BAD_REQUEST, &error.to_string()),
        }
    }
    let said = serde_json::to_string(&shared.fates.failures());
    json(StatusCode::OK, said.unwrap_or_default())
}

/// `{"rid": PREFIX}` or `{"abort_all": true}`; like the real server, no rid at all matches every one.
#[derive(Deserialize)]
struct AbortBody {
    #[serde(default)]
    rid: Option<String>,
    #[serde(default)]
    abort_all: bool,
}

async fn abort(shared: &Shared, request: Request<Incoming>) -> Response<Body> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes);
    let parsed = body.map(|bytes| serde_json::from_slice::<AbortBody>(&bytes));
    let Ok(Ok(wanted)) = parsed else {
        let message = "The body must be JSON: {\"rid\": \"PREFIX\"} or {\"abort_all\": true}";
        let body = error_body(message, "Bad Request", 400);
        return json(StatusCode::BAD_REQUEST, body);
    };
    let prefix = wanted.rid.filter(|_| !wanted.abort_all);
    shared.driver.abort_prefix(prefix.unwrap_or_default());
    plain(StatusCode::OK, None, Bytes::new())
}

async fn flush(shared: &Shared) -> Response<Body> {
    let status = match shared.driver.flush().await {
        true => StatusCode::OK,
        false => StatusCode::BAD_REQUEST,
    };
    let told = "Cache flushed.\nPlease check backend logs for more details. (When there are running or \
                waiting requests, the operation will not be performed.)\n";
    plain(status, None, Bytes::from_static(told.as_bytes()))
}

fn text_of(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

fn wrong_method(allowed: &'static str) -> Response<Body> {
    let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    let allowed = HeaderValue::from_static(allowed);
    response.headers_mut().insert(ALLOW, allowed);
    response
}

fn detail(status: StatusCode, text: &str) -> Response<Body> {
    json(
        status,
        serde_json::json!({ "detail": Value::from(text) }).to_string(),
    )
}

fn json(status: StatusCode, body: String) -> Response<Body> {
    plain(status, Some(JSON), body.into())
}

fn plain(status: StatusCode, kind: Option<HeaderValue>, body: Bytes) -> Response<Body> {
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(Full::new(body).map_err(never).boxed_unsync());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    headers.insert(CONTENT_LENGTH, length);
    if let Some(kind) = kind {
        headers.insert(CONTENT_TYPE, kind);
    }
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    response
}

fn events(
    body: impl hyper::body::Body<Data = Bytes, Error = EngineStopped> + Send + 'static,
) -> Response<Body> {
    let mut response = Response::new(body.boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    headers.insert(CONTENT_TYPE, EVENTS);
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    response
}
