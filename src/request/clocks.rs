//! Relates the clocks of other processes and of engines to ours, in the rows of a request that has ended.

use crate::clock::Stamp;
use crate::offset::{Offset, OffsetBound, OffsetTable};

use super::columns::Row;
use super::stamps::Stamps;
use super::timeline::{ClockOf, Moment, Relation, Side};

/// Learns from an exchange with another process, if its stamps are known, and relates its clock to ours.
pub fn relate_process(
    rows: &mut [Row],
    clocks: &mut OffsetTable,
    (clock, stamps): (ClockOf, Option<&Stamps>),
) {
    let Some((stamps, first)) = stamps.zip(rows.first()) else {
        return;
    };
    let sent = match first.timeline.side() {
        Side::Traffic => Moment::Sent,
        Side::Front | Side::Hop => Moment::Forwarded,
    };
    let [sent, head] = [sent, Moment::ResponseHead].map(|moment| first.timeline.raw(moment));
    // The observer has related stamps of our own clock.
    let is_own = first.timeline.relation(clock) == Relation::Same;
    let Some(from) = sent.or(head).filter(|_| !is_own) else {
        return;
    };
    let there = sent.zip(stamps.arrival);
    let there = there.map(|(ours, theirs)| OffsetBound::of_sent(ours, theirs));
    let back = head.zip(stamps.now);
    let back = back.map(|(ours, theirs)| OffsetBound::of_received(ours, theirs));
    clocks.add(&stamps.clock, there.into_iter().chain(back));
    // The stamps were taken within this time.
    let window = (from, head.unwrap_or(from));
    relate(rows, clock, clocks.get_over(&stamps.clock, window));
}

/// Puts the name of the engine's clock into the first row: its host as seen by the process nearest to it, which took `nearest`.
pub fn name_engine_clock(rows: &mut [Row], nearest: Option<&Stamps>) {
    if let Some(first) = rows.first_mut() {
        let host = first.host.as_deref();
        let name = |host: &str| nearest.map_or_else(|| host.into(), |by| by.engine_clock(host));
        first.internal.engine_clock = host.map(name);
    }
}

/// Relates the engine's clock to ours; if the request gives bounds on it, learns these before.
pub fn relate_engine(rows: &mut [Row], clocks: &mut OffsetTable, gives_bounds: bool) {
    let first = rows.first();
    let name = first.and_then(|row| row.internal.engine_clock.as_deref());
    let Some((name, window)) = name.zip(engine_window(rows)) else {
        return;
    };
    if gives_bounds {
        clocks.add(name, engine_bounds(rows));
    }
    let offset = clocks.get_over(name, window);
    relate(rows, ClockOf::Engine, offset);
}

fn relate(rows: &mut [Row], clock: ClockOf, offset: Option<Offset>) {
    let Some(offset) = offset else { return };
    for row in rows {
        row.timeline.relate(clock, Relation::Apart(offset));
    }
}

/// Returns the bounds that a request puts on the engine's clock: the engine cannot have received what we sent before we sent it,
/// and we cannot have read what it made before it made it.
pub(super) fn engine_bounds(rows: &[Row]) -> impl Iterator<Item = OffsetBound> {
    let received = rows.iter().filter_map(|row| {
        let created = row.timeline.raw(Moment::ServerCreated)?;
        Some(OffsetBound::of_sent(row.timeline.last_send()?, created))
    });
    let made = rows.iter().filter_map(|row| {
        let raw = |moment| row.timeline.raw(moment);
        let first = || raw(Moment::ServerFirstToken).zip(raw(Moment::FirstToken));
        // No token of a reply was seen: it was read when the engine had finished it.
        let is_whole = row.message_whole == Some(true);
        let last = || raw(Moment::ServerFinish).zip(raw(Moment::Finish).filter(|_| is_whole));
        let (made, read) = row.internal.first_write.or_else(first).or_else(last)?;
        Some(OffsetBound::of_received(read, made))
    });
    received.chain(made)
}

/// Returns when the engine's moments of a request were, on our clock: from our last send to the first token read, or to the end
/// if none was. `None` if nothing is known to have been sent.
fn engine_window(rows: &[Row]) -> Option<(Stamp, Stamp)> {
    let from = rows.iter().filter_map(|row| row.timeline.last_send());
    let from = from.min()?;
    let to = rows.iter().filter_map(|row| {
        let raw = |moment| row.timeline.raw(moment);
        raw(Moment::FirstToken).or_else(|| raw(Moment::Finish))
    });
    let to = to.max().unwrap_or(from);
    Some((from, to.max(from)))
}
