//! The figures of a load, measured or predicted. Both are made by the same functions.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::load::{self, Goal};
use crate::request::ColumnId;
use crate::stats::Summary;

use super::load::{Load, Request, Times};

/// A latency of a request, seconds.
pub type Latency = fn(&Request, Times) -> f64;

/// From arrival to the first token.
pub const TTFT: Latency = |request, times| times.first - request.arrival;
/// From arrival to the end of the answer.
pub const TOTAL: Latency = |request, times| times.finish - request.arrival;
/// From the end of the queue to the first token.
pub const PREFILL: Latency = |_, times| times.first - times.admitted;
/// The mean time from a token to the next.
pub const TPOT: Latency = |request, times| {
    (times.finish - times.first) / f64::from(request.output.saturating_sub(1).max(1))
};
/// In the server's queue.
pub const QUEUE: Latency = |_, times| times.admitted - times.queued;

/// The latencies of `--goodput` that are predicted.
pub const GOAL_LATENCIES: [&str; 7] = [
    "ttft",
    "e2el",
    "tpot",
    "total_latency",
    "pure_queue_time",
    "prefill_time",
    "decode_time",
];

/// Reads one of the figures of a load.
pub type Figure = fn(&Figures) -> f64;
/// One value for each of [`COMPARED`]: the figure, or its error as a share.
pub type Compared = [f64; 6];
/// Errors of shorter times are relative to this, milliseconds: about a step of an engine.
const STEP: Figure = |_| 10.0;
/// The figures by which predictions are judged. An error is a share of the measured figure, or of the second one if that is larger.
pub const COMPARED: [(&str, Figure, Figure); 6] = [
    ("ttft_ms.p50", |of| of.ttft_ms.p50, STEP),
    ("ttft_ms.p99", |of| of.ttft_ms.p99, STEP),
    ("total_latency_ms.p50", |of| of.total_latency_ms.p50, STEP),
    ("total_latency_ms.p99", |of| of.total_latency_ms.p99, STEP),
    // A part of the TTFT: where that is long, a short queue does not matter.
    (
        "pure_queue_time_ms.mean",
        |of| of.pure_queue_time_ms.mean,
        |of| of.ttft_ms.mean.max(STEP(of)),
    ),
    ("request_throughput", |of| of.request_throughput, |_| 0.0),
];

/// These values by the figures' names.
pub fn by_name(compared: Compared) -> BTreeMap<&'static str, f64> {
    let all = COMPARED.iter().zip(compared);
    all.map(|((name, ..), of)| (*name, of)).collect()
}

/// The figures of a load, by the names of the JSON output.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// From arrival to the first token, milliseconds.
    pub ttft_ms: LatencyFigures,
    /// From arrival to the end of the answer, milliseconds.
    pub total_latency_ms: LatencyFigures,
    /// In the server's queue, milliseconds.
    pub pure_queue_time_ms: LatencyFigures,
    /// Finished requests a second, from the first arrival to the last end.
    pub request_throughput: f64,
    /// The share of all requests that kept all goals; a failed or refused request keeps none. `None` without goals, or if others
    /// lack a latency that a goal names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_share: Option<f64>,
}

/// A latency of all requests, milliseconds; `NaN`, in JSON null, if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencyFigures {
    mean: f64,
    p50: f64,
    p99: f64,
}

/// Parses a goal of `--goodput`.
///
/// # Errors
/// It is no goal, or of a latency that is not predicted.
pub fn goal(text: &str) -> Result<Goal, String> {
    match text.split_once(':') {
        Some((name, _)) if !GOAL_LATENCIES.contains(&name.trim()) => Err(format!(
            "`{name}` is no latency that is predicted: use one of {}",
            GOAL_LATENCIES.join(", ")
        )),
        None => Err(format!(
            "`{text}` is no goal: write NAME:MILLISECONDS, such as ttft:500; every LOAD stands before --goodput"
        )),
        Some(_) => text.parse(),
    }
}

impl LatencyFigures {
    /// From a summary of seconds.
    fn of(all: Option<&Summary>) -> LatencyFigures {
        let all = all.map(|all| [all.mean, all.p50, all.p99].map(|of| of * 1e3));
        let [mean, p50, p99] = all.unwrap_or([f64::NAN; 3]);
        LatencyFigures { mean, p50, p99 }
    }
}

impl Figures {
    /// Of the requests with known times, without goals.
    pub fn of(load: &Load) -> Figures {
        let all = |latency: Latency| {
            let all = load.timed().map(|(of, times)| latency(of, times));
            LatencyFigures::of(Summary::of(all).as_ref())
        };
        let (mut first, mut last) = (f64::INFINITY, 0.0_f64);
        for (request, times) in load.timed() {
            (first, last) = (first.min(request.arrival), last.max(times.finish));
        }
        Figures {
            ttft_ms: all(TTFT),
            total_latency_ms: all(TOTAL),
            pure_queue_time_ms: all(QUEUE),
            request_throughput: load.timed().count() as f64 / (last - first).max(1e-9),
            goodput_share: None,
        }
    }

    /// Those of a run, measured or predicted, as in the report on it.
    pub fn of_run(run: &load::Summary) -> Figures {
        let all = |column: ColumnId| LatencyFigures::of(run.all.latencies.get(column));
        let rate = run.run.per_second(run.all.completed as f64);
        Figures {
            ttft_ms: all(ColumnId::ttft),
            total_latency_ms: all(ColumnId::total_latency),
            pure_queue_time_ms: all(ColumnId::pure_queue_time),
            request_throughput: rate.unwrap_or(f64::NAN),
            goodput_share: run.all.goodput_share(),
        }
    }

    /// The values of [`COMPARED`].
    pub fn compared(&self) -> Compared {
        COMPARED.map(|(_, of, _)| of(self))
    }

    /// The error of each figure against that of others, as a share of these.
    pub fn errors_against(&self, others: &Figures) -> Compared {
        COMPARED.map(|(_, of, min)| {
            let error = (of(self) - of(others)) / of(others).max(min(others));
            // `NaN`, as if all requests are refused, becomes −1.
            error.max(-1.0)
        })
    }
}
