//! The attempts of one request, and the two legs of one that a prefill/decode pair of servers serves. The router sends that, with
//! one number (`bootstrap_room`), to the server that prefills and to the one that decodes and answers. What the response of the
//! prefill leg reports is put into the row of the other.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::request::{
    Attempt, BodyTiming, ClockOf, FailedAttempt, MAX_FAILED, Moment, Outcome, Relation, Row,
    ServerRole, Side, SpanId, append_lost_server, sendings,
};

/// The most attempts of one request: routers give up before.
pub(super) const MAX_ATTEMPTS: usize = 16;

/// An attempt that may still go on.
pub type SharedAttempt = Arc<Mutex<Attempt>>;

/// The attempts of a request that has ended.
#[derive(Debug, Default)]
pub struct RequestAttempts {
    /// The one that answered, else the last one.
    pub last: Option<Attempt>,
    /// When the body of the response passed that one's hop, if the response named it.
    pub body_timing: BodyTiming,
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

/// A request that attempts are joined to.
#[derive(Debug, Default)]
pub struct Request {
    pub(super) id: String,
    /// The span that it is sent upstream with.
    pub(super) span: Option<SpanId>,
    pub(super) attempts: Vec<SharedAttempt>,
    /// The span of the attempt that answered, if the response named it.
    pub answered_by: Option<SpanId>,
}

impl Request {
    /// Adds an attempt. Returns `false` if there is no room for it.
    pub(super) fn insert(&mut self, attempt: &SharedAttempt) -> bool {
        let has_room = self.attempts.len() < MAX_ATTEMPTS;
        if has_room {
            self.attempts.push(attempt.clone());
        }
        has_room
    }

    /// Returns the attempts that have reached a hop so far; `answered_by` is the span of the one that answers, if not the response
    /// named it.
    pub fn attempts(&self, answered_by: Option<SpanId>) -> RequestAttempts {
        let answered_by = answered_by.or(self.answered_by);
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
        let count = all.len() as u32 + u32::from(is_elsewhere);
        let mut legs = place.map_or_else(Vec::new, |place| all.remove(place));
        // Without an answer, two servers of unknown roles are not told apart.
        if answered_by.is_none() && legs.len() > 1 && legs.iter().all(|leg| leg.role.is_none()) {
            legs.clear();
        }
        // A router may pass on the error of a prefill server's leg; the decode leg is the last one all the same.
        legs.sort_by_key(|leg| (leg.may_answer(), is_answer(leg)));
        let last = legs.pop();
        let prefill = legs.pop();
        let prefill = prefill.filter(|leg| leg.role != Some(ServerRole::Decode));
        let [last_span, prefill_span] = [last, prefill].map(|leg| leg.map(|leg| leg.span));
        let is_shared = |one: &&SharedAttempt| Some(one.lock().span) == prefill_span;
        let is_other = |one: &&Attempt| ![last_span, prefill_span].contains(&Some(one.span));
        let named = last.filter(|_| last_span == answered_by);
        let others = attempts.iter().filter(is_other).take(MAX_FAILED);
        let failed = all.iter().filter_map(|legs| failed(legs));
        RequestAttempts {
            others: others.cloned().collect(),
            failed: failed.take(MAX_FAILED).collect(),
            prefill_leg: self.attempts.iter().find(is_shared).cloned(),
            body_timing: named.map(|last| last.body_timing).unwrap_or_default(),
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

/// Puts the prefill leg of a request into the request's rows.
pub(super) fn put_prefill(leg: &Attempt, rows: &mut [Row]) {
    for row in rows.iter_mut() {
        row.internal.room = row.internal.room.or(leg.room);
        row.prefilled_by(leg);
        let times = leg.prefill.get(row.index as usize);
        row.timeline.set_pair(times.copied().unwrap_or_default());
        put_prefill_replied(leg, row);
        if let Some(error) = &mut row.error {
            append_lost_server(error, ServerRole::Prefill, &leg.host, leg.outcome);
        }
    }
    let attempts = rows.first_mut().map(|row| &mut row.internal.trace.attempts);
    // Empty where no spans are made of them.
    if let Some(attempts) = attempts.filter(|attempts| !attempts.is_empty()) {
        attempts.insert(0, leg.clone());
    }
}

/// Sets `prefill_replied` if the router held the response until prefill's was complete: the front saw none of it before.
fn put_prefill_replied(leg: &Attempt, row: &mut Row) {
    let timeline = &mut row.timeline;
    let is_one_clock =
        timeline.side() == Side::Front && timeline.relation(ClockOf::Hop) == Relation::Same;
    let [at_hop, head] =
        [Moment::WorkerFirstToken, Moment::ResponseHead].map(|moment| timeline.mark(moment));
    let replied = leg.body_timing.last.filter(|_| is_one_clock);
    if let (Some(at_hop), Some(replied), Some(head)) = (at_hop, replied, head)
        && at_hop < replied
        && replied <= head
    {
        timeline.set(Moment::PrefillReplied, replied);
    }
}
