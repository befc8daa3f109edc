//! Hand-made records for the tests of this module.

use crate::clock::{NANOS, Stamp};
use crate::offset::Offset;
use crate::request::endpoint::Endpoint;
use crate::request::gaps::GapFigures;
use crate::request::record::{Facts, Outcome, Record};
use crate::request::row::Row;
use crate::request::sequence::{Sequence, TimingSource};
use crate::request::timeline::{ClockOf, Moment, Relation, Side, Timeline};
use crate::request::token_count::TokenCountSource;

/// Nanoseconds of so many milliseconds.
pub fn ms(n: i64) -> i64 {
    n * 1_000_000
}

/// The moment so many milliseconds after the run began.
pub fn at(n: i64) -> Stamp {
    Stamp::from_nanos(1_795_000_000 * NANOS + ms(n))
}

/// The rows of records; those of one request stand together.
pub fn rows(records: &[Record]) -> Vec<Row> {
    let same = |a: &Record, b: &Record| b.sequence.index > 0 && a.facts.req_id == b.facts.req_id;
    let requests = records.chunk_by(same);
    requests
        .flat_map(|records| Row::all(records.to_vec()))
        .collect()
}

/// Builds a record as the generator writes it.
#[derive(Clone)]
pub struct Sample(Record);

const GAPS: GapFigures = GapFigures {
    mean_nanos: Some(10_000_000),
    p99_nanos: None,
    max_nanos: Some(20_000_000),
};

/// The engine's clock is ahead of ours by this.
const AHEAD: i64 = 7 * NANOS;

impl Sample {
    /// A good request through front, router and hop, scheduled when the run began. Milliseconds:
    /// scheduled 0, sent 1, arrival 2, router_send 5, created 10, queue 20 to 100, first token 200, read at
    /// 210, last token 490, finish 500. 30 prompt tokens, 29 generated.
    pub fn whole() -> Sample {
        Sample::starting(0)
    }

    /// The same, so many milliseconds after the run began.
    pub fn starting(start: i64) -> Sample {
        let mut facts = Facts::new(Endpoint::Generate, format!("r{start}"));
        facts.outcome = Outcome::Ok;
        facts.stream = Some(true);
        facts.status = Some(200);
        facts.host = Some("127.0.0.1:30000".to_owned());
        let mut timeline = Timeline::new(Side::Traffic);
        for clock in [ClockOf::Front, ClockOf::Hop] {
            timeline.relate(clock, Relation::Same);
        }
        let offset = Offset {
            nanos: AHEAD,
            error_nanos: 1000,
        };
        timeline.relate(ClockOf::Engine, Relation::Apart(offset));
        let sequence = Sequence {
            has_text: true,
            prompt_tokens: Some(30),
            output_tokens: Some(29),
            token_source: Some(TokenCountSource::MetaInfo),
            first_event_tokens: Some(1),
            token_events: 29,
            timing_source: Some(TimingSource::MetaInfo),
            token_gaps: GAPS,
            chunk_gaps: GAPS,
            ..Sequence::default()
        };
        let record = Record {
            facts,
            sequence,
            sequences: 1,
            timeline,
        };
        let moments = [
            (Moment::Scheduled, 0),
            (Moment::Sent, 1),
            (Moment::Arrival, 2),
            (Moment::Forwarded, 3),
            (Moment::WorkerArrival, 5),
            (Moment::WorkerForwarded, 6),
            (Moment::ServerCreated, 10),
            (Moment::QueueStart, 20),
            (Moment::QueueEnd, 100),
            (Moment::PrefillEnd, 199),
            (Moment::ServerFirstToken, 200),
            (Moment::ServerFinish, 495),
            (Moment::ResponseHead, 205),
            (Moment::FirstEvent, 210),
            (Moment::FirstToken, 210),
            (Moment::LastToken, 490),
            (Moment::Finish, 500),
        ];
        let sample = Sample(record);
        moments
            .into_iter()
            .fold(sample, |sample, (moment, n)| sample.at(moment, start + n))
    }

    /// Sets a moment, milliseconds after the run began; the last byte is its end too.
    pub fn at(mut self, moment: Moment, n: i64) -> Sample {
        let ahead = match moment.clock(Side::Traffic) {
            ClockOf::Engine => AHEAD,
            ClockOf::Traffic | ClockOf::Front | ClockOf::Hop => 0,
        };
        self.0.timeline.set(moment, at(n).plus_nanos(ahead));
        if moment == Moment::Finish {
            self.0.timeline.set(Moment::End, at(n));
        }
        self
    }

    /// Takes moments away.
    pub fn without(mut self, moments: &[Moment]) -> Sample {
        for moment in moments {
            self.0.timeline.clear(*moment);
        }
        self
    }

    /// Nobody knows how far the engine's clock is.
    pub fn engine_unknown(mut self) -> Sample {
        self.0.timeline.relate(ClockOf::Engine, Relation::Unknown);
        self
    }

    /// How it ended, and what was said of that.
    pub fn ended(mut self, outcome: Outcome, error: &str) -> Sample {
        self.0.facts.outcome = outcome;
        error.clone_into(&mut self.0.facts.error);
        self
    }

    /// The server that served it.
    pub fn host(mut self, host: &str) -> Sample {
        self.0.facts.host = Some(host.to_owned());
        self
    }

    /// Changes the rest of it.
    pub fn with(mut self, change: impl FnOnce(&mut Record)) -> Sample {
        change(&mut self.0);
        self
    }

    /// Its row.
    pub fn row(self) -> Row {
        Row::all(vec![self.0]).remove(0)
    }

    /// The record.
    pub fn record(self) -> Record {
        self.0
    }
}
