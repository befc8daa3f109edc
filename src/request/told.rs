//! What an engine told of a sequence outside of its response: in its trace or its log.

use crate::clock::{NANOS, Stamp};
use crate::offset::OffsetBound;

use super::attempt::{Attempt, ServerRole};
use super::columns::Row;
use super::sequence::TimingSource;
use super::timeline::{Moment, PrefillTimes};
use super::token_count::TokenCountSource;

/// Two sources that know a moment may differ by so much, nanoseconds: their floats resolve 0.24 µs, and an engine that
/// stamps the same moment twice does so within a step.
const TOLERANCE: i64 = NANOS / 1000;

/// What one source told of one sequence. Stamps are on the engine's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// Who told it.
    pub source: TimingSource,
    /// The engine's whole id of the sequence, which is that of the response.
    pub rid: Option<String>,
    /// The trace that the engine's spans are part of.
    pub trace: Option<u128>,
    /// The span above the engine's: that of whoever sent it the request.
    pub parent: Option<u64>,
    /// The request id (`x-request-id`) that a router's span of that trace names.
    pub request_id: Option<String>,
    /// The server received the request.
    pub received: Option<Stamp>,
    /// It entered the waiting queue.
    pub queue_start: Option<Stamp>,
    /// It left it for its first batch; `None` of one that was aborted there.
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
    /// What the server does, where it is one of a pair.
    pub role: Option<ServerRole>,
    /// By what number the servers of a pair know it.
    pub room: Option<u64>,
    /// Decode had reserved memory.
    pub kv_reserved: Option<Stamp>,
    /// The KV cache had come to decode.
    pub kv_arrived: Option<Stamp>,
    /// It entered decode's batch.
    pub decode_start: Option<Stamp>,
    /// How long prefill sent its KV cache, nanoseconds.
    pub sending_nanos: Option<i64>,
    /// What the prefill server told of it.
    pub prefill: Option<Box<Told>>,
}

impl Told {
    /// Of a source, nothing yet.
    pub fn of(source: TimingSource) -> Told {
        Told {
            source,
            ..Told::default()
        }
    }

    /// Puts into the sequence's row what that does not know. What both know is compared: the row's own stays, and a
    /// difference is noted.
    pub fn put(&self, row: &mut Row) {
        self.put_moments(row);
        let tokens = match self.source {
            TimingSource::Trace => TokenCountSource::Trace,
            TimingSource::MetaInfo | TimingSource::Log => TokenCountSource::Log,
        };
        if tokens == TokenCountSource::Trace {
            row.output_tokens_from_trace = self.output_tokens;
        }
        if row.output_tokens().is_none() && self.output_tokens.is_some() {
            row.actual_output_tokens = self.output_tokens;
            row.token_count_source = Some(tokens);
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

    /// Puts into the row what the two servers of a pair told.
    fn put_pair(&self, row: &mut Row) {
        row.more.room = row.more.room.or(self.room);
        let prefill = self.prefill.as_deref();
        let times = prefill.map(|told| PrefillTimes {
            sending: told.sending_nanos,
            ..PrefillTimes::between([told.queue_start, told.queue_end, told.prefill_end])
        });
        row.timeline.pair(times.unwrap_or_default());
        let of_prefill = |attempt: &&Attempt| {
            prefill.is_some_and(|told| told.parent == Some(attempt.span.number()))
        };
        let attempt = row.more.trace.attempts.iter().find(of_prefill);
        if let (Some(attempt), None) = (attempt.cloned(), &row.prefill_host) {
            row.prefilled_by(&attempt);
        }
    }

    fn put_moments(&self, row: &mut Row) {
        if self.role == Some(ServerRole::Decode) {
            self.put_pair(row);
        }
        let is_pair = row.timeline.prefill().is_some();
        // The log's pair of a decode server is the wait for a slot of its batch.
        let (queued, entered) = match is_pair && self.role.is_none() {
            true => (Moment::KvArrived, Moment::DecodeStart),
            false => (Moment::QueueStart, Moment::QueueEnd),
        };
        // Of an answer in one piece the server's front sees no token come: what it takes for the first may be the last.
        let is_late = row.stream == Some(false) && self.prefill_end.is_some();
        let timeline = &mut row.timeline;
        let first_token = self.first_token.filter(|_| !is_late);
        if first_token.is_some()
            && timeline.raw(Moment::ServerFirstToken) == timeline.raw(Moment::PrefillEnd)
        {
            // Nobody had said when: the end of prefill stood in its place.
            timeline.clear(Moment::ServerFirstToken);
        }
        let mut is_news = false;
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
            let Some(at) = at else { continue };
            match timeline.raw(moment) {
                None => {
                    timeline.set(moment, at);
                    is_news = true;
                }
                Some(known) if at.nanos_since(known).saturating_abs() > TOLERANCE => {
                    row.more.differing.push((moment, self.source));
                }
                Some(_) => {}
            }
        }
        if let Some(at) = self.prefill_end {
            timeline.first(Moment::ServerFirstToken, at);
        }
        if is_news {
            row.timing_source.get_or_insert(self.source);
        }
    }

    /// The bounds that it puts on the engine's clock, if it speaks of this very row: what we sent cannot have arrived
    /// earlier, what came of it cannot have been read earlier.
    pub fn bounds(&self, row: &Row) -> Vec<OffsetBound> {
        let sent = row.timeline.last_send().zip(self.received);
        let sent = sent.map(|(sent, received)| OffsetBound::of_sent(sent, received));
        let made = self.first_token.or(self.prefill_end);
        let read = row.timeline.raw(Moment::FirstToken).zip(made);
        // Nobody saw a token of a reply pass: it was read when the engine had finished it.
        let is_whole = row.message_whole == Some(true);
        let whole = row.timeline.raw(Moment::Finish).filter(|_| is_whole);
        let read = read.or_else(|| whole.zip(self.finished.or(self.prefill_end)));
        let read = read.map(|(read, made)| OffsetBound::of_received(read, made));
        sent.into_iter().chain(read).collect()
    }
}

#[cfg(test)]
mod tests;
