//! `meta_info`: the members of 0.5.23 in their order as recorded, and those of older generations as their
//! sources write them.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::BytesMut;

use crate::clock::Stamp;

use super::config::Config;
use super::dialect::Dialect::{self, *};
use super::disaggregation::Mode;
use super::engine::EventKind;
use super::sequence::{QUEUE_FULL, Sequence};
use super::shared::Exchange;

/// One member: which generations have it, which events, and what it says.
struct Member {
    key: &'static str,
    since: Dialect,
    until: Dialect,
    events: Events,
    when: When,
    value: fn(&Of<'_>) -> Value,
}

/// The events that have a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Events {
    All,
    /// Those of a request that was let in.
    Each,
    /// The last one of a request that was let in.
    Last,
    /// The only one of a request that never ran.
    Never,
    /// The first of a sequence.
    First,
}

/// Servers that tell a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// With --enable-metrics; 0.5.5 also without.
    Timed,
    /// With --enable-metrics.
    Metrics,
}

/// What is told of.
struct Of<'a> {
    exchange: &'a Exchange,
    sequence: &'a Sequence,
    /// The first event was, or is now, handed to the socket.
    sent: Stamp,
    is_first: bool,
}

enum Value {
    /// The member is left out.
    Absent,
    Int(u32),
    /// As Python writes a float.
    Float(f64),
    Json(Cow<'static, str>),
}

use Events::{All, Each, First, Last, Never};
use Value::{Float, Int, Json};
use When::{Always, Metrics, Timed};

macro_rules! members {
    ($($key:literal $since:ident ..= $until:ident $events:ident $when:ident $value:expr;)+) => {
        [$(Member { key: $key, since: $since, until: $until, events: $events, when: $when, value: $value }),+]
    };
}

/// In the order of their writing.
static MEMBERS: [Member; 58] = members! {
    "prompt_tokens"                     V040..=V040 All Always |of| Int(of.sequence.prompt_tokens());
    "completion_tokens"                 V040..=V040 All Always |of| Int(of.sequence.made());
    "completion_tokens_wo_jump_forward" V040..=V040 All Always |of| Int(of.sequence.made());
    "cached_tokens"                     V040..=V040 All Always |of| Int(of.sequence.cached);
    "finish_reason"                     V040..=V040 All Always finish_reason;
    "id"                                V040..=V040 All Always |of| Json(of.sequence.rid_json.clone().into());

    "id"                          V046..=V0523 All Always |of| Json(of.sequence.rid_json.clone().into());
    "finish_reason"               V046..=V0523 All Always finish_reason;

    "weight_version"              V054..=V0523 Never Always |_| Json("\"default\"".into());
    "e2e_latency"                 V046..=V0523 Never Always e2e;
    "weight_versions"             V0521..=V0523 Never Always weight_versions;
    "completion_tokens"           V046..=V0523 Never Always |_| Int(0);

    "prompt_tokens"               V046..=V0523 Each Always |of| Int(of.sequence.prompt_tokens());
    "weight_version"              V054..=V0523 Each Always |_| Json("\"default\"".into());
    "total_retractions"           V054..=V0510 Each Always |of| Int(of.sequence.retractions.len() as u32);
    "num_retractions"             V0512..=V0523 Each Always |of| Int(of.sequence.retractions.len() as u32);
    "storage_prefetch_wait"       V0522..=V0523 Each Timed storage_wait;
    "storage_staging_wait"        V0522..=V0523 Each Timed storage_wait;
    "forward_entry_time"          V0510..=V0523 Each Timed |of| at(of.sequence.moments.queue_end);
    "prefill_finished_time"       V0510..=V0523 Each Timed |of| at(of.sequence.prefill_end().filter(|_| !of.decodes_only()));
    "queue_time"                  V055..=V0512 Each Timed queue_time_since_retraction;
    "queue_time"                  V0521..=V0523 Each Timed |of| Float(queue_time(of.sequence));
    "prefill_delay"               V055..=V055 Each Timed |_| Float(0.0);
    "prefill_launch_delay"        V056..=V057 Each Timed |_| Float(0.0);
    "prefill_waiting_latency"     V0510..=V0510 Each Timed |_| Float(0.0);
    "prefill_latency"             V055..=V055 Each Timed |of| prefill(of.sequence);
    "prefill_launch_latency"      V056..=V0510 Each Timed |of| prefill(of.sequence);
    "prefill_finished_ts"         V057..=V057 Each Timed |of| at(of.sequence.prefill_end());
    "reasoning_tokens"            V0510..=V0523 Each Always |_| Int(0);

    "completion_tokens"           V046..=V0523 Each Always |of| Int(of.sequence.made());
    "cached_tokens"               V046..=V0523 Each Always |of| Int(of.sequence.cached);
    "weight_versions"             V0521..=V0523 Last Always weight_versions;
    "cached_tokens_details"       V0510..=V0523 Each Always cached_details;
    "dp_rank"                     V0510..=V0523 Each Always |_| Json("null".into());
    "server_created_time"         SeedFork..=SeedForkEpoch Each Always |of| at(Some(of.exchange.received));
    "server_first_token_time"     SeedFork..=SeedForkEpoch Each Always |of| at(of.sequence.moments.first_token);
    "queue_time_start"            SeedFork..=SeedFork Each Always |of| of.perf(of.sequence.moments.queue_start);
    "queue_time_end"              SeedFork..=SeedFork Each Always |of| of.perf(of.sequence.moments.queue_end);
    "queue_time_start"            SeedForkEpoch..=SeedForkEpoch Each Always |of| at(of.sequence.moments.queue_start);
    "queue_time_end"              SeedForkEpoch..=SeedForkEpoch Each Always |of| at(of.sequence.moments.queue_end);

    "e2e_latency"                 V046..=V0523 Last Always e2e;
    "request_received_ts"         V055..=V0523 Last Timed |of| at(Some(of.exchange.received));
    "first_token_latency"         V0521..=V0523 Last Timed |of| told(first_token_latency(of));
    "request_scheduled_ts"        V055..=V055 Last Timed |of| at(Some(of.exchange.dispatched));
    "request_sent_to_scheduler_ts" V056..=V057 Last Timed |of| at(Some(of.exchange.dispatched));
    "api_server_dispatch_finish_ts" V0510..=V0523 Last Timed |of| at(Some(of.exchange.dispatched));
    "prefill_finished_ts"         V055..=V056 Last Metrics |of| at(of.sequence.moments.first_token);
    "response_sent_ts"            V055..=V055 Last Timed |of| at(Some(of.sent).filter(|_| !of.is_first));
    "response_sent_to_client_ts"  V056..=V0523 Last Timed |of| at(Some(of.sent).filter(|_| !of.is_first));
    "decode_finished_ts"          V055..=V057 Last Timed |of| at(of.sequence.moments.finish);
    "request_finished_ts"         V0510..=V0523 Last Timed |of| at(of.sequence.moments.finish);
    "forward_time"                V055..=V055 Last Timed |of| inference(of.sequence);
    "inference_time"              V056..=V0510 Last Timed |of| inference(of.sequence);
    "decode_throughput"           V055..=V0510 Last Metrics |of| throughput(of, of.sequence.made());
    "decode_throughput"           V0512..=V0523 Last Metrics |of| throughput(of, of.sequence.made().saturating_sub(1));
    "time_per_token"              V055..=V055 Last Metrics |of| time_per_token(of.sequence);

    "response_sent_ts"            V055..=V055 First Always |of| at(Some(of.sent));
    "response_sent_to_client_ts"  V056..=V0523 First Always |of| at(Some(of.sent));
};

impl Member {
    fn is_told_by(&self, config: &Config) -> bool {
        let is_told = match self.when {
            Always => true,
            Timed => config.metrics || config.dialect == V055,
            Metrics => config.metrics,
        };
        is_told && (self.since..=self.until).contains(&config.dialect)
    }

    fn write(&self, out: &mut BytesMut, of: &Of<'_>) {
        let key = self.key;
        // A buffer does not fail.
        let _ = match (self.value)(of) {
            Value::Absent => Ok(()),
            Int(value) => write!(out, "\"{key}\":{value},"),
            Float(value) => write!(out, "\"{key}\":{value:?},"),
            Json(value) => write!(out, "\"{key}\":{value},"),
        };
    }
}

impl Of<'_> {
    fn decodes_only(&self) -> bool {
        self.exchange.shared.mode() == Mode::Decode
    }

    fn perf(&self, at: Option<Stamp>) -> Value {
        told(at.map(|at| self.exchange.shared.perf(at)))
    }
}

/// `meta_info` as it stands, in an event that is handed to the socket at `now`.
pub(super) fn write(out: &mut BytesMut, exchange: &Exchange, sequence: &Sequence, now: Stamp) {
    let of = Of {
        exchange,
        sequence,
        sent: sequence.moments.first_sent.unwrap_or(now),
        is_first: sequence.moments.first_sent.is_none(),
    };
    let never_ran = sequence.never_ran();
    out.extend_from_slice(b"{");
    for member in &MEMBERS {
        let is_in = match member.events {
            All => true,
            Each => !never_ran,
            Last => !never_ran && sequence.ending.is_some(),
            Never => never_ran,
            First => of.is_first,
        };
        if is_in && member.is_told_by(&exchange.shared.config) {
            member.write(out, &of);
        }
    }
    out.truncate(out.len() - 1);
    out.extend_from_slice(b"}");
}

fn finish_reason(of: &Of<'_>) -> Value {
    let sequence = of.sequence;
    let abort = |more: &str| Json(format!("{{\"type\":\"abort\",{more}}}").into());
    match sequence.ending {
        Some(EventKind::Token { .. }) => {
            // A prefill server has not made what was asked for.
            let length = match of.exchange.shared.mode() {
                Mode::Prefill => 0,
                _ => sequence.wanted,
            };
            Json(format!("{{\"type\":\"length\",\"length\":{length}}}").into())
        }
        Some(EventKind::Lost) => {
            let message = serde_json::Value::from(lost(sequence));
            abort(&format!(
                "\"message\":{message},\"status_code\":500,\"err_type\":null"
            ))
        }
        Some(EventKind::Rejected) => {
            abort(&format!("\"status_code\":503,\"message\":\"{QUEUE_FULL}\""))
        }
        Some(EventKind::Aborted) if of.sequence.never_ran() => {
            abort("\"message\":\"Abort in waiting queue\"")
        }
        Some(EventKind::Aborted) => {
            abort("\"message\":\"Aborted\",\"status_code\":null,\"err_type\":null")
        }
        _ => Json("null".into()),
    }
}

/// As recorded.
fn lost(sequence: &Sequence) -> String {
    let rid = &sequence.rid;
    let (host, port, room) = match &sequence.bootstrap {
        Some(meet) => (meet.host.as_str(), meet.port, meet.room),
        None => ("", 0, 0),
    };
    format!(
        "Decode transfer failed for request rank=0 decode_req.req.rid='{rid}' decode_req.req.bootstrap_room={room} with \
         exception KVTransferError(bootstrap_room={room}): Lost connection with prefill instance (bootstrap_addr: {host}:{port})"
    )
}

/// A decode server tells of none.
fn storage_wait(of: &Of<'_>) -> Value {
    told((!of.decodes_only()).then_some(0.0))
}

fn weight_versions(of: &Of<'_>) -> Value {
    let made = of.sequence.made();
    Json(format!("[{{\"version\":\"default\",\"start\":0,\"end\":{made}}}]").into())
}

fn cached_details(of: &Of<'_>) -> Value {
    Json(match of.sequence.cached {
        0 => "null".into(),
        cached => format!("{{\"device\":{cached},\"host\":0}}").into(),
    })
}

fn e2e(of: &Of<'_>) -> Value {
    let received = Some(of.exchange.received);
    Float(between(received, of.sequence.moments.finish).unwrap_or(0.0))
}

fn first_token_latency(of: &Of<'_>) -> Option<f64> {
    between(Some(of.exchange.received), of.sequence.moments.first_token)
}

/// Adds up over retractions, while the moments stay those of the first wait.
fn queue_time(sequence: &Sequence) -> f64 {
    let first = between(sequence.moments.queue_start, sequence.moments.queue_end);
    first.map_or(0.0, |first| first + sequence.waited_again())
}

/// As older ones did: what they subtract from is the first wait's end.
fn queue_time_since_retraction(of: &Of<'_>) -> Value {
    let sequence = of.sequence;
    Float(match sequence.retractions.last() {
        Some(last) => between(Some(last.at), sequence.moments.queue_end).unwrap_or(0.0),
        None => queue_time(sequence),
    })
}

fn prefill(sequence: &Sequence) -> Value {
    Float(between(sequence.moments.queue_end, sequence.prefill_end()).unwrap_or(0.0))
}

fn inference(sequence: &Sequence) -> Value {
    Float(between(sequence.moments.queue_end, sequence.moments.finish).unwrap_or(0.0))
}

/// Of so many steps: before 0.5.12 the first token was counted with those of decoding.
fn throughput(of: &Of<'_>, steps: u32) -> Value {
    let moments = &of.sequence.moments;
    let decode = between(moments.first_token, moments.finish);
    let rate = decode.map(|decode| f64::from(steps) / decode);
    // A step of no length (`--instant`) has no throughput.
    let rate = rate.map(|rate| if rate.is_finite() { rate } else { 0.0 });
    told(rate.filter(|_| steps > 0 && !of.exchange.is_told_at_once()))
}

fn time_per_token(sequence: &Sequence) -> Value {
    let decode = between(sequence.moments.first_token, sequence.moments.finish);
    told(decode.map(|decode| decode / f64::from(sequence.made())))
}

/// Seconds between two moments, as the difference of the floats that are printed: so a reader who adds
/// it to one of them gets the other exactly.
fn between(from: Option<Stamp>, to: Option<Stamp>) -> Option<f64> {
    Some(to?.seconds() - from?.seconds())
}

fn at(at: Option<Stamp>) -> Value {
    told(at.map(Stamp::seconds))
}

fn told(value: Option<f64>) -> Value {
    value.map_or(Value::Absent, Float)
}
