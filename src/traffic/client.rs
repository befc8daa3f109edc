//! Sends requests over keep-alive connections of its own and stamps what happens.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use parking_lot::Mutex;
use rand::RngCore;
use tokio::time::timeout;

use crate::clock::{Clock, NANOS, Stamp};
use crate::request::attempt::SpanId;
use crate::request::endpoint::Endpoint;
use crate::request::headers::{content_type, is_encoded, smg_worker, told_outcome};
use crate::request::observer::{End, Observer};
use crate::request::outcome::{OWN_WANTS, Outcome};
use crate::request::row::Row;
use crate::request::stamps::{ASK_HEADER, FRONT_HEADER, Stamps};
use crate::request::timeline::{Moment, Side};
use crate::telemetry::otlp::collector::causes;

mod connection;
mod reply;
mod secret;
mod socket;
mod target;
mod tls;

pub use crate::request::attempt::UpstreamKind;
use connection::Connection;
pub use reply::Reply;
use secret::hidden;
pub use secret::{api_key, bearer};
pub use target::Target;
pub use tls::{INSECURE, Tls, TlsArgs};

/// How to send.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Where to.
    pub target: Target,
    /// What is there, behind our proxy if there is one.
    pub upstream: UpstreamKind,
    /// How `https://` is spoken; `None` is in the clear.
    pub tls: Option<Tls>,
    /// Sent as `Authorization`; see [`api_key`].
    pub api_key: Option<HeaderValue>,
    /// Sent with every request. No value is ever shown.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Keep connections for later requests.
    pub reuse: bool,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest time of a request, from its connect to its last byte.
    pub request_timeout: Duration,
}

/// Headers that say who asks and how; the client sets them itself.
pub const OWN_HEADERS: [&str; 7] = [
    "x-request-id",
    "traceparent",
    ASK_HEADER,
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
];

/// A connection idle for longer is not used again: SGLang closes at 5 s, and a request that meets the
/// closing is lost.
const IDLE_NANOS: i64 = 4 * NANOS;

/// Sends requests to one target.
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    addresses: Vec<SocketAddr>,
    headers: HeaderMap,
    clock: Clock,
    clock_name: String,
    trace: u64,
    /// Connections that failed with [`OWN_WANTS`].
    dropped: AtomicU64,
    /// Idle connections, the one used last at the end.
    idle: Mutex<Vec<(Stamp, Connection)>>,
}

/// One request to send.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its `x-request-id`.
    pub req_id: String,
    /// Where to.
    pub endpoint: Endpoint,
    /// When the schedule wanted it sent.
    pub scheduled: Option<Stamp>,
    /// The JSON body.
    pub body: Bytes,
}

/// What became of a request.
#[derive(Debug)]
pub struct Exchange {
    /// Its rows in the making, at least one.
    pub rows: Vec<Row>,
    /// What a proxy of ours said.
    pub stamps: Option<Stamps>,
    /// Nanoseconds spent connecting before the first write.
    pub connect_nanos: i64,
    /// Nanoseconds for which it waited for a `--max-concurrency` slot before, as who made it knows.
    pub slot_nanos: i64,
}

/// A request under way.
struct Watch<'a> {
    observer: Observer,
    /// Where the text of its reply goes.
    reply: Option<&'a mut Reply>,
    stamps: Option<Stamps>,
    connect_nanos: i64,
}

impl Client {
    /// A client whose target has been looked up.
    ///
    /// # Errors
    /// The target's host has no address.
    pub async fn new(options: ClientOptions, clock: Clock) -> std::io::Result<Client> {
        let addresses = options.target.resolve().await?;
        let mut headers = HeaderMap::new();
        let agent = concat!("queuescope/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::HOST, options.target.authority().clone());
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        if let Some(key) = &options.api_key {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        for (name, value) in &options.headers {
            headers.insert(name.clone(), value.clone());
        }
        Ok(Client {
            options,
            addresses,
            headers,
            clock_name: clock.name(),
            clock,
            trace: rand::rng().next_u64(),
            dropped: AtomicU64::new(0),
            idle: Mutex::default(),
        })
    }

    /// Sends a request and watches it to its end. `stop` ends it early. The text of the reply goes to `reply`.
    pub async fn exchange(
        &self,
        job: Job,
        reply: Option<&mut Reply>,
        stop: impl Future<Output = ()>,
    ) -> Exchange {
        let mut watch = self.watch(&job);
        watch.reply = reply;
        let limit = self.options.request_timeout;
        let end = tokio::select! {
            biased;
            end = timeout(limit, self.attempts(&mut watch, &job)) => end.unwrap_or_else(|_| {
                End::Timeout(format!("no end after {} s", limit.as_secs_f64()))
            }),
            () = stop => End::GivenUp,
        };
        let mut exchange = watch.finish(end, self.clock.now());
        // A server may say back what it was sent.
        let errors = exchange.rows.iter_mut();
        for error in errors.filter_map(|row| row.error.as_mut()) {
            let given = self.options.headers.iter().map(|(_, value)| value);
            *error = hidden(error, self.options.api_key.iter().chain(given));
        }
        exchange
    }

    /// The record of a request that was never sent.
    pub fn unsent(&self, job: &Job) -> Exchange {
        self.watch(job).finish(End::GivenUp, self.clock.now())
    }

    /// Opens a connection and keeps it for the first request.
    ///
    /// # Errors
    /// Why none could be opened.
    pub async fn preconnect(&self) -> Result<(), String> {
        let connection = self.connect().await?;
        self.keep(connection);
        Ok(())
    }

    /// Makes a plain request that is not watched, with a body of JSON or none: its status and body.
    ///
    /// # Errors
    /// Why no whole response came.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), String> {
        let limit = self.options.request_timeout;
        let asked = timeout(limit, async {
            let mut connection = self.connect().await?;
            let request = self.request(method, path, body);
            let sent = connection.send(request).await;
            let response = sent.map_err(|error| causes(&error))?;
            let (head, mut incoming) = response.into_parts();
            let mut body = BytesMut::new();
            while let Some(data) = connection.read(&mut incoming).await {
                body.extend_from_slice(&data.map_err(|error| causes(&error))?);
            }
            Ok((head.status.as_u16(), body.freeze()))
        });
        asked
            .await
            .unwrap_or_else(|_| Err(format!("no answer after {} s", limit.as_secs_f64())))
    }

    fn watch<'a>(&self, job: &Job) -> Watch<'a> {
        let mut observer = Observer::new(Side::Traffic, job.endpoint, job.req_id.clone());
        let is_server = self.options.upstream == UpstreamKind::Server;
        observer.timeline_mut().upstream_is_server(is_server);
        if let Some(at) = job.scheduled {
            observer.timeline_mut().set(Moment::Scheduled, at);
        }
        observer.request_body(&job.body);
        Watch {
            observer,
            reply: None,
            stamps: None,
            connect_nanos: 0,
        }
    }

    /// Sends the request, a second time on a new connection where a kept one turns out dead before
    /// anything came back.
    async fn attempts(&self, watch: &mut Watch<'_>, job: &Job) -> End {
        let trace = self.trace_context();
        let row = watch.observer.row_mut();
        row.trace_id = trace.get(3..35).map(str::to_owned);
        row.span_id = trace.get(36..52).and_then(SpanId::parse);
        row.process = Some(self.clock_name.clone());
        let mut kept = self.take();
        loop {
            let (was_kept, began) = (kept.is_some(), self.clock.now());
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => match self.connect().await {
                    Ok(connection) => connection,
                    Err(why) => return End::NoConnection(why),
                },
            };
            let (request, now) = (self.tracked(job, &trace), self.clock.now());
            let timeline = watch.observer.timeline_mut();
            // After the first write it holds up no send.
            if !was_kept && timeline.raw(Moment::Sent).is_none() {
                watch.connect_nanos = now.nanos_since(began);
            }
            timeline.first(Moment::Sent, now);
            let row = watch.observer.row_mut();
            row.attempts = row.attempts.map(|before| before + 1);
            row.upstream_reused = Some(connection.reused);
            match connection.send(request).await {
                Ok(response) => return self.response(watch, connection, response).await,
                Err(_) if was_kept && connection.reads.are_none() => {}
                Err(error) => {
                    let is_tls = error.is_parse() && self.options.tls.is_none();
                    let help = "; if the server speaks TLS there, give https://";
                    let help = if is_tls { help } else { "" };
                    return End::UpstreamDied(causes(&error) + help);
                }
            }
        }
    }

    /// Reads the response to its end.
    async fn response(
        &self,
        watch: &mut Watch<'_>,
        mut connection: Connection,
        got: Response<Incoming>,
    ) -> End {
        let (head, mut body) = got.into_parts();
        self.head(watch, &head, connection.reads.at());
        loop {
            match connection.read(&mut body).await {
                Some(Ok(data)) => {
                    let at = connection.reads.at();
                    watch.observer.response_body(&data, at, 0);
                    if let Some(reply) = &mut watch.reply {
                        reply.piece(&data);
                    }
                }
                Some(Err(error)) => return End::UpstreamDied(causes(&error)),
                None => break,
            }
        }
        watch.observer.response_end(connection.reads.at());
        connection.reused = true;
        self.keep(connection);
        End::Complete
    }

    fn head(&self, watch: &mut Watch<'_>, head: &http::response::Parts, at: Stamp) {
        let (kind, encoded) = (content_type(&head.headers), is_encoded(&head.headers));
        if let Some(reply) = &mut watch.reply {
            reply.begins(kind.is_some_and(|kind| kind.starts_with("text/event-stream")));
        }
        let observer = &mut watch.observer;
        observer.response_head(head.status.as_u16(), kind, encoded, at);
        observer.told(told_outcome(&head.headers));
        let stamps = head.headers.get(FRONT_HEADER);
        watch.stamps = stamps.and_then(|stamps| Stamps::parse(stamps.to_str().ok()?));
        if let Some(stamps) = &watch.stamps {
            observer.stamps(stamps, &self.clock_name);
            return;
        }
        let host = match self.options.upstream {
            UpstreamKind::Server => Some(self.options.target.host_and_port()),
            UpstreamKind::Router => smg_worker(&head.headers),
        };
        observer.row_mut().host = host;
    }

    fn tracked(&self, job: &Job, trace: &str) -> Request<Full<Bytes>> {
        let mut request = self.request(Method::POST, job.endpoint.path(), job.body.clone());
        let headers = request.headers_mut();
        // Neither can fail: the id was checked where the plan was made, the other is hex digits.
        for (name, value) in [
            ("x-request-id", job.req_id.as_str()),
            ("traceparent", trace),
        ] {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        }
        headers.insert(ASK_HEADER, HeaderValue::from_static("1"));
        request
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        // The target's path was a URI's and the API's are fixed: this parses.
        if let Ok(uri) = self.options.target.path(path).parse() {
            *request.uri_mut() = uri;
        }
        *request.headers_mut() = self.headers.clone();
        request
    }

    /// A W3C `traceparent` of a new trace.
    fn trace_context(&self) -> String {
        let (low, span) = (rand::rng().next_u64(), rand::rng().next_u64() | 1);
        let trace = self.trace | 1;
        format!("00-{trace:016x}{low:016x}-{span:016x}-01")
    }

    async fn connect(&self) -> Result<Connection, String> {
        let limit = self.options.connect_timeout;
        let place = self.options.target.host_and_port();
        let tls = self.options.tls.as_ref();
        let opened = Connection::connect(&self.addresses, tls, &self.clock);
        match timeout(limit, opened).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => {
                let is_own = |number| OWN_WANTS.contains(&number);
                if error.raw_os_error().is_some_and(is_own) {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                }
                Err(format!("connect to {place}: {error}"))
            }
            Err(_) => Err(format!(
                "connect to {place}: no answer after {} s",
                limit.as_secs_f64()
            )),
        }
    }

    /// How many connections failed as this machine gave no more files or ports.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// A kept connection that still stands, the one used last.
    fn take(&self) -> Option<Connection> {
        let now = self.clock.now();
        loop {
            let mut idle = self.idle.lock();
            let fresh = idle.partition_point(|(since, _)| now.nanos_since(*since) > IDLE_NANOS);
            let stale: Vec<_> = idle.drain(..fresh).collect();
            let taken = idle.pop();
            // Closing and polling connections need no lock.
            drop(idle);
            drop(stale);
            let (_, mut connection) = taken?;
            if connection.is_ready() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for later, if it can serve again.
    fn keep(&self, mut connection: Connection) {
        if self.options.reuse && connection.is_ready() {
            let mut idle = self.idle.lock();
            idle.push((self.clock.now(), connection));
        }
    }
}

impl Exchange {
    /// A moment of its own clock.
    pub(super) fn at(&self, moment: Moment) -> Option<Stamp> {
        self.rows.first()?.timeline.raw(moment)
    }

    /// How it ended.
    pub(super) fn outcome(&self) -> Outcome {
        self.rows.first().map_or(Outcome::ProxyError, Row::outcome)
    }
}

impl Watch<'_> {
    fn finish(self, end: End, at: Stamp) -> Exchange {
        Exchange {
            rows: self.observer.finish(end, at),
            stamps: self.stamps,
            connect_nanos: self.connect_nanos,
            slot_nanos: 0,
        }
    }
}
