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
    /// The recorder had ended.
    Shutdown,
}

impl Loss {
    /// Every reason.
    pub(super) const ALL: [Loss; 3] = [Loss::QueueFull, Loss::Write, Loss::Shutdown];

    /// The name in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Loss::QueueFull => "queue_full",
            Loss::Write => "write",
            Loss::Shutdown => "shutdown",
        }
    }
}

/// What decided who got a request, with the policy `cache_aware`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChosenBy {
    /// It was given the beginning of the prompt before.
    Prefix,
    /// Too little of the prompt was known: the least loaded.
    Load,
    /// The queues were too uneven: the least loaded.
    Imbalance,
    /// No prompt could be read: the least loaded.
    Unread,
}

impl ChosenBy {
    /// Every reason.
    pub(super) const ALL: [ChosenBy; 4] = [
        ChosenBy::Prefix,
        ChosenBy::Load,
        ChosenBy::Imbalance,
        ChosenBy::Unread,
    ];

    /// The name in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            ChosenBy::Prefix => "prefix",
            ChosenBy::Load => "load",
            ChosenBy::Imbalance => "imbalance",
            ChosenBy::Unread => "unread",
        }
    }
}
