//! An attempt at a worker hop; the stamps headers of hop and front.

use http::HeaderValue;
use pingora::http::ResponseHeader;

use crate::clock::Stamp;
use crate::request::attempt::{Attempt, CameWith, Failed, SpanId};
use crate::request::observer::End;
use crate::request::outcome::{Outcome, Seen, judge};
use crate::request::passage::Passage;
use crate::request::record::Record;
use crate::request::stamps::{HOP_HEADER, Stamps};

use super::hop_key::HopKey;
use super::identity;
use super::join::{Joins, Owner};
use super::shared::Shared;

/// A router's attempt at a generation request, as the hop that it came to sees it.
#[derive(Debug)]
pub struct HopAttempt {
    attempt: Attempt,
    /// The span that it came with.
    parent: Option<SpanId>,
    owner: Owner,
}

/// The stamps of a hop on a response's head.
#[derive(Debug)]
pub enum HopStamps {
    /// There are none.
    Absent,
    /// A hop of ours signed them for this request; `None` if this version cannot read them.
    Verified(Option<Stamps>),
    /// Anybody may have written them.
    Unverified,
}

/// Takes the hop's stamps off the head of a response to the request `req_id`.
pub fn take_hop_stamps(head: &mut ResponseHeader, req_id: &str, key: &HopKey) -> HopStamps {
    let values: Vec<HeaderValue> = head.headers.get_all(HOP_HEADER).iter().cloned().collect();
    if values.is_empty() {
        return HopStamps::Absent;
    }
    head.remove_header(HOP_HEADER);
    let texts = values.iter().filter_map(|value| value.to_str().ok());
    let mut ours = texts.filter_map(|text| key.verified(req_id, text));
    ours.next().map_or(HopStamps::Unverified, |stamps| {
        HopStamps::Verified(Stamps::parse(stamps))
    })
}

impl HopAttempt {
    /// The hop called `worker` has read a head.
    pub fn begin(
        joins: &Joins,
        worker: String,
        arrival: Stamp,
        came_with: Option<CameWith>,
        req_id: Option<&str>,
    ) -> HopAttempt {
        let mut attempt = Attempt::new(identity::new_span_id(), worker, String::new(), arrival);
        attempt.came_with = came_with;
        let parent = came_with.map(|came| came.span);
        let owner = joins.arrived(&attempt, parent, req_id);
        HopAttempt {
            attempt,
            parent,
            owner,
        }
    }

    /// The hop's own span.
    pub fn span(&self) -> SpanId {
        self.attempt.span
    }

    /// Whether it may need a row of its own.
    pub fn may_need_row(&self) -> bool {
        self.owner == Owner::Nobody
    }

    /// The head is about to be sent to the server `host`.
    pub fn forwarded(&mut self, joins: &Joins, host: &str, at: Stamp) {
        host.clone_into(&mut self.attempt.host);
        self.attempt.forwarded = Some(at);
        joins.update(self.owner, &self.attempt, self.parent, at);
    }

    /// A response's head came, or we answer ourselves for what `end` says. An error's attempt is over for the
    /// router, which may have sent the next one before we have closed this one.
    pub fn answered(&mut self, joins: &Joins, status: u16, end: End, at: Stamp) {
        self.attempt.status = Some(status);
        if !self.attempt.has_answered() {
            self.attempt.ended = Some(at);
            self.attempt.outcome = Some(self.judged(end));
        }
        joins.update(self.owner, &self.attempt, self.parent, at);
    }

    /// The body of the response passes.
    pub fn passed(&mut self, joins: &Joins, passage: Passage, at: Stamp) {
        self.attempt.passage = passage;
        joins.update(self.owner, &self.attempt, self.parent, at);
    }

    fn judged(&self, end: End) -> Outcome {
        let seen = Seen {
            status: self.attempt.status,
            ..Seen::default()
        };
        judge(end, &seen).0
    }

    /// Attempts at the same request that failed before this one, where no front here has them in its row.
    pub fn earlier(&self, joins: &Joins) -> Vec<Failed> {
        let earlier = |parent| joins.earlier(parent, self.attempt.span);
        self.parent.map(earlier).unwrap_or_default()
    }

    /// It is over, `host` being the server; `rows` is what it would have of its own. Gives what is to be written now.
    pub fn ended(
        mut self,
        shared: &Shared,
        host: &str,
        end: End,
        at: Stamp,
        rows: Option<Vec<Record>>,
    ) -> Option<Vec<Record>> {
        let seen = rows
            .as_ref()
            .and_then(|rows| Some(rows.first()?.facts.outcome));
        host.clone_into(&mut self.attempt.host);
        let outcome = seen.unwrap_or_else(|| self.judged(end));
        self.attempt.outcome = Some(outcome);
        self.attempt.ended.get_or_insert(at);
        let attempts = &shared.metrics.attempts;
        attempts.with(&[&self.attempt.worker, outcome.name()]).inc();
        let joins = &shared.joins;
        joins.update(self.owner, &self.attempt, self.parent, at);
        rows.and_then(|rows| joins.ended(rows, at))
    }
}
