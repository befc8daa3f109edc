//! The source of the number of generated tokens.

use super::names::names;

names! {
    /// The source of the number of generated tokens.
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
    /// Chooses between the count of events and that of `usage` for the same sequences: the events', unless theirs is from a usage
    /// as well; then the larger, as either may miss the last token, which can come without text.
    pub fn choose(source: Option<Self>, by_events: Option<u64>, usage: Option<u64>) -> Option<u64> {
        match source {
            Some(TokenCountSource::Usage) => by_events.max(usage),
            _ => by_events.or(usage),
        }
    }
}
