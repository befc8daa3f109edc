//! What a proxy knows of requests that a pair of servers served, and their sender does not: servers tell the proxy by traces.

use std::collections::HashMap;

use crate::offset::Offset;
use crate::request::columns::Row;
use crate::request::timeline::{ClockOf, ENGINE, ENGINE_OF_PAIR, PrefillTimes, Relation};
use crate::request::unseen::Unseens;
use crate::table::Table;

/// Puts into the rows of a generator what those of its front say of pairs of servers.
pub fn tell_pairs(rows: &mut Table, front: &Table) {
    let all = front.firsts().flat_map(|first| front.request(first));
    let of_pairs = all.filter(|row| row.disaggregated == Some(true));
    let of_pairs: HashMap<String, Row> = of_pairs
        .filter_map(|row| Some((row.req_id.clone()?, row)))
        .collect();
    let mut told = Table::default();
    for first in rows.firsts() {
        for mut row in rows.request(first) {
            if let Some(front) = row.req_id.as_ref().and_then(|id| of_pairs.get(id)) {
                take(&mut row, front);
            }
            told.push_row(&row);
        }
    }
    *rows = told;
}

fn take(row: &mut Row, front: &Row) {
    let (host, room) = (front.prefill_host.clone(), front.bootstrap_room.clone());
    let times = front.timeline.prefill().unwrap_or_default();
    take_leg(row, host, room, times);
    take_engine(row, front, row.timeline.offset(ClockOf::Front));
    if front.unseen.and_then(Unseens::engine).is_none() {
        // Nothing of the servers is unseen any more.
        row.unseen = None;
    }
    row.derive_anew();
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
