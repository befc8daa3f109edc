//! Bytes and stamps in, records out.
//!
//! The proxy and the generator both hold one observer a request and feed it what passes; it keeps no
//! bytes and never fails: what it cannot read stays unknown in the record.

use crate::clock::Stamp;
use crate::offset::{Offset, OffsetBound};

pub use super::outcome::End;

use super::endpoint::Endpoint;
use super::outcome::{Generation, Outcome, Seen, judge};
use super::record::{Facts, Record};
use super::request_body::RequestBody;
use super::response::{ParsedBody, ResponseBody};
use super::sequence::SequenceWatch;
use super::stamps::Stamps;
use super::timeline::{ClockOf, Moment, PrefillTimes, Relation, Side, Timeline};

/// Watches one request.
#[derive(Debug)]
pub struct Observer {
    facts: Facts,
    timeline: Timeline,
    request: RequestBody,
    response: Option<ResponseBody>,
    /// When the last of the response was read.
    last_read: Option<Stamp>,
    /// The end of the response's framing was read.
    is_whole: bool,
    told: Option<Outcome>,
}

/// A watched request that has ended.
#[derive(Debug)]
pub struct Observed {
    records: Vec<Record>,
    first_writes: Vec<(Stamp, Stamp)>,
}

impl Observer {
    /// Begins to watch a request to `endpoint`.
    pub fn new(side: Side, endpoint: Endpoint, req_id: String) -> Observer {
        Observer {
            facts: Facts::new(endpoint, req_id),
            timeline: Timeline::new(side),
            request: RequestBody::new(endpoint),
            response: None,
            last_read: None,
            is_whole: false,
            told: None,
        }
    }

    /// The same for one of two legs, which has no row of its own: of its request nothing but the room is read.
    pub fn of_leg(endpoint: Endpoint) -> Observer {
        Observer {
            request: RequestBody::of_room(),
            ..Observer::new(Side::Hop, endpoint, String::new())
        }
    }

    /// The request-wide facts, for what only the driver knows: host, attempts, trace id, …
    pub fn facts_mut(&mut self) -> &mut Facts {
        &mut self.facts
    }

    /// The timeline, for the moments that only the driver sees.
    pub fn timeline_mut(&mut self) -> &mut Timeline {
        &mut self.timeline
    }

    /// Takes a piece of the request body, in order, of any size.
    pub fn request_body(&mut self, bytes: &[u8]) {
        self.request.feed(bytes);
    }

    /// By what number the servers of a pair know the request, as far as its body has been read.
    pub fn room(&self) -> Option<u64> {
        self.request.asked.room
    }

    /// The server's ids of its sequences, as far as its reply has told.
    pub fn server_ids(&self) -> impl Iterator<Item = &str> {
        self.response.iter().flat_map(ResponseBody::engine_ids)
    }

    /// Takes the head of the final response (not 1xx). `encoded` says that a `Content-Encoding` other
    /// than `identity` hides the body, which is then only timed.
    pub fn response_head(
        &mut self,
        status: u16,
        content_type: Option<&str>,
        encoded: bool,
        at: Stamp,
    ) {
        self.facts.status = Some(status);
        self.timeline.first(Moment::ResponseHead, at);
        // These have no body, whatever their Content-Type says.
        let bodyless = matches!(status, 204 | 304);
        self.response = Some(ResponseBody::new(
            self.facts.endpoint,
            content_type,
            encoded || bodyless,
        ));
    }

    /// Takes that a proxy of ours gives this answer itself, and how it judges ([`super::head::OUTCOME_HEADER`]).
    pub fn told(&mut self, outcome: Option<Outcome>) {
        self.told = outcome;
    }

    /// Takes a piece of the response body (chunk framing taken off), in order, read at `at`. `stall_nanos` is how long writes to the client
    /// have been held up so far in this response.
    pub fn response_body(&mut self, bytes: &[u8], at: Stamp, stall_nanos: i64) {
        self.last_read = Some(at);
        if self.timeline.side() != Side::Traffic {
            self.facts.client_stall_nanos = Some(stall_nanos);
            self.facts.stall_until_read_nanos = Some(stall_nanos);
        }
        if let Some(response) = &mut self.response {
            response.feed(bytes, at, stall_nanos);
        }
    }

    /// Whether a generated token has come; of a stream that cannot be read, a piece of it.
    pub fn is_streaming(&self) -> bool {
        self.response
            .as_ref()
            .is_some_and(ResponseBody::is_streaming)
    }

    /// Takes that the end of the response's framing was read at `at`: its last chunk, its length, or the end of the
    /// connection where that is the framing.
    pub fn response_end(&mut self, at: Stamp) {
        self.last_read = Some(at);
        self.is_whole = true;
    }

    /// Takes the stamps that a front or hop sent by header. `own_clock` is the name of the observer's
    /// clock: stamps by the same name need no offset.
    pub fn stamps(&mut self, stamps: &Stamps, own_clock: &str) {
        let same = |name: &str| match name == own_clock {
            true => Relation::Same,
            false => Relation::Unknown,
        };
        let (timeline, facts) = (&mut self.timeline, &mut self.facts);
        let is_hop = timeline.side() == Side::Front;
        if !is_hop {
            timeline.relate(ClockOf::Front, same(&stamps.clock));
            // The front knows what it sends to; what we were told of our own target is about the front.
            timeline.upstream_is_server(stamps.is_direct);
            timeline.set(Moment::Arrival, stamps.arrival);
            timeline.set(Moment::RequestEnd, stamps.request_end);
            timeline.set(Moment::Forwarded, stamps.forwarded);
            facts.attempts = stamps.attempts.unwrap_or(facts.attempts);
            facts.host = stamps.host.clone();
            facts.failed = stamps.failed.clone();
            facts.front_joins_engine = stamps.joins_engine;
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
            facts.host = hop.host.clone().or(facts.host.take());
            facts.worker = hop.worker.clone();
            facts.room = facts.room.or(hop.room);
        }
    }

    /// Ends the watch, at `at` unless the response came to its own end. Of one without a body that is its finish moment.
    pub fn finish(mut self, end: End, at: Stamp) -> Observed {
        let is_whole = self.is_whole || end == End::Complete;
        self.take_what_was_asked();
        let (parsed, generation) = self.take_response(is_whole);
        let is_complete = end == End::Complete;
        let finish = self.last_read.or(is_complete.then_some(at));
        self.timeline.set(Moment::Finish, finish);
        let ended = finish.map_or(at, |read| if is_complete { read } else { at.max(read) });
        self.timeline.set(Moment::End, ended);
        self.timeline.set(Moment::FirstEvent, parsed.first_event);
        let seen = Seen {
            status: self.facts.status,
            told: self.told,
            is_whole,
            generation,
            failure: parsed.failure.as_ref(),
        };
        (self.facts.outcome, self.facts.error) = judge(end, &seen);
        self.facts.error_quotes_server = seen.quoted_in(&self.facts.error);
        self.facts.error_code = seen.code();
        self.facts.untold_sequences = parsed.untold_sequences;
        self.facts.usage_prompt_tokens = parsed.usage_prompt_tokens;
        self.facts.usage_completion_tokens = parsed.usage_completion_tokens;
        self.into_observed(parsed)
    }

    /// What the response parsed, and what it showed of the generation's end.
    fn take_response(&mut self, is_whole: bool) -> (ParsedBody, Generation) {
        let Some(mut response) = self.response.take() else {
            return (ParsedBody::default(), Generation::Unknown);
        };
        response.finish();
        let (generation, unread) = (response.generation(), response.unread());
        let generation = match generation {
            Generation::Absent if self.facts.stream == Some(true) => Generation::Empty,
            generation => generation,
        };
        let parsed = response.into_parsed();
        self.facts.message_whole = Some(is_whole);
        // The body of an error is no generation.
        if matches!(self.facts.status, Some(200..=299)) {
            self.facts.unread = unread;
            self.facts.generation_whole = match generation {
                Generation::Unknown => None,
                Generation::Absent | Generation::Empty | Generation::Cut => Some(false),
                Generation::Whole => Some(parsed.failure.is_none()),
            };
        }
        (parsed, generation)
    }

    fn take_what_was_asked(&mut self) {
        let is_whole = self.request.is_whole();
        let asked = &mut self.request.asked;
        self.facts.model = asked.model.take();
        self.facts.stream = asked.stream.or(is_whole.then_some(false));
        self.facts.n = asked.n.unwrap_or(1).max(1);
        self.facts.input_length = asked.input_length().filter(|_| is_whole);
        self.facts.expected_output_length = asked.output_length();
        self.facts.room = self.facts.room.or(asked.room);
    }

    fn into_observed(mut self, mut parsed: ParsedBody) -> Observed {
        if parsed.sequences.is_empty() {
            parsed.sequences.push(SequenceWatch::default());
        }
        // Sums count a request at its first row, so that stands whatever came; other places may be empty.
        let is_told = |watch: &SequenceWatch, index: u32| index == 0 || watch.has_events();
        let watched = parsed.sequences.iter();
        let first_writes = watched.clone().filter_map(SequenceWatch::first_write);
        let first_writes = first_writes.collect();
        let told = watched
            .zip(0..)
            .filter(|(watch, index)| is_told(watch, *index));
        let told = told.count();
        let sequences = u32::try_from(told).unwrap_or(u32::MAX);
        let usage_cached = parsed.usage_cached_tokens.filter(|_| sequences == 1);
        // The first row has it for all of them.
        let trace = std::mem::take(&mut self.facts.trace);
        let facts = std::iter::repeat_n(self.facts, told);
        let watched = parsed.sequences.into_iter().zip(0..);
        let records = watched
            .filter(|(watch, index)| is_told(watch, *index))
            .zip(facts)
            .map(|((watch, index), facts)| {
                let mut timeline = self.timeline.clone();
                watch.mark(&mut timeline);
                let is_leg = facts.room.is_some() && !watch.has_prefilled();
                if is_leg || watch.is_decoded_elsewhere() {
                    timeline.pair(PrefillTimes::default());
                }
                let mut sequence = watch.into_sequence(index);
                sequence.cached_tokens = sequence.cached_tokens.or(usage_cached);
                Record {
                    facts,
                    sequence,
                    sequences,
                    timeline,
                }
            });
        let mut records: Vec<Record> = records.collect();
        if let Some(first) = records.first_mut() {
            first.facts.trace = trace;
        }
        Observed {
            records,
            first_writes,
        }
    }
}

impl Observed {
    /// How the request ended.
    pub fn outcome(&self) -> Outcome {
        self.records
            .first()
            .map_or(Outcome::ProxyError, |record| record.facts.outcome)
    }

    /// The moments of its first sequence.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.records.first().map(|record| &record.timeline)
    }

    /// Puts another text in place of what is said of how it went wrong.
    pub fn rewrite_error(&mut self, rewrite: impl Fn(&str) -> String) {
        for record in &mut self.records {
            record.facts.error = rewrite(&record.facts.error);
        }
    }

    /// The server that served it, the key of its engine's clock.
    pub fn host(&self) -> Option<&str> {
        self.records.first()?.facts.host.as_deref()
    }

    /// Says how another clock stands to ours, in every record.
    pub fn relate(&mut self, clock: ClockOf, relation: Relation) {
        for record in &mut self.records {
            record.timeline.relate(clock, relation);
        }
    }

    /// When, on our clock, the engine's moments of this request were: from our last send to the first
    /// token read, or to the end where none was seen. `None` when nothing is known to have been sent.
    pub fn with_engine(&self) -> Option<(Stamp, Stamp)> {
        with_engine(&self.records)
    }

    /// The bounds that this request puts on the engine's clock: what we sent cannot have arrived earlier,
    /// what it sent cannot have been read earlier.
    pub fn engine_bounds(&self) -> Vec<OffsetBound> {
        let received = self.records.iter().filter_map(|record| {
            let created = record.timeline.raw(Moment::ServerCreated)?;
            Some(OffsetBound::of_sent(record.timeline.last_send()?, created))
        });
        let written = self.first_writes.iter();
        let written = written.map(|(sent, read)| OffsetBound::of_received(*read, *sent));
        received.chain(written).collect()
    }

    /// The bounds that this request puts on the front's clock, for a generator behind it. `now` is the
    /// front's clock when it wrote the response head.
    pub fn front_bounds(&self, now: Option<Stamp>) -> Vec<OffsetBound> {
        let Some(timeline) = self.records.first().map(|record| &record.timeline) else {
            return Vec::new();
        };
        let sent = timeline.raw(Moment::Sent);
        let read = timeline.raw(Moment::ResponseHead);
        OffsetBound::of_exchange(sent, timeline.own_arrival(), now, read)
    }

    /// The records, one a generated sequence, at least one. `engine` is the offset of the engine's clock
    /// where it is known by now.
    pub fn into_records(mut self, engine: Option<Offset>) -> Vec<Record> {
        self.relate(
            ClockOf::Engine,
            engine.map_or(Relation::Unknown, Relation::Apart),
        );
        self.records
    }
}

/// The same of records: see [`Observed::with_engine`].
pub fn with_engine(records: &[Record]) -> Option<(Stamp, Stamp)> {
    let timelines = || records.iter().map(|record| &record.timeline);
    let from = timelines().filter_map(Timeline::last_send).min()?;
    let to = |timeline: &Timeline| {
        let read = timeline.raw(Moment::FirstToken);
        read.or_else(|| timeline.raw(Moment::Finish))
    };
    let to = timelines().filter_map(to).max().unwrap_or(from);
    Some((from, to.max(from)))
}
