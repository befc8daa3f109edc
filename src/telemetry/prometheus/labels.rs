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
    /// Every limit.
    pub(super) const ALL: [Limit; 6] = [
        Limit::HeadBytes,
        Limit::HeadTime,
        Limit::BodyBytes,
        Limit::BodyTime,
        Limit::Stall,
        Limit::Connections,
    ];

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

/// Why a row was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The recorder's queue was full.
    QueueFull,
    /// The file could not be written.
    Write,
}

impl Loss {
    /// Every reason.
    pub(super) const ALL: [Loss; 2] = [Loss::QueueFull, Loss::Write];

    /// The name in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Loss::QueueFull => "queue_full",
            Loss::Write => "write",
        }
    }
}
