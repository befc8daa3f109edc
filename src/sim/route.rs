//! From path and method to reply.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, SERVER, VARY};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde::Deserialize;
use serde_json::json;

use crate::request::endpoint::Endpoint;

use super::call::{Call, RefusalKind};
use super::disaggregation::Mode;
use super::driver::Command;
use super::failures::Fate;
use super::reply::{EngineStopped, Reply};
use super::sequence::QUEUE_FULL;
use super::shared::Shared;
use super::wire::{DONE, error_body};
use super::{handover, info, spans};

/// The longest request body taken.
const MAX_BODY: usize = 256 << 20;
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

type Body = UnsyncBoxBody<Bytes, EngineStopped>;

/// Answers one request. An error is the server's end: hyper closes the connection on it.
pub(super) async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, EngineStopped> {
    let path = request.uri().path();
    let served = [Endpoint::Generate, Endpoint::Completions, Endpoint::Chat];
    let endpoint = Endpoint::from_path(path).filter(|endpoint| served.contains(endpoint));
    let Some(allowed) = methods(path, endpoint, &shared) else {
        return Ok(detail(StatusCode::NOT_FOUND, "Not Found"));
    };
    let method = request.method().as_str();
    // HEAD goes where GET does, without being named.
    let is_head = (allowed, method) == ("GET", "HEAD");
    if !is_head && allowed.split(", ").all(|one| one != method) {
        let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        let allowed = HeaderValue::from_static(allowed);
        response.headers_mut().insert(ALLOW, allowed);
        return Ok(response);
    }
    if let Some(endpoint) = endpoint {
        return generation(shared, endpoint, request).await;
    }
    let (config, now) = (&shared.config, shared.clock.now());
    let value = match path {
        "/abort_request" => return Ok(abort(&shared, request).await),
        "/flush_cache" => return Ok(flush(&shared).await),
        "/metrics" => {
            let text = shared
                .metrics
                .text(&shared.driver.load().await, &shared.rooms);
            return Ok(respond(StatusCode::OK, METRICS, text));
        }
        "/model_info" | "/get_model_info" => info::model_info(config),
        "/server_info" | "/get_server_info" => {
            let bootstrap = shared.bootstrap_addr.map(|addr| addr.port());
            info::server_info(config, shared.addr.port(), bootstrap)
        }
        "/v1/models" => info::models(config, now),
        "/v1/loads" => info::loads(config, now, &shared.driver.load().await),
        // Its health.
        _ => return Ok(respond(StatusCode::OK, "", "")),
    };
    Ok(respond(StatusCode::OK, JSON, value.to_string()))
}

/// The methods that a path takes; `None` where there is nothing.
fn methods(path: &str, endpoint: Option<Endpoint>, shared: &Shared) -> Option<&'static str> {
    Some(match path {
        _ if endpoint.is_some() => "POST, PUT",
        "/abort_request" => "POST",
        "/flush_cache" => "GET, POST",
        "/metrics" if !shared.config.metrics => return None,
        "/health" | "/health_generate" | "/model_info" | "/get_model_info" | "/server_info"
        | "/get_server_info" | "/v1/models" | "/v1/loads" | "/metrics" => "GET",
        _ => return None,
    })
}

async fn generation(
    shared: Arc<Shared>,
    endpoint: Endpoint,
    request: Request<Incoming>,
) -> Result<Response<Body>, EngineStopped> {
    let (head, body) = request.into_parts();
    let headers = head.headers;
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            let message = format!("The request body cannot be read: {error}");
            let body = error_body(&message, "Bad Request", 400);
            return Ok(respond(StatusCode::BAD_REQUEST, JSON, body));
        }
    };
    let unavailable = |message: &str| {
        let body = error_body(message, "503", 503);
        respond(StatusCode::SERVICE_UNAVAILABLE, JSON, body)
    };
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    let fate = shared.config.failures.fate(number);
    if fate == Fate::Unavailable {
        return Ok(unavailable("The server was told to fail."));
    }
    let received = shared.clock.now();
    let is_generate = endpoint == Endpoint::Generate;
    let parsed = Call::parse(endpoint, &body, &shared.config).and_then(|mut call| {
        if shared.mode() != Mode::Null {
            handover::read(&mut call, &body)?;
        }
        Ok(call)
    });
    let call = match parsed {
        Ok(call) => call,
        Err(refusal) => {
            // What is no request at all never gets to the tokenizer.
            if refusal.kind == RefusalKind::Unfit {
                spans::send_refused(&shared, &headers, received);
            }
            if refusal.stream && is_generate {
                let said = [refusal.event().into(), Bytes::from_static(DONE.as_bytes())];
                let said = said.map(|event| Ok(Frame::data(event)));
                let said = StreamBody::new(futures_util::stream::iter(said));
                return Ok(with(said.boxed_unsync(), EVENTS));
            }
            let body = refusal.body(is_generate);
            return Ok(respond(StatusCode::BAD_REQUEST, JSON, body));
        }
    };
    let stream = call.stream;
    let reply = Reply::begin(shared, call, headers, received, fate);
    if stream {
        let events = match is_generate {
            true => reply.events(),
            false => reply.events().opened().await?,
        };
        return Ok(with(
            StreamBody::new(events.frames()).boxed_unsync(),
            EVENTS,
        ));
    }
    Ok(match reply.whole().await? {
        Some(body) => respond(StatusCode::OK, JSON, body),
        None => unavailable(QUEUE_FULL),
    })
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
    let wanted = body.ok().map(|body| body.to_bytes());
    let wanted = wanted.and_then(|body| serde_json::from_slice::<AbortBody>(&body).ok());
    let Some(wanted) = wanted else {
        let message = "The body must be JSON: {\"rid\": \"PREFIX\"} or {\"abort_all\": true}";
        let body = error_body(message, "Bad Request", 400);
        return respond(StatusCode::BAD_REQUEST, JSON, body);
    };
    let prefix = wanted.rid.filter(|_| !wanted.abort_all);
    let prefix = prefix.unwrap_or_default();
    shared.driver.send(Command::AbortPrefix(prefix));
    respond(StatusCode::OK, "", "")
}

async fn flush(shared: &Shared) -> Response<Body> {
    let status = match shared.driver.flush().await {
        true => StatusCode::OK,
        false => StatusCode::BAD_REQUEST,
    };
    let told = "Cache flushed.\nPlease check backend logs for more details. (When there are running or \
                waiting requests, the operation will not be performed.)\n";
    respond(status, "", told)
}

fn detail(status: StatusCode, text: &str) -> Response<Body> {
    respond(status, JSON, json!({ "detail": text }).to_string())
}

/// A whole body; no `kind`, no content type.
fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let body = body.into();
    let length = HeaderValue::from(body.len());
    // Whole bodies do not fail; this puts them beside streams, which do.
    let body = Full::new(body).map_err(|never: Infallible| match never {});
    let mut response = with(body.boxed_unsync(), kind);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_LENGTH, length);
    response
}

fn with(body: Body, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    if !kind.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    response
}
