//! Sample rows for tests.

use crate::clock::{NANOS, Stamp};
use crate::offset::Offset;
use crate::request::outcome::Outcome;
use crate::request::response::Endpoint;
use crate::request::row::Row;
use crate::request::sequence::{TimingSource, TokenCountSource};
use crate::request::timeline::{ClockOf, Moment, Relation, Side};

/// Converts milliseconds to nanoseconds.
pub fn ms(n: i64) -> i64 {
    n * 1_000_000
}

/// Returns the time this many milliseconds after the run began.
pub fn at(n: i64) -> Stamp {
    Stamp::from_nanos(1_795_000_000 * NANOS + ms(n))
}

/// Ends the rows of requests; those of one request must stand together.
pub fn rows(rows: &[Row]) -> Vec<Row> {
    let same = |a: &Row, b: &Row| b.index > 0 && a.req_id == b.req_id;
    let ended = |rows: &[Row]| {
        let mut rows = rows.to_vec();
        for row in &mut rows {
            row.set_index(row.index, row.sequences);
        }
        Row::ended(rows)
    };
    rows.chunk_by(same).flat_map(ended).collect()
}

/// Builds a row as the generator writes it.
#[derive(Clone)]
pub struct Sample(Row);

/// Mean, 99th percentile and longest.
const GAPS: [Option<i64>; 3] = [Some(10_000_000), None, Some(20_000_000)];

/// How far the engine's clock is ahead of ours, nanoseconds.
const AHEAD: i64 = 7 * NANOS;

impl Sample {
    /// A successful request through front, router and hop, scheduled when the run began. Milliseconds: scheduled 0, sent 1,
    /// arrival 2, router_send 5, created 10, queue 20 to 100, first token 200, read at 210, last token 490, finish 500. 30 prompt
    /// tokens, 29 generated.
    pub fn whole() -> Sample {
        Sample::starting(0)
    }

    /// The same, this many milliseconds after the run began.
    pub fn starting(start: i64) -> Sample {
        let mut row = Row::new(Side::Traffic, Endpoint::Generate, format!("r{start}"));
        row.outcome = Some(Outcome::Ok);
        row.stream = Some(true);
        row.status = Some(200);
        row.host = Some("127.0.0.1:30000".to_owned());
        for clock in [ClockOf::Front, ClockOf::Hop] {
            row.timeline.relate(clock, Relation::Same);
        }
        let offset = Offset {
            nanos: AHEAD,
            error_nanos: 1000,
        };
        row.timeline
            .relate(ClockOf::Engine, Relation::Apart(offset));
        row.has_generated_text = Some(true);
        row.actual_prompt_tokens = Some(30);
        row.actual_output_tokens = Some(29);
        row.token_count_source = Some(TokenCountSource::MetaInfo);
        row.first_event_tokens = Some(1);
        row.token_chunks = Some(29);
        row.timing_source = Some(TimingSource::MetaInfo);
        [row.itl_mean, row.itl_p99, row.itl_max] = GAPS;
        [row.chunk_gap_mean, row.chunk_gap_p99, row.chunk_gap_max] = GAPS;
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
        let sample = Sample(row);
        moments
            .into_iter()
            .fold(sample, |sample, (moment, n)| sample.at(moment, start + n))
    }

    /// Sets a moment, milliseconds after the run began; `Finish` sets the end too.
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

    /// Removes moments.
    pub fn without(mut self, moments: &[Moment]) -> Sample {
        for moment in moments {
            self.0.timeline.clear(*moment);
        }
        self
    }

    /// Makes the engine's clock not comparable.
    pub fn engine_unknown(mut self) -> Sample {
        self.0.timeline.relate(ClockOf::Engine, Relation::Unknown);
        self
    }

    /// Makes the front another process, with this error of its clock offset.
    pub fn front_within(mut self, error_ms: f64) -> Sample {
        let offset = Offset {
            nanos: 0,
            error_nanos: (error_ms * ms(1) as f64) as i64,
        };
        let timeline = &mut self.0.timeline;
        timeline.relate(ClockOf::Front, Relation::Apart(offset));
        timeline.hop_shares_front();
        self
    }

    /// Sets how it ended, and its error.
    pub fn ended(mut self, outcome: Outcome, error: &str) -> Sample {
        self.0.outcome = Some(outcome);
        self.0.error = Some(error.to_owned()).filter(|error| !error.is_empty());
        self
    }

    /// Sets the server that served it.
    pub fn host(mut self, host: &str) -> Sample {
        self.0.host = Some(host.to_owned());
        self
    }

    /// Changes anything else.
    pub fn with(mut self, change: impl FnOnce(&mut Row)) -> Sample {
        change(&mut self.0);
        self
    }

    /// Returns the ended row.
    pub fn row(self) -> Row {
        rows(&[self.0]).remove(0)
    }

    /// Returns the row, not ended.
    pub fn open_row(self) -> Row {
        self.0
    }
}
