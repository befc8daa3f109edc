//! Matches attempts at hops with requests of the front.

use std::collections::HashMap;

use crate::request::cell::Value;
use crate::request::{ColumnId, FailedAttempt, MAX_FAILED, Outcome, Row, failed_text, sendings};
use crate::table::Table;

/// The attempts of each request of a front.
#[derive(Debug, Default)]
pub struct JoinedAttempts {
    /// By the request's first row.
    requests: HashMap<usize, Attempts>,
    /// How many attempts belong to no request.
    unmatched: usize,
}

/// The attempts of a request, as first rows of the hops. The two legs of a pair count as one attempt.
#[derive(Debug, Default)]
pub struct Attempts {
    /// The one whose response the front read, as far as known.
    pub answered: Option<usize>,
    /// Its leg on the prefill server.
    pub leg: Option<usize>,
    /// The others, in order of time.
    pub others: Vec<usize>,
}

impl JoinedAttempts {
    /// Matches an attempt by its parent span, which the front sent. A router that begins spans of its own drops that span; then
    /// the request's id decides, if only one request had it.
    pub fn find(front: &Table, hops: &Table) -> JoinedAttempts {
        let mut by_span = HashMap::new();
        let mut by_id: HashMap<&str, Option<usize>> = HashMap::new();
        for row in front.first_rows() {
            let span = front.text(ColumnId::span_id, row);
            if !span.is_empty() {
                by_span.insert(span, row);
            }
            let entry = by_id.entry(id(front, row));
            entry.and_modify(|found| *found = None).or_insert(Some(row));
        }
        let mut joined = JoinedAttempts::default();
        let mut found: HashMap<usize, Vec<usize>> = HashMap::new();
        for hop in hops.first_rows() {
            let parent = hops.text(ColumnId::parent_span_id, hop);
            let by_span = by_span.get(parent).copied();
            let by_id = || by_id.get(id(hops, hop)).copied().flatten();
            match by_span.or_else(by_id) {
                Some(row) => found.entry(row).or_default().push(hop),
                None => joined.unmatched += 1,
            }
        }
        let requests = found.into_iter();
        let requests = requests.map(|(row, hop)| (row, Attempts::new(front, row, hops, hop)));
        joined.requests = requests.collect();
        joined
    }

    /// The attempts of a request, given its first row.
    pub fn of_request(&self, row: usize) -> Option<&Attempts> {
        self.requests.get(&row)
    }

    /// The first rows, of front and hop, of the attempts whose response the front read.
    pub fn answered(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.requests.iter();
        all.filter_map(|(row, attempts)| Some((*row, attempts.answered?)))
    }

    /// Returns a message: how many attempts and requests were matched, and how many were not.
    pub fn note(&self, front: &Table, hops: &Table) -> String {
        let (attempts, unmatched) = (hops.first_rows().count(), self.unmatched);
        let (matched, joined) = (attempts - unmatched, self.requests.len());
        let of = front.first_rows().count();
        let rest = match unmatched {
            0 => String::new(),
            _ => format!(": the front has no request for the other {unmatched}"),
        };
        format!("{matched} of {attempts} attempts joined to {joined} of {of} requests{rest}")
    }
}

/// A request's id without the `#0` of its first sequence.
fn id(table: &Table, row: usize) -> &str {
    let id = table.text(ColumnId::req_id, row);
    id.strip_suffix("#0").unwrap_or(id)
}

impl Attempts {
    fn new(front: &Table, row: usize, hops: &Table, mut all: Vec<usize>) -> Attempts {
        let began = |hop: &usize| {
            hops.number(ColumnId::router_send_time, *hop)
                .unwrap_or(f64::NAN)
        };
        all.sort_by(|a, b| began(a).total_cmp(&began(b)));
        // The router sends both legs of an attempt with the same room.
        let room = |hop: &usize| hops.text(ColumnId::bootstrap_room, *hop);
        let is_other_leg = |a: &usize, b: &usize| !room(a).is_empty() && room(a) == room(b);
        let mut attempts = sendings(all, is_other_leg);
        // The last leg is the one that answered: the host in the front's row, else the decode server, else the longer one.
        let host = front.text(ColumnId::host, row);
        let answer_order = |hop: &usize| {
            let is_host = hops.text(ColumnId::host, *hop) == host;
            let is_decode = hops.value(ColumnId::disaggregated, *hop) != Value::Empty;
            let elapsed = hops.integer(ColumnId::elapsed, *hop);
            (is_host, is_decode, elapsed, *hop)
        };
        attempts
            .iter_mut()
            .for_each(|legs| legs.sort_by_key(&answer_order));
        // The front read the response of the last attempt that has the front's status; if none has,
        // it read none of theirs, as when the router responded itself.
        let status = front.number(ColumnId::status, row);
        let has_status = |legs: &Vec<usize>| {
            let hop = legs.last();
            status.is_some() && hop.map(|hop| hops.number(ColumnId::status, *hop)) == Some(status)
        };
        let index = attempts.iter().rposition(has_status);
        let legs = index.map_or_else(Vec::new, |index| attempts.remove(index));
        // Of another attempt's legs, the one that failed by itself counts: the router then abandoned the other.
        let has_failed = |hop: &usize| {
            let outcome = Outcome::named(hops.text(ColumnId::outcome, *hop));
            outcome.is_some_and(|outcome| !outcome.is_ok_or_client_abort())
        };
        let others = attempts.into_iter();
        let others = others.filter_map(|legs| legs.into_iter().max_by_key(has_failed));
        Attempts {
            answered: legs.last().copied(),
            leg: legs.iter().rev().nth(1).copied(),
            others: others.collect(),
        }
    }

    /// Adds to the front's row the number of attempts and the outcomes of the failed ones.
    pub fn add_to(&self, row: &mut Row, hops: &Table) {
        let count = self.others.len() + usize::from(self.answered.is_some());
        row.attempts = row.attempts.max(Some(count as u64));
        if row.failed_attempts.is_some() {
            return;
        }
        let host = |hop| match hops.text(ColumnId::host, hop) {
            "" => hops.text(ColumnId::worker, hop),
            host => host,
        };
        let failed = |hop: &usize| FailedAttempt {
            host: host(*hop).to_owned(),
            outcome: Outcome::named(hops.text(ColumnId::outcome, *hop)),
            status: hops
                .number(ColumnId::status, *hop)
                .map(|status| status as u16),
            nanos: hops.integer(ColumnId::elapsed, *hop),
        };
        let failed: Vec<FailedAttempt> = self.others.iter().take(MAX_FAILED).map(failed).collect();
        row.failed_attempts = failed_text(&failed);
    }
}
