//! Where the rows of an ended request go: records file, metrics, live page and traces. Does not depend on Pingora.

use std::borrow::Cow;

use crate::clock::{Clock, Stamp};
use crate::request::{Breakdown, Moment, Row, Rows, Side, without_impossible, without_quotes};

use self::otlp::Traces;
use self::otlp::settings::UpstreamFlag;
use self::prometheus::Metrics;
use self::queue::DeliveryQueue;
use self::recent::Recent;
use self::waits::WaitLog;

pub mod family;
pub mod otlp;
pub mod prometheus;
pub mod queue;
pub mod recent;
pub mod recorder;
pub mod waits;

/// Everything that a request's rows go to. Nothing of it waits, and nothing fails a request.
#[derive(Debug)]
pub struct Telemetry {
    recorder: Option<DeliveryQueue<Rows>>,
    /// What requests are counted in.
    pub metrics: Metrics,
    counted_side: Side,
    clock: Clock,
    /// The requests and figures that the live page shows.
    pub recent: Recent,
    /// Why they waited.
    pub waits: WaitLog,
    /// Exports traces, if there is a collector.
    pub traces: Option<Traces>,
    /// When the sampled flag is sent upstream.
    pub upstream_flag: UpstreamFlag,
    /// The share of traces by [`UpstreamFlag::Ratio`].
    pub ratio: f64,
}

/// What all counters need of a request's rows, computed once.
#[derive(Debug)]
pub struct CountedRequest<'a> {
    /// The rows as they were reported.
    pub reported: &'a [Row],
    /// The rows without impossible values.
    pub rows: Cow<'a, [Row]>,
    /// What the first row's time was spent on, if the request succeeded and did not run in the background.
    pub breakdown: Option<Breakdown>,
}

impl Telemetry {
    /// `recorder`: `None` if there is no records file. `has_front`: whether `metrics` count the front's requests; otherwise the
    /// hops'.
    pub fn new(
        recorder: Option<DeliveryQueue<Rows>>,
        metrics: Metrics,
        has_front: bool,
        clock: Clock,
    ) -> Telemetry {
        Telemetry {
            recorder,
            metrics,
            counted_side: if has_front { Side::Front } else { Side::Hop },
            clock,
            recent: Recent::default(),
            waits: WaitLog::default(),
            traces: None,
            upstream_flag: UpstreamFlag::default(),
            ratio: 1.0,
        }
    }

    /// Records the rows of an ended request.
    pub fn record(&self, rows: Vec<Row>) {
        let rows = Rows::from(Row::ended(rows));
        let Some(first) = rows.first() else { return };
        let is_counted = first.timeline.side() == self.counted_side;
        let counted = is_counted.then(|| CountedRequest::of(&rows));
        if let Some(counted) = &counted {
            self.metrics.request_ended(counted);
            if let Some(end) = first.timeline.on_own_clock(Moment::End) {
                let now = self.clock.now();
                self.waits.record(&counted.rows, end, now, &self.metrics);
            }
        }
        let unquoted = without_quotes(&rows);
        self.recent.record(&unquoted, counted.as_ref());
        if let Some(traces) = &self.traces {
            traces.record(&unquoted);
        }
        if let Some(recorder) = &self.recorder {
            let count = rows.len();
            recorder.push(rows, 1, count);
        }
    }

    /// Returns the totals as a sentence, and why the last rows were lost, for the last line of the log.
    pub fn totals(&self) -> String {
        let total = self.metrics.totals();
        let recorder = self.recorder.as_ref();
        match recorder.and_then(|recorder| recorder.deliveries.last_error()) {
            Some(error) => format!("{total}; last error: {error}"),
            None => total,
        }
    }

    /// Counts the causes of the waits that can be judged by `now`. Takes milliseconds.
    pub fn count_waits(&self, now: Stamp) {
        self.waits.count(now, &self.metrics);
    }

    /// Writes the waiting rows and exports the waiting traces. Later ones are lost. Blocks.
    pub fn close(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.close();
        }
        if let Some(traces) = &self.traces {
            traces.close();
        }
    }
}

impl<'a> CountedRequest<'a> {
    /// Prepares all rows of a request.
    pub fn of(reported: &'a [Row]) -> CountedRequest<'a> {
        let rows = without_impossible(reported);
        let timed = rows
            .first()
            .filter(|row| row.is_ok() && !row.is_in_background());
        let breakdown = timed.and_then(Breakdown::of);
        CountedRequest {
            reported,
            rows,
            breakdown,
        }
    }
}
