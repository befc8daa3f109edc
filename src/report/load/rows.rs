//! The rows of a run, a request at a time.

use crate::request::row::Row;

/// The rows of one request.
pub(super) type Rows<'a> = &'a [Row];

/// The rows of each request.
pub(super) fn requests(records: &[Row]) -> impl Iterator<Item = Rows<'_>> {
    records.chunk_by(|a, b| !b.is_first_of_request() && a.request_id() == b.request_id())
}
