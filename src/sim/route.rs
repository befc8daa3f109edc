//! Routes a request by its path to its response.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, SERVER, VARY};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::request::Endpoint;

use super::generate::{DONE, error_body};
use super::info;
use super::request_body::GenerationRequest;
use super::responder::Responder;
use super::sequence::QUEUE_FULL;
use super::shared::Shared;

/// The longest request body, bytes.
const MAX_BODY: usize = 256 << 20;
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Handles one request.
pub(super) async fn handle(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    let served = [Endpoint::Generate, Endpoint::Completions, Endpoint::Chat];
    let endpoint = Endpoint::from_path(path).filter(|endpoint| served.contains(endpoint));
    if let Some(endpoint) = endpoint {
        return generation(shared, endpoint, request).await;
    }
    let (config, now) = (&shared.config, shared.clock.now());
    let json = |value: Value| respond(StatusCode::OK, JSON, value.to_string());
    match path {
        "/abort_request" => abort(&shared, request).await,
        "/flush_cache" => flush(&shared),
        "/metrics" if config.metrics => {
            let load = shared.driver.load();
            let text = shared.metrics.text(config, &load, &shared.rooms);
            respond(StatusCode::OK, METRICS, text)
        }
        "/model_info" | "/get_model_info" => json(info::model_info(config)),
        "/server_info" | "/get_server_info" => json(info::server_info(&shared)),
        "/v1/models" => json(info::models(config, now)),
        "/v1/loads" => json(info::loads(config, &shared.driver.load())),
        "/health" | "/health_generate" => respond(StatusCode::OK, "", ""),
        _ => {
            let body = json!({ "detail": "Not Found" });
            respond(StatusCode::NOT_FOUND, JSON, body.to_string())
        }
    }
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
            return bad_request(&format!("The request body cannot be read: {error}"));
        }
    };
    let received = shared.clock.now();
    let is_generate = endpoint == Endpoint::Generate;
    let request = match GenerationRequest::parse(endpoint, &body, &shared.config) {
        Ok(request) => request,
        Err(refusal) => {
            if refusal.stream && is_generate {
                let events = [refusal.event().into(), Bytes::from_static(DONE.as_bytes())];
                let frames = events.map(|event| Ok(Frame::data(event)));
                let body = StreamBody::new(futures_util::stream::iter(frames));
                return with_headers(body.boxed_unsync(), EVENTS);
            }
            let body = refusal.body(is_generate);
            return respond(StatusCode::BAD_REQUEST, JSON, body);
        }
    };
    let stream = request.stream;
    let mut reply = Responder::start(shared, request, headers, received);
    if stream {
        // In every recording the OpenAI endpoints send the response head only with the first event, and `/generate` at once,
        // before the request is scheduled.
        if !is_generate {
            reply.fill().await;
        }
        let events = StreamBody::new(reply.into_frames());
        return with_headers(events.boxed_unsync(), EVENTS);
    }
    match reply.into_body().await {
        Some(body) => respond(StatusCode::OK, JSON, body),
        None => {
            let body = error_body(QUEUE_FULL, "503", 503);
            respond(StatusCode::SERVICE_UNAVAILABLE, JSON, body)
        }
    }
}

/// `{"rid": PREFIX}` or `{"abort_all": true}`. Without a rid, every request matches, as with SGLang.
#[derive(Deserialize)]
struct Abort {
    rid: Option<String>,
    abort_all: Option<bool>,
}

async fn abort(shared: &Shared, request: Request<Incoming>) -> Response<Body> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let Ok(Abort { rid, abort_all }) = serde_json::from_slice(&body) else {
        return bad_request(
            "The body must be JSON: {\"rid\": \"PREFIX\"} or {\"abort_all\": true}",
        );
    };
    let prefix = rid.filter(|_| abort_all != Some(true));
    shared.driver.abort_prefix(&prefix.unwrap_or_default());
    respond(StatusCode::OK, "", "")
}

fn bad_request(message: &str) -> Response<Body> {
    let body = error_body(message, "Bad Request", 400);
    respond(StatusCode::BAD_REQUEST, JSON, body)
}

fn flush(shared: &Shared) -> Response<Body> {
    let status = match shared.driver.flush() {
        true => StatusCode::OK,
        false => StatusCode::BAD_REQUEST,
    };
    let text = "Cache flushed.\nPlease check backend logs for more details. (When there are running or \
                waiting requests, the operation will not be performed.)\n";
    respond(status, "", text)
}

/// Makes a response with a whole body; an empty `content_type` is left out.
fn respond(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let body = body.into();
    let length = HeaderValue::from(body.len());
    let mut response = with_headers(Full::new(body).boxed_unsync(), content_type);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_LENGTH, length);
    response
}

fn with_headers(body: Body, content_type: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    if !content_type.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    response
}
