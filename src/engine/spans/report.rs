//! What was told of one request, and what that is made of.

use crate::clock::Stamp;
use crate::request::engine_report::Told;
use crate::request::sequence::TimingSource;

/// What was told of one request, so far.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it is made of.
    pub of: Origin,
    /// When the last of it came, on our clock.
    pub came: Stamp,
    /// Nothing more is needed.
    pub is_whole: bool,
    /// What it says.
    pub told: Told,
    /// The same of the server that prefilled it.
    pub prefill: Option<Box<Report>>,
}

/// What a report is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The spans at and below this one, trace and id.
    Request(u128, u64),
    /// A line of the log, by its number.
    Line(u64),
}

impl Report {
    pub(super) fn new(of: Origin, trace: u128) -> Report {
        Report {
            of,
            came: Stamp::from_nanos(i64::MIN),
            is_whole: false,
            told: Told {
                trace: Some(trace),
                ..Told::of(TimingSource::Trace)
            },
            prefill: None,
        }
    }

    /// What prefill told of what decode has: all is told when both told it.
    pub(super) fn add_prefill(&mut self, prefill: Option<Report>) {
        let Some(prefill) = prefill else {
            self.is_whole = false;
            return;
        };
        self.came = self.came.max(prefill.came);
        self.is_whole &= prefill.is_whole;
        self.told.prefill = Some(Box::new(prefill.told.clone()));
        self.prefill = Some(Box::new(prefill));
    }
}
