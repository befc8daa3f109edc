//! A request that has ended, as metrics and the figures of the last minutes take it.

use std::borrow::Cow;

use crate::request::impossible::believed;
use crate::request::row::Row;
use crate::request::stages::Breakdown;

/// What is made of a request's rows once, for all who count it.
#[derive(Debug)]
pub struct Counted<'a> {
    /// The rows as they are.
    pub told: &'a [Row],
    /// The rows without what cannot be.
    pub rows: Cow<'a, [Row]>,
    /// What the first row's time was spent on, where the request went well and not in the background.
    pub breakdown: Option<Breakdown>,
}

impl<'a> Counted<'a> {
    /// Of all rows of a request.
    pub fn of(told: &'a [Row]) -> Counted<'a> {
        let rows = believed(told);
        let timed = rows
            .first()
            .filter(|row| row.is_ok() && !row.is_in_background());
        let breakdown = timed.and_then(Breakdown::of);
        Counted {
            told,
            rows,
            breakdown,
        }
    }
}
