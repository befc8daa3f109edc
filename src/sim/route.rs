//! Routes a request by its path to its response; the responses about the server itself, with the fields that routers, clients and
//! dashboards read.

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

use crate::clock::{NANOS, Stamp};
use crate::request::Endpoint;

use super::Shared;
use super::config::Config;
use super::engine::Load;
use super::request_body::{GenerationRequest, Refusal};
use super::responder::Responder;
use super::response_body::{DONE, error_body};
use super::sequence::QUEUE_FULL;

/// The longest request body, bytes.
const MAX_BODY: usize = 256 << 20;
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The reported path of the model: a folder that exists everywhere and holds no tokenizer. A router looks
/// there for one, and queries the Hugging Face hub for paths that do not exist.
const MODEL_PATH: &str = "/";

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
            match shared.metrics.text(config, &load, &shared.rooms) {
                Ok(text) => respond(StatusCode::OK, METRICS, text),
                Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, "", error.to_string()),
            }
        }
        "/model_info" | "/get_model_info" => json(model_info(config)),
        "/server_info" | "/get_server_info" => json(server_info(&shared)),
        "/v1/models" => json(models(config, now)),
        "/v1/loads" => json(loads(config, &shared.driver.load())),
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
            let message = format!("The request body cannot be read: {error}");
            return refuse(StatusCode::BAD_REQUEST, "Bad Request", &message);
        }
    };
    let received = shared.clock.now();
    let is_generate = endpoint == Endpoint::Generate;
    let request = match GenerationRequest::parse(endpoint, &body, &shared.config) {
        Ok(request) => request,
        Err(Refusal { message, .. }) if !is_generate => {
            return refuse(StatusCode::BAD_REQUEST, "BadRequestError", &message);
        }
        Err(Refusal { message, stream }) if stream => {
            let message = Value::from(message);
            let error = format!(
                "data: {{\"error\":{{\"message\":{message},\"type\":\"invalid_request_error\",\
                 \"code\":400,\"retryable\":false}}}}\n\n"
            );
            let events = [error.into(), Bytes::from_static(DONE)];
            let frames = events.map(|event| Ok(Frame::data(event)));
            let body = StreamBody::new(futures_util::stream::iter(frames));
            return with_headers(body.boxed_unsync(), EVENTS);
        }
        Err(Refusal { message, .. }) => {
            let body = json!({ "error": { "message": message } });
            return respond(StatusCode::BAD_REQUEST, JSON, body.to_string());
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
        None => refuse(StatusCode::SERVICE_UNAVAILABLE, "503", QUEUE_FULL),
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
        let message = "The body must be JSON: {\"rid\": \"PREFIX\"} or {\"abort_all\": true}";
        return refuse(StatusCode::BAD_REQUEST, "Bad Request", message);
    };
    let prefix = rid.filter(|_| abort_all != Some(true));
    shared.driver.abort_prefix(&prefix.unwrap_or_default());
    respond(StatusCode::OK, "", "")
}

/// Makes a response with an error of OpenAI's shape.
fn refuse(status: StatusCode, kind: &str, message: &str) -> Response<Body> {
    respond(status, JSON, error_body(message, kind, status.as_u16()))
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

/// `/model_info`.
fn model_info(config: &Config) -> Value {
    json!({
        "model_path": MODEL_PATH,
        "served_model_name": config.model,
        "tokenizer_path": MODEL_PATH,
        "is_generation": true,
        "disaggregation_mode": config.disaggregation.disaggregation_mode.name(),
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    })
}

/// `/server_info`.
fn server_info(shared: &Shared) -> Value {
    let config = &shared.config;
    let profile = &config.profile;
    let bootstrap_port = shared.bootstrap_addr.map(|addr| addr.port());
    json!({
        "model_path": MODEL_PATH,
        "tokenizer_path": MODEL_PATH,
        "served_model_name": config.model,
        "context_length": config.context_len,
        "max_running_requests": profile.max_running_requests,
        "max_total_tokens": profile.max_total_tokens,
        "disaggregation_mode": config.disaggregation.disaggregation_mode.name(),
        "disaggregation_bootstrap_port": bootstrap_port.unwrap_or(config.disaggregation.disaggregation_bootstrap_port),
        "is_embedding": false,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "internal_states": [{
            "effective_max_running_requests_per_dp": profile.max_running_requests,
            "memory_usage": { "token_capacity": profile.max_total_tokens },
        }],
        "version": config.dialect.version(),
        "frontend": "queuescope-sim",
    })
}

/// `/v1/models`.
fn models(config: &Config, now: Stamp) -> Value {
    json!({
        "object": "list",
        "data": [{
            "id": config.model,
            "object": "model",
            "created": now.nanos().div_euclid(NANOS),
            "owned_by": "sglang",
            "root": config.model,
            "parent": null,
            "max_model_len": config.context_len,
        }],
    })
}

/// `/v1/loads`.
fn loads(config: &Config, load: &Load) -> Value {
    let capacity = config.profile.max_total_tokens;
    json!({
        "version": config.dialect.version(),
        "loads": [{
            "dp_rank": 0,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_used_tokens": load.used_tokens,
            // Routers read it for `power_of_two`.
            "num_total_tokens": load.used_tokens + load.waiting_tokens,
            "max_total_num_tokens": capacity,
            "max_running_requests": config.profile.max_running_requests,
            "token_usage": load.used_tokens as f64 / capacity as f64,
            "cache_hit_rate": load.cache_hit_rate,
        }],
    })
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
