//! An ended request, prepared for metrics and for the live page's figures.

use std::borrow::Cow;

use crate::request::impossible::without_impossible;
use crate::request::row::Row;
use crate::request::stages::Breakdown;

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
