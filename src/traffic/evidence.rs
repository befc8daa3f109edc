//! What is known of how a run was made.

use crate::report::load::Summary;

use super::driver::Run;
use super::verdict::Evidence;
use super::watch;
use crate::stats::Histogram;

/// Of a run that is over; something is late beside how long a client typically waits.
pub(super) fn evidence(run: &Run, summary: &Summary, woke: &Histogram) -> Evidence {
    let at = |planned: Option<&super::plan::Planned>| planned.map(|planned| planned.offset_nanos);
    let is_at_once = at(run.schedule.first()) == at(run.schedule.last());
    let whole = is_at_once.then(|| run.ended.since(run.started));
    let scheduled = summary.run.scheduled as u64;
    let not_due = scheduled.saturating_sub(summary.requests());
    let mut evidence = Evidence {
        scheduled,
        // Those that waited for a slot have rows as well.
        unsent: if run.stopped {
            not_due + run.lag.unsent
        } else {
            0
        },
        given_up: summary.whole.given_up.saturating_sub(run.lag.unsent),
        due: summary.requests(),
        failed: summary.failed(),
        dropped: run.dropped,
        ..Evidence::beside(summary.typical_wait(), whole)
    };
    run.lag.tell(&mut evidence);
    watch::tell(woke, &mut evidence);
    evidence
}
