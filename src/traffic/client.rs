//! The HTTP client: sends requests over keep-alive connections and takes timestamps of what happens.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::clock::{Clock, NANOS, Stamp};
use crate::request::{
    End, Endpoint, FRONT_HEADER, Moment, OWN_SHORTAGES, Observer, Outcome, Row,
    STAMPS_REQUEST_HEADER, Side, SpanId, Stamps, content_type, is_encoded, reported_outcome,
    smg_worker,
};
use crate::telemetry::otlp::exporter::error_with_causes;

mod connection;
mod reply;
mod target;

pub use crate::request::UpstreamKind;
use connection::Connection;
pub use reply::Reply;
use target::masked;
pub use target::{INSECURE_WARNING, TLS_HINT, Target, Tls, TlsArgs, api_key};

/// How to send.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Where to send.
    pub target: Target,
    /// What kind of server is there, or behind our proxy.
    pub upstream: UpstreamKind,
    /// `None`: plain HTTP.
    pub tls: Option<Tls>,
    /// Sent with every request, such as [`api_key`]. Their values are never shown.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether to keep connections for later requests.
    pub reuse: bool,
    /// The longest duration of a request, from its connect to its last byte.
    pub request_timeout: Duration,
}

/// Headers that the client sets itself.
pub const OWN_HEADERS: [&str; 7] = [
    "x-request-id",
    "traceparent",
    STAMPS_REQUEST_HEADER,
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
];

/// The longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an idle connection is kept. SGLang closes it after 5 s, and a request that is sent at that moment is lost.
const MAX_IDLE_NANOS: i64 = 4 * NANOS;

/// Sends requests to one target.
pub struct Client {
    options: ClientOptions,
    addresses: Vec<SocketAddr>,
    headers: HeaderMap,
    clock: Clock,
    clock_name: String,
    /// Connections that failed because this machine had no file descriptors or ports left.
    pub(super) dropped: AtomicU64,
    /// Idle connections and since when, the most recent last.
    idle: Mutex<Vec<(Stamp, Connection)>>,
}

/// One request to send.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its `x-request-id`.
    pub req_id: String,
    /// The API.
    pub endpoint: Endpoint,
    /// When it is due.
    pub scheduled: Option<Stamp>,
    /// The JSON body.
    pub body: Bytes,
}

/// A request that has ended.
#[derive(Debug, Default)]
pub struct Exchange {
    /// Its rows, at least one; not final yet.
    pub rows: Vec<Row>,
    /// The timestamps that our proxy reported; `None` without one.
    pub stamps: Option<Stamps>,
    /// Nanoseconds spent connecting before the first write.
    pub connect_nanos: i64,
    /// Nanoseconds that it waited for a `--max-concurrency` slot; set by the caller.
    pub slot_nanos: i64,
}

/// A request in flight.
struct InFlight<'a> {
    observer: Observer,
    /// Collects the text of the reply.
    reply: Option<&'a mut Reply>,
    /// What is known so far, without rows.
    exchange: Exchange,
}

impl Client {
    /// Creates a client and resolves its target.
    ///
    /// # Errors
    /// The target's host has no address.
    pub async fn new(options: ClientOptions, clock: Clock) -> io::Result<Client> {
        let address = &options.target.address;
        let found = tokio::net::lookup_host((&*address.host, address.port)).await?;
        let addresses = found.collect();
        let agent = concat!("queuescope/", env!("CARGO_PKG_VERSION"));
        let json = HeaderValue::from_static("application/json");
        let own = [
            (header::HOST, options.target.authority.clone()),
            (header::USER_AGENT, HeaderValue::from_static(agent)),
            (header::CONTENT_TYPE, json),
        ];
        let given = options.headers.iter().cloned();
        let mut headers = HeaderMap::new();
        // Of two of a name the later one counts.
        for (name, value) in own.into_iter().chain(given) {
            headers.insert(name, value);
        }
        Ok(Client {
            options,
            addresses,
            headers,
            clock_name: clock.name(),
            clock,
            dropped: AtomicU64::new(0),
            idle: Mutex::default(),
        })
    }

    /// Sends a request and reads its response to the end, or until `stop`. Collects the text of the response in `reply`.
    pub async fn exchange(
        &self,
        job: Job,
        reply: Option<&mut Reply>,
        stop: impl Future<Output = ()>,
    ) -> Exchange {
        let mut in_flight = self.in_flight(&job, reply);
        let limit = self.options.request_timeout;
        let end = tokio::select! {
            biased;
            end = timeout(limit, self.attempts(&mut in_flight, &job)) => end.unwrap_or_else(|_| {
                let reason = format!("no end after {} s", limit.as_secs_f64());
                End::Failed(Outcome::Timeout, reason)
            }),
            () = stop => End::GivenUp,
        };
        let mut exchange = in_flight.finish(end, self.clock.now());
        // A server's error message may repeat secrets that it was sent.
        let errors = exchange.rows.iter_mut();
        for error in errors.filter_map(|row| row.error.as_mut()) {
            let headers = self.options.headers.iter().map(|(_, value)| value);
            *error = masked(error, headers);
        }
        exchange
    }

    /// Returns the exchange of a request that was given up before it was sent.
    pub fn unsent(&self, job: &Job) -> Exchange {
        let in_flight = self.in_flight(job, None);
        in_flight.finish(End::GivenUp, self.clock.now())
    }

    /// Opens a connection and keeps it for the first request.
    ///
    /// # Errors
    /// Why it could not be opened.
    pub async fn preconnect(&self) -> Result<(), String> {
        let opened = self.connect().await;
        opened.map(|connection| self.put_idle(connection))
    }

    /// Sends a request that is not recorded, with a body of JSON or none; returns status and body of the response.
    ///
    /// # Errors
    /// Why there is no complete response.
    pub async fn fetch(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), String> {
        let limit = self.options.request_timeout;
        let exchange = timeout(limit, async {
            let mut connection = self.connect().await?;
            let request = self.request(method, path, body);
            let response = connection.send(request).await;
            let response = response.map_err(|error| error_with_causes(&error))?;
            let (head, mut incoming) = response.into_parts();
            let mut body = BytesMut::new();
            while let Some(data) = connection.read(&mut incoming).await {
                body.extend_from_slice(&data.map_err(|error| error_with_causes(&error))?);
            }
            Ok((head.status.as_u16(), body.freeze()))
        });
        exchange
            .await
            .unwrap_or_else(|_| Err(format!("no answer after {} s", limit.as_secs_f64())))
    }

    /// Begins the record of a request.
    fn in_flight<'a>(&self, job: &Job, reply: Option<&'a mut Reply>) -> InFlight<'a> {
        let mut observer = Observer::new(Side::Traffic, job.endpoint, job.req_id.clone());
        let is_server = self.options.upstream == UpstreamKind::Server;
        observer.row_mut().timeline.upstream_is_server(is_server);
        if let Some(at) = job.scheduled {
            observer.row_mut().timeline.set(Moment::Scheduled, at);
        }
        observer.request_body(&job.body);
        InFlight {
            observer,
            reply,
            exchange: Exchange::default(),
        }
    }

    /// Sends the request; once more on a new connection if an idle one was closed by the server before the response's head.
    async fn attempts(&self, in_flight: &mut InFlight<'_>, job: &Job) -> End {
        // Ids that are all zeros are invalid.
        let (trace, span) = (rand::random::<u128>() | 1, rand::random::<u64>() | 1);
        let trace_id = format!("{trace:032x}");
        let traceparent = format!("00-{trace_id}-{span:016x}-01");
        let row = in_flight.observer.row_mut();
        row.trace_id = Some(trace_id);
        row.span_id = SpanId::new(span);
        row.process = Some(self.clock_name.clone());
        let mut idle = self.take_idle();
        loop {
            let (was_idle, began) = (idle.is_some(), self.clock.now());
            let mut connection = match idle.take() {
                Some(connection) => connection,
                None => match self.connect().await {
                    Ok(connection) => connection,
                    Err(cause) => return End::Failed(Outcome::ConnectError, cause),
                },
            };
            let request = self.recorded_request(job, &traceparent);
            let now = self.clock.now();
            let row = in_flight.observer.row_mut();
            // A second attempt's connect comes after the first write, so it does not delay the send.
            if !was_idle && row.timeline.raw(Moment::Sent).is_none() {
                in_flight.exchange.connect_nanos = now.nanos_since(began);
            }
            row.timeline.set_if_unknown(Moment::Sent, now);
            row.attempts = row.attempts.map(|before| before + 1);
            row.upstream_reused = Some(connection.reused);
            match connection.send(request).await {
                Ok(response) => return self.response(in_flight, connection, response).await,
                Err(_) if was_idle => {}
                Err(error) => return died(&error),
            }
        }
    }

    /// Reads the response to its end.
    async fn response(
        &self,
        in_flight: &mut InFlight<'_>,
        mut connection: Connection,
        response: Response<Incoming>,
    ) -> End {
        let (head, mut body) = response.into_parts();
        self.head(in_flight, &head, connection.last_read());
        loop {
            match connection.read(&mut body).await {
                Some(Ok(data)) => {
                    let at = connection.last_read();
                    in_flight.observer.response_body(&data, at, 0);
                    if let Some(reply) = &mut in_flight.reply {
                        reply.push(&data);
                    }
                }
                Some(Err(error)) => return died(&error),
                None => break,
            }
        }
        in_flight.observer.response_end(connection.last_read());
        connection.reused = true;
        self.put_idle(connection);
        End::Complete
    }

    /// Records the head of the response, which was read `at`.
    fn head(&self, in_flight: &mut InFlight<'_>, head: &http::response::Parts, at: Stamp) {
        let (kind, encoded) = (content_type(&head.headers), is_encoded(&head.headers));
        if let Some(reply) = &mut in_flight.reply {
            reply.is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        }
        let observer = &mut in_flight.observer;
        observer.response_head(head.status.as_u16(), kind, encoded, at);
        observer.reported_outcome = reported_outcome(&head.headers);
        let stamps = head.headers.get(FRONT_HEADER);
        let stamps = stamps.and_then(|stamps| Stamps::parse(stamps.to_str().ok()?));
        if let Some(stamps) = stamps {
            observer.stamps(&stamps, &self.clock_name);
            in_flight.exchange.stamps = Some(stamps);
            return;
        }
        let host = match self.options.upstream {
            UpstreamKind::Server => Some(self.options.target.address.name()),
            UpstreamKind::Router => smg_worker(&head.headers),
        };
        observer.row_mut().host = host;
    }

    /// Builds the request of a job, with its id, its trace, and the wish for our proxy's timestamps.
    fn recorded_request(&self, job: &Job, traceparent: &str) -> Request<Full<Bytes>> {
        let mut request = self.request(Method::POST, job.endpoint.path(), job.body.clone());
        let headers = request.headers_mut();
        // Both are valid: the prefix of the id was checked when it was parsed, the other is hex digits.
        for (name, value) in [
            ("x-request-id", job.req_id.as_str()),
            ("traceparent", traceparent),
        ] {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        }
        headers.insert(STAMPS_REQUEST_HEADER, HeaderValue::from_static("1"));
        request
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        // Parses in any case: the target's path is that of a URI, and the APIs' paths are constants.
        if let Ok(uri) = self.options.target.path(path).parse() {
            *request.uri_mut() = uri;
        }
        *request.headers_mut() = self.headers.clone();
        request
    }

    async fn connect(&self) -> Result<Connection, String> {
        let limit = CONNECT_TIMEOUT.min(self.options.request_timeout);
        let host = self.options.target.address.name();
        let tls = self.options.tls.as_ref();
        let opened = Connection::connect(&self.addresses, tls, &self.clock);
        let opened = timeout(limit, opened).await.unwrap_or_else(|_| {
            let cause = format!("no answer after {} s", limit.as_secs_f64());
            Err(io::Error::other(cause))
        });
        opened.map_err(|error| {
            let is_own = |number| OWN_SHORTAGES.contains(&number);
            if error.raw_os_error().is_some_and(is_own) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            format!("connect to {host}: {error}")
        })
    }

    /// Takes the idle connection that was used last, of those that are still open.
    fn take_idle(&self) -> Option<Connection> {
        let now = self.clock.now();
        loop {
            let mut idle = self.idle.lock();
            let fresh = idle.partition_point(|(since, _)| now.nanos_since(*since) > MAX_IDLE_NANOS);
            let stale: Vec<_> = idle.drain(..fresh).collect();
            let taken = idle.pop();
            // Unlocked before connections are closed and polled.
            drop(idle);
            drop(stale);
            let (_, mut connection) = taken?;
            if connection.is_ready() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for later, if it can be used again.
    fn put_idle(&self, mut connection: Connection) {
        if self.options.reuse && connection.is_ready() {
            let mut idle = self.idle.lock();
            idle.push((self.clock.now(), connection));
        }
    }
}

/// The end of a request whose connection broke.
fn died(error: &hyper::Error) -> End {
    End::Failed(Outcome::UpstreamDied, error_with_causes(error))
}

impl Exchange {
    /// The outcome of the request.
    pub(super) fn outcome(&self) -> Outcome {
        self.rows.first().map_or(Outcome::ProxyError, Row::outcome)
    }
}

impl InFlight<'_> {
    fn finish(self, end: End, at: Stamp) -> Exchange {
        Exchange {
            rows: self.observer.finish(end, at),
            ..self.exchange
        }
    }
}
