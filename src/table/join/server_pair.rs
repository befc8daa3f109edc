//! Adds what a proxy or hop knows of a pair of servers to another process's row: servers report to the proxy by traces.

use crate::offset::Offset;
use crate::request::attempt::{self, ServerRole};
use crate::request::columns::Row;
use crate::request::timeline::{ClockOf, ENGINE, ENGINE_OF_PAIR, PrefillTimes, Relation};
use crate::request::unseen::Unseens;

/// Adds what the front's row reports about the pair to a generator's row.
pub(super) fn add_front(row: &mut Row, front: &Row) {
    let (host, room) = (front.prefill_host.clone(), front.bootstrap_room.clone());
    let times = front.timeline.prefill().unwrap_or_default();
    add_leg(row, host, room, times);
    row.host = front.host.clone().or(row.host.take());
    add_engine(row, front, row.timeline.offset(ClockOf::Front));
    if front.unseen.and_then(Unseens::engine).is_none() {
        // No timestamps of the servers are missing now.
        row.unseen = None;
    }
    row.derive_anew();
}

/// Adds to a row's error which server of the pair was lost, if it was that of this leg.
pub(super) fn add_lost(row: &mut Row, leg: &Row) {
    let (Some(error), Some(host)) = (&mut row.error, &leg.host) else {
        return;
    };
    // The front may have added it already.
    if !error.contains(host.as_str()) {
        attempt::append_lost_server(error, ServerRole::Prefill, host, leg.outcome);
    }
}

/// Adds the leg of the prefill server to a row.
pub(super) fn add_leg(
    row: &mut Row,
    host: Option<String>,
    room: Option<String>,
    times: PrefillTimes,
) {
    row.prefill_host = row.prefill_host.take().or(host);
    row.bootstrap_room = row.bootstrap_room.take().or(room);
    row.timeline.set_pair(times);
}

/// Adds the engine's timestamps that this row lacks from another process's row; none if the engine's clock does not compare with this
/// row's. `clock`: the offset of the other process's clock.
pub(super) fn add_engine(row: &mut Row, other: &Row, clock: Option<Offset>) {
    let (ours, theirs) = (&mut row.timeline, &other.timeline);
    if ours.relation(ClockOf::Engine) == Relation::Unknown {
        let engine = match (theirs.relation(ClockOf::Engine), clock) {
            (Relation::Apart(engine), Some(clock)) => Offset {
                nanos: engine.nanos.saturating_add(clock.nanos),
                error_nanos: engine.error_nanos.saturating_add(clock.error_nanos),
            },
            (Relation::Same, Some(clock)) => clock,
            _ => return,
        };
        ours.relate(ClockOf::Engine, Relation::Apart(engine));
    }
    for moment in ENGINE.into_iter().chain(ENGINE_OF_PAIR) {
        if let Some(at) = theirs.raw(moment) {
            ours.set_if_unknown(moment, at);
        }
    }
    row.timing_source = row.timing_source.or(other.timing_source);
}
