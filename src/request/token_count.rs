//! Who told how many tokens were generated.

/// Where the number of generated tokens came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum TokenCountSource {
    /// `completion_tokens` of the sequence's `meta_info`.
    MetaInfo,
    /// `usage`.
    Usage,
}

impl TokenCountSource {
    /// The name in the column.
    pub const fn name(self) -> &'static str {
        match self {
            TokenCountSource::MetaInfo => "meta_info",
            TokenCountSource::Usage => "usage",
        }
    }

    /// The tokens that events counted, else those of `usage` of the same sequences. Where the events had theirs from a
    /// usage as well, the larger: none may count the last token, which can come without text.
    pub fn most(source: Option<Self>, by_events: Option<u64>, usage: Option<u64>) -> Option<u64> {
        match source {
            Some(TokenCountSource::MetaInfo) => by_events.or(usage),
            Some(TokenCountSource::Usage) | None => by_events.max(usage),
        }
    }
}
