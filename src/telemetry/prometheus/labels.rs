//! What labels tell apart.

/// A limit that a client came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Bytes of a request's head.
    HeadBytes,
    /// Time for a request's head, or for a TLS handshake.
    HeadTime,
    /// Bytes of a request's body.
    BodyBytes,
    /// Time for a request's body.
    BodyTime,
    /// Time for which a response was held up.
    Stall,
    /// Connections.
    Connections,
}

impl Limit {
    /// The name in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Limit::HeadBytes => "head_bytes",
            Limit::HeadTime => "head_time",
            Limit::BodyBytes => "body_bytes",
            Limit::BodyTime => "body_time",
            Limit::Stall => "stall",
            Limit::Connections => "connections",
        }
    }
}

/// By what an attempt at a worker hop was joined to a request of the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// By the span that the front sent upstream.
    Span,
    /// By its request id.
    RequestId,
    /// By the response that the front read.
    Response,
    /// By its span, after the request had ended.
    Late,
    /// By nothing yet: several requests have its id.
    Ambiguous,
    /// By nothing: it has a row of its own.
    Nothing,
    /// By nothing here, but another process with a front serves the same listeners.
    Elsewhere,
}

impl Joined {
    /// The name in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Joined::Span => "span",
            Joined::RequestId => "request_id",
            Joined::Response => "response",
            Joined::Late => "late",
            Joined::Ambiguous => "ambiguous",
            Joined::Nothing => "nothing",
            Joined::Elsewhere => "elsewhere",
        }
    }
}

/// Why a row was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The recorder's queue was full.
    QueueFull,
    /// The file could not be written.
    Write,
}

impl Loss {
    /// The name in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Loss::QueueFull => "queue_full",
            Loss::Write => "write",
        }
    }
}
