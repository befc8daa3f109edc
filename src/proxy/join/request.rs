//! The attempts of one request.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::request::{Attempt, FailedAttempt, MAX_FAILED, Outcome, ServerRole, SpanId, sendings};

/// The most attempts of one request: routers give up before.
pub(super) const MAX_ATTEMPTS: usize = 16;

/// An attempt that may still go on.
pub type SharedAttempt = Arc<Mutex<Attempt>>;

/// The attempts of a request that has ended.
#[derive(Debug, Default)]
pub struct RequestAttempts {
    /// The one that answered, else the last one.
    pub last: Option<Attempt>,
    /// Whether the response named that one.
    pub is_named: bool,
    /// Its leg at a prefill server.
    pub prefill_leg: Option<SharedAttempt>,
    /// The others, in their order; at most [`MAX_FAILED`].
    pub others: Vec<Attempt>,
    /// The others as rows show them.
    pub failed: Vec<FailedAttempt>,
    /// The number of all; the two legs of one sending are one.
    pub count: u32,
}

impl RequestAttempts {
    /// Whether an error response of this status is the router's own: no server had the request, or all failed otherwise.
    pub fn leave_to_router(&self, status: u64) -> bool {
        let prefill = self.prefill_leg.as_ref().map(|leg| leg.lock().clone());
        let legs = || self.last.iter().chain(&prefill);
        let is_servers = |attempt: &Attempt| attempt.status.map(u64::from) == Some(status);
        let is_servers = legs().chain(&self.others).any(is_servers);
        let has_failed = || legs().any(Attempt::has_failed);
        match self.count {
            // Behind a router that passes on no header, the attempts of a failed request are not known.
            0 => matches!(status, 408 | 429 | 503),
            // A router that finds no server for one leg closes the other, which has not failed.
            _ => !is_servers && (matches!(status, 429 | 503) || has_failed()),
        }
    }

    /// Returns the decode server of a pair, and how its leg ended.
    pub fn decode_leg(&self) -> Option<(String, Option<Outcome>)> {
        let last = self.last.as_ref()?;
        let is_leg = last.room.is_some() || last.role.is_some();
        (is_leg && last.may_answer()).then(|| (last.host.clone(), last.outcome))
    }
}

#[derive(Debug, Default)]
pub(super) struct Request {
    pub id: String,
    pub spans: Vec<SpanId>,
    pub attempts: Vec<SharedAttempt>,
    /// The span of the attempt that answered, if the response named it.
    pub answered_by: Option<SpanId>,
    pub is_closed: bool,
}

impl Request {
    /// Adds an attempt, unless the request is closed. Returns `false` if there is no room for it.
    pub fn insert(&mut self, attempt: &SharedAttempt) -> bool {
        let has_room = self.attempts.len() < MAX_ATTEMPTS;
        if has_room && !self.is_closed {
            self.attempts.push(attempt.clone());
        }
        has_room || self.is_closed
    }

    /// Returns the attempts so far; `answered_by` is the span of the one that answered, if that is known.
    pub fn attempts(&self, answered_by: Option<SpanId>) -> RequestAttempts {
        let attempts = self.attempts.iter().map(|one| one.lock().clone());
        let attempts: Vec<Attempt> = attempts.collect();
        let mut all = sendings(&attempts, |a, b| a.is_other_leg_of(b));
        let is_answer = |leg: &Attempt| match answered_by {
            Some(by) => leg.span == by,
            None => leg.may_answer(),
        };
        let answers = |legs: &Vec<&Attempt>| legs.iter().any(|leg| is_answer(leg));
        let place = all.iter().rposition(answers);
        // The one that answered is at a hop of another process.
        let is_elsewhere = place.is_none() && answered_by.is_some();
        let count = u32::try_from(all.len()).unwrap_or(u32::MAX) + u32::from(is_elsewhere);
        let mut legs = place.map_or_else(Vec::new, |place| all.remove(place));
        // Without an answer, two servers of unknown roles are not told apart.
        if answered_by.is_none() && legs.len() > 1 && legs.iter().all(|leg| leg.role.is_none()) {
            legs.clear();
        }
        // A router may pass on the error of a prefill server's leg; the decode leg is the last one all the same.
        let by_rank = |leg: &&&Attempt| (leg.may_answer(), is_answer(leg));
        let last = legs.iter().max_by_key(by_rank).copied();
        let last_span = last.map(|last| last.span);
        let is_prefill =
            |leg: &&Attempt| leg.role != Some(ServerRole::Decode) && Some(leg.span) != last_span;
        let prefill = legs.into_iter().find(is_prefill).map(|leg| leg.span);
        let named = [prefill, last_span];
        let is_shared = |one: &&SharedAttempt| Some(one.lock().span) == prefill;
        let is_other = |one: &&Attempt| !named.contains(&Some(one.span));
        let others = attempts.iter().filter(is_other).take(MAX_FAILED);
        let failed = all.iter().filter_map(|legs| failed(legs));
        RequestAttempts {
            others: others.cloned().collect(),
            failed: failed.take(MAX_FAILED).collect(),
            prefill_leg: self.attempts.iter().find(is_shared).cloned(),
            is_named: last.is_some() && answered_by == last_span,
            last: last.cloned(),
            count,
        }
    }
}

/// Returns a sending as rows show it, if it failed or goes on. Of two legs that is the one that failed by itself; the router ended the
/// other for it.
fn failed(legs: &[&Attempt]) -> Option<FailedAttempt> {
    let legs = legs.iter().rev();
    let legs = legs.filter(|leg| leg.has_failed() || !leg.has_answered());
    legs.max_by_key(|leg| leg.has_failed())
        .map(|leg| leg.failed())
}
