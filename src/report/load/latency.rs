//! Quantiles of every latency of the requests that went well.

use crate::clock::NANOS;
use crate::request::column::{Scope, Unit, Value};
use crate::request::columns::COLUMNS;
use crate::request::record::Record;
use crate::request::timeline::{Moment, Period};
use crate::stats::Summary;
use crate::stats::interval::Intervals;

use super::rows::Rows;
use super::tally::Tally;

/// A latency and what is said of it, in seconds; `None` when no request had it.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Its name, a column's.
    pub name: &'static str,
    /// What is said of it.
    pub summary: Option<Summary>,
    /// What its quantiles lie between, with 95 %; values depend on each other, and are taken to.
    pub intervals: Intervals,
    /// How many of its values are not larger than the error of the clocks they were taken with.
    pub within_clock_error: u64,
}

/// All latencies of some requests.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// Every latency column, in the order of the table, then [`FROM_THE_CLIENT`].
    pub all: Vec<Latency>,
    /// What bench_serving calls end-to-end latency: from the send to the last byte.
    pub e2e: Option<Summary>,
    /// What bench_serving calls TTFT: from the send to the first token read.
    pub ttft: Option<Summary>,
    /// Time per output token after the first.
    pub tpot: Option<Summary>,
    /// Mean of all gaps between tokens, each request weighted by how many it had; seconds.
    pub itl_mean: Option<f64>,
    /// Longest of all gaps; seconds.
    pub itl_max: Option<f64>,
    /// Sum of all end-to-end latencies, seconds.
    pub e2e_sum: f64,
}

/// Latencies that are no columns, because their ends are: from the generator's send, from its schedule.
pub const FROM_THE_CLIENT: [(&str, Scope, Period); 3] = [
    (
        "total_latency_from_send",
        Scope::Request,
        Period::TOTAL_FROM_SEND,
    ),
    (
        "total_latency_from_schedule",
        Scope::Request,
        Period::TOTAL_FROM_SCHEDULE,
    ),
    ("ttft_from_send", Scope::Sequence, TTFT_FROM_SEND),
];

/// What people call the latencies that are shown to them.
const LABELS: [(&str, &str); 15] = [
    ("server_latency", "server latency"),
    ("total_latency", "total latency"),
    ("total_latency_from_send", "total, from send"),
    ("total_latency_from_schedule", "total, from schedule"),
    ("ttft", "TTFT"),
    ("ttft_observed", "TTFT, as read"),
    ("ttft_from_send", "TTFT, from send"),
    ("ttft_from_schedule", "TTFT, from schedule"),
    ("queue_time_in_router", "router queue"),
    ("pure_queue_time", "server queue"),
    ("tokenize_time", "tokenize"),
    ("prefill_time", "prefill"),
    ("decode_time", "decode"),
    ("tpot", "per output token"),
    ("schedule_lag", "client lag"),
];

/// What people call a latency.
pub fn label(name: &str) -> &str {
    let known = LABELS.iter().find(|(known, _)| *known == name);
    known.map_or(name, |(_, label)| label)
}

/// The generator's send to the first token read.
const TTFT_FROM_SEND: Period = Period {
    from: Moment::Sent,
    to: Moment::FirstToken,
};

/// What [`Latencies`] are made of, of some of a run's requests: the values of each, in seconds.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    all: Vec<Column>,
    within_clock_error: Tally<&'static str>,
    e2e: Vec<f64>,
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    /// Sum of gaps between tokens, and how many there were.
    itl: (f64, f64),
    itl_max_nanos: Option<i64>,
}

/// The values of one latency.
#[derive(Clone, Debug)]
struct Column {
    name: &'static str,
    values: Vec<f64>,
    /// The place of each one's request in the order of arrival.
    places: Vec<u32>,
}

impl Column {
    fn of(
        name: &'static str,
        ok: &[(u32, Rows<'_>)],
        scope: Scope,
        get: impl Fn(&Record) -> Option<i64>,
    ) -> Column {
        let (mut found, mut places) = (Vec::new(), Vec::new());
        for (place, rows) in ok {
            let before = found.len();
            found.extend(values(&[rows], scope, &get));
            places.resize(places.len() + found.len() - before, *place);
        }
        Column {
            name,
            values: found,
            places,
        }
    }

    /// In order of arrival: servers are gathered one by one.
    fn in_order(&self) -> Vec<f64> {
        if self.places.is_sorted() {
            return self.values.clone();
        }
        let mut pairs: Vec<(u32, f64)> = self
            .places
            .iter()
            .copied()
            .zip(self.values.iter().copied())
            .collect();
        pairs.sort_by_key(|(place, _)| *place);
        pairs.into_iter().map(|(_, value)| value).collect()
    }
}

impl Samples {
    /// Of requests that went well, each with its place in the order of arrival.
    pub fn of(ok: &[(u32, Rows<'_>)]) -> Samples {
        let columns = COLUMNS.iter().filter(|column| column.unit == Unit::Latency);
        let columns = columns.map(|column| {
            Column::of(column.name, ok, column.scope, |record| {
                match (column.get)(record) {
                    Value::Nanos(nanos) => Some(nanos),
                    _ => None,
                }
            })
        });
        let periods = FROM_THE_CLIENT.into_iter().map(|(name, scope, period)| {
            let nanos = |record: &Record| record.timeline.nanos(period);
            Column::of(name, ok, scope, nanos)
        });
        let ok: Vec<Rows<'_>> = ok.iter().map(|(_, rows)| *rows).collect();
        let ok = ok.as_slice();
        let rows = || ok.iter().copied().flatten();
        Samples {
            all: columns.chain(periods).collect(),
            within_clock_error: rows().flat_map(Record::within_clock_error).collect(),
            e2e: values(ok, Scope::Request, end_to_end),
            ttft: values(ok, Scope::Sequence, first_token),
            tpot: values(ok, Scope::Sequence, Record::tpot),
            itl: itl(ok),
            itl_max_nanos: rows().filter_map(|row| row.itl().max_nanos).max(),
        }
    }

    /// Adds those of other requests.
    pub fn add(&mut self, mut more: Samples) {
        if self.all.is_empty() {
            *self = more;
            return;
        }
        // Both walk the same tables. Each is let go once it is taken, for there may be millions.
        for (known, mut more) in self.all.iter_mut().zip(std::mem::take(&mut more.all)) {
            known.values.append(&mut more.values);
            known.places.append(&mut more.places);
        }
        self.within_clock_error.add(more.within_clock_error);
        self.e2e.append(&mut more.e2e);
        self.ttft.append(&mut more.ttft);
        self.tpot.append(&mut more.tpot);
        self.itl = (self.itl.0 + more.itl.0, self.itl.1 + more.itl.1);
        self.itl_max_nanos = self.itl_max_nanos.max(more.itl_max_nanos);
    }
}

impl Latencies {
    pub(super) fn of(samples: &Samples) -> Latencies {
        let of = |values: &[f64]| Summary::of(values.iter().copied());
        let all = samples.all.iter().map(|column| Latency {
            name: column.name,
            summary: of(&column.values),
            intervals: Intervals::of(&column.in_order()),
            within_clock_error: samples.within_clock_error.get(&column.name),
        });
        let (itl_sum, gaps) = samples.itl;
        let e2e = of(&samples.e2e);
        Latencies {
            all: all.collect(),
            e2e,
            ttft: of(&samples.ttft),
            tpot: of(&samples.tpot),
            itl_mean: (gaps > 0.0).then(|| itl_sum / gaps),
            itl_max: samples.itl_max_nanos.map(seconds),
            e2e_sum: e2e.map_or(0.0, |e2e| e2e.mean * e2e.count as f64),
        }
    }

    /// The latency of this name.
    pub fn get(&self, name: &str) -> Option<&Summary> {
        self.latency(name)?.summary.as_ref()
    }

    /// The same, with its intervals.
    pub fn latency(&self, name: &str) -> Option<&Latency> {
        self.all.iter().find(|latency| latency.name == name)
    }
}

/// From the generator's send to the last byte read; in a proxy's own rows from arrival.
pub fn end_to_end(record: &Record) -> Option<i64> {
    let sent = record.timeline.nanos(Period::TOTAL_FROM_SEND);
    sent.or_else(|| record.timeline.nanos(Period::TOTAL_LATENCY))
}

/// From the generator's send to the first token read; in a proxy's own rows from arrival.
pub fn first_token(record: &Record) -> Option<i64> {
    let sent = record.timeline.nanos(TTFT_FROM_SEND);
    sent.or_else(|| record.timeline.nanos(Period::TTFT_OBSERVED))
}

/// Of one latency, in seconds. A value that is the whole request's counts once, not once a sequence.
fn values(ok: &[Rows<'_>], scope: Scope, get: impl Fn(&Record) -> Option<i64>) -> Vec<f64> {
    let rows = ok.iter().copied().flatten();
    let counted = rows.filter(|row| scope == Scope::Sequence || row.is_first_of_request());
    counted.filter_map(get).map(seconds).collect()
}

/// The sum of all gaps between tokens, seconds, and how many there were.
fn itl(ok: &[Rows<'_>]) -> (f64, f64) {
    let (mut sum, mut gaps) = (0.0, 0.0);
    for row in ok.iter().copied().flatten() {
        if let (Some(mean), Some(count @ 1..)) = (row.itl().mean_nanos, row.later_tokens()) {
            sum += seconds(mean) * count as f64;
            gaps += count as f64;
        }
    }
    (sum, gaps)
}

pub fn seconds(nanos: i64) -> f64 {
    nanos as f64 / NANOS as f64
}
