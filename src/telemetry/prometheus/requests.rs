//! Counts ended requests: puts their rows into counters and histograms.

use std::borrow::Cow;

use prometheus::Histogram;

use crate::clock;
use crate::request::{
    Breakdown, Impossible, MissingReason, Moment, Period, Row, StageSet, Unseen, label_pairs,
};
use crate::telemetry::CountedRequest;
use crate::telemetry::family::{Family, OTHER};

use super::Metrics;

/// The label values of a request.
struct Labels<'a> {
    endpoint: &'static str,
    outcome: &'static str,
    worker: &'a str,
    /// Those of the GenAI conventions, the last of which is the error type.
    gen_ai: [&'a str; 7],
}

impl Metrics {
    /// Counts an ended generation request.
    pub fn request_ended(&self, counted: &CountedRequest<'_>) {
        if let Cow::Owned(_) = counted.rows {
            for impossible in counted.reported.iter().map(Impossible::of) {
                for kind in impossible.kinds() {
                    self.impossible.with(&[kind]).inc();
                }
            }
        }
        let rows = &*counted.rows;
        let Some(first) = rows.first() else { return };
        let labels = Labels::of(first);
        let by = [labels.endpoint, labels.outcome, labels.worker];
        self.requests.with(&by).inc();
        let is_timed = !first.is_in_background();
        if is_timed {
            observe(&self.duration, &labels.gen_ai, first.elapsed.into_iter());
        }
        if is_timed && first.is_ok() {
            let gen_ai = &labels.gen_ai[..6];
            let ttft = rows.iter().filter_map(|row| row.ttft);
            observe(&self.first_token, gen_ai, ttft);
            let tpot = rows.iter().filter_map(|row| row.tpot);
            observe(&self.per_token, gen_ai, tpot);
        }
        let waited = rows.iter().filter_map(|row| row.pure_queue_time);
        let waited = waited.reduce(|sum, nanos| sum + nanos);
        for (header, value) in first.labels.iter().flat_map(|labels| label_pairs(labels)) {
            let outcome = labels.outcome;
            self.label_requests.with(&[header, value, outcome]).inc();
            // If no server reported a wait there is no series, rather than 0.
            if let Some(waited) = waited {
                self.label_wait
                    .with(&[header, value])
                    .inc_by(seconds(waited));
            }
        }
        for (kind, tokens) in [
            ("prompt", first.request_prompt_tokens),
            ("cached", first.request_cached_tokens),
            ("output", first.request_output_tokens),
        ] {
            if let Some(tokens) = tokens {
                self.tokens.with(&[kind, labels.worker]).inc_by(tokens);
            }
        }
        if first.is_ok() {
            if is_timed {
                self.request_succeeded(counted, &labels);
            }
        } else if let Some(last_seen) = first.last_seen() {
            let stage = last_seen.ended_in(|stage| stage.metric);
            self.ended_in.with(&[labels.outcome, &stage]).inc();
        }
        self.set_clock_offsets(first);
    }

    fn request_succeeded(&self, counted: &CountedRequest<'_>, labels: &Labels<'_>) {
        let observe_stage = |stage, nanos| {
            let durations = self.stage_duration.with(&[stage, labels.worker]);
            durations.observe(seconds(nanos));
        };
        let rows = &*counted.rows;
        for row in rows {
            match row.is_first_of_request() {
                true => stages(row, counted.breakdown.as_ref(), observe_stage),
                false => stages(row, Breakdown::of(row).as_ref(), observe_stage),
            }
        }
        let overhead = rows.first().and_then(|row| row.overhead);
        observe(&self.overhead, &[], overhead.into_iter());
        for gaps in rows.iter().filter_map(|row| row.internal.gaps.as_ref()) {
            let inter_token = self.inter_token.with(&[labels.worker]);
            inter_token.add(&gaps.counts, gaps.sum_nanos);
        }
        if let Some(reason) = rows.first().and_then(missing_reason) {
            self.timing_missing.with(&[reason, labels.endpoint]).inc();
        }
    }

    fn set_clock_offsets(&self, row: &Row) {
        let of_engine = (row.clock_offset, row.clock_offset_error, &row.host);
        let hop_error = row.hop_clock_offset_error;
        for clock in [of_engine, (row.hop_clock_offset, hop_error, &row.worker)] {
            if let (Some(offset), Some(error), Some(name)) = clock {
                self.clock_offset.with(&[name]).set(clock::seconds(offset));
                let errors = self.clock_offset_error.with(&[name]);
                errors.set(clock::seconds(error));
            }
        }
    }
}

impl<'a> Labels<'a> {
    fn of(row: &'a Row) -> Labels<'a> {
        let host = row.host.as_deref().unwrap_or_default();
        let (address, port) = host.rsplit_once(':').unwrap_or((host, ""));
        let outcome = row.outcome().name();
        let endpoint = row.endpoint().path();
        Labels {
            endpoint,
            outcome,
            worker: row.worker_or_host().unwrap_or_default(),
            gen_ai: [
                row.endpoint().operation(),
                "sglang",
                row.model.as_deref().unwrap_or_default(),
                address,
                port,
                endpoint,
                if row.is_ok() { "" } else { outcome },
            ],
        }
    }
}

/// Calls `on_stage` with each stage of a row's time and its length, nanoseconds. They add up to the whole time, without a part
/// that router and server share. Stages of the request are those of its first row.
fn stages(row: &Row, breakdown: Option<&Breakdown>, mut on_stage: impl FnMut(&'static str, i64)) {
    let is_first = row.is_first_of_request();
    // The engine may report the length of the queue time, but not when it was. That of a pair is a sum of stages.
    let queue = row.pure_queue_time;
    let queue = queue.filter(|_| row.timeline.prefill().is_none());
    for part in breakdown.iter().flat_map(|all| &all.parts) {
        if let Some((stage, is_of_request)) = stage_of(part.spent)
            && (is_first || !is_of_request)
        {
            let has_queue = part.spent.holds(Period::PURE_QUEUE);
            let queue = queue.filter(|_| has_queue).unwrap_or(0);
            on_stage(stage, part.nanos - queue);
        }
    }
    let stall = row.client_stall.filter(|_| is_first);
    for (stage, nanos) in [("server_queue", queue), ("client_stall", stall)] {
        nanos.into_iter().for_each(|nanos| on_stage(stage, nanos));
    }
}

/// Returns the stage of a part of the time, and whether it belongs to the request rather than to a sequence. `None` if
/// [`stages`] counts it separately, or not at all.
fn stage_of(spent: StageSet) -> Option<(&'static str, bool)> {
    match spent {
        StageSet::PROXY => return Some(("proxy", true)),
        StageSet::PROMPT => return Some(("prompt_wait", true)),
        _ => {}
    }
    let mut stages = spent.stages();
    let (first, is_one) = (stages.next()?, stages.next().is_none());
    match first.period {
        Period::PURE_QUEUE if is_one => None,
        Period::QUEUE_IN_ROUTER => is_one.then_some((first.metric, true)),
        // A response that is no stream: its first token is not seen.
        Period::RETURN if !is_one => Some(("decode", false)),
        period if period.from < Moment::RouterSend => None,
        _ if is_one => Some((first.metric, false)),
        _ => Some(("server", false)),
    }
}

fn observe(family: &Family<Histogram>, labels: &[&str], values: impl Iterator<Item = i64>) {
    let mut values = values.peekable();
    if values.peek().is_some() {
        let buckets = family.with(labels);
        values.for_each(|nanos| buckets.observe(seconds(nanos)));
    }
}

/// Converts a duration to seconds. A negative one, due to the error of a clock offset, becomes 0.
pub(super) fn seconds(nanos: i64) -> f64 {
    clock::seconds(nanos.max(0))
}

/// The reasons of [`missing_reason`] where no join says why; for all others, [`OTHER`].
const REASONS: [(Unseen, &str); 7] = [
    (Unseen::MetricsOff, "metrics_off"),
    (Unseen::TooOld, "too_old"),
    (Unseen::Retracted, "retracted"),
    (Unseen::Stream, "openai_stream"),
    (Unseen::ChatReply, "openai_reply"),
    (Unseen::Reply, "openai_reply"),
    (Unseen::Hidden, "unread"),
];

/// Returns all reasons that [`missing_reason`] may return.
pub(super) fn reasons() -> impl Iterator<Item = &'static str> {
    let of_join = MissingReason::ALL.map(MissingReason::name);
    let of_row = REASONS.map(|(_, reason)| reason);
    of_row.into_iter().chain([OTHER]).chain(of_join)
}

/// Returns why the row of a successful request has no time in the server queue; `None` if it has one.
fn missing_reason(row: &Row) -> Option<&'static str> {
    // Some of the engine's spans were lost: the queue time may be there, but is counted as missing.
    let is_incomplete = row.internal.missing_reason == Some(MissingReason::Incomplete);
    if row.pure_queue_time.is_some() && !is_incomplete {
        return None;
    }
    if let Some(reason) = row.internal.missing_reason {
        return Some(reason.name());
    }
    let why = Unseen::of_engine(row);
    let found = REASONS.iter().find(|(unseen, _)| *unseen == why);
    Some(found.map_or(OTHER, |(_, reason)| reason))
}
