//! Who told how many tokens were generated.

use super::names::names;

names! {
    /// Where the number of generated tokens came from.
    pub enum TokenCountSource {
        /// `completion_tokens` of the sequence's `meta_info`.
        MetaInfo = "meta_info",
        /// `usage`.
        Usage = "usage",
        /// The engine's trace.
        Trace = "trace",
        /// The engine's request log.
        Log = "log",
    }
}

impl TokenCountSource {
    /// The tokens that events counted, else those of `usage` of the same sequences. Where the events had theirs from a
    /// usage as well, the larger: none may count the last token, which can come without text.
    pub fn most(source: Option<Self>, by_events: Option<u64>, usage: Option<u64>) -> Option<u64> {
        match source {
            Some(TokenCountSource::MetaInfo | TokenCountSource::Trace | TokenCountSource::Log) => {
                by_events.or(usage)
            }
            Some(TokenCountSource::Usage) | None => by_events.max(usage),
        }
    }
}
