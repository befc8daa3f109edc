//! The attempts at a request, from what hops here saw, what a hop elsewhere reported, and our own sendings.

use crate::proxy::join::RequestAttempts;
use crate::request::attempt::Failed;
use crate::request::stamps::Stamps;

use super::{Context, Watch};

impl Context {
    /// How many there have been, and which failed.
    pub(super) fn attempts_so_far(&self) -> (u32, Vec<Failed>) {
        if let Some(attempt) = &self.attempt {
            let earlier = attempt.earlier(&self.shared.joins);
            let count = u32::try_from(earlier.len()).unwrap_or(u32::MAX);
            return (count.saturating_add(1), earlier);
        }
        let joins = self.joins.map(|key| self.shared.joins.so_far(key));
        let (count, failed) = joins.unwrap_or_default();
        self.attempts_of(count, failed)
    }

    /// The number of attempts and the failed ones, from what hops here saw, what a hop elsewhere reported, and our
    /// own sendings.
    fn attempts_of(&self, seen: u32, failed: Vec<Failed>) -> (u32, Vec<Failed>) {
        let reported = self.hop.as_ref().map_or(&[][..], |hop| &hop.failed);
        let reported_count = match &self.hop {
            Some(hop) => hop.attempts.unwrap_or(1),
            None => 0,
        };
        let failed = if failed.is_empty() {
            reported.to_vec()
        } else {
            failed
        };
        (self.sendings.max(seen).max(reported_count), failed)
    }

    /// Takes in what hops of this process saw of the request.
    pub(super) fn take_attempts(&mut self, watch: &mut Watch, closed: RequestAttempts) {
        if let (None, Some(last)) = (&self.hop, &closed.last) {
            // No response named it.
            let stamps = Stamps {
                clock: self.shared.clock_name.clone(),
                arrival: Some(last.arrival),
                forwarded: last.forwarded,
                host: Some(last.host.clone()),
                worker: Some(last.worker.clone()),
                ..Stamps::default()
            };
            watch.observer.stamps(&stamps, &self.shared.clock_name);
        }
        let (attempts, failed) = self.attempts_of(closed.count, closed.failed);
        let facts = watch.observer.facts_mut();
        facts.attempts = attempts;
        facts.failed = failed;
        // The server's spans lie below the hop's.
        if self.shared.telemetry.traces() || self.shared.engine.is_some() {
            facts.trace.attempts = closed.others;
            facts.trace.attempts.extend(closed.last);
        }
    }
}
