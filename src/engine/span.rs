//! One span of an engine's trace, as far as a join needs it.

use crate::clock::Stamp;

/// A span that was picked out of a batch. Stamps are on the engine's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSpan {
    /// Its trace.
    pub trace: u128,
    /// Its own id.
    pub id: u64,
    /// The span above it; 0 where there is none.
    pub parent: u64,
    /// When it began.
    pub start: Stamp,
    /// When it ended.
    pub end: Stamp,
}
