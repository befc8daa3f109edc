//! The waits of a row: in the server queue, in the router, and at the servers of a pair.

use crate::clock::Stamp;
use crate::stats::Interval;
use crate::stats::waits::{ByCause, Cause, Stay};

use super::columns::TypedRow;
use super::response::Unread;
use super::stages::StageSet;
use super::timeline::ClockState;

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
/// A duration in a file may differ this much from that between its times, nanoseconds: each is rounded by itself.
const ROUNDING_NANOS: u64 = 1_000;

/// The waits of a row without impossible values.
impl Wait {
    /// Returns the wait in the server queue, or those at the servers of a pair.
    pub fn all(row: &impl TypedRow) -> Vec<Wait> {
        match row.disaggregated() {
            None => Wait::in_server_queue(row).into_iter().collect(),
            Some(_) => Wait::at_pair(row),
        }
    }

    /// Returns the wait in the server queue: column `pure_queue_time`. A pair has no one queue.
    pub fn in_server_queue(row: &impl TypedRow) -> Option<Wait> {
        let nanos = row.pure_queue_time().filter(|nanos| *nanos >= 0)?;
        if row.disaggregated().is_some() {
            return None;
        }
        // On the server's clock the moments of all its requests are exact.
        let shift = match row.clock_state() {
            Some(ClockState::Offset) => Some(row.clock_offset().unwrap_or(0)),
            Some(ClockState::Raw) => None,
            None => Some(0),
        };
        let is_same = |stay: &Stay| stay.waited().abs_diff(nanos) <= ROUNDING_NANOS;
        let stay = stay(row, shift).filter(is_possible).filter(is_same);
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
    fn at_pair(row: &impl TypedRow) -> Vec<Wait> {
        // Our times do not compare with the servers' then.
        let is_raw = row.clock_state() == Some(ClockState::Raw);
        let shift = (!is_raw).then_some(0);
        let after = |from: Option<Stamp>, nanos: Option<i64>| Some(from?.plus_nanos(nanos?));
        let (queued, reserved) = (row.queue_time_start(), row.kv_reserved_time());
        let admitted = after(reserved, row.prefill_queue_time());
        let prefilled = after(admitted, row.prefill_time());
        let arrived = row.kv_arrived_time();
        let ended = ended(row, shift);
        let wait = |nanos: Option<i64>, cause, queued: Option<Stamp>, ended: Option<Stamp>| {
            let nanos = nanos.filter(|nanos| *nanos >= 0)?;
            let stay = queued.map(|queued| Stay {
                queued: queued.nanos(),
                started: queued.plus_nanos(nanos).nanos(),
                first: queued.plus_nanos(nanos).nanos(),
                ended: ended.unwrap_or(queued).nanos(),
                ..Stay::default()
            });
            Some(Wait {
                nanos,
                stay: stay.filter(is_possible),
                shift,
                cause: Some(cause),
            })
        };
        let [memory, slot] = [row.decode_bootstrap_time(), row.decode_queue_time()];
        let [queue, transfer] = [row.prefill_queue_time(), row.kv_transfer_time()];
        let all = [
            wait(memory, Cause::DecodeMemory, queued, ended),
            wait(queue, Cause::PrefillQueue, reserved, prefilled),
            wait(transfer, Cause::Transfer, prefilled, None),
            wait(slot, Cause::DecodeSlots, arrived, ended),
        ];
        all.into_iter().flatten().collect()
    }

    /// Returns when a request may have been at a server that did not report when it waited and ran, on the row's clock: from its
    /// sending to its end. `None` if one of its waits has a stay, or it did not reach a server.
    pub fn untimed(waits: &[Wait], row: &impl TypedRow) -> Option<Interval> {
        let is_timed = waits.iter().any(|wait| wait.stay.is_some());
        if is_timed || row.ended_in().is_some_and(StageSet::is_before_server) {
            return None;
        }
        // The last of its sendings that is known.
        let sent = (row.worker_forwarded_time())
            .or_else(|| row.router_send_time())
            .or_else(|| row.forwarded_time())
            .or_else(|| row.sent_time())
            .or_else(|| row.arrival_time());
        // The end of a response is not the end of a generation in the background.
        let is_over = row.unread() != Some(Unread::Background);
        let end = row.end_time().or_else(|| row.finish_time());
        Some(Interval {
            start: sent.map_or(i64::MIN, Stamp::nanos),
            end: end.filter(|_| is_over).map_or(i64::MAX, Stamp::nanos),
        })
    }

    /// Returns what a request waited for before it was sent to a server; `row` is its first.
    pub fn before_server(row: &impl TypedRow) -> ByCause {
        // Waiting for a client that is slow to send its prompt is no router's time.
        let prompt = row.prompt_wait().unwrap_or(0);
        let held = row.queue_time_in_router();
        let nanos = held.map(|nanos| nanos.saturating_sub(prompt));
        let Some(nanos) = nanos.filter(|nanos| *nanos >= MIN_ROUTER_WAIT_NANOS) else {
            return ByCause::default();
        };
        // Without a hop the send to the server is the proxy's own.
        let has_hop = row.worker().is_some() || row.worker_forwarded_time().is_some();
        let cause = match row.forwarded_time().is_some() && !has_hop {
            true => Cause::Proxy,
            false => Cause::Router,
        };
        // Failed attempts, for as long as they took; all of the wait if that is unknown.
        let failed = row.failed_attempts().unwrap_or_default();
        let took = failed.iter().try_fold(0, |sum: i64, failed| {
            let nanos = failed.nanos.filter(|nanos| *nanos >= 0)?;
            Some(sum.saturating_add(nanos))
        });
        let down = took.map_or(nanos, |took| took.min(nanos));
        let mut waits = ByCause::default();
        waits.add(Cause::Down, down);
        waits.add(cause, nanos - down);
        waits
    }
}

/// Returns the stay at the server; `shift` is `None` if the proxy's clock does not compare with the server's.
fn stay(row: &impl TypedRow, shift: Option<i64>) -> Option<Stay> {
    let shifted = |at: Stamp| at.plus_nanos(shift.unwrap_or(0)).nanos();
    let started = row.queue_time_end()?;
    let first = row.server_first_token_time();
    let prompt = row.actual_prompt_tokens().unwrap_or(0);
    Some(Stay {
        queued: shifted(row.queue_time_start()?),
        started: shifted(started),
        first: shifted(first.unwrap_or(started)),
        ended: shifted(ended(row, shift).unwrap_or(started)),
        prompt: prompt.saturating_sub(row.cached_tokens().unwrap_or(0)),
        output: row.actual_output_tokens().unwrap_or(0),
    })
}

/// Whether its times are of this century, so that no two of a server are too far apart to be subtracted.
fn is_possible(stay: &Stay) -> bool {
    let at = [stay.queued, stay.started, stay.ended];
    at.iter().all(|at| at.unsigned_abs() <= i64::MAX as u64 / 2)
}

/// Returns when it left the server, on the row's clock: by our own moments only if the clocks compare.
fn ended(row: &impl TypedRow, shift: Option<i64>) -> Option<Stamp> {
    let ours = || row.finish_time().or_else(|| row.end_time());
    let ours = || ours().filter(|_| shift.is_some());
    row.server_finish_time().or_else(ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::sample::Sample;

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
            let waits = Wait::all(&row);
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
            let waits = Wait::all(&row);
            let stays: Vec<_> = waits.iter().map(|wait| wait.stay).collect();
            assert_eq!(stays, [None], "{is_pair:?} {queued} {started}");
            (row.queue_time_in_router, row.prompt_wait) = (Some(queued), Some(started));
            let wait = Wait::before_server(&row);
            assert_eq!(wait, ByCause::default());
        }
    }
}
