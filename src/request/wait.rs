//! The waits of a row: in the server queue, in the router, and at the servers of a pair.

use crate::stats::Interval;
use crate::stats::waits::{ByCause, Cause, Stay};

use super::attempt;
use super::cell::Value;
use super::columns::ColumnId;
use super::response::Unread;
use super::timeline::{Moment, STAGES};

/// A sequence's wait at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How long it was, nanoseconds.
    pub nanos: i64,
    /// Its stay at the server, on the server's clock; `None` if it is unknown when it waited.
    pub stay: Option<Stay>,
    /// What to add to the row's times to get the stay's, nanoseconds; `None` if their clocks do not compare.
    pub shift: Option<i64>,
    /// What it waited for, if the row says so: at the servers of a pair.
    pub cause: Option<Cause>,
}

/// A router that holds a request for less than this only passes it on, nanoseconds.
const MIN_ROUTER_WAIT_NANOS: i64 = 10_000_000;
/// When a request was sent to a server: the first of these that is known.
const SEND_COLUMNS: [ColumnId; 5] = [
    ColumnId::worker_forwarded_time,
    ColumnId::router_send_time,
    ColumnId::forwarded_time,
    ColumnId::sent_time,
    ColumnId::arrival_time,
];
/// A duration in a file may differ this much from that between its times, nanoseconds: each is rounded by itself.
const ROUNDING_NANOS: u64 = 1_000;

impl Wait {
    /// Returns the waits of a row, given its cells: the wait in the server queue, or those at the servers of a pair.
    pub fn all<'a>(cell: &impl Fn(ColumnId) -> Value<'a>) -> Vec<Wait> {
        match cell(ColumnId::disaggregated) {
            Value::Empty => Wait::in_server_queue(cell).into_iter().collect(),
            _ => Wait::at_pair(cell),
        }
    }

    /// Returns the wait in the server queue: column `pure_queue_time`, unless impossible. A pair has no one queue.
    pub fn in_server_queue<'a>(cell: &impl Fn(ColumnId) -> Value<'a>) -> Option<Wait> {
        let inconsistency = cell(ColumnId::inconsistency);
        let names = ["pure_queue_time", "queue_end<"];
        let is_impossible = names.iter().any(|name| inconsistency.text().contains(name));
        let nanos = cell(ColumnId::pure_queue_time).integer()?;
        let is_of_pair = !matches!(cell(ColumnId::disaggregated), Value::Empty);
        if nanos < 0 || is_impossible || is_of_pair {
            return None;
        }
        // On the server's clock the moments of all its requests are exact.
        let offset = || cell(ColumnId::clock_offset).integer().unwrap_or(0);
        let shift = match cell(ColumnId::clock_state).text() {
            "offset" => Some(offset()),
            "raw" => None,
            _ => Some(0),
        };
        let is_same = |stay: &Stay| stay.waited().abs_diff(nanos) <= ROUNDING_NANOS;
        let stay = stay(cell, shift).filter(is_possible).filter(is_same);
        let exact = |stay: Stay| Stay {
            started: stay.queued + nanos,
            ..stay
        };
        Some(Wait {
            nanos,
            stay: stay.map(exact),
            shift,
            cause: None,
        })
    }

    /// Returns the waits at the servers of a pair. A stay ends when the sequence no longer holds what others wait for; a transfer
    /// is nobody's fault.
    fn at_pair<'a>(cell: &impl Fn(ColumnId) -> Value<'a>) -> Vec<Wait> {
        let time = |column| cell(column).integer();
        let after = |from: Option<i64>, column| from?.checked_add(time(column)?);
        let reserved = time(ColumnId::kv_reserved_time);
        let admitted = after(reserved, ColumnId::prefill_queue_time);
        let prefilled = after(admitted, ColumnId::prefill_time);
        let arrived = time(ColumnId::kv_arrived_time);
        // Our times do not compare with the servers' then.
        let is_raw = cell(ColumnId::clock_state).text() == "raw";
        let shift = (!is_raw).then_some(0);
        let ended = ended(cell, shift);
        let queued = time(ColumnId::queue_time_start);
        let wait = |column, cause, queued: Option<i64>, ended: Option<i64>| {
            let nanos = time(column).filter(|nanos| *nanos >= 0)?;
            let started = queued.and_then(|queued| queued.checked_add(nanos));
            let stay = queued.zip(started).map(|(queued, started)| Stay {
                queued,
                started,
                first: started,
                ended: ended.unwrap_or(queued),
                ..Stay::default()
            });
            Some(Wait {
                nanos,
                stay: stay.filter(is_possible),
                shift,
                cause: Some(cause),
            })
        };
        use ColumnId::{
            decode_bootstrap_time, decode_queue_time, kv_transfer_time, prefill_queue_time,
        };
        let all = [
            wait(decode_bootstrap_time, Cause::DecodeMemory, queued, ended),
            wait(prefill_queue_time, Cause::PrefillQueue, reserved, prefilled),
            wait(kv_transfer_time, Cause::Transfer, prefilled, None),
            wait(decode_queue_time, Cause::DecodeSlots, arrived, ended),
        ];
        all.into_iter().flatten().collect()
    }

    /// Returns when a request may have been at a server that did not report when it waited and ran, on the row's clock: from its
    /// sending to its end. `None` if one of its waits has a stay, or it did not reach a server.
    pub fn untimed<'a>(waits: &[Wait], cell: &impl Fn(ColumnId) -> Value<'a>) -> Option<Interval> {
        let is_timed = waits.iter().any(|wait| wait.stay.is_some());
        let ended_in = cell(ColumnId::ended_in);
        let stages = STAGES.iter();
        let mut before = stages.take_while(|stage| stage.period.to <= Moment::ServerCreated);
        let is_before = before.any(|stage| stage.name == ended_in.text());
        if is_timed || is_before || ["connecting", "proxy"].contains(&ended_in.text()) {
            return None;
        }
        let first =
            |columns: &[ColumnId]| columns.iter().find_map(|column| cell(*column).integer());
        // The end of a response is not the end of a generation in the background.
        let is_over = cell(ColumnId::unread).text() != Unread::Background.name();
        let end = first(&[ColumnId::end_time, ColumnId::finish_time]).filter(|_| is_over);
        Some(Interval {
            start: first(&SEND_COLUMNS).unwrap_or(i64::MIN),
            end: end.unwrap_or(i64::MAX),
        })
    }

    /// Returns what a request waited for before it was sent to a server, given the cells of its first row.
    pub fn before_server<'a>(cell: &impl Fn(ColumnId) -> Value<'a>) -> ByCause {
        // Waiting for a client that is slow to send its prompt is no router's time.
        let prompt = cell(ColumnId::prompt_wait).integer().unwrap_or(0);
        let held = cell(ColumnId::queue_time_in_router).integer();
        let nanos = held.map(|nanos| nanos.saturating_sub(prompt));
        let Some(nanos) = nanos.filter(|nanos| *nanos >= MIN_ROUTER_WAIT_NANOS) else {
            return ByCause::default();
        };
        // Without a hop the send to the server is the proxy's own.
        let is_known = |column| cell(column) != Value::Empty;
        let has_hop = is_known(ColumnId::worker) || is_known(ColumnId::worker_forwarded_time);
        let cause = match is_known(ColumnId::forwarded_time) && !has_hop {
            true => Cause::Proxy,
            false => Cause::Router,
        };
        // Failed attempts, for as long as they took; all of the wait if that is unknown.
        let failed = cell(ColumnId::failed_attempts);
        let took: Option<i64> = attempt::parse_failed(failed.text())
            .map(|failed| failed.nanos)
            .sum();
        let down = took.map_or(nanos, |took| took.min(nanos));
        let mut waits = ByCause::default();
        waits.add(Cause::Down, down);
        waits.add(cause, nanos - down);
        waits
    }
}

/// Returns the stay at the server; `shift` is `None` if the proxy's clock does not compare with the server's.
fn stay<'a>(cell: &impl Fn(ColumnId) -> Value<'a>, shift: Option<i64>) -> Option<Stay> {
    let at = |column| cell(column).integer()?.checked_add(shift.unwrap_or(0));
    let started = at(ColumnId::queue_time_end)?;
    let tokens = |column| cell(column).integer().unwrap_or(0).max(0) as u64;
    let prompt = tokens(ColumnId::actual_prompt_tokens);
    Some(Stay {
        queued: at(ColumnId::queue_time_start)?,
        started,
        first: at(ColumnId::server_first_token_time).unwrap_or(started),
        ended: ended(cell, shift).unwrap_or(started),
        prompt: prompt.saturating_sub(tokens(ColumnId::cached_tokens)),
        output: tokens(ColumnId::actual_output_tokens),
    })
}

/// Whether its times are of this century, so that no two of a server are too far apart to be subtracted.
fn is_possible(stay: &Stay) -> bool {
    let at = [stay.queued, stay.started, stay.ended];
    at.iter().all(|at| at.unsigned_abs() <= i64::MAX as u64 / 2)
}

/// Returns when it left the server: by our own moments only if their clocks compare.
fn ended<'a>(cell: &impl Fn(ColumnId) -> Value<'a>, shift: Option<i64>) -> Option<i64> {
    let at = |column| cell(column).integer()?.checked_add(shift.unwrap_or(0));
    let ours = |column| at(column).filter(|_| shift.is_some());
    at(ColumnId::server_finish_time)
        .or_else(|| ours(ColumnId::finish_time))
        .or_else(|| ours(ColumnId::end_time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::request::columns::COLUMNS;
    use crate::request::sample::Sample;
    use crate::request::timeline::ClockState;

    /// A sequence holds its slot of a pair's decode server until that server says so; our own end counts only if the clocks
    /// compare.
    #[test]
    fn a_stay_at_a_pair_ends_by_our_clock_only_if_the_clocks_compare() {
        let mut row = Sample::whole().row();
        row.disaggregated = Some(true);
        row.queue_time_start = Some(Stamp::from_nanos(10));
        row.decode_bootstrap_time = Some(5);
        row.finish_time = Some(Stamp::from_nanos(1000));
        for (state, finished, ended) in [
            (ClockState::Offset, None, 1000),
            (ClockState::Raw, None, 10),
            (ClockState::Raw, Some(90), 90),
        ] {
            row.clock_state = Some(state);
            row.server_finish_time = finished.map(Stamp::from_nanos);
            let waits = Wait::all(&|column| (COLUMNS[column as usize].get)(&row));
            let stay = waits[0].stay.unwrap();
            assert_eq!((stay.queued, stay.started), (10, 15));
            assert_eq!(stay.ended, ended, "{state:?} {finished:?}");
        }
    }

    #[test]
    fn times_that_are_too_far_apart_give_no_stay() {
        let far = |nanos: i64| Some(Stamp::from_nanos(nanos));
        for (is_pair, queued, started, offset) in [
            (None, i64::MIN, 1, 0),
            (None, 1, i64::MAX, 7),
            (Some(true), i64::MIN, 1, 0),
            (Some(true), i64::MAX - 4, i64::MAX, 0),
        ] {
            let mut row = Sample::whole().row();
            row.disaggregated = is_pair;
            row.clock_state = Some(ClockState::Offset);
            row.clock_offset = Some(offset);
            row.queue_time_start = far(queued);
            (row.queue_time_end, row.server_finish_time) = (far(started), far(started));
            (row.pure_queue_time, row.decode_bootstrap_time) = (Some(9), Some(9));
            let waits = Wait::all(&|column| (COLUMNS[column as usize].get)(&row));
            let stays: Vec<_> = waits.iter().map(|wait| wait.stay).collect();
            assert_eq!(stays, [None], "{is_pair:?} {queued} {started}");
            (row.queue_time_in_router, row.prompt_wait) = (Some(queued), Some(started));
            let wait = Wait::before_server(&|column| (COLUMNS[column as usize].get)(&row));
            assert_eq!(wait, ByCause::default());
        }
    }
}
