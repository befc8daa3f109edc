//! The rows of a run, a request at a time.

use crate::request::record::Record;

/// The rows of one request.
pub(super) type Rows<'a> = &'a [Record];

/// The rows of each request.
pub(super) fn requests(records: &[Record]) -> impl Iterator<Item = Rows<'_>> {
    records.chunk_by(|a, b| !b.is_first_of_request() && a.facts.req_id == b.facts.req_id)
}
