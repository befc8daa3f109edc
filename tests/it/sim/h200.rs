//! The default profile against a real GPU server: the same load, in the model's own time.

mod replay;

use std::fmt::Write as _;

use queuescope::clock::Stamp;
use queuescope::sim::engine::{Engine, EventKind, Profile, Prompt, Request};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::docs::has_table;

/// Where the tables are.
const PAGE: &str = "docs/dev/CALIBRATION.md";

/// What was measured on one H200 at an offered rate: requests in 30 s, 512 tokens in, 128 out; milliseconds.
struct Measured {
    offered: u32,
    requests: usize,
    /// Mean of the way to the server, and p50 of the router's part of it.
    way: f64,
    columns: [f64; 8],
}

const COLUMNS: [&str; 8] = [
    "TTFT p50",
    "TTFT p99",
    "TPOT p50",
    "TPOT p99",
    "queue mean",
    "queue p99",
    "tokenize mean",
    "done a second",
];

#[rustfmt::skip]
const MEASURED: [Measured; 5] = [
    Measured { offered: 2, requests: 49, way: 1.0 + 0.62, columns: [36.7, 59.7, 5.68, 6.17, 0.353, 0.64, 5.8, 1.6] },
    Measured { offered: 8, requests: 254, way: 1.3 + 0.55, columns: [40.0, 104.0, 6.95, 10.4, 0.450, 1.03, 8.4, 8.3] },
    Measured { offered: 16, requests: 472, way: 1.5 + 0.54, columns: [47.8, 91.9, 9.10, 11.0, 0.523, 1.11, 9.8, 15.4] },
    Measured { offered: 20, requests: 583, way: 1.8 + 0.53, columns: [93.2, 681.0, 10.8, 13.8, 98.7, 573.0, 13.6, 19.0] },
    Measured { offered: 32, requests: 938, way: 2.3 + 0.52, columns: [3718.0, 7028.0, 9.16, 9.90, 3546.0, 6934.0, 16.7, 24.8] },
];
/// The way back to the client without a router's delay: outside of the model.
const BACK_MS: f64 = 0.84;
const SECONDS: f64 = 30.0;
const OUTPUT: u32 = 128;
const SEEDS: u64 = 21;

/// Of one request, milliseconds: when it came, and how long after that what happened.
#[derive(Debug, Default, serde::Deserialize)]
struct Times {
    #[serde(rename = "arrival")]
    came: f64,
    queued: f64,
    admitted: f64,
    first: f64,
    finish: f64,
    prompt: u64,
    output: u32,
    /// The tokens that the cache spared it.
    cached: u32,
}

impl Times {
    fn tpot(&self) -> f64 {
        (self.finish - self.first) / (f64::from(self.output) - 1.0)
    }
}

fn quantile(values: &[f64], q: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q).round() as usize]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// What the column of this name has of requests.
fn figure(name: &str, all: &[Times]) -> f64 {
    let column = |of: fn(&Times) -> f64| all.iter().map(of).collect::<Vec<f64>>();
    let (what, how) = name.split_once(' ').unwrap();
    let values = match what {
        "TTFT" => column(|one| one.first),
        "total" => column(|one| one.finish),
        "TPOT" => column(Times::tpot),
        "queue" => column(|one| one.admitted - one.queued),
        "tokenize" => column(|one| one.queued),
        "cached" => {
            let cached = mean(&column(|one| f64::from(one.cached)));
            return cached / mean(&column(|one| one.prompt as f64)) * 100.0;
        }
        _ => {
            let ends = column(|one| one.came + one.finish);
            return all.len() as f64 / ends.into_iter().fold(0.0, f64::max) * 1e3;
        }
    };
    match how {
        "p50" => quantile(&values, 0.5),
        "p99" => quantile(&values, 0.99),
        _ => mean(&values),
    }
}

/// What the model makes of requests that come at these milliseconds, that far away from it, with that way back.
fn modelled(
    profile: &Profile,
    (way_ms, back_ms): (f64, f64),
    asked: impl Iterator<Item = (f64, Prompt, u32)>,
) -> Vec<Times> {
    let start = Stamp::from_nanos(0);
    let mut engine = Engine::new(profile.clone(), start);
    let mut all = Vec::new();
    for (id, (came, prompt, output_tokens)) in (0..).zip(asked) {
        let queued = (came + way_ms) / 1e3 + profile.tokenize_s(prompt.tokens());
        all.push(Times {
            came,
            prompt: prompt.tokens(),
            output: output_tokens,
            ..Times::default()
        });
        let request = Request {
            id,
            prompt,
            output_tokens,
        };
        engine.submit(request, start.plus_seconds(queued));
    }
    for event in engine.advance(start.plus_seconds(1e4)) {
        let one = &mut all[event.id as usize];
        let at = event.at.since(start) * 1e3 - one.came;
        match event.kind {
            EventKind::Queued => one.queued = at,
            EventKind::Admitted { cached } => (one.admitted, one.cached) = (at, cached),
            EventKind::Token { last } => {
                let at = at + back_ms;
                one.first = if one.first == 0.0 { at } else { one.first };
                one.finish = if last { at } else { one.finish };
            }
            _ => {}
        }
    }
    all
}

/// One run of as many requests as were sent, at Poisson's moments given their number.
fn run(measured: &Measured, seed: u64) -> [f64; 8] {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut came: Vec<f64> = (0..measured.requests)
        .map(|_| random.random_range(0.0..SECONDS) * 1e3)
        .collect();
    came.sort_by(f64::total_cmp);
    let asked = (0..).zip(came);
    let asked = asked.map(|(id, came)| (came, Prompt::Tokens(vec![id; 512].into()), OUTPUT));
    let way = measured.way + BACK_MS;
    let mut all = modelled(&Profile::default(), (0.0, way), asked);
    // What was done is counted at the server.
    all.iter_mut().for_each(|one| one.came -= way);
    COLUMNS.map(|name| figure(name, &all))
}

/// Of each column the median, 5 % and 95 % of all seeds.
fn runs(measured: &Measured) -> [[f64; 3]; 8] {
    let runs: Vec<_> = (0..SEEDS).map(|seed| run(measured, seed)).collect();
    std::array::from_fn(|column| {
        let values: Vec<f64> = runs.iter().map(|run| run[column]).collect();
        [0.5, 0.05, 0.95].map(|q| quantile(&values, q))
    })
}

/// Three digits, as the measured ones have.
fn short(value: f64) -> String {
    let digits = match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// The head of a table.
fn head(first: &str, columns: &[&str]) -> String {
    let line = "---|".repeat(columns.len() + 2);
    format!("| {first} | | {} |\n|{line}\n", columns.join(" | "))
}

/// How far the model may be off: a column of [`COLUMNS`] and rows of [`MEASURED`], milliseconds or a share.
const BOUNDS: [(usize, &[usize], f64, bool); 15] = [
    // Not at 20 a second, which is at the edge of what the server can do.
    (0, &[0, 1, 2, 4], 0.12, true),
    (1, &[0, 1, 2], 0.35, true),
    (1, &[3], 0.6, true),
    (1, &[4], 0.10, true),
    (2, &[0, 1, 2, 3, 4], 0.10, true),
    (6, &[0, 1, 2, 3, 4], 0.25, true),
    (7, &[0, 1, 2, 3, 4], 0.03, true),
    // The queue: milliseconds below the edge, shares from there on.
    (4, &[0, 1], 0.3, false),
    (5, &[0, 1], 1.0, false),
    (4, &[2], 2.0, false),
    (5, &[2], 60.0, false),
    (4, &[3], 0.8, true),
    (5, &[3], 0.6, true),
    (4, &[4], 0.10, true),
    (5, &[4], 0.10, true),
];

/// The stated distances, and the table that docs/dev/CALIBRATION.md shows.
#[test]
fn the_defaults_come_out_as_a_real_gpu_server() {
    let mut table = head("offered", &COLUMNS);
    let all = MEASURED.each_ref().map(runs);
    for (measured, runs) in MEASURED.iter().zip(&all) {
        let real = measured.columns.map(short).join(" | ");
        let spread = |[median, low, high]: [f64; 3]| {
            format!("{} ({}–{})", short(median), short(low), short(high))
        };
        let model = runs.map(spread).join(" | ");
        let offered = measured.offered;
        let _ = writeln!(
            table,
            "| {offered} | H200 | {real} |\n| | model | {model} |"
        );
    }
    for (column, rows, most, is_share) in BOUNDS {
        for row in rows {
            let (model, real) = (all[*row][column][0], MEASURED[*row].columns[column]);
            let off = (model - real).abs() / if is_share { real } else { 1.0 };
            let name = COLUMNS[column];
            assert!(off <= most, "row {row}, {name}: {off:.3}\n{table}");
        }
    }
    has_table(PAGE, "h200", &table);
}
