//! What a proxy knows of requests that a pair of servers served, and their sender does not: servers tell the proxy by traces.

use crate::offset::Offset;
use crate::request::attempt::{self, ServerRole};
use crate::request::columns::Row;
use crate::request::timeline::{ClockOf, ENGINE, ENGINE_OF_PAIR, PrefillTimes, Relation};
use crate::request::unseen::Unseens;

/// Puts into a row of a generator what that of its front says of a pair of servers.
pub(super) fn take(row: &mut Row, front: &Row) {
    let (host, room) = (front.prefill_host.clone(), front.bootstrap_room.clone());
    let times = front.timeline.prefill().unwrap_or_default();
    take_leg(row, host, room, times);
    row.host = front.host.clone().or(row.host.take());
    take_engine(row, front, row.timeline.offset(ClockOf::Front));
    if front.unseen.and_then(Unseens::engine).is_none() {
        // Nothing of the servers is unseen any more.
        row.unseen = None;
    }
    row.derive_anew();
}

/// Says in a row's error which server of its pair was lost, if this leg's was.
pub(super) fn tell_lost(row: &mut Row, leg: &Row) {
    let (Some(error), Some(host)) = (&mut row.error, &leg.host) else {
        return;
    };
    // The front may have known it.
    if !error.contains(host.as_str()) {
        attempt::tell_lost(error, ServerRole::Prefill, host, leg.outcome);
    }
}

/// Puts the leg that another server prefilled into a row.
pub(super) fn take_leg(
    row: &mut Row,
    host: Option<String>,
    room: Option<String>,
    times: PrefillTimes,
) {
    row.prefill_host = row.prefill_host.take().or(host);
    row.bootstrap_room = row.bootstrap_room.take().or(room);
    row.timeline.pair(times);
}

/// Puts the moments of the server that another process knows into a row that lacks them; that one's clock is so far ahead.
pub(super) fn take_engine(row: &mut Row, other: &Row, clock: Option<Offset>) {
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
            ours.first(moment, at);
        }
    }
    row.timing_source = row.timing_source.or(other.timing_source);
}
