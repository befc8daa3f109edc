//! What an engine reports of a sequence: in its response's `meta_info`, its trace or its log.

use crate::clock::Stamp;

use super::attempt::{Attempt, ServerRole};
use super::columns::Row;
use super::meta_info::{Member, MetaInfo};
use super::sequence::{TimingSource, TokenCountSource};
use super::timeline::{Moment, PrefillTimes};

/// What one source reports of one sequence. Timestamps are on the engine's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineReport {
    /// The source.
    pub source: TimingSource,
    /// The engine's full id of the sequence, which is also the response's.
    pub rid: Option<String>,
    /// The trace that the engine's spans are part of.
    pub trace: Option<u128>,
    /// The parent of the engine's spans: the span of whoever sent it the request.
    pub parent: Option<u64>,
    /// The request id (`x-request-id`) that a router's span of that trace names.
    pub request_id: Option<String>,
    /// The server received the request.
    pub received: Option<Stamp>,
    /// It entered the waiting queue.
    pub queue_start: Option<Stamp>,
    /// It left the queue for its first batch; `None` if it was aborted there.
    pub queue_end: Option<Stamp>,
    /// Time in the waiting queue, retractions included, nanoseconds.
    pub queue_nanos: Option<i64>,
    /// Prefill finished.
    pub prefill_end: Option<Stamp>,
    /// The first token was made.
    pub first_token: Option<Stamp>,
    /// The engine's own end.
    pub finished: Option<Stamp>,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens served from the cache.
    pub cached_tokens: Option<u64>,
    /// Tokens generated.
    pub output_tokens: Option<u64>,
    /// Times the scheduler took the sequence out of the batch again.
    pub num_retractions: Option<u64>,
    /// Data-parallel rank.
    pub dp_rank: Option<u64>,
    /// The server's role, if it is one of a pair.
    pub role: Option<ServerRole>,
    /// `bootstrap_room`: the number by which the servers of a pair know it.
    pub room: Option<u64>,
    /// The decode server had reserved memory.
    pub kv_reserved: Option<Stamp>,
    /// The KV cache had arrived at the decode server.
    pub kv_arrived: Option<Stamp>,
    /// It entered the decode server's batch.
    pub decode_start: Option<Stamp>,
    /// How long the prefill server sent the KV cache, nanoseconds.
    pub sending_nanos: Option<i64>,
    /// The prefill server's report of it.
    pub prefill: Option<Box<EngineReport>>,
}

impl EngineReport {
    /// An empty report of this source.
    pub fn of(source: TimingSource) -> EngineReport {
        EngineReport {
            source,
            ..EngineReport::default()
        }
    }

    /// What the `meta_info` of a sequence's `first` event (or of a reply) reports, and that of its `last` if another has been read.
    pub fn of_meta_info(
        source: TimingSource,
        first: &MetaInfo,
        last: Option<&MetaInfo>,
    ) -> EngineReport {
        let latest = last.unwrap_or(first);
        let count = |member| latest.count(member).or(first.count(member));
        let entry = first.forward_entry().or_else(|| last?.forward_entry());
        let nanos = first.queue_nanos().or_else(|| last?.queue_nanos());
        // After a retraction `queue_time` has gone on while the entry into the first batch stayed: they do not belong together.
        let is_retracted = first.num_retractions() > Some(0);
        let queue = entry.zip(nanos).filter(|_| !is_retracted);
        EngineReport {
            received: latest.received().or(first.received()),
            queue_start: queue.map(|(end, nanos)| end.plus_nanos(-nanos)),
            queue_end: queue.map(|(end, _)| end),
            // Before 0.5.21 a retraction or an abort in the queue leaves a negative time, later the abort leaves 0.
            queue_nanos: nanos.filter(|nanos| *nanos > 0),
            prefill_end: first.prefill_finished(),
            first_token: latest.first_token(),
            finished: latest.finished(),
            prompt_tokens: count(Member::PromptTokens),
            cached_tokens: count(Member::CachedTokens),
            num_retractions: latest.num_retractions().or(first.num_retractions()),
            dp_rank: count(Member::DpRank),
            ..EngineReport::of(source)
        }
    }

    /// Fills in what the sequence's row lacks. If both have a moment, the row's own stays.
    pub fn put(&self, row: &mut Row) {
        self.put_moments(row);
        let mut count_source = TokenCountSource::Log;
        if self.source == TimingSource::Trace {
            count_source = TokenCountSource::Trace;
            row.output_tokens_from_trace = self.output_tokens;
        }
        if row.output_tokens().is_none() && self.output_tokens.is_some() {
            row.actual_output_tokens = self.output_tokens;
            row.token_count_source = Some(count_source);
        }
        if row.prompt_tokens().is_none() {
            row.actual_prompt_tokens = self.prompt_tokens;
        }
        row.cached_tokens = row.cached_tokens.or(self.cached_tokens);
        row.num_retractions = row.num_retractions.or(self.num_retractions);
        row.dp_rank = row.dp_rank.or(self.dp_rank);
        if row.pure_queue().is_none() {
            row.pure_queue_time = self.queue_nanos;
        }
    }

    /// Writes into the row what the two servers of a pair reported.
    fn put_pair(&self, row: &mut Row) {
        row.internal.room = row.internal.room.or(self.room);
        let prefill = self.prefill.as_deref();
        let times = prefill.map(|report| PrefillTimes {
            sending: report.sending_nanos,
            ..PrefillTimes::between([report.queue_start, report.queue_end, report.prefill_end])
        });
        row.timeline.set_pair(times.unwrap_or_default());
        let of_prefill = |attempt: &&Attempt| {
            prefill.is_some_and(|report| report.parent == Some(attempt.span.number()))
        };
        let attempt = row.internal.trace.attempts.iter().find(of_prefill);
        if let (Some(attempt), None) = (attempt.cloned(), &row.prefill_host) {
            row.prefilled_by(&attempt);
        }
    }

    fn put_moments(&self, row: &mut Row) {
        if self.role == Some(ServerRole::Decode) {
            self.put_pair(row);
        }
        let is_pair = row.timeline.prefill().is_some();
        // A decode server's log has two times of a queue: those of its wait for a batch slot.
        let (queued, entered) = match is_pair && self.role.is_none() {
            true => (Moment::KvArrived, Moment::DecodeStart),
            false => (Moment::QueueStart, Moment::QueueEnd),
        };
        // Of a reply the API server sees no token arrive: what it takes for the first may be the last.
        let is_late = row.stream == Some(false) && self.prefill_end.is_some();
        let timeline = &mut row.timeline;
        let first_token = self.first_token.filter(|_| !is_late);
        if first_token.is_some()
            && timeline.raw(Moment::ServerFirstToken) == timeline.raw(Moment::PrefillEnd)
        {
            // The end of prefill stood in for it, as no source had reported it.
            timeline.clear(Moment::ServerFirstToken);
        }
        let mut has_added = false;
        for (moment, at) in [
            (Moment::ServerCreated, self.received),
            (queued, self.queue_start),
            (entered, self.queue_end),
            (Moment::KvReserved, self.kv_reserved),
            (Moment::KvArrived, self.kv_arrived),
            (Moment::DecodeStart, self.decode_start),
            (Moment::PrefillEnd, self.prefill_end),
            (Moment::ServerFirstToken, first_token),
            (Moment::ServerFinish, self.finished),
        ] {
            if at.is_some() && timeline.raw(moment).is_none() {
                timeline.set(moment, at);
                has_added = true;
            }
        }
        if let Some(at) = self.prefill_end {
            timeline.set_if_unknown(Moment::ServerFirstToken, at);
        }
        if has_added {
            row.timing_source.get_or_insert(self.source);
        }
    }
}

#[cfg(test)]
mod tests;
