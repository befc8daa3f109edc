//! One generated sequence, gathered event by event, with the gaps between its tokens.

use crate::clock::{NANOS, Stamp};
use crate::stats::Histogram;

use super::meta_info::{Member, MemberSet, MetaInfo};
use crate::names::names;

mod row;

names! {
    /// The source of the engine's moments.
    #[derive(Default)]
    pub enum TimingSource {
        /// The response's `meta_info`.
        MetaInfo = "meta_info" default,
        /// The engine's own spans.
        Trace = "trace",
        /// The engine's request log.
        Log = "log",
    }
}

names! {
    /// Why the engine's own trace or log reported nothing, or not all, of a sequence.
    pub enum MissingReason {
        /// It was waited for, and no span came.
        NoSpans = "no_spans",
        /// It was waited for, and no line of the log came.
        NoLogLine = "no_log_line",
        /// Some of its spans came.
        Incomplete = "incomplete",
        /// Its trace went to the server without the sampled flag, of which SGLang makes no spans.
        Unsampled = "unsampled",
        /// Too many requests waited already.
        NoRoom = "no_room",
        /// The times that the engine reported are impossible.
        Impossible = "impossible",
    }
}

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

/// Gathers a sequence's tokens and timings.
#[derive(Debug, Default)]
pub struct SequenceObserver {
    /// The engine's id, if reported.
    pub(super) engine_id: Option<String>,
    /// An event was about it.
    pub(super) has_events: bool,
    /// It brought text or a tool call.
    pub(super) has_text: bool,
    /// When its first token was read.
    pub(super) first_token: Option<Stamp>,
    last_token: Option<Stamp>,
    token_events: u64,
    /// The client's total stall when the first token was read, and when the last was; 0 without a token.
    stalls: [i64; 2],
    /// The largest `completion_tokens` seen; after a retraction counts may repeat.
    tokens: Option<u64>,
    token_source: Option<TokenCountSource>,
    /// The response's first event brought a token.
    pub(super) begins_with_token: bool,
    /// The number of tokens that the first token event brought.
    first_tokens: Option<u64>,
    /// When the latest token event was read, less the client's stall, while its number of tokens is unknown.
    uncounted_at: Option<Stamp>,
    /// Keep the histogram of gaps for their quantiles (2.5 KB).
    keep_histogram: bool,
    /// An event came whose number of tokens is unknown.
    has_uncounted: bool,
    token_gaps: Gaps,
    chunk_gaps: Gaps,
    /// The first `meta_info`, and when its event was read. After it only one with a finish reason adds anything.
    pub(super) first: Option<(MetaInfo, Stamp)>,
    /// The latest `meta_info` with a finish reason, or of a reply; boxed, as the middle of a stream has none.
    last: Option<Box<MetaInfo>>,
}

/// Bounds of the histogram of gaps between tokens, seconds: those of SGLang's own inter-token latency.
pub const GAP_BOUNDS: [f64; 23] = [
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080,
    0.100, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 6.0, 8.0,
];

/// All gaps of a stream as a histogram, exact to 3.2 %.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapCounts {
    /// The number of gaps up to each of [`GAP_BOUNDS`] and above the one before, and last the number above all bounds.
    pub counts: Box<[u32]>,
    /// The sum of the gaps, nanoseconds.
    pub sum_nanos: i64,
}

/// Gathers the gaps between token events; the gap before an event is split evenly among the tokens that it brings.
#[derive(Debug, Default)]
struct Gaps {
    last_at: Option<Stamp>,
    count: i64,
    sum_nanos: i64,
    max_nanos: i64,
    /// For the quantile. Memory is bounded: only the first few sequences of a request have one, for gaps between tokens if events
    /// report how many tokens they bring, else for gaps between events.
    histogram: Option<Histogram>,
}

impl SequenceObserver {
    /// Takes an event that brought tokens, read at `at`, when writes to the client had been held up for `stall_nanos` in all.
    /// `keep_histogram`: keep the histogram of gaps for their quantiles (2.5 KB).
    pub fn token_event(&mut self, at: Stamp, stall_nanos: i64, keep_histogram: bool) {
        if self.first_token.is_none() {
            self.first_token = Some(at);
            self.stalls[0] = stall_nanos;
        }
        self.last_token = Some(at);
        self.stalls[1] = stall_nanos;
        self.token_events += 1;
        self.close_uncounted();
        self.keep_histogram = keep_histogram;
        self.uncounted_at = Some(at.plus_nanos(-stall_nanos));
    }

    /// Takes the total number of tokens up to and including the latest event.
    pub fn count_tokens(&mut self, tokens: u64, source: TokenCountSource) {
        let before = self.tokens.unwrap_or(0);
        self.tokens = Some(before.max(tokens));
        self.token_source.get_or_insert(source);
        let Some(at) = self.uncounted_at.take() else {
            return;
        };
        let new = tokens.saturating_sub(before);
        self.chunk_gaps.record(at, 1, false);
        if !self.has_uncounted {
            self.first_tokens.get_or_insert(new.max(1));
            self.token_gaps.record(at, new, self.keep_histogram);
        }
    }

    /// The number of tokens of the latest event stays unknown; with it, all gaps between tokens are unknown.
    fn close_uncounted(&mut self) {
        if let Some(at) = self.uncounted_at.take() {
            self.chunk_gaps.record(at, 1, self.keep_histogram);
            self.has_uncounted = true;
            self.token_gaps = Gaps::default();
        }
    }

    /// Takes a `meta_info`; `is_last`: it has a finish reason, or is a reply's.
    pub fn meta_info(&mut self, meta: &MetaInfo, is_last: bool, at: Stamp) {
        if self.first.is_some() && !is_last {
            return;
        }
        self.first.get_or_insert((*meta, at));
        if is_last {
            self.last = Some(Box::new(*meta));
        }
    }

    /// Returns the fields that the first and the last `meta_info` have.
    pub fn fields(&self) -> MemberSet {
        let first = self.first.as_ref().map(|(first, _)| first);
        let both = first.into_iter().chain(self.last.as_deref());
        both.fold(MemberSet::default(), |all, meta| all.union(meta.fields))
    }

    /// Whether another server than the one that reported this did the prefill: this one ran it and made tokens, but reports no
    /// prefill. (SGLang before 0.5.12 reports its prefill otherwise.)
    pub fn is_decoded_elsewhere(&self) -> bool {
        let fields = self.fields();
        let has = |field| fields.has(field);
        let ran = has(Member::ForwardEntryTime) && has(Member::QueueTime) && self.tokens > Some(0);
        ran && has(Member::NumRetractions) && !fields.has_prefilled()
    }
}

impl Gaps {
    /// Records the gap before an event that brings `tokens`, in as many equal parts; with 0 tokens the time is added to the
    /// next gap. `at` is when the event was read, less how long writes to the client had been held up by then.
    fn record(&mut self, at: Stamp, tokens: u64, keep_histogram: bool) {
        let Ok(tokens @ 1..) = i64::try_from(tokens) else {
            return;
        };
        let Some(last_at) = self.last_at.replace(at) else {
            return;
        };
        let gap = at.nanos_since(last_at).max(0);
        let each = gap / tokens;
        self.count = self.count.saturating_add(tokens);
        self.sum_nanos = self.sum_nanos.saturating_add(gap);
        self.max_nanos = self.max_nanos.max(each);
        if keep_histogram {
            let times = u32::try_from(tokens).unwrap_or(u32::MAX);
            self.histogram.get_or_insert_default().record(each, times);
        }
    }

    /// Returns the histogram if it has all of the gaps.
    fn complete_histogram(&self) -> Option<&Histogram> {
        let histogram = self.histogram.as_ref();
        histogram.filter(|histogram| histogram.count() == self.count.unsigned_abs())
    }

    /// Returns the histogram's counts; `None` if it is not complete.
    fn counts(&self) -> Option<GapCounts> {
        let bounds = GAP_BOUNDS.map(|seconds| (seconds * NANOS as f64 + 0.5) as i64);
        Some(GapCounts {
            counts: self.complete_histogram()?.counts(&bounds),
            sum_nanos: self.sum_nanos,
        })
    }

    /// Returns mean, 99th percentile and maximum, nanoseconds, without the time in which the client held up the stream.
    fn mean_p99_max(&self) -> [Option<i64>; 3] {
        let mean = self.sum_nanos.checked_div(self.count);
        let histogram = self.complete_histogram();
        let p99 = histogram.and_then(|histogram| histogram.quantile(0.99));
        [mean, p99, (self.count > 0).then_some(self.max_nanos)]
    }
}
