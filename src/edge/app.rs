//! What the socket side needs of the application that answers requests.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use pingora::apps::ReusedHttpStream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;

use super::tls::Tls;

/// What answers the requests of a listener's connections.
pub trait App: Send + Sync + 'static {
    /// Answers one request. Gives its connection when another may follow on it.
    fn answer(
        &self,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> impl Future<Output = Option<ReusedHttpStream>> + Send;

    /// The present limits on a connection.
    fn limits(&self) -> ClientLimits;

    /// The certificate, where clients speak TLS.
    fn tls(&self) -> Option<&Tls>;

    /// Whether clients may speak HTTP/2.
    fn takes_http2(&self) -> bool;

    /// What becomes of a connection from `peer` that was just accepted.
    fn admit(&self, peer: SocketAddr) -> Admission;

    /// Counts what a client did wrong.
    fn count(&self, error: ClientError);
}

/// What one connection may take.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Bytes of a request's head.
    pub head_bytes: u64,
    /// From a head's first byte to its last; for a TLS handshake too.
    pub head: Duration,
    /// For which the writes of one response may be held up, in sum.
    pub stall: Duration,
    /// After which an idle connection is closed, seconds.
    pub idle_s: u64,
}

/// Whether a connection is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is.
    Served,
    /// It is, and a fault might have refused it: its first request is no chance of its own.
    Spared,
    /// It is reset by an injected fault.
    Refused,
}

/// What a client did that ended its connection, or one of its requests before it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// There are as many connections as are taken.
    TooManyConnections,
    /// A head over its limit in bytes.
    HeadTooLarge,
    /// A head, or a TLS handshake, over its limit in time.
    HeadTooSlow,
    /// A response held up for longer than the limit.
    ResponseTooSlow,
    /// Bytes that are no head.
    BrokenHead,
    /// A TLS handshake that failed.
    Tls,
}
