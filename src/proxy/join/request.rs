//! The attempts of one request of the front.

use std::cmp::Reverse;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::request::attempt::{Attempt, Failed, MAX_FAILED, ServerRole, SpanId};

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
        let attempts: Vec<Attempt> = self.attempts.iter().map(|of| of.lock().clone()).collect();
        let answer = attempts.iter().find(|attempt| Some(attempt.span) == answer);
        let is_of_answer =
            |of: &Attempt| answer.is_some_and(|one| one.span == of.span || of.is_other_leg_of(one));
        let others = attempts.iter();
        let others = others.filter(|of| !is_of_answer(of) && !of.has_answered());
        (sendings(&attempts), failed(&others.collect::<Vec<_>>()))
    }

    pub fn take_attempts(&mut self) -> RequestAttempts {
        let mut legs = std::mem::take(&mut self.attempts);
        let attempts: Vec<Attempt> = legs.iter().map(|leg| leg.lock().clone()).collect();
        let last = match self.answered_by {
            Some(by) => attempts.iter().position(|attempt| attempt.span == by),
            None => attempts.iter().rposition(Attempt::may_answer),
        };
        // A router may pass on with what error a prefill server refused its leg.
        let decodes = |first: usize| {
            let of_it = |of: &Attempt| of.may_answer() && of.is_other_leg_of(&attempts[first]);
            let other = attempts.iter().position(of_it);
            other.filter(|_| !attempts[first].may_answer())
        };
        let last = last.map(|last| decodes(last).unwrap_or(last));
        let last_one = last.map(|place| attempts[place].clone());
        let is_leg = |attempt: &Attempt| {
            let of_last = last_one
                .as_ref()
                .is_some_and(|last| attempt.is_other_leg_of(last));
            of_last && attempt.role != Some(ServerRole::Decode)
        };
        let leg = attempts.iter().position(is_leg);
        // One at a hop of another process is not here.
        let is_elsewhere = last.is_none() && self.answered_by.is_some();
        let count = sendings(&attempts) + u32::from(is_elsewhere);
        let others = attempts.into_iter().enumerate();
        let others = others.filter(|(place, _)| ![last, leg].contains(&Some(*place)));
        let mut others: Vec<Attempt> = others.map(|(_, other)| other).collect();
        let failed = failed(&others.iter().collect::<Vec<_>>());
        others.truncate(MAX_FAILED);
        RequestAttempts {
            others,
            failed,
            leg: leg.map(|place| legs.swap_remove(place)),
            is_named: last_one.as_ref().map(|last| last.span) == self.answered_by,
            last: last_one,
            count,
        }
    }
}

/// As rows tell of these attempts: once of each sending. Of two legs that is the one that failed by itself, where the router then
/// left the other.
fn failed(attempts: &[&Attempt]) -> Vec<Failed> {
    let rank = |place: usize| (attempts[place].has_failed(), Reverse(place));
    let is_told = |place: &usize| {
        let other = |other| attempts[*place].is_other_leg_of(attempts[other]);
        !(0..attempts.len()).any(|one| other(one) && rank(one) > rank(*place))
    };
    let told = (0..attempts.len()).filter(is_told).take(MAX_FAILED);
    told.map(|place| attempts[place].failed()).collect()
}

/// How many times the router sent: the two legs of one sending have one number.
fn sendings(attempts: &[Attempt]) -> u32 {
    let is_second = |place: usize, of: &Attempt| {
        attempts[..place]
            .iter()
            .any(|before| before.is_other_leg_of(of))
    };
    let first = attempts.iter().enumerate();
    let first = first.filter(|(place, of)| !is_second(*place, of));
    u32::try_from(first.count()).unwrap_or(u32::MAX)
}
