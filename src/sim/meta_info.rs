//! Writes `meta_info`: the members of 0.5.23 in their recorded order, and those of older versions according to their source code,
//! without what 0.5.12 no longer has and queuescope does not read, and without `decode_throughput` before it. (0.4.0 had another order.)

use std::fmt::Write as _;

use bytes::BytesMut;

use crate::clock::Stamp;

use super::Accepted;
use super::config::Dialect::{self, *};
use super::config::Mode;
use super::engine::EventKind;
use super::sequence::{Bootstrap, Moments, QUEUE_FULL, Sequence};

/// One member: which versions, servers and events have it, and its value.
struct Member {
    key: &'static str,
    since: Dialect,
    until: Dialect,
    events: Events,
    when: When,
    value: fn(&Event<'_>) -> Value,
}

/// The events that have a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Events {
    All,
    /// All events of an admitted request.
    Admitted,
    /// The last event of an admitted request.
    Last,
    /// The only event of a request that never ran.
    NeverRan,
    /// The first event of a sequence.
    First,
}

/// The servers that report a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// With `--enable-metrics`; 0.5.5 also without.
    Timed,
    /// With `--enable-metrics`.
    Metrics,
}

/// The event whose `meta_info` is written.
struct Event<'a> {
    accepted: &'a Accepted,
    sequence: &'a Sequence,
    /// When the first event of the sequence was sent; the current time if this is the first.
    first_sent: Stamp,
    moments: &'a Moments,
}

enum Value {
    /// The member is left out.
    Missing,
    Int(u32),
    /// As Python writes a float.
    Float(f64),
    Json(String),
}

use Events::{Admitted, All, First, Last, NeverRan};
use Value::{Float, Int, Json};
use When::{Always, Metrics, Timed};

macro_rules! members {
    ($($key:literal $since:ident ..= $until:ident $events:ident $when:ident $value:expr;)+) => {
        [$(Member { key: $key, since: $since, until: $until, events: $events, when: $when, value: $value }),+]
    };
}

/// In the order in which they are written.
static MEMBERS: [Member; 43] = members! {
    "id"                          V040..=V0523 All Always |event| Json(event.sequence.rid_json.clone());
    "finish_reason"               V040..=V0523 All Always finish_reason;

    "weight_version"              V054..=V0523 NeverRan Always |_| Json("\"default\"".into());
    "e2e_latency"                 V046..=V0523 NeverRan Always |event| duration(Some(event.accepted.received), event.moments.finish);
    "weight_versions"             V0521..=V0523 NeverRan Always weight_versions;
    "completion_tokens"           V040..=V0523 NeverRan Always |_| Int(0);

    "prompt_tokens"               V040..=V0523 Admitted Always |event| Int(event.sequence.prompt_tokens());
    "weight_version"              V054..=V0523 Admitted Always |_| Json("\"default\"".into());
    "total_retractions"           V054..=V0510 Admitted Always |event| Int(event.sequence.retractions.len() as u32);
    "num_retractions"             V0512..=V0523 Admitted Always |event| Int(event.sequence.retractions.len() as u32);
    "storage_prefetch_wait"       V0522..=V0523 Admitted Timed storage_wait;
    "storage_staging_wait"        V0522..=V0523 Admitted Timed storage_wait;
    "forward_entry_time"          V0510..=V0523 Admitted Timed |event| at(event.moments.queue_end);
    "prefill_finished_time"       V0510..=V0523 Admitted Timed |event| at(event.sequence.prefill_end().filter(|_| !event.decodes_only()));
    "queue_time"                  V055..=V0512 Admitted Timed queue_time_since_retraction;
    "queue_time"                  V0521..=V0523 Admitted Timed |event| Float(queue_time(event.sequence));
    "prefill_finished_ts"         V057..=V057 Admitted Timed |event| at(event.sequence.prefill_end());
    "reasoning_tokens"            V0510..=V0523 Admitted Always |_| Int(0);

    "completion_tokens"           V040..=V0523 Admitted Always |event| Int(event.sequence.generated());
    "cached_tokens"               V040..=V0523 Admitted Always |event| Int(event.sequence.cached);
    "weight_versions"             V0521..=V0523 Last Always weight_versions;
    "cached_tokens_details"       V0510..=V0523 Admitted Always cached_details;
    "dp_rank"                     V0510..=V0523 Admitted Always |_| Json("null".into());
    "server_created_time"         SeedFork..=SeedForkEpoch Admitted Always |event| at(Some(event.accepted.received));
    "server_first_token_time"     SeedFork..=SeedForkEpoch Admitted Always |event| at(event.moments.first_token);
    "queue_time_start"            SeedFork..=SeedFork Admitted Always |event| event.perf(event.moments.queue_start);
    "queue_time_end"              SeedFork..=SeedFork Admitted Always |event| event.perf(event.moments.queue_end);
    "queue_time_start"            SeedForkEpoch..=SeedForkEpoch Admitted Always |event| at(event.moments.queue_start);
    "queue_time_end"              SeedForkEpoch..=SeedForkEpoch Admitted Always |event| at(event.moments.queue_end);

    "e2e_latency"                 V046..=V0523 Last Always |event| duration(Some(event.accepted.received), event.moments.finish);
    "request_received_ts"         V055..=V0523 Last Timed |event| at(Some(event.accepted.received));
    "first_token_latency"         V0521..=V0523 Last Timed |event| optional(between(Some(event.accepted.received), event.moments.first_token));
    "api_server_dispatch_finish_ts" V0510..=V0523 Last Timed |event| at(Some(event.accepted.dispatched));
    "prefill_finished_ts"         V055..=V056 Last Metrics |event| at(event.moments.first_token);
    "response_sent_ts"            V055..=V055 Last Timed |event| at(event.moments.first_sent);
    "response_sent_to_client_ts"  V056..=V0523 Last Timed |event| at(event.moments.first_sent);
    "decode_finished_ts"          V055..=V057 Last Timed |event| at(event.moments.finish);
    "request_finished_ts"         V0510..=V0523 Last Timed |event| at(event.moments.finish);
    "forward_time"                V055..=V055 Last Timed |event| duration(event.moments.queue_end, event.moments.finish);
    "inference_time"              V056..=V0510 Last Timed |event| duration(event.moments.queue_end, event.moments.finish);
    "decode_throughput"           V0512..=V0523 Last Metrics throughput;

    "response_sent_ts"            V055..=V055 First Always |event| at(Some(event.first_sent));
    "response_sent_to_client_ts"  V056..=V0523 First Always |event| at(Some(event.first_sent));
};

impl Event<'_> {
    fn decodes_only(&self) -> bool {
        self.accepted.shared.mode() == Mode::Decode
    }

    /// Seconds of Python's `perf_counter`, whose zero is arbitrary: here 1,000 s before the server's start.
    fn perf(&self, at: Option<Stamp>) -> Value {
        optional(at.map(|at| 1_000.0 + at.since(self.accepted.shared.started)))
    }
}

/// Writes the current `meta_info`, in an event that is sent at `now`.
pub(super) fn write(out: &mut BytesMut, accepted: &Accepted, sequence: &Sequence, now: Stamp) {
    let event = Event {
        accepted,
        sequence,
        first_sent: sequence.moments.first_sent.unwrap_or(now),
        moments: &sequence.moments,
    };
    let never_ran = sequence.never_ran();
    let config = &accepted.shared.config;
    out.extend_from_slice(b"{");
    for member in &MEMBERS {
        let is_in = match member.events {
            All => true,
            Admitted => !never_ran,
            Last => !never_ran && sequence.ending.is_some(),
            NeverRan => never_ran,
            First => event.moments.first_sent.is_none(),
        };
        let is_reported = match member.when {
            Always => true,
            Timed => config.metrics || config.dialect == V055,
            Metrics => config.metrics,
        };
        if !is_in || !is_reported || !(member.since..=member.until).contains(&config.dialect) {
            continue;
        }
        let key = member.key;
        // Writing to a buffer does not fail.
        let _ = match (member.value)(&event) {
            Value::Missing => Ok(()),
            Int(value) => write!(out, "\"{key}\":{value},"),
            Float(value) => write!(out, "\"{key}\":{value:?},"),
            Json(value) => write!(out, "\"{key}\":{value},"),
        };
    }
    out.truncate(out.len() - 1);
    out.extend_from_slice(b"}");
}

fn finish_reason(event: &Event<'_>) -> Value {
    let sequence = event.sequence;
    let abort = |members: &str| Json(format!("{{\"type\":\"abort\",{members}}}"));
    match sequence.ending {
        Some(EventKind::Token { .. }) => {
            // A prefill server has not generated the requested tokens.
            let length = match event.accepted.shared.mode() {
                Mode::Prefill => 0,
                _ => sequence.max_tokens,
            };
            Json(format!("{{\"type\":\"length\",\"length\":{length}}}"))
        }
        Some(EventKind::Lost) => {
            let message = serde_json::Value::from(transfer_lost(sequence));
            abort(&format!(
                "\"message\":{message},\"status_code\":500,\"err_type\":null"
            ))
        }
        Some(EventKind::Rejected) => {
            abort(&format!("\"status_code\":503,\"message\":\"{QUEUE_FULL}\""))
        }
        Some(EventKind::Aborted) if sequence.never_ran() => {
            abort("\"message\":\"Abort in waiting queue\"")
        }
        Some(EventKind::Aborted) => {
            abort("\"message\":\"Aborted\",\"status_code\":null,\"err_type\":null")
        }
        _ => Json("null".into()),
    }
}

/// SGLang's recorded message for a lost prefill server.
fn transfer_lost(sequence: &Sequence) -> Option<String> {
    let Bootstrap { host, port, room } = sequence.bootstrap.as_ref()?;
    let rid = &sequence.rid;
    Some(format!(
        "Decode transfer failed for request rank=0 decode_req.req.rid='{rid}' decode_req.req.bootstrap_room={room} with \
         exception KVTransferError(bootstrap_room={room}): Lost connection with prefill instance (bootstrap_addr: {host}:{port})"
    ))
}

/// Missing on a decode server.
fn storage_wait(event: &Event<'_>) -> Value {
    optional((!event.decodes_only()).then_some(0.0))
}

fn weight_versions(event: &Event<'_>) -> Value {
    let end = event.sequence.generated();
    Json(format!(
        "[{{\"version\":\"default\",\"start\":0,\"end\":{end}}}]"
    ))
}

fn cached_details(event: &Event<'_>) -> Value {
    Json(match event.sequence.cached {
        0 => "null".into(),
        cached => format!("{{\"device\":{cached},\"host\":0}}"),
    })
}

/// Adds up over retractions, while the reported timestamps stay those of the first wait.
fn queue_time(sequence: &Sequence) -> f64 {
    let first = between(sequence.moments.queue_start, sequence.moments.queue_end);
    first.map_or(0.0, |first| first + sequence.waited_again())
}

/// Before 0.5.21, the end of the first wait minus the start of the last, negative after a retraction.
fn queue_time_since_retraction(event: &Event<'_>) -> Value {
    let sequence = event.sequence;
    Float(match sequence.retractions.last() {
        Some(last) => between(Some(last.at), sequence.moments.queue_end).unwrap_or(0.0),
        None => queue_time(sequence),
    })
}

fn throughput(event: &Event<'_>) -> Value {
    let steps = event.sequence.generated().saturating_sub(1);
    let decode = between(event.moments.first_token, event.moments.finish);
    let rate = decode.map(|decode| f64::from(steps) / decode);
    // With `--instant`, decode takes no time.
    let rate = rate.map(|rate| if rate.is_finite() { rate } else { 0.0 });
    optional(rate.filter(|_| steps > 0 && !event.accepted.is_reported_at_end()))
}

/// Seconds between two timestamps, as the difference of the printed floats: adding it to one gives the other exactly.
fn between(from: Option<Stamp>, to: Option<Stamp>) -> Option<f64> {
    Some(to?.seconds() - from?.seconds())
}

/// [`between`], 0 if a timestamp is missing.
fn duration(from: Option<Stamp>, to: Option<Stamp>) -> Value {
    Float(between(from, to).unwrap_or(0.0))
}

fn at(at: Option<Stamp>) -> Value {
    optional(at.map(Stamp::seconds))
}

fn optional(value: Option<f64>) -> Value {
    value.map_or(Value::Missing, Float)
}
