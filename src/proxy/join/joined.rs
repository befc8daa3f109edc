//! What the metric of joins tells apart.

/// By what an attempt at a worker hop was joined to a request of the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
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
    /// All of them.
    pub(super) const ALL: [Joined; 7] = [
        Joined::Span,
        Joined::RequestId,
        Joined::Response,
        Joined::Late,
        Joined::Ambiguous,
        Joined::Nothing,
        Joined::Elsewhere,
    ];

    /// The name in the metric's label.
    pub(super) const fn name(self) -> &'static str {
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
