//! The observer of a request: bytes and timestamps in, rows out.
//!
//! The proxy and the generator hold one observer per request and feed it what passes. It keeps no bytes and never fails: what it
//! cannot read stays unknown in the row.

use crate::clock::Stamp;

pub use super::outcome::End;

use super::columns::Row;
use super::outcome::{Outcome, ResponseFacts, error_text, judge, without_quote};
use super::request_body::RequestBody;
use super::response::{Endpoint, ParsedBody, ResponseBody};
use super::sequence::SequenceObserver;
use super::stamps::Stamps;
use super::timeline::{ClockOf, Moment, PrefillTimes, Relation, Side};

/// Observes one request.
#[derive(Debug)]
pub struct Observer {
    /// The row of the first sequence, on the heap, where it stays: it is large.
    row: Box<[Row; 1]>,
    /// `None` once a whole document has been read: what follows it means nothing, and a response may take long.
    request: Option<Box<RequestBody>>,
    response: Option<ResponseBody>,
    /// When the last of the response was read.
    last_read: Option<Stamp>,
    /// The end of the response's framing was read.
    is_whole: bool,
    /// The outcome that a proxy of ours reported on a response that it gave itself ([`super::headers::OUTCOME_HEADER`]).
    pub reported_outcome: Option<Outcome>,
}

impl Observer {
    /// Begins to observe a request to `endpoint`.
    pub fn new(side: Side, endpoint: Endpoint, req_id: String) -> Observer {
        Observer {
            row: Box::new([Row::new(side, endpoint, req_id)]),
            request: Some(Box::default()),
            response: None,
            last_read: None,
            is_whole: false,
            reported_outcome: None,
        }
    }

    /// Returns the row, for values and moments that only the driver knows: host, attempts, trace id, …
    pub fn row_mut(&mut self) -> &mut Row {
        &mut self.row[0]
    }

    /// Takes a piece of the request body, in order, of any size.
    pub fn request_body(&mut self, bytes: &[u8]) {
        let Some(request) = &mut self.request else {
            return;
        };
        request.feed(bytes);
        if request.is_whole() {
            self.take_request_params();
        }
    }

    /// Returns the number by which the servers of a pair know the request, as far as its body has been read.
    pub fn room(&self) -> Option<u64> {
        let request = self.request.as_ref();
        let in_body = request.and_then(|request| request.params.room);
        self.row[0].internal.room.or(in_body)
    }

    /// Returns what has been read of the response's body.
    pub fn response(&self) -> Option<&ResponseBody> {
        self.response.as_ref()
    }

    /// Takes the head of the final response (not 1xx). `is_encoded`: a `Content-Encoding` other than `identity` hides the body,
    /// which is then only timed.
    pub fn response_head(
        &mut self,
        status: u16,
        content_type: Option<&str>,
        is_encoded: bool,
        at: Stamp,
    ) {
        let row = self.row_mut();
        row.status = Some(status.into());
        row.timeline.set_if_unknown(Moment::ResponseHead, at);
        let endpoint = row.endpoint();
        self.response = Some(ResponseBody::new(endpoint, content_type, is_encoded));
    }

    /// Takes a piece of the response body (without chunk framing), in order, read at `at`. `stall_nanos`: how long writes to the
    /// client have been held up so far in this response.
    pub fn response_body(&mut self, bytes: &[u8], at: Stamp, stall_nanos: i64) {
        self.last_read = Some(at);
        let row = self.row_mut();
        if row.timeline.side() != Side::Traffic {
            row.client_stall = Some(stall_nanos);
            row.client_stall_until_finish = Some(stall_nanos);
        }
        if let Some(response) = &mut self.response {
            response.feed(bytes, at, stall_nanos);
        }
    }

    /// Records that the end of the response's framing was read at `at`: its last chunk, its length, or the end of the connection if
    /// that is the framing.
    pub fn response_end(&mut self, at: Stamp) {
        self.last_read = Some(at);
        self.is_whole = true;
    }

    /// Takes the timestamps in the header of a front or hop. `own_clock` is the name of the observer's clock: timestamps of the
    /// same clock need no offset.
    pub fn stamps(&mut self, stamps: &Stamps, own_clock: &str) {
        let same = |name: &str| match name == own_clock {
            true => Relation::Same,
            false => Relation::Unknown,
        };
        let row = self.row_mut();
        let timeline = &mut row.timeline;
        let is_hop = timeline.side() == Side::Front;
        if !is_hop {
            timeline.relate(ClockOf::Front, same(&stamps.clock));
            // What the front sends to counts, and the front reports it: our own setting is of our target, the front.
            timeline.upstream_is_server(stamps.is_direct);
            timeline.set(Moment::Arrival, stamps.arrival);
            timeline.set(Moment::RequestEnd, stamps.request_end);
            timeline.set(Moment::Forwarded, stamps.forwarded);
            row.attempts = stamps.attempts.map(u64::from).or(row.attempts);
            row.host = stamps.host.clone();
            row.failed_attempts = Some(stamps.failed.clone());
            row.internal.front_joins_engine = stamps.joins_engine;
        }
        let (front_clock, hop) = match is_hop {
            true => (own_clock, Some(stamps)),
            false => (&*stamps.clock, stamps.hop.as_deref()),
        };
        if let Some(hop) = hop {
            timeline.relate(ClockOf::Hop, same(&hop.clock));
            if hop.clock == front_clock {
                timeline.hop_shares_front();
            }
            timeline.set(Moment::WorkerArrival, hop.arrival);
            timeline.set(Moment::WorkerForwarded, hop.forwarded);
            row.host = hop.host.clone().or(row.host.take());
            row.worker = hop.worker.clone();
            row.internal.room = row.internal.room.or(hop.room);
        }
    }

    /// Ends the observation, at `at` unless the response came to its own end. For a response without a body that is the finish
    /// moment. Returns the rows, one per generated sequence and at least one; they are not finalized.
    pub fn finish(mut self, end: End, at: Stamp) -> Vec<Row> {
        let is_complete = end == End::Complete;
        self.is_whole |= is_complete;
        self.take_request_params();
        let parsed = self.take_response();
        let finish = self.last_read.or(is_complete.then_some(at));
        let ended = finish.map_or(at, |read| if is_complete { read } else { at.max(read) });
        let [row] = &mut *self.row;
        let is_stream = row.stream == Some(true);
        row.timeline.set(Moment::Finish, finish);
        row.timeline.set(Moment::End, ended);
        row.timeline.set(Moment::FirstEvent, parsed.first_event);
        let facts = ResponseFacts {
            status: row.status.and_then(|status| u16::try_from(status).ok()),
            reported_outcome: self.reported_outcome,
            // Who asked for no stream may get nothing.
            generation_whole: parsed
                .generation_whole
                .filter(|_| is_stream || !parsed.is_absent()),
            failure: parsed.failure.as_ref(),
            misplaced: parsed.misplaced(),
        };
        let (outcome, error, quote) = judge(end, &facts);
        row.outcome = Some(outcome);
        row.error = (outcome != Outcome::Ok).then(|| error_text(&error, quote));
        row.internal.unquoted_error = (!quote.is_empty()).then(|| without_quote(&error));
        row.internal.has_unrecorded_sequences = parsed.has_unrecorded_sequences;
        row.internal.usage_prompt_tokens = parsed.usage_prompt_tokens;
        row.internal.usage_completion_tokens = parsed.usage_completion_tokens;
        Observer::rows(self.row, parsed)
    }

    /// Returns what was read from the response.
    fn take_response(&mut self) -> ParsedBody {
        let Some(response) = self.response.take() else {
            return ParsedBody::default();
        };
        let parsed = response.finish();
        let [row] = &mut *self.row;
        row.message_whole = Some(self.is_whole);
        // An error's body is no generation.
        if matches!(row.status, Some(200..=299)) {
            row.unread = parsed.unread;
            let has_failed = parsed.failure.is_some();
            row.generation_whole = parsed.generation_whole.map(|whole| whole && !has_failed);
        }
        parsed
    }

    fn take_request_params(&mut self) {
        let Some(request) = self.request.take() else {
            return;
        };
        let is_whole = request.is_whole();
        let (params, row) = (request.params, self.row_mut());
        row.stream = params.stream.or(is_whole.then_some(false));
        row.internal.n = params.n.unwrap_or(1).max(1);
        row.input_length = params.input_length().filter(|_| is_whole);
        row.expected_output_length = params.output_length();
        row.internal.room = row.internal.room.or(params.room);
        row.model = params.model;
    }

    fn rows(row: Box<[Row]>, mut parsed: ParsedBody) -> Vec<Row> {
        if parsed.sequences.is_empty() {
            parsed.sequences.push(SequenceObserver::default());
        }
        // Sums count a request at its first row, so that row always exists; other indexes may be empty.
        parsed.sequences[0].has_events = true;
        let count = parsed.sequences.iter().filter(|one| one.has_events).count();
        let sequences = u32::try_from(count).unwrap_or(u32::MAX);
        let usage_cached = parsed.usage_cached_tokens.filter(|_| sequences == 1);
        let mut rows = row.into_vec();
        // The first row holds it for all.
        let trace = std::mem::take(&mut rows[0].internal.trace);
        rows.reserve_exact(count - 1);
        (1..count).for_each(|_| rows.extend_from_within(..1));
        let recorded = parsed.sequences.into_iter().zip(0..);
        let recorded = recorded.filter(|(one, _)| one.has_events);
        for (row, (sequence, index)) in rows.iter_mut().zip(recorded) {
            let is_leg = row.internal.room.is_some() && !sequence.fields().has_prefilled();
            let is_pair = is_leg || sequence.is_decoded_elsewhere();
            sequence.put(row);
            if is_pair {
                row.timeline.set_pair(PrefillTimes::default());
            }
            row.cached_tokens = row.cached_tokens.or(usage_cached);
            row.set_index(index, sequences);
        }
        rows[0].internal.trace = trace;
        rows
    }
}
