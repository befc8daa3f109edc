//! A report that may belong to a row, and the spans or line that it was assembled from.

use crate::clock::Stamp;
use crate::request::engine_report::EngineReport;
use crate::request::sequence::TimingSource;

/// What was reported of one request so far.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What it was assembled from.
    pub origin: Origin,
    /// When the last part of it arrived, on our clock.
    pub arrived: Stamp,
    /// Whether all parts that are needed have arrived.
    pub is_complete: bool,
    /// The report.
    pub report: EngineReport,
    /// The same of the prefill server, if the request was served by a pair.
    pub prefill: Option<Box<Candidate>>,
}

/// What a candidate was assembled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A root span and those below it: trace and span id.
    Request(u128, u64),
    /// The log line with this entry number.
    LogLine(u64),
}

impl Candidate {
    pub(super) fn new(origin: Origin, trace: u128) -> Candidate {
        Candidate {
            origin,
            arrived: Stamp::from_nanos(i64::MIN),
            is_complete: false,
            report: EngineReport {
                trace: Some(trace),
                ..EngineReport::of(TimingSource::Trace)
            },
            prefill: None,
        }
    }

    /// Adds the prefill server's part to a decode server's. Without it the candidate is incomplete.
    pub(super) fn add_prefill(&mut self, prefill: Option<Candidate>) {
        let Some(prefill) = prefill else {
            self.is_complete = false;
            return;
        };
        self.arrived = self.arrived.max(prefill.arrived);
        self.is_complete &= prefill.is_complete;
        self.report.prefill = Some(Box::new(prefill.report.clone()));
        self.prefill = Some(Box::new(prefill));
    }
}
