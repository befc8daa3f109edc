//! Where what is known of a request goes when it has ended: files, metrics, and what is
//! remembered of the last requests. Knows nothing of Pingora.

use crate::clock::Stamp;
use crate::request::row::{Row, Rows, without_quotes};
use crate::request::timeline::{Moment, Side};

use self::counted::Counted;
use self::otlp::Traces;
use self::otlp::settings::UpstreamFlag;
use self::prometheus::Metrics;
use self::recent::Recent;
use self::recorder::Recorder;
use self::waits::WaitLog;

pub mod counted;
pub mod family;
pub mod loss;
pub mod metric;
pub mod otlp;
pub mod prometheus;
pub mod queue;
pub mod recent;
pub mod recorder;
pub mod records_file;
pub mod rotation;
pub mod upstreams;
pub mod waits;

/// All that a request's rows go to. None of it waits, and none of it fails a request.
#[derive(Debug)]
pub struct Telemetry {
    recorder: Option<Recorder>,
    metrics: Metrics,
    counted: Side,
    /// What the live page shows.
    pub recent: Recent,
    waits: WaitLog,
    /// Their way, where there is a collector.
    pub traces: Option<Traces>,
    /// When the sampled flag goes upstream.
    pub upstream_flag: UpstreamFlag,
    /// The share of [`UpstreamFlag::Ratio`].
    pub ratio: f64,
}

impl Telemetry {
    /// With a recorder, where there is a file. With a front, `metrics` count its requests; else those of the hops.
    pub fn new(recorder: Option<Recorder>, metrics: Metrics, has_front: bool) -> Telemetry {
        Telemetry {
            recorder,
            metrics,
            counted: if has_front { Side::Front } else { Side::Hop },
            recent: Recent::default(),
            waits: WaitLog::default(),
            traces: None,
            upstream_flag: UpstreamFlag::default(),
            ratio: 1.0,
        }
    }

    /// Whether anybody wants what only traces tell.
    pub fn traces(&self) -> bool {
        self.traces.is_some()
    }

    /// Whether a trace goes upstream with the sampled flag that `came` so from a client, or was begun here.
    pub fn samples_upstream(&self, came: Option<bool>, trace: u128) -> bool {
        self.upstream_flag.sends(came, trace, self.ratio)
    }

    /// A request has ended.
    pub fn record(&self, records: Vec<Row>) {
        let rows = Rows::from(Row::ended(records));
        let first = rows.first();
        let is_counted = first.is_some_and(|row| row.side() == self.counted);
        let counted = is_counted.then(|| Counted::of(&rows));
        if let Some(counted) = &counted {
            self.metrics.request_ended(counted);
            let end = first.and_then(|row| row.timeline.on_own_clock(Moment::End));
            if let Some(end) = end {
                self.waits.record(&rows, end, &self.metrics);
            }
        }
        let shown = without_quotes(&rows);
        self.recent.record(&shown, counted.as_ref());
        if let Some(traces) = &self.traces {
            traces.record(&shown);
        }
        if let Some(recorder) = &self.recorder {
            recorder.record(rows);
        }
    }

    /// Counts what requests waited for, of which that can be told by now. Takes milliseconds.
    pub fn count_waits(&self, now: Stamp) {
        self.waits.count(now, &self.metrics);
    }

    /// The last error of writing records; `None` when all went well.
    pub fn trouble(&self) -> Option<String> {
        self.recorder.as_ref()?.trouble()
    }

    /// Writes what waits. What comes later is lost. Blocks.
    pub fn close(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.close();
        }
        if let Some(traces) = &self.traces {
            traces.close();
        }
    }
}
