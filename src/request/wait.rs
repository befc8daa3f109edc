//! What a row tells of its wait: in its server queue, in the router, and at the servers of a pair.

use crate::stats::Interval;
use crate::stats::waits::{ByCause, Cause, Stay};

use super::attempt;
use super::cell::Value;
use super::columns::ColumnId;
use super::response::Unread;

/// A sequence's wait at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How long it was, nanoseconds.
    pub nanos: i64,
    /// Its way through the server, on the server's clock; `None` where nobody knows when it waited.
    pub stay: Option<Stay>,
    /// From the row's times to those of its stay, nanoseconds; `None` where their clocks cannot be compared.
    pub shift: Option<i64>,
    /// What it was for, where the row tells: at the servers of a pair.
    pub cause: Option<Cause>,
}

/// A router that holds a request for less only passes it on, nanoseconds.
const ROUTER: i64 = 10_000_000;
/// What the waits of a request of a pair are told in, in their order.
pub const OF_PAIR: [ColumnId; 4] = [
    ColumnId::decode_bootstrap_time,
    ColumnId::prefill_queue_time,
    ColumnId::kv_transfer_time,
    ColumnId::decode_queue_time,
];
/// A request that was last seen there came to no server: column `ended_in`.
const NO_SERVER: [&str; 6] = [
    "client lag",
    "connecting",
    "to proxy",
    "proxy",
    "router",
    "network",
];
/// When a request was sent to a server: the first that is known.
const SENT: [ColumnId; 5] = [
    ColumnId::worker_forwarded_time,
    ColumnId::router_send_time,
    ColumnId::forwarded_time,
    ColumnId::sent_time,
    ColumnId::arrival_time,
];
/// Files tell times so exactly, nanoseconds: differences of two were rounded apart from them.
const EXACT: i64 = 1_000;

impl Wait {
    /// Of the cells of a row: that in its server queue, or those at the servers of a pair.
    pub fn all<'a>(cell: &impl Fn(ColumnId) -> Value<'a>) -> Vec<Wait> {
        match cell(ColumnId::disaggregated) {
            Value::Empty => Wait::of(cell).into_iter().collect(),
            _ => Wait::at_pair(cell),
        }
    }

    /// That in the server queue: column `pure_queue_time`, where that can be. What a pair waited for is not one queue.
    pub fn of<'a>(cell: &impl Fn(ColumnId) -> Value<'a>) -> Option<Wait> {
        let wrong = text(cell(ColumnId::inconsistency));
        let names = ["pure_queue_time", "queue_end<"];
        let is_wrong = names.iter().any(|name| wrong.contains(name));
        let nanos = whole(cell(ColumnId::pure_queue_time))?;
        let is_of_pair = !matches!(cell(ColumnId::disaggregated), Value::Empty);
        if nanos < 0 || is_wrong || is_of_pair {
            return None;
        }
        // On the server's clock the moments of all its requests are exact.
        let state = text(cell(ColumnId::clock_state));
        let offset = || whole(cell(ColumnId::clock_offset)).unwrap_or(0);
        let shift = match &*state {
            "offset" => Some(offset()),
            "raw" => None,
            _ => Some(0),
        };
        let stay = stay(cell, shift);
        let stay = stay.filter(|stay| (stay.waited() - nanos).abs() <= EXACT);
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

    /// Those at the servers of a pair, each with who has meanwhile what is waited for. Of a transfer nobody is to be blamed.
    fn at_pair<'a>(cell: &impl Fn(ColumnId) -> Value<'a>) -> Vec<Wait> {
        let time = |column| whole(cell(column));
        let after = |from: Option<i64>, column| Some(from? + time(column)?);
        let reserved = time(ColumnId::kv_reserved_time);
        let admitted = after(reserved, ColumnId::prefill_queue_time);
        let prefilled = after(admitted, ColumnId::prefill_time);
        let arrived = time(ColumnId::kv_arrived_time);
        // Ours cannot be compared with the servers' times then.
        let is_raw = text(cell(ColumnId::clock_state)) == "raw";
        let ended = ended(cell, (!is_raw).then_some(0));
        let queued = time(ColumnId::queue_time_start);
        let all = [
            (Cause::DecodeMemory, queued, ended),
            (Cause::PrefillQueue, reserved, prefilled),
            (Cause::Transfer, prefilled, None),
            (Cause::DecodeSlots, arrived, ended),
        ];
        let wait = |((cause, queued, ended), column): ((Cause, Option<i64>, Option<i64>), _)| {
            let nanos = time(column).filter(|nanos| *nanos >= 0)?;
            let stay = queued.map(|queued| Stay {
                queued,
                started: queued + nanos,
                first: queued + nanos,
                ended: ended.unwrap_or(queued),
                ..Stay::default()
            });
            Some(Wait {
                nanos,
                stay,
                shift: Some(0),
                cause: Some(cause),
            })
        };
        all.into_iter().zip(OF_PAIR).filter_map(wait).collect()
    }

    /// When a request may have been at a server that did not tell when it waited and ran, by the row's own clock: from its sending
    /// to its end. `None` where one of its waits has its stay, or it came to no server.
    pub fn untimed<'a>(waits: &[Wait], cell: &impl Fn(ColumnId) -> Value<'a>) -> Option<Interval> {
        let is_timed = waits.iter().any(|wait| wait.stay.is_some());
        if is_timed || NO_SERVER.contains(&&*text(cell(ColumnId::ended_in))) {
            return None;
        }
        let first = |columns: &[ColumnId]| columns.iter().find_map(|of| whole(cell(*of)));
        // Of an answer in the background the end is not that of its generation.
        let is_over = text(cell(ColumnId::unread)) != Unread::Background.name();
        let end = first(&[ColumnId::end_time, ColumnId::finish_time]).filter(|_| is_over);
        Some(Interval {
            start: first(&SENT).unwrap_or(i64::MIN),
            end: end.unwrap_or(i64::MAX),
        })
    }

    /// What a request waited for before it was sent to a server, as its first row tells.
    pub fn on_the_way<'a>(cell: &impl Fn(ColumnId) -> Value<'a>) -> ByCause {
        // A client that is slow to send its prompt is not held back.
        let prompt = whole(cell(ColumnId::prompt_wait)).unwrap_or(0);
        let nanos = whole(cell(ColumnId::queue_time_in_router)).map(|nanos| nanos - prompt);
        let Some(nanos) = nanos.filter(|nanos| *nanos >= ROUTER) else {
            return ByCause::default();
        };
        // Where no hop stands the send to the server is the proxy's own.
        let is_told = |column| cell(column) != Value::Empty;
        let has_hop = is_told(ColumnId::worker) || is_told(ColumnId::worker_forwarded_time);
        let cause = match is_told(ColumnId::forwarded_time) && !has_hop {
            true => Cause::Proxy,
            false => Cause::Router,
        };
        // Attempts that failed, as long as they are told to have taken, else all of it.
        let failed = text(cell(ColumnId::failed_attempts));
        let took: Option<i64> = attempt::told(&failed).map(|failed| failed.nanos).sum();
        let down = took.map_or(nanos, |took| took.min(nanos));
        let mut told = ByCause::default();
        told.add(Cause::Down, down);
        told.add(cause, nanos - down);
        told
    }
}

/// `shift`: `None` where the proxy's clock cannot be compared with the server's.
fn stay<'a>(cell: &impl Fn(ColumnId) -> Value<'a>, shift: Option<i64>) -> Option<Stay> {
    let at = |column| Some(whole(cell(column))? + shift.unwrap_or(0));
    let started = at(ColumnId::queue_time_end)?;
    let tokens = |column| whole(cell(column)).unwrap_or(0).max(0) as u64;
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

/// When it left the server: by our own moments only where their clocks can be compared.
fn ended<'a>(cell: &impl Fn(ColumnId) -> Value<'a>, shift: Option<i64>) -> Option<i64> {
    let at = |column| Some(whole(cell(column))? + shift.unwrap_or(0));
    let ours = |column| at(column).filter(|_| shift.is_some());
    at(ColumnId::server_finish_time)
        .or_else(|| ours(ColumnId::finish_time))
        .or_else(|| ours(ColumnId::end_time))
}

/// A count, nanoseconds, or a moment as nanoseconds.
fn whole(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Count(count) => i64::try_from(count).ok(),
        Value::Nanos(nanos) => Some(nanos),
        Value::Time(at) => Some(at.nanos()),
        Value::Empty | Value::Text(_) | Value::Bool(_) => None,
    }
}

fn text(value: Value<'_>) -> std::borrow::Cow<'_, str> {
    match value {
        Value::Text(text) => text,
        _ => "".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::request::columns::COLUMNS;
    use crate::request::sample::Sample;
    use crate::request::timeline::ClockState;

    /// Whoever has a slot of a pair's decode server has it until that says so; our own end tells it only where the clocks compare.
    #[test]
    fn a_stay_at_a_pair_ends_by_our_clock_only_where_that_is_the_servers() {
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
}
