//! What a request counts in the metrics while it is under way, and at its end.

use crate::clock::Stamp;
use crate::proxy::shared::{Role, UpstreamKind};
use crate::request::outcome::Outcome;
use crate::request::record::Record;
use crate::telemetry::prometheus::Progress;

use super::Context;

impl Context {
    /// Whether this listener's requests are the process's: a hop's are, where no front counts them.
    pub(super) fn counts(&self) -> bool {
        self.role == Role::Front || !self.shared.joins.has_front()
    }

    /// The head is about to be sent.
    pub(super) fn count_sending(&mut self, now: Stamp) {
        self.away.began(now);
        self.progress = Progress::Waiting;
        if let Some(under_way) = &mut self.under_way {
            under_way.enter(Progress::Waiting);
        }
        if self.sends_to_server() && self.watch.is_some() {
            // The one before is over.
            self.at_worker = None;
            self.at_worker = Some(self.shared.metrics.attempt_began(&self.upstream));
        }
    }

    /// A sending has failed; `is_resent` when there will be another.
    pub fn sending_failed(&mut self, is_resent: bool) {
        let now = self.shared.clock.now();
        self.away.over(now, self.backpressure.pending_at(now));
        self.note_broken(now);
        if is_resent && self.sends_to_server() && self.watch.is_some() {
            let outcome = Outcome::UpstreamDied.name();
            self.shared.metrics.attempt_ended(&self.upstream, outcome);
        }
    }

    /// Whether attempts at servers are our own sendings.
    pub(super) fn sends_to_server(&self) -> bool {
        self.role == Role::Front && self.shared.upstream_kind == UpstreamKind::Server
    }

    /// It has ended, with these rows; so many body bytes of the request and of the response have passed.
    pub(super) fn count_ended(&self, rows: &[Record], (request, response): (u64, u64)) {
        let Some(facts) = rows.first().map(|row| &row.facts).filter(|_| self.counts()) else {
            return;
        };
        let metrics = &self.shared.metrics;
        metrics.bytes_passed(request, response);
        Context::log_failure(rows);
        if let Some(why) = facts.unread {
            metrics.response_unread(why);
        }
        if self.sends_to_server() && self.sendings > 0 {
            metrics.attempt_ended(&self.upstream, facts.outcome.name());
        }
    }
}
