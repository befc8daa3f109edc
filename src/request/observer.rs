//! Bytes and stamps in, rows out.
//!
//! The proxy and the generator both hold one observer a request and feed it what passes; it keeps no
//! bytes and never fails: what it cannot read stays unknown in the row.

use crate::clock::Stamp;
use crate::offset::OffsetBound;

pub use super::outcome::End;

use super::attempt::shown;
use super::columns::Row;
use super::endpoint::Endpoint;
use super::outcome::{Generation, Outcome, Seen, judge};
use super::request_body::RequestBody;
use super::response::{ParsedBody, ResponseBody};
use super::sequence::SequenceWatch;
use super::stamps::Stamps;
use super::timeline::{ClockOf, Moment, PrefillTimes, Relation, Side, Timeline};

/// Watches one request.
#[derive(Debug)]
pub struct Observer {
    row: Row,
    /// Until a whole document has been read: what comes behind it says nothing, and a response may take long.
    request: Option<Box<RequestBody>>,
    response: Option<ResponseBody>,
    /// When the last of the response was read.
    last_read: Option<Stamp>,
    /// The end of the response's framing was read.
    is_whole: bool,
    told: Option<Outcome>,
}

impl Observer {
    /// Begins to watch a request to `endpoint`.
    pub fn new(side: Side, endpoint: Endpoint, req_id: String) -> Observer {
        Observer {
            row: Row::new(side, endpoint, req_id),
            request: Some(Box::default()),
            response: None,
            last_read: None,
            is_whole: false,
            told: None,
        }
    }

    /// The same for one of two legs, which has no row of its own: of its request nothing but the room is read.
    pub fn of_leg(endpoint: Endpoint) -> Observer {
        Observer {
            request: Some(Box::new(RequestBody::of_room())),
            ..Observer::new(Side::Hop, endpoint, String::new())
        }
    }

    /// The row, for what only the driver knows: host, attempts, trace id, …
    pub fn row_mut(&mut self) -> &mut Row {
        &mut self.row
    }

    /// The timeline, for the moments that only the driver sees.
    pub fn timeline_mut(&mut self) -> &mut Timeline {
        &mut self.row.timeline
    }

    /// Takes a piece of the request body, in order, of any size.
    pub fn request_body(&mut self, bytes: &[u8]) {
        let Some(request) = &mut self.request else {
            return;
        };
        request.feed(bytes);
        if request.is_whole() {
            self.take_what_was_asked();
        }
    }

    /// By what number the servers of a pair know the request, as far as its body has been read.
    pub fn room(&self) -> Option<u64> {
        let asked = self.request.as_ref().and_then(|request| request.asked.room);
        self.row.more.room.or(asked)
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
        self.row.status = Some(status.into());
        self.row.timeline.first(Moment::ResponseHead, at);
        // These have no body, whatever their Content-Type says.
        let bodyless = matches!(status, 204 | 304);
        self.response = Some(ResponseBody::new(
            self.row.endpoint(),
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
        if self.row.side() != Side::Traffic {
            self.row.client_stall = Some(stall_nanos);
            self.row.client_stall_until_finish = Some(stall_nanos);
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
        let row = &mut self.row;
        let timeline = &mut row.timeline;
        let is_hop = timeline.side() == Side::Front;
        if !is_hop {
            timeline.relate(ClockOf::Front, same(&stamps.clock));
            // The front knows what it sends to; what we were told of our own target is about the front.
            timeline.upstream_is_server(stamps.is_direct);
            timeline.set(Moment::Arrival, stamps.arrival);
            timeline.set(Moment::RequestEnd, stamps.request_end);
            timeline.set(Moment::Forwarded, stamps.forwarded);
            row.attempts = stamps.attempts.map(u64::from).or(row.attempts);
            row.host = stamps.host.clone();
            row.failed_attempts = shown(&stamps.failed);
            row.more.front_joins_engine = stamps.joins_engine;
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
            row.more.room = row.more.room.or(hop.room);
        }
    }

    /// Ends the watch, at `at` unless the response came to its own end. Of one without a body that is its finish moment. Gives the
    /// rows, one a generated sequence, at least one; not ended.
    pub fn finish(mut self, end: End, at: Stamp) -> Vec<Row> {
        let is_whole = self.is_whole || end == End::Complete;
        self.take_what_was_asked();
        let (parsed, generation) = self.take_response(is_whole);
        let is_complete = end == End::Complete;
        let finish = self.last_read.or(is_complete.then_some(at));
        let ended = finish.map_or(at, |read| if is_complete { read } else { at.max(read) });
        let row = &mut self.row;
        row.timeline.set(Moment::Finish, finish);
        row.timeline.set(Moment::End, ended);
        row.timeline.set(Moment::FirstEvent, parsed.first_event);
        let seen = Seen {
            status: row.status.and_then(|status| u16::try_from(status).ok()),
            told: self.told,
            is_whole,
            generation,
            failure: parsed.failure.as_ref(),
        };
        let (outcome, error) = judge(end, &seen);
        row.outcome = Some(outcome);
        row.more.error_quotes_server = seen.quoted_in(&error);
        row.more.error_code = seen.code();
        row.error = Some(error).filter(|error| !error.is_empty());
        row.more.untold_sequences = parsed.untold_sequences;
        row.more.usage_prompt_tokens = parsed.usage_prompt_tokens;
        row.more.usage_completion_tokens = parsed.usage_completion_tokens;
        Observer::rows(self.row, parsed)
    }

    /// What the response parsed, and what it showed of the generation's end.
    fn take_response(&mut self, is_whole: bool) -> (ParsedBody, Generation) {
        let Some(mut response) = self.response.take() else {
            return (ParsedBody::default(), Generation::Unknown);
        };
        response.finish();
        let (generation, unread) = (response.generation(), response.unread());
        let generation = match generation {
            Generation::Absent if self.row.stream == Some(true) => Generation::Empty,
            generation => generation,
        };
        let parsed = response.into_parsed();
        self.row.message_whole = Some(is_whole);
        // The body of an error is no generation.
        if matches!(self.row.status, Some(200..=299)) {
            self.row.unread = unread;
            self.row.generation_whole = match generation {
                Generation::Unknown => None,
                Generation::Absent | Generation::Empty | Generation::Cut => Some(false),
                Generation::Whole => Some(parsed.failure.is_none()),
            };
        }
        (parsed, generation)
    }

    fn take_what_was_asked(&mut self) {
        let Some(request) = self.request.take() else {
            return;
        };
        let is_whole = request.is_whole();
        let (asked, row) = (request.asked, &mut self.row);
        row.stream = asked.stream.or(is_whole.then_some(false));
        row.more.n = asked.n.unwrap_or(1).max(1);
        row.input_length = asked.input_length().filter(|_| is_whole);
        row.expected_output_length = asked.output_length();
        row.more.room = row.more.room.or(asked.room);
        row.model = asked.model;
    }

    fn rows(mut row: Row, mut parsed: ParsedBody) -> Vec<Row> {
        if parsed.sequences.is_empty() {
            parsed.sequences.push(SequenceWatch::default());
        }
        // Sums count a request at its first row, so that stands whatever came; other places may be empty.
        let is_told = |watch: &SequenceWatch, index: u32| index == 0 || watch.has_events;
        let told = parsed.sequences.iter().zip(0..);
        let told = told.filter(|(watch, index)| is_told(watch, *index)).count();
        let sequences = u32::try_from(told).unwrap_or(u32::MAX);
        let usage_cached = parsed.usage_cached_tokens.filter(|_| sequences == 1);
        // The first row has it for all of them.
        let trace = std::mem::take(&mut row.more.trace);
        let mut rows = Vec::with_capacity(told);
        rows.extend((1..told).map(|_| row.clone()));
        rows.push(row);
        let watched = parsed.sequences.into_iter().zip(0..);
        let watched = watched.filter(|(watch, index)| is_told(watch, *index));
        for (row, (watch, index)) in rows.iter_mut().zip(watched) {
            let is_leg = row.more.room.is_some() && !watch.has_prefilled();
            let is_pair = is_leg || watch.is_decoded_elsewhere();
            watch.put(row);
            if is_pair {
                row.timeline.pair(PrefillTimes::default());
            }
            row.cached_tokens = row.cached_tokens.or(usage_cached);
            row.place(index, sequences);
        }
        if let Some(first) = rows.first_mut() {
            first.more.trace = trace;
        }
        rows
    }
}

/// Says how another clock stands to ours, in every row of a request.
pub fn relate(rows: &mut [Row], clock: ClockOf, relation: Relation) {
    for row in rows {
        row.timeline.relate(clock, relation);
    }
}

/// The bounds that a request puts on the engine's clock: what we sent cannot have arrived earlier, what it sent cannot have been
/// read earlier.
pub fn engine_bounds(rows: &[Row]) -> Vec<OffsetBound> {
    let received = rows.iter().filter_map(|row| {
        let created = row.timeline.raw(Moment::ServerCreated)?;
        Some(OffsetBound::of_sent(row.timeline.last_send()?, created))
    });
    let written = rows.iter().filter_map(|row| row.more.first_write);
    let written = written.map(|(sent, read)| OffsetBound::of_received(read, sent));
    received.chain(written).collect()
}

/// When, on our clock, the engine's moments of a request were: from our last send to the first token read, or to the end where
/// none was seen. `None` when nothing is known to have been sent.
pub fn with_engine(rows: &[Row]) -> Option<(Stamp, Stamp)> {
    let timelines = || rows.iter().map(|row| &row.timeline);
    let from = timelines().filter_map(Timeline::last_send).min()?;
    let to = |timeline: &Timeline| {
        let read = timeline.raw(Moment::FirstToken);
        read.or_else(|| timeline.raw(Moment::Finish))
    };
    let to = timelines().filter_map(to).max().unwrap_or(from);
    Some((from, to.max(from)))
}
