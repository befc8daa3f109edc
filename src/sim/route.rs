//! From path and method to reply.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, SERVER, VARY};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::request::endpoint::Endpoint;

use super::call::Call;
use super::disaggregation::Mode;
use super::reply::Reply;
use super::sequence::QUEUE_FULL;
use super::shared::Shared;
use super::wire::{DONE, error_body};
use super::{handover, info};

/// The longest request body taken.
const MAX_BODY: usize = 256 << 20;
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers one request.
pub(super) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    let served = [Endpoint::Generate, Endpoint::Completions, Endpoint::Chat];
    let endpoint = Endpoint::from_path(path).filter(|endpoint| served.contains(endpoint));
    let Some(allowed) = methods(path, endpoint, &shared) else {
        return detail(StatusCode::NOT_FOUND, "Not Found");
    };
    let method = request.method().as_str();
    // HEAD goes where GET does, without being named.
    let is_head = (allowed, method) == ("GET", "HEAD");
    if !is_head && allowed.split(", ").all(|one| one != method) {
        let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        let allowed = HeaderValue::from_static(allowed);
        response.headers_mut().insert(ALLOW, allowed);
        return response;
    }
    if let Some(endpoint) = endpoint {
        return generation(shared, endpoint, request).await;
    }
    let (config, now) = (&shared.config, shared.clock.now());
    let json = |value: Value| respond(StatusCode::OK, JSON, value.to_string());
    match path {
        "/abort_request" => abort(&shared, request).await,
        "/flush_cache" => flush(&shared),
        "/metrics" => {
            let text = shared.metrics.text(&shared.driver.load(), &shared.rooms);
            respond(StatusCode::OK, METRICS, text)
        }
        "/model_info" | "/get_model_info" => json(info::model_info(config)),
        "/server_info" | "/get_server_info" => json(info::server_info(&shared)),
        "/v1/models" => json(info::models(config, now)),
        "/v1/loads" => json(info::loads(config, &shared.driver.load())),
        // Its health.
        _ => respond(StatusCode::OK, "", ""),
    }
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
) -> Response<Body> {
    let (head, body) = request.into_parts();
    let headers = head.headers;
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            let message = format!("The request body cannot be read: {error}");
            let body = error_body(&message, "Bad Request", 400);
            return respond(StatusCode::BAD_REQUEST, JSON, body);
        }
    };
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
            if refusal.stream && is_generate {
                let said = [refusal.event().into(), Bytes::from_static(DONE.as_bytes())];
                let said = said.map(|event| Ok(Frame::data(event)));
                let said = StreamBody::new(futures_util::stream::iter(said));
                return with(said.boxed_unsync(), EVENTS);
            }
            let body = refusal.body(is_generate);
            return respond(StatusCode::BAD_REQUEST, JSON, body);
        }
    };
    let stream = call.stream;
    let mut reply = Reply::begin(shared, call, headers, received);
    if stream {
        // The OpenAI endpoints send their head only with the first event (`/generate` at once, before the request is
        // scheduled): seen in every recording.
        if !is_generate {
            reply.fill().await;
        }
        let events = StreamBody::new(reply.frames());
        return with(events.boxed_unsync(), EVENTS);
    }
    match reply.whole().await {
        Some(body) => respond(StatusCode::OK, JSON, body),
        None => {
            let body = error_body(QUEUE_FULL, "503", 503);
            respond(StatusCode::SERVICE_UNAVAILABLE, JSON, body)
        }
    }
}

/// `{"rid": PREFIX}` or `{"abort_all": true}`; like the real server, no rid at all matches every one.
#[derive(Deserialize)]
struct Abort {
    rid: Option<String>,
    abort_all: Option<bool>,
}

async fn abort(shared: &Shared, request: Request<Incoming>) -> Response<Body> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let Ok(Abort { rid, abort_all }) = serde_json::from_slice(&body) else {
        let message = "The body must be JSON: {\"rid\": \"PREFIX\"} or {\"abort_all\": true}";
        let body = error_body(message, "Bad Request", 400);
        return respond(StatusCode::BAD_REQUEST, JSON, body);
    };
    let prefix = rid.filter(|_| abort_all != Some(true));
    shared.driver.abort_prefix(&prefix.unwrap_or_default());
    respond(StatusCode::OK, "", "")
}

fn flush(shared: &Shared) -> Response<Body> {
    let status = match shared.driver.flush() {
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
    let mut response = with(Full::new(body).boxed_unsync(), kind);
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
