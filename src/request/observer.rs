//! Bytes and stamps in, records out.
//!
//! The proxy and the generator both hold one observer a request and feed it what passes; it keeps no
//! bytes and never fails: what it cannot read stays unknown in the record.

use crate::clock::Stamp;

use super::endpoint::Endpoint;
use super::record::{Facts, Outcome, Record, Sequence};
use super::stamps::Stamps;
use super::timeline::{Moment, Offset, Relation, Side, Timeline};

/// Watches one request.
#[derive(Debug)]
pub struct Observer {
    facts: Facts,
    timeline: Timeline,
}

/// How a request's life ended, as its driver saw it. The observer adds what the bytes say: a stream that
/// is cut though the connection closed properly is `upstream_died` all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The response was read to the end of its framing.
    Complete,
    /// The client went away.
    ClientGone,
    /// The upstream connection broke after the request was sent.
    UpstreamDied(String),
    /// No upstream took the request, or we failed ourselves.
    ProxyError(String),
    /// A time limit of ours ran out.
    Timeout(String),
    /// This process shut down before the end.
    Shutdown,
}

/// A watched request that has ended.
#[derive(Clone, Debug)]
pub struct Observed {
    records: Vec<Record>,
    engine_bounds: Vec<Bound>,
}

/// One bound on the offset between another clock and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// When it was seen, on our clock.
    pub at: Stamp,
    /// Their clock minus ours is at least this, nanoseconds (something of theirs was read by us).
    pub at_least: Option<i64>,
    /// Their clock minus ours is at most this, nanoseconds (something of ours was read by them).
    pub at_most: Option<i64>,
}

impl Observer {
    /// Begins to watch a request to `endpoint`.
    pub fn new(side: Side, endpoint: Endpoint, req_id: String) -> Observer {
        let facts = Facts {
            req_id,
            host: None,
            endpoint,
            model: None,
            stream: None,
            input_length: None,
            expected_output_length: None,
            n: 1,
            status: None,
            outcome: Outcome::Ok,
            error: String::new(),
            attempts: 0,
            upstream_reused: None,
            trace_id: None,
            client_stall_nanos: None,
            usage_prompt_tokens: None,
            usage_completion_tokens: None,
        };
        Observer {
            facts,
            timeline: Timeline::new(side),
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
    pub fn request_body(&mut self, _bytes: &[u8]) {}

    /// Takes the head of the final response (not 1xx). `encoded` says that a `Content-Encoding` other
    /// than `identity` hides the body, which is then only timed.
    pub fn response_head(
        &mut self,
        status: u16,
        _content_type: Option<&str>,
        _encoded: bool,
        at: Stamp,
    ) {
        self.facts.status = Some(status);
        self.timeline.first(Moment::ResponseHead, at);
    }

    /// Takes a piece of the response body (chunk framing taken off), in order, read at `at`.
    /// `stall_nanos` is how long writes to the client have been held up so far in this response.
    pub fn response_body(&mut self, _bytes: &[u8], at: Stamp, stall_nanos: i64) {
        self.timeline.first(Moment::FirstEvent, at);
        self.facts.client_stall_nanos = Some(stall_nanos);
    }

    /// Takes the stamps that a front or hop sent by header.
    pub fn stamps(&mut self, _stamps: &Stamps) {}

    /// Whether the response has come to the end that its kind promises (`[DONE]`, a whole JSON value).
    pub fn saw_end(&self) -> bool {
        false
    }

    /// Ends the watch. `at` becomes the finish moment where the response was read to its end.
    pub fn finish(mut self, end: End, at: Stamp) -> Observed {
        if end == End::Complete {
            self.timeline.first(Moment::Finish, at);
        }
        let record = Record {
            facts: self.facts,
            sequence: Sequence::default(),
            sequences: 1,
            timeline: self.timeline,
        };
        Observed {
            records: vec![record],
            engine_bounds: Vec::new(),
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

    /// The server that served it, the key of its engine's clock.
    pub fn host(&self) -> Option<&str> {
        self.records.first()?.facts.host.as_deref()
    }

    /// What this request says about the engine's clock.
    pub fn engine_bounds(&self) -> &[Bound] {
        &self.engine_bounds
    }

    /// The records, one a generated sequence, at least one. `engine` is the offset of the engine's clock
    /// where it is known by now.
    pub fn into_records(self, engine: Option<Offset>) -> Vec<Record> {
        let relation = engine.map_or(Relation::Unknown, Relation::Apart);
        let mut records = self.records;
        for record in &mut records {
            record
                .timeline
                .relate(super::timeline::ClockOf::Engine, relation);
        }
        records
    }
}
