//! Which traces are kept, decided when their requests have ended. Pure.

use parking_lot::Mutex;

use crate::request::names::names;
use crate::request::row::Row;

/// Which traces are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Keep what did not go well.
    pub errors: bool,
    /// Keep what took longer to its first token, nanoseconds.
    pub ttft_over: Option<i64>,
    /// Keep what took longer in all, nanoseconds.
    pub total_over: Option<i64>,
    /// Keep this share: the slowest of those that went well; 0 to 1.
    pub slowest: f64,
    /// Share of the rest that is kept, by trace id; 0 to 1.
    pub ratio: f64,
    /// Whether what a client sent without the sampled flag is none of the rest.
    pub follow_client: bool,
}

names! {
/// Why a trace is kept.
pub enum Kept {
    /// It did not go well.
    Error = "error",
    /// It was over a limit.
    Slow = "slow",
    /// It was among the slowest.
    Slowest = "slowest",
    /// The client had sampled it, or those upstream were told to.
    Flagged = "flagged",
    /// By chance.
    Ratio = "ratio",
}}

/// Whether the sampled flag goes upstream, where it turns on the engine's own tracing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamFlag {
    /// As the client sent it; not in a trace of our own.
    #[default]
    Client,
    /// As the client sent it, and of the others the share `ratio`.
    Ratio,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How long requests have taken of late.
#[derive(Debug, Default)]
pub struct Slowest(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    /// Nanoseconds, the newest in the place of the oldest.
    nanos: Vec<i64>,
    next: usize,
    limit: Option<i64>,
}

/// So many requests are remembered.
const REMEMBERED: usize = 1000;
/// After so many the limit is found anew; before, nobody knows what is slow.
const STEP: usize = 100;

impl Default for Sampling {
    /// All that is flagged or went wrong, and all of the rest.
    fn default() -> Sampling {
        Sampling {
            errors: true,
            ttft_over: None,
            total_over: None,
            slowest: 0.0,
            ratio: 1.0,
            follow_client: true,
        }
    }
}

impl Sampling {
    /// Whether the trace of a request with these rows is kept, and why. `trace` is its id.
    pub fn keeps(&self, rows: &[Row], trace: u128, recent: &Slowest) -> Option<Kept> {
        let first = rows.first()?;
        let total = first.elapsed;
        let is_over = |nanos: Option<i64>, limit: Option<i64>| {
            nanos.zip(limit).is_some_and(|(nanos, limit)| nanos > limit)
        };
        let is_slowest = self.slowest > 0.0
            && first.is_ok()
            && total.is_some_and(|nanos| recent.is_slow(nanos, self.slowest));
        if self.errors && !first.is_ok() {
            return Some(Kept::Error);
        }
        let ttft = || rows.iter().filter_map(|row| row.ttft).max();
        if is_over(total, self.total_over)
            || (self.ttft_over.is_some() && is_over(ttft(), self.ttft_over))
        {
            return Some(Kept::Slow);
        }
        if is_slowest {
            return Some(Kept::Slowest);
        }
        let came = &first.more.trace;
        if came.came_sampled == Some(true) || came.sent_sampled {
            return Some(Kept::Flagged);
        }
        let is_rest = !self.follow_client || came.came_sampled.is_none();
        (is_rest && is_of_share(trace, self.ratio)).then_some(Kept::Ratio)
    }
}

/// Whether a trace belongs to this share of all, as OpenTelemetry's `TraceIdRatioBased` decides it: alike everywhere.
pub fn is_of_share(trace: u128, ratio: f64) -> bool {
    let bound = (ratio.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64;
    (trace as u64) >> 1 < bound
}

impl UpstreamFlag {
    /// Whether the trace goes upstream sampled that `came` so from a client, or was begun here.
    pub fn sends(self, came: Option<bool>, trace: u128, ratio: f64) -> bool {
        match self {
            UpstreamFlag::Client => came == Some(true),
            UpstreamFlag::Ratio => came.unwrap_or_else(|| is_of_share(trace, ratio)),
            UpstreamFlag::Always => true,
            UpstreamFlag::Never => false,
        }
    }
}

impl Slowest {
    /// Whether so many nanoseconds are among the slowest `share` of late; they are remembered.
    fn is_slow(&self, nanos: i64, share: f64) -> bool {
        let mut recent = self.0.lock();
        let recent = &mut *recent;
        let is_slow = recent.limit.is_some_and(|limit| nanos > limit);
        match recent.nanos.get_mut(recent.next) {
            Some(oldest) => *oldest = nanos,
            None => recent.nanos.push(nanos),
        }
        recent.next = (recent.next + 1) % REMEMBERED;
        if recent.next.is_multiple_of(STEP) {
            let mut sorted = recent.nanos.clone();
            let place = (sorted.len() as f64 * (1.0 - share)) as usize;
            let place = place.min(sorted.len() - 1);
            recent.limit = Some(*sorted.select_nth_unstable(place).1);
        }
        is_slow
    }
}

#[cfg(test)]
mod tests;
