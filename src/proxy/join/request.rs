//! The attempts of one request of the front.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::request::attempt::{Attempt, Failed, MAX_FAILED, ServerRole, SpanId, sendings};
use crate::request::outcome::Outcome;

/// An attempt that may still go on.
pub type Leg = Arc<Mutex<Attempt>>;

/// The attempts at a request that has ended.
#[derive(Debug, Default)]
pub struct RequestAttempts {
    /// The one that answered, else the last one.
    pub last: Option<Attempt>,
    /// The response named that one.
    pub is_named: bool,
    /// The leg of it that another server prefilled.
    pub leg: Option<Leg>,
    /// The others, in their order; at most [`MAX_FAILED`].
    pub others: Vec<Attempt>,
    /// What is told of them.
    pub failed: Vec<Failed>,
    /// How many there were; the two legs of one sending are one.
    pub count: u32,
}

impl RequestAttempts {
    /// Whether an error of this status is the router's own: it refused the request before any server had it, or after one had
    /// failed otherwise.
    pub fn leave_to_router(&self, status: u16) -> bool {
        let leg = self.leg.as_ref().map(|leg| leg.lock().clone());
        let mut all = self.last.iter().chain(&leg).chain(&self.others);
        let is_theirs = all.any(|attempt| attempt.status == Some(status));
        let has_failed = || self.last.iter().chain(&leg).any(Attempt::has_failed);
        match self.count {
            // Behind a router that passes on no header nobody knows of the attempts at a request that failed.
            0 => matches!(status, 429 | 503),
            _ => !is_theirs && has_failed(),
        }
    }

    /// The server of a pair that was to decode it, and how its leg ended.
    pub fn decoding(&self) -> Option<(String, Option<Outcome>)> {
        let last = self.last.as_ref()?;
        let is_leg = last.room.is_some() || last.role.is_some();
        (is_leg && last.may_answer()).then(|| (last.host.clone(), last.outcome))
    }
}

#[derive(Debug, Default)]
pub(super) struct Request {
    pub id: String,
    pub spans: Vec<SpanId>,
    pub attempts: Vec<Leg>,
    pub answered_by: Option<SpanId>,
    pub is_over: bool,
}

impl Request {
    pub fn so_far(&self, answer: Option<SpanId>) -> (u32, Vec<Failed>) {
        let attempts = self.seen();
        let all = sendings(&attempts, |a, b| a.is_other_leg_of(b));
        let is_other = |legs: &&Vec<&Attempt>| !legs.iter().any(|leg| Some(leg.span) == answer);
        let open = |leg: &&&Attempt| !leg.has_answered();
        let others = all.iter().filter(is_other);
        let others = others.map(|legs| legs.iter().filter(open).copied().collect());
        (count(&all), failed(others))
    }

    pub fn take_attempts(&mut self) -> RequestAttempts {
        let attempts = self.seen();
        let mut all = sendings(&attempts, |a, b| a.is_other_leg_of(b));
        let is_answer = |leg: &Attempt| match self.answered_by {
            Some(by) => leg.span == by,
            None => leg.may_answer(),
        };
        let mut sent = all.iter();
        let place = sent.rposition(|legs| legs.iter().any(|leg| is_answer(leg)));
        // One at a hop of another process is not here.
        let is_elsewhere = place.is_none() && self.answered_by.is_some();
        let count = count(&all) + u32::from(is_elsewhere);
        let legs = place.map_or_else(Vec::new, |place| all.remove(place));
        // A router may pass on the error with which a prefill server's leg ended.
        let last = legs
            .iter()
            .max_by_key(|leg| (leg.may_answer(), is_answer(leg)))
            .copied();
        let is_leg = |leg: &&Attempt| {
            leg.role != Some(ServerRole::Decode) && Some(leg.span) != last.map(|last| last.span)
        };
        let leg = legs.into_iter().find(is_leg).map(|leg| leg.span);
        let answered = [leg, last.map(|last| last.span)];
        let others = attempts.iter();
        let others = others.filter(|other| !answered.contains(&Some(other.span)));
        let mut held = std::mem::take(&mut self.attempts).into_iter();
        RequestAttempts {
            others: others.take(MAX_FAILED).cloned().collect(),
            failed: failed(all.into_iter()),
            leg: leg.and_then(|span| held.find(|held| held.lock().span == span)),
            is_named: last.is_some_and(|last| self.answered_by == Some(last.span)),
            last: last.cloned(),
            count,
        }
    }

    fn seen(&self) -> Vec<Attempt> {
        self.attempts.iter().map(|of| of.lock().clone()).collect()
    }
}

fn count(sendings: &[Vec<&Attempt>]) -> u32 {
    u32::try_from(sendings.len()).unwrap_or(u32::MAX)
}

/// As rows tell of these sendings: of two legs that one which failed by itself, where the router then left the other.
fn failed<'a>(sendings: impl Iterator<Item = Vec<&'a Attempt>>) -> Vec<Failed> {
    let told = |legs: Vec<&Attempt>| {
        let leg = legs.iter().rev().max_by_key(|leg| leg.has_failed());
        leg.map(|leg| leg.failed())
    };
    sendings.filter_map(told).take(MAX_FAILED).collect()
}
