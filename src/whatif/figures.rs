//! What is said of a load, measured or predicted: the same functions of the same moments make both.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::load::Goal;
use crate::report::{self, words};
use crate::request::columns::ColumnId;
use crate::stats::Summary;

use super::load::{Load, Request, Times};

/// A latency of a request, seconds.
pub type Latency = fn(&Request, Times) -> f64;

/// From arrival to the first token.
pub const TTFT: Latency = |request, times| times.first - request.at;
/// From arrival to the end of the answer.
pub const TOTAL: Latency = |request, times| times.finish - request.at;
/// In prefill: from the queue's end to the first token.
pub const PREFILL: Latency = |_, times| times.first - times.admitted;
/// From each token to the next.
pub const TPOT: Latency = |request, times| {
    (times.finish - times.first) / f64::from(request.output.saturating_sub(1).max(1))
};
const QUEUE: Latency = |_, times| times.admitted - times.queued;
const DECODE: Latency = |_, times| times.finish - times.first;

/// What goals may be of, by their names there.
const OF_GOALS: [(&str, Latency); 7] = [
    ("ttft", TTFT),
    ("e2el", TOTAL),
    ("tpot", TPOT),
    ("total_latency", TOTAL),
    ("pure_queue_time", QUEUE),
    ("prefill_time", PREFILL),
    ("decode_time", DECODE),
];

/// One of the figures of a load.
pub type Figure = fn(&Figures) -> f64;
/// What is compared: figures, or by which share each is off.
pub type Compared = [f64; 6];
/// Shorter times than this are not told apart: milliseconds. A step of an engine is about as long.
const SHORTEST: f64 = 10.0;
/// What is compared, by its name.
pub const COMPARED: [(&str, Figure); 6] = [
    ("ttft_ms.p50", |of| of.ttft_ms.p50),
    ("ttft_ms.p99", |of| of.ttft_ms.p99),
    ("total_latency_ms.p50", |of| of.total_latency_ms.p50),
    ("total_latency_ms.p99", |of| of.total_latency_ms.p99),
    ("pure_queue_time_ms.mean", |of| of.pure_queue_time_ms.mean),
    ("request_throughput", |of| of.request_throughput),
];

/// The same by their names.
pub fn named(compared: Compared) -> BTreeMap<&'static str, f64> {
    let all = COMPARED.iter().zip(compared);
    all.map(|((name, _), of)| (*name, of)).collect()
}

/// What is said of a load, by the names of JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// From arrival to the first token, milliseconds.
    pub ttft_ms: OfAll,
    /// From arrival to the end of the answer, milliseconds.
    pub total_latency_ms: OfAll,
    /// In the server's queue, milliseconds.
    pub pure_queue_time_ms: OfAll,
    /// Requests that ended, in the time from the first arrival to the last end; a second.
    pub request_throughput: f64,
    /// The share of all requests that kept all goals, where there are any: who is refused keeps none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_share: Option<f64>,
}

/// A latency of all requests; of none no number, which is null in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OfAll {
    mean: f64,
    p50: f64,
    p99: f64,
}

/// Reads a goal of a latency that is predicted.
///
/// # Errors
/// It is none.
pub fn goal(text: &str) -> Result<Goal, String> {
    match text.split_once(':') {
        Some((name, _)) if latency(name.trim()).is_none() => {
            let names = OF_GOALS.map(|(name, _)| name).join(", ");
            Err(format!(
                "`{name}` is no latency that is predicted: use one of {names}"
            ))
        }
        _ => text.parse(),
    }
}

fn latency(name: &str) -> Option<Latency> {
    let found = OF_GOALS.iter().find(|(known, _)| *known == name);
    found.map(|(_, latency)| *latency)
}

impl OfAll {
    /// Of seconds.
    fn of(all: Option<&Summary>) -> OfAll {
        let all = all.map(|all| [all.mean, all.p50, all.p99].map(|of| of * 1e3));
        let [mean, p50, p99] = all.unwrap_or([f64::NAN; 3]);
        OfAll { mean, p50, p99 }
    }
}

impl Figures {
    /// Of the requests of which it is known what became of them.
    pub fn of(load: &Load, goals: &[Goal]) -> Figures {
        let all = |latency: Latency| {
            let all = load.seen();
            let all = all.map(|(request, times)| latency(request, times));
            OfAll::of(Summary::of(all).as_ref())
        };
        let (mut first, mut last, mut done, mut good) = (f64::INFINITY, 0.0_f64, 0.0, 0.0);
        for (request, times) in load.seen() {
            (first, last) = (first.min(request.at), last.max(times.finish));
            done += 1.0;
            let keeps = |goal: &Goal| {
                let latency = latency(&goal.name).map(|of| of(request, times) * 1e3);
                latency.is_some_and(|ms| ms <= goal.most_ms)
            };
            good += f64::from(goals.iter().all(keeps));
        }
        let of_all = good / load.requests.len().max(1) as f64;
        Figures {
            ttft_ms: all(TTFT),
            total_latency_ms: all(TOTAL),
            pure_queue_time_ms: all(QUEUE),
            request_throughput: done / (last - first).max(1e-9),
            goodput_share: (!goals.is_empty()).then_some(of_all),
        }
    }

    /// What was measured of a load, as the report on its run has it; its share of goals is taken as that of predictions.
    pub fn measured(run: &report::load::Summary, load: &Load, goals: &[Goal]) -> Figures {
        let all = |column: ColumnId| OfAll::of(run.all.latencies.get(column));
        let rate = run.run.a_second(run.all.completed as f64);
        Figures {
            ttft_ms: all(ColumnId::ttft),
            total_latency_ms: all(ColumnId::total_latency),
            pure_queue_time_ms: all(ColumnId::pure_queue_time),
            request_throughput: rate.unwrap_or(f64::NAN),
            goodput_share: Figures::of(load, goals).goodput_share,
        }
    }

    /// It in the table of runs, with how many requests went well and failed.
    pub fn line(&self, name: String, load: &Load, counts: [usize; 2]) -> Vec<String> {
        let tokens = load.seen().map(|(request, _)| f64::from(request.output));
        let tokens = tokens.sum::<f64>() / load.seen().count() as f64 * self.request_throughput;
        let several = load.seen().filter(|(request, _)| request.output > 1);
        let each = Summary::of(several.map(|(request, times)| TPOT(request, times)));
        let [ttft, total, queue] = [self.ttft_ms, self.total_latency_ms, self.pure_queue_time_ms];
        let each = each.map_or(f64::NAN, |each| each.p50 * 1e3);
        let latencies = [ttft.p50, ttft.p99, total.p99, queue.p50, each].map(|ms| Some(ms / 1e3));
        let counts = counts.map(|count| count as u64);
        let rate = Some(self.request_throughput);
        words::line(name, counts, rate, latencies, Some(tokens))
    }

    /// What is compared, in the order of [`COMPARED`].
    pub fn compared(&self) -> Compared {
        COMPARED.map(|(_, of)| of(self))
    }

    /// By which share each figure is off from that of others.
    pub fn off_from(&self, others: &Figures) -> Compared {
        let (own, others) = (self.compared(), others.compared());
        std::array::from_fn(|at| {
            let is_time = at < COMPARED.len() - 1;
            let least = if is_time { SHORTEST } else { 0.0 };
            let off = (own[at] - others[at]) / others[at].max(least);
            // All of it, where all requests are refused: no number is less than any.
            off.max(-1.0)
        })
    }
}
