//! What a row tells of its wait: in its server queue, in the router, and at the servers of a pair.

use crate::stats::waits::{ByCause, Cause, Stay};

use super::attempt;
use super::cell::Value;
use super::columns::ColumnId;

/// A sequence's wait in its server queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How long it was, nanoseconds: column `pure_queue_time`, where that can be.
    pub nanos: i64,
    /// Its way through the server, on the server's clock; `None` where nobody knows when it waited.
    pub stay: Option<Stay>,
    /// From the row's times to those of its stay, nanoseconds.
    pub shift: i64,
}

/// A router that holds a request for less only passes it on, nanoseconds.
const ROUTER: i64 = 10_000_000;
/// What is waited for at the servers of a pair.
const OF_PAIR: [(Cause, ColumnId); 4] = [
    (Cause::DecodeMemory, ColumnId::decode_bootstrap_time),
    (Cause::PrefillQueue, ColumnId::prefill_queue_time),
    (Cause::Transfer, ColumnId::kv_transfer_time),
    (Cause::DecodeSlots, ColumnId::decode_queue_time),
];
/// Files tell times so exactly, nanoseconds: differences of two were rounded apart from them.
const EXACT: i64 = 1_000;

impl Wait {
    /// Of the cells of a row.
    pub fn of<'a>(cell: &impl Fn(ColumnId) -> Value<'a>) -> Option<Wait> {
        let wrong = text(cell(ColumnId::inconsistency));
        let names = ["pure_queue_time", "queue_end<"];
        let is_wrong = names.iter().any(|name| wrong.contains(name));
        let nanos = whole(cell(ColumnId::pure_queue_time))?;
        // What a pair waited for is not one queue: see [`Wait::told`].
        let is_of_pair = !matches!(cell(ColumnId::disaggregated), Value::Empty);
        if nanos < 0 || is_wrong || is_of_pair {
            return None;
        }
        // On the server's clock the moments of all its requests are exact.
        let state = text(cell(ColumnId::clock_state));
        let offset = || whole(cell(ColumnId::clock_offset)).unwrap_or(0);
        let shift = if state == "offset" { offset() } else { 0 };
        let stay = stay(cell, shift, state == "raw");
        let stay = stay.filter(|stay| (stay.waited() - nanos).abs() <= EXACT);
        let exact = |stay: Stay| Stay {
            started: stay.queued + nanos,
            ..stay
        };
        Some(Wait {
            nanos,
            stay: stay.map(exact),
            shift,
        })
    }

    /// What a sequence waited for as its own row tells: in the router, which its request's first row stands for (`is_first`), and
    /// at the servers of a pair.
    pub fn told<'a>(cell: &impl Fn(ColumnId) -> Value<'a>, is_first: bool) -> ByCause {
        let mut told = ByCause::default();
        if is_first {
            let nanos = whole(cell(ColumnId::queue_time_in_router));
            let nanos = nanos.filter(|nanos| *nanos >= ROUTER).unwrap_or(0);
            // Attempts that failed, as long as they are told to have taken, else all of it.
            let failed = text(cell(ColumnId::failed_attempts));
            let took: Option<i64> = attempt::told(&failed).map(|failed| failed.nanos).sum();
            let down = took.map_or(nanos, |took| took.min(nanos));
            told.add(Cause::Down, down);
            told.add(Cause::Router, nanos - down);
        }
        for (cause, column) in OF_PAIR {
            let nanos = whole(cell(column)).filter(|nanos| *nanos > 0);
            told.add(cause, nanos.unwrap_or(0));
        }
        told
    }
}

/// `is_raw`: the proxy's clock cannot be compared with the server's.
fn stay<'a>(cell: &impl Fn(ColumnId) -> Value<'a>, shift: i64, is_raw: bool) -> Option<Stay> {
    let at = |column| Some(whole(cell(column))? + shift);
    let ours = |column| at(column).filter(|_| !is_raw);
    let started = at(ColumnId::queue_time_end)?;
    let ended = at(ColumnId::server_finish_time)
        .or_else(|| ours(ColumnId::finish_time))
        .or_else(|| ours(ColumnId::end_time));
    let tokens = |column| whole(cell(column)).unwrap_or(0).max(0) as u64;
    let prompt = tokens(ColumnId::actual_prompt_tokens);
    Some(Stay {
        queued: at(ColumnId::queue_time_start)?,
        started,
        first: at(ColumnId::server_first_token_time).unwrap_or(started),
        ended: ended.unwrap_or(started),
        prompt: prompt.saturating_sub(tokens(ColumnId::cached_tokens)),
        output: tokens(ColumnId::actual_output_tokens),
    })
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
