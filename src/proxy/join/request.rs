//! The attempts of one request.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::request::attempt::{Attempt, FailedAttempt, MAX_FAILED, ServerRole, SpanId, sendings};
use crate::request::outcome::Outcome;

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
    pub fn leave_to_router(&self, status: u16) -> bool {
        let leg = self.prefill_leg.as_ref().map(|leg| leg.lock().clone());
        let mut all = self.last.iter().chain(&leg).chain(&self.others);
        let is_servers = all.any(|attempt| attempt.status == Some(status));
        let has_failed = || self.last.iter().chain(&leg).any(Attempt::has_failed);
        match self.count {
            // Behind a router that passes on no header, the attempts of a failed request are not known.
            0 => matches!(status, 408 | 429 | 503),
            _ => !is_servers && has_failed(),
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
    /// Returns the number of attempts and the failed ones, `answer` not among them.
    pub fn so_far(&self, answer: Option<SpanId>) -> (u32, Vec<FailedAttempt>) {
        let attempts = self.snapshot();
        let all = sendings(&attempts, |a, b| a.is_other_leg_of(b));
        let is_other = |legs: &&Vec<&Attempt>| !legs.iter().any(|leg| Some(leg.span) == answer);
        let is_open = |leg: &&&Attempt| !leg.has_answered();
        let others = all.iter().filter(is_other);
        let others = others.map(|legs| legs.iter().filter(is_open).copied().collect());
        (count(&all), failed(others))
    }

    /// Takes the attempts, as the request has ended.
    pub fn take_attempts(&mut self) -> RequestAttempts {
        let attempts = self.snapshot();
        let mut all = sendings(&attempts, |a, b| a.is_other_leg_of(b));
        let is_answer = |leg: &Attempt| match self.answered_by {
            Some(by) => leg.span == by,
            None => leg.may_answer(),
        };
        let mut sent = all.iter();
        let place = sent.rposition(|legs| legs.iter().any(|leg| is_answer(leg)));
        // The one that answered is at a hop of another process.
        let is_elsewhere = place.is_none() && self.answered_by.is_some();
        let count = count(&all) + u32::from(is_elsewhere);
        let legs = place.map_or_else(Vec::new, |place| all.remove(place));
        // A router may pass on the error of a prefill server's leg; the decode leg is the last one all the same.
        // Without an answer, two servers of unknown roles are not told apart.
        let has_role = |leg: &&Attempt| leg.role.is_some();
        let is_known = self.answered_by.is_some() || legs.len() < 2 || legs.iter().any(has_role);
        let legs = if is_known { legs } else { Vec::new() };
        let last = legs
            .iter()
            .max_by_key(|leg| (leg.may_answer(), is_answer(leg)))
            .copied();
        let last_span = last.map(|last| last.span);
        let is_prefill =
            |leg: &&Attempt| leg.role != Some(ServerRole::Decode) && Some(leg.span) != last_span;
        let prefill = legs.into_iter().find(is_prefill).map(|leg| leg.span);
        let others = attempts.iter();
        let others = others.filter(|one| ![prefill, last_span].contains(&Some(one.span)));
        let mut shared = std::mem::take(&mut self.attempts).into_iter();
        RequestAttempts {
            others: others.take(MAX_FAILED).cloned().collect(),
            failed: failed(all.into_iter()),
            prefill_leg: prefill.and_then(|span| shared.find(|one| one.lock().span == span)),
            is_named: last.is_some() && self.answered_by == last_span,
            last: last.cloned(),
            count,
        }
    }

    fn snapshot(&self) -> Vec<Attempt> {
        self.attempts.iter().map(|one| one.lock().clone()).collect()
    }
}

fn count(sendings: &[Vec<&Attempt>]) -> u32 {
    u32::try_from(sendings.len()).unwrap_or(u32::MAX)
}

/// Returns these sendings as rows show them. Of two legs that is the one that failed by itself; the router ended the other for it.
fn failed<'a>(sendings: impl Iterator<Item = Vec<&'a Attempt>>) -> Vec<FailedAttempt> {
    let failed = |legs: Vec<&Attempt>| {
        let leg = legs.iter().rev().max_by_key(|leg| leg.has_failed());
        leg.map(|leg| leg.failed())
    };
    sendings.filter_map(failed).take(MAX_FAILED).collect()
}
