//! What is known of how a run was made.

use crate::report::load::Summary;
use crate::report::verdict::Evidence;

use super::driver::Driven;
use super::lag::Lag;
use super::watch::Watched;

/// Of a run that is over. `typical`: how long a client waits, seconds, beside which something is late. `of_limit`: its rate over the highest that this machine keeps.
pub(super) fn evidence(
    run: &Driven,
    summary: &Summary,
    watched: &Watched,
    typical: Option<f64>,
    of_limit: Option<f64>,
) -> Evidence {
    let at = |planned: Option<&super::plan::Planned>| planned.map(|planned| planned.offset_nanos);
    let is_at_once = at(run.schedule.first()) == at(run.schedule.last());
    let whole = is_at_once.then(|| run.ended.since(run.started));
    let unsent = (summary.run.scheduled as u64).saturating_sub(summary.requests());
    let mut evidence = Evidence {
        unsent: if run.stopped { unsent } else { 0 },
        given_up: summary.whole.given_up,
        due: summary.requests(),
        failed: summary.failed(),
        dropped: run.dropped,
        of_limit,
        ..Evidence::beside(typical, whole)
    };
    let sendings = run.requests.sendings();
    Lag::of(sendings).tell(sendings, &mut evidence);
    watched.tell(&mut evidence);
    evidence
}
