//! What is told of requests that have ended: their rows, put into histograms and counters.

use std::borrow::Cow;

use prometheus::Histogram;

use crate::clock::NANOS;
use crate::request::endpoint::Endpoint;
use crate::request::headers::label_pairs;
use crate::request::impossible::Impossible;
use crate::request::row::Row;
use crate::request::sequence::Untold;
use crate::request::stages::{Breakdown, Spent};
use crate::request::timeline::{Moment, Period};
use crate::request::unseen::Unseen;
use crate::telemetry::counted::Counted;
use crate::telemetry::family::Family;

use super::Metrics;

/// What a request is counted under.
struct Labels<'a> {
    endpoint: &'static str,
    outcome: &'static str,
    worker: &'a str,
    /// Those of the GenAI conventions, and the error's type.
    gen_ai: [&'a str; 7],
}

impl Metrics {
    /// A generation request ended.
    pub fn request_ended(&self, counted: &Counted<'_>) {
        if let Cow::Owned(_) = counted.rows {
            for found in counted.told.iter().map(Impossible::of) {
                found
                    .kinds()
                    .for_each(|kind| self.impossible.with(&[kind]).inc());
            }
        }
        let rows = &*counted.rows;
        let Some(first) = rows.first() else { return };
        let labels = Labels::of(first);
        let (endpoint, worker) = (labels.endpoint, labels.worker);
        let by = [endpoint, labels.outcome, worker];
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
        for (header, value) in label_pairs(first.labels.as_deref().unwrap_or_default()) {
            let outcome = labels.outcome;
            self.label_requests.with(&[header, value, outcome]).inc();
            // Of whom no server told how long they waited there is no number, rather than 0.
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
                self.tokens.with(&[kind, worker]).inc_by(tokens);
            }
        }
        if first.is_ok() {
            if is_timed {
                self.went_well(counted, &labels);
            }
        } else if let Some(last_seen) = first.last_seen() {
            let stage = last_seen.ended_in(|stage| stage.metric);
            self.ended_in.with(&[labels.outcome, &stage]).inc();
        }
        self.look_at_clocks(first);
    }

    fn went_well(&self, counted: &Counted<'_>, labels: &Labels<'_>) {
        let tell = |stage, nanos| {
            let durations = self.stage_duration.with(&[stage, labels.worker]);
            durations.observe(seconds(nanos));
        };
        let rows = &*counted.rows;
        for row in rows {
            match row.is_first_of_request() {
                true => stages(row, counted.breakdown.as_ref(), tell),
                false => stages(row, Breakdown::of(row).as_ref(), tell),
            }
        }
        let overhead = rows.first().and_then(|row| row.overhead);
        observe(&self.overhead, &[], overhead.into_iter());
        for gaps in rows.iter().filter_map(|row| row.more.gaps.as_ref()) {
            let inter_token = self.inter_token.with(&[labels.worker]);
            inter_token.add(&gaps.counts, gaps.sum_nanos);
        }
        if let Some(reason) = rows.first().and_then(missing) {
            self.timing_missing.with(&[reason, labels.endpoint]).inc();
        }
    }

    fn look_at_clocks(&self, row: &Row) {
        for (offset, error, name) in [
            (row.clock_offset, row.clock_offset_error, &row.host),
            (
                row.hop_clock_offset,
                row.hop_clock_offset_error,
                &row.worker,
            ),
        ] {
            if let (Some(offset), Some(error), Some(name)) = (offset, error, name) {
                let in_seconds = |nanos: i64| nanos as f64 / NANOS as f64;
                self.clock_offset.with(&[name]).set(in_seconds(offset));
                self.clock_offset_error.with(&[name]).set(in_seconds(error));
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
            worker: row.worker.as_deref().unwrap_or(host),
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

/// Tells what a row's time was spent on, nanoseconds by stage: all of its time, but for a stretch that holds a router and the
/// server. What is the request's is told by its first row.
fn stages(row: &Row, breakdown: Option<&Breakdown>, mut tell: impl FnMut(&'static str, i64)) {
    let is_first = row.is_first_of_request();
    // Known by itself where the engine told how long, not when; that of a pair is the sum of stages.
    let queue = row.pure_queue_time;
    let queue = queue.filter(|_| row.timeline.prefill().is_none());
    for part in breakdown.iter().flat_map(|all| &all.parts) {
        if let Some((stage, is_of_request)) = stage_of(part.spent)
            && (is_first || !is_of_request)
        {
            let is_queue_too = part.spent.holds(Period::PURE_QUEUE);
            let queue = queue.filter(|_| is_queue_too).unwrap_or(0);
            tell(stage, part.nanos - queue);
        }
    }
    let stall = row.client_stall.filter(|_| is_first);
    for (stage, nanos) in [("server_queue", queue), ("client_stall", stall)] {
        nanos.into_iter().for_each(|nanos| tell(stage, nanos));
    }
}

/// The stage of a part in [`stages`] that is not told by itself, and whether it is the request's.
fn stage_of(spent: Spent) -> Option<(&'static str, bool)> {
    match spent {
        Spent::PROXY => return Some(("proxy", true)),
        Spent::PROMPT => return Some(("prompt_wait", true)),
        _ => {}
    }
    let mut stages = spent.stages();
    let (first, is_one) = (stages.next()?, stages.next().is_none());
    match first.period {
        Period::PURE_QUEUE if is_one => None,
        Period::QUEUE_IN_ROUTER => is_one.then_some((first.metric, true)),
        // Of a reply that is no stream: nobody sees its first token pass.
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

/// A duration; one that is negative, which clocks that are known only so well can show, as 0.
pub(super) fn seconds(nanos: i64) -> f64 {
    nanos.max(0) as f64 / NANOS as f64
}

/// What [`missing`] may say of an endpoint's rows.
pub(super) fn reasons(endpoint: Endpoint) -> impl Iterator<Item = &'static str> {
    let own: &[&str] = match endpoint {
        Endpoint::Generate => &["metrics_off", "too_old", "retracted", "unread", "other"],
        // Its replies may have `meta_info`.
        Endpoint::Chat => &[
            "metrics_off",
            "too_old",
            "retracted",
            "openai_stream",
            "openai_reply",
            "unread",
            "other",
        ],
        _ => &["openai_stream", "openai_reply", "unread", "other"],
    };
    own.iter().copied().chain(Untold::ALL.map(Untold::name))
}

/// Why a row that went well has no time in the server queue.
fn missing(row: &Row) -> Option<&'static str> {
    // Where parts of what it tells were lost, others may be there.
    let is_part = row.more.untold == Some(Untold::Incomplete);
    if row.pure_queue_time.is_some() && !is_part {
        return None;
    }
    if let Some(why) = row.more.untold {
        return Some(why.name());
    }
    Some(match Unseen::of_engine(row) {
        Unseen::Hidden => "unread",
        Unseen::MetricsOff => "metrics_off",
        Unseen::TooOld => "too_old",
        Unseen::Retracted => "retracted",
        Unseen::Stream => "openai_stream",
        Unseen::ChatReply | Unseen::Reply => "openai_reply",
        _ => "other",
    })
}
