//! `meta_info`: the members of 0.5.23 in their order as recorded, and those of older generations as their
//! sources write them.

use std::fmt::Write as _;

use bytes::BytesMut;

use crate::clock::Stamp;

use super::dialect::Dialect;
use super::engine::Aborted;
use super::sequence::{Ending, Sequence};
use super::wire::{QUEUE_FULL, Receipt, Wire, put};

impl Wire {
    /// `meta_info` as it stands; the first one written of a sequence stamps its sending.
    pub(super) fn meta_info(
        &self,
        out: &mut BytesMut,
        receipt: &Receipt,
        sequence: &mut Sequence,
        now: Stamp,
    ) {
        if self.dialect == Dialect::V040 {
            return without_times(out, sequence);
        }
        put!(out, "{{\"id\":{},\"finish_reason\":", sequence.rid_json);
        finish_reason(out, sequence);
        let first = sequence.moments.first_sent.is_none();
        sequence.moments.first_sent.get_or_insert(now);
        let unscheduled = Some(Ending::Aborted(Aborted::Waiting));
        if sequence.ending == Some(Ending::Rejected) || sequence.ending == unscheduled {
            self.minimal(out, receipt, sequence);
        } else {
            self.progress(out, receipt, sequence);
            if sequence.ending.is_some() {
                self.closing(out, receipt, sequence, first);
            }
        }
        if first {
            let sent = sequence.moments.first_sent;
            stamp(out, self.sent_key(), sent.filter(|_| self.stamps_sending()));
        }
        out.extend_from_slice(b"}");
    }

    /// Generations before 0.5.5 do not tell when they sent an answer's first event.
    fn stamps_sending(&self) -> bool {
        self.dialect >= Dialect::V055
    }

    fn sent_key(&self) -> &'static str {
        match self.dialect {
            Dialect::V055 => "response_sent_ts",
            _ => "response_sent_to_client_ts",
        }
    }

    /// The members that every event has.
    fn progress(&self, out: &mut BytesMut, receipt: &Receipt, sequence: &mut Sequence) {
        if sequence.fixed.is_empty() {
            sequence.fixed = self.fixed(sequence);
        }
        out.extend_from_slice(sequence.fixed.as_bytes());
        let (made, cached) = (sequence.made, sequence.cached);
        put!(
            out,
            "\"completion_tokens\":{made},\"cached_tokens\":{cached}"
        );
        if sequence.ending.is_some() && self.dialect >= Dialect::V0521 {
            weight_versions(out, made);
        }
        if self.dialect >= Dialect::V0510 {
            out.extend_from_slice(b",\"cached_tokens_details\":");
            match cached {
                0 => out.extend_from_slice(b"null"),
                _ => put!(out, "{{\"device\":{cached},\"host\":0}}"),
            }
            match self.ranks {
                0 | 1 => out.extend_from_slice(b",\"dp_rank\":null"),
                _ => put!(out, ",\"dp_rank\":{}", sequence.rank),
            }
        }
        if matches!(self.dialect, Dialect::SeedFork | Dialect::SeedForkEpoch) {
            self.of_the_fork(out, receipt, sequence);
        }
    }

    fn fixed(&self, sequence: &Sequence) -> String {
        let mut out = BytesMut::new();
        put!(out, ",\"prompt_tokens\":{}", sequence.prompt_tokens);
        if self.dialect >= Dialect::V054 {
            let retractions = match self.dialect >= Dialect::V0512 {
                true => "num_retractions",
                false => "total_retractions",
            };
            let count = sequence.retractions;
            put!(
                out,
                ",\"weight_version\":\"default\",\"{retractions}\":{count}"
            );
        }
        // 0.5.5 tells these without --enable-metrics too.
        if self.metrics || self.dialect == Dialect::V055 {
            self.of_scheduler(&mut out, sequence);
        }
        let reasoning = match self.dialect >= Dialect::V0510 {
            true => ",\"reasoning_tokens\":0,",
            false => ",",
        };
        out.extend_from_slice(reasoning.as_bytes());
        String::from_utf8_lossy(&out).into_owned()
    }

    /// What the scheduler tells of a request's wait and prefill.
    fn of_scheduler(&self, out: &mut BytesMut, sequence: &Sequence) {
        let dialect = self.dialect;
        let moments = &sequence.moments;
        if dialect >= Dialect::V0522 {
            out.extend_from_slice(b",\"storage_prefetch_wait\":0.0,\"storage_staging_wait\":0.0");
        }
        if dialect >= Dialect::V0510 {
            stamp(out, "forward_entry_time", moments.queue_end);
            stamp(out, "prefill_finished_time", moments.prefill_end);
        }
        if dialect >= Dialect::V055 {
            let queue = match moments.retracted {
                // As those did: what they subtract from is the first wait's end.
                Some(again) if dialect < Dialect::V0521 => between(Some(again), moments.queue_end),
                // Adds up over retractions, while the moments stay those of the first wait.
                _ => between(moments.queue_start, moments.queue_end)
                    .map(|first| first + moments.waited_again),
            };
            put!(out, ",\"queue_time\":{:?}", queue.unwrap_or(0.0));
        }
        let [delay, latency] = match dialect {
            Dialect::V055 => ["prefill_delay", "prefill_latency"],
            Dialect::V056 | Dialect::V057 => ["prefill_launch_delay", "prefill_launch_latency"],
            Dialect::V0510 => ["prefill_waiting_latency", "prefill_launch_latency"],
            _ => return,
        };
        let prefill = between(moments.queue_end, moments.prefill_end).unwrap_or(0.0);
        put!(out, ",\"{delay}\":0.0,\"{latency}\":{prefill:?}");
        if dialect == Dialect::V057 {
            stamp(out, "prefill_finished_ts", moments.prefill_end);
        }
    }

    /// What the seed's fork adds.
    fn of_the_fork(&self, out: &mut BytesMut, receipt: &Receipt, sequence: &Sequence) {
        let moments = &sequence.moments;
        stamp(out, "server_created_time", Some(receipt.received));
        stamp(out, "server_first_token_time", moments.first_token);
        for (key, at) in [
            ("queue_time_start", moments.queue_start),
            ("queue_time_end", moments.queue_end),
        ] {
            match (self.dialect, at) {
                (Dialect::SeedFork, Some(at)) => put!(out, ",\"{key}\":{:?}", self.perf(at)),
                _ => stamp(out, key, at),
            }
        }
    }

    /// The members that only the last event has.
    fn closing(&self, out: &mut BytesMut, receipt: &Receipt, sequence: &Sequence, first: bool) {
        let moments = &sequence.moments;
        let dialect = self.dialect;
        let received = Some(receipt.received);
        let e2e = between(received, moments.finish).unwrap_or(0.0);
        put!(out, ",\"e2e_latency\":{e2e:?}");
        // 0.5.5 tells most of these without --enable-metrics too.
        if dialect < Dialect::V055 || !(self.metrics || dialect == Dialect::V055) {
            return;
        }
        stamp(out, "request_received_ts", received);
        let sent = moments.first_sent.filter(|_| !first);
        // What makes no token never went to the scheduler under its own id.
        let dispatched = (sequence.wanted > 0).then_some(receipt.dispatched);
        if dialect < Dialect::V0510 {
            let key = match dialect {
                Dialect::V055 => "request_scheduled_ts",
                _ => "request_sent_to_scheduler_ts",
            };
            stamp(out, key, dispatched);
            if dialect < Dialect::V057 && self.metrics {
                stamp(out, "prefill_finished_ts", moments.first_token);
            }
            stamp(out, self.sent_key(), sent);
            stamp(out, "decode_finished_ts", moments.finish);
        } else {
            let latency = between(received, moments.first_token);
            if let Some(latency) = latency.filter(|_| dialect >= Dialect::V0521) {
                put!(out, ",\"first_token_latency\":{latency:?}");
            }
            stamp(out, "api_server_dispatch_finish_ts", dispatched);
            stamp(out, self.sent_key(), sent);
            stamp(out, "request_finished_ts", moments.finish);
        }
        if dialect < Dialect::V0512 {
            let key = match dialect {
                Dialect::V055 => "forward_time",
                _ => "inference_time",
            };
            let inference = between(moments.queue_end, moments.finish).unwrap_or(0.0);
            put!(out, ",\"{key}\":{inference:?}");
        }
        if self.metrics {
            self.throughput(out, sequence);
        }
    }

    fn throughput(&self, out: &mut BytesMut, sequence: &Sequence) {
        // Before 0.5.12 the first token was counted with those of decoding.
        let uncounted = u32::from(self.dialect >= Dialect::V0512);
        let steps = sequence.made.saturating_sub(uncounted);
        let moments = &sequence.moments;
        if let (1.., Some(decode)) = (steps, between(moments.first_token, moments.finish)) {
            // A step of no length (`--instant`) has no throughput.
            let throughput = Some(f64::from(steps) / decode).filter(|value| value.is_finite());
            put!(
                out,
                ",\"decode_throughput\":{:?}",
                throughput.unwrap_or(0.0)
            );
            if self.dialect == Dialect::V055 {
                put!(out, ",\"time_per_token\":{:?}", decode / f64::from(steps));
            }
        }
    }

    /// `meta_info` of a request that never ran.
    fn minimal(&self, out: &mut BytesMut, receipt: &Receipt, sequence: &Sequence) {
        let e2e = between(Some(receipt.received), sequence.moments.finish).unwrap_or(0.0);
        if self.dialect >= Dialect::V054 {
            out.extend_from_slice(b",\"weight_version\":\"default\"");
        }
        put!(out, ",\"e2e_latency\":{e2e:?}");
        if self.dialect >= Dialect::V0521 {
            weight_versions(out, 0);
        }
        out.extend_from_slice(b",\"completion_tokens\":0");
    }

    /// Seconds of Python's `perf_counter`, which counts from some moment before the server's start.
    pub(super) fn perf(&self, at: Stamp) -> f64 {
        1_000.0 + at.since(self.started)
    }
}

/// `meta_info` of 0.4.0.
fn without_times(out: &mut BytesMut, sequence: &Sequence) {
    let (prompt, made) = (sequence.prompt_tokens, sequence.made);
    let cached = sequence.cached;
    put!(
        out,
        "{{\"prompt_tokens\":{prompt},\"completion_tokens\":{made},\
         \"completion_tokens_wo_jump_forward\":{made},\"cached_tokens\":{cached},\"finish_reason\":"
    );
    finish_reason(out, sequence);
    put!(out, ",\"id\":{}}}", sequence.rid_json);
}

fn weight_versions(out: &mut BytesMut, made: u32) {
    put!(
        out,
        ",\"weight_versions\":[{{\"version\":\"default\",\"start\":0,\"end\":{made}}}]"
    );
}

fn finish_reason(out: &mut BytesMut, sequence: &Sequence) {
    match sequence.ending {
        None => out.extend_from_slice(b"null"),
        Some(Ending::Length) => put!(
            out,
            "{{\"type\":\"length\",\"length\":{}}}",
            sequence.wanted
        ),
        Some(Ending::Rejected) => put!(
            out,
            "{{\"type\":\"abort\",\"status_code\":503,\"message\":\"{QUEUE_FULL}\"}}"
        ),
        Some(Ending::Aborted(Aborted::Waiting)) => {
            out.extend_from_slice(b"{\"type\":\"abort\",\"message\":\"Abort in waiting queue\"}");
        }
        Some(Ending::Aborted(Aborted::Running)) => out.extend_from_slice(
            b"{\"type\":\"abort\",\"message\":\"Aborted\",\"status_code\":null,\"err_type\":null}",
        ),
    }
}

/// Seconds between two moments, as the difference of the floats that are printed: so a reader who adds
/// it to one of them gets the other exactly.
fn between(from: Option<Stamp>, to: Option<Stamp>) -> Option<f64> {
    Some(to?.seconds() - from?.seconds())
}

fn stamp(out: &mut BytesMut, key: &str, at: Option<Stamp>) {
    if let Some(at) = at {
        put!(out, ",\"{key}\":{:?}", at.seconds());
    }
}
