//! The default profile against real rows of a GPU server: the same arrivals and lengths, in the model's own time.
//!
//! `tests/data/h200/runs.csv.gz` has seven runs of SGLang 0.5.23 on one H200 (the README there says which).

use std::fmt::Write as _;
use std::io::Read as _;

use queuescope::clock::Stamp;
use queuescope::sim::engine::{Engine, EventKind, Profile, Prompt, Request};

use crate::support::docs::has_table;

/// Where the model begins and ends, as measured: from sending to the server's having it, and from the end
/// of prefill to the first event, milliseconds.
const IN_MS: f64 = 1.2;
const BACK_MS: f64 = 1.7;
/// What a server gets of a GPU that two share: less than half.
const SHARE_OF_TWO: f64 = 0.45;

#[derive(Debug, serde::Deserialize)]
struct Row {
    run: String,
    /// All times in tenths of a millisecond; those below since arrival.
    arrival: i64,
    prompt: usize,
    output: u32,
    cached: u32,
    group: u32,
    queued: i64,
    admitted: i64,
    first: i64,
    finish: i64,
}

/// Of one request, milliseconds: when it came, and how long after that what happened.
#[derive(Clone, Default)]
struct Times {
    came: f64,
    queued: f64,
    admitted: f64,
    first: f64,
    finish: f64,
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

fn column(all: &[Times], of: impl Fn(&Times) -> f64) -> Vec<f64> {
    all.iter().map(of).collect()
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

/// What the table has of a run.
const COLUMNS: [&str; 9] = [
    "TTFT p50",
    "TTFT p99",
    "total p50",
    "total p99",
    "TPOT p50",
    "TPOT p99",
    "queue mean",
    "done a second",
    "cached %",
];

/// How far the model may be off: columns, and shares. Of the queue's mean only where there is a jam: else it is a constant.
const BOUNDS: [(usize, f64); 8] = [
    (0, 0.10),
    (1, 0.30),
    (2, 0.03),
    (3, 0.16),
    (4, 0.03),
    (5, 0.17),
    (6, 0.10),
    (7, 0.03),
];

const RUNS: [&str; 8] = [
    "2048-64-rate5",
    "2048-64-rate10",
    "128-512",
    "mixed",
    "slots16",
    "shared",
    "two-servers-server1",
    "two-servers-server2",
];

fn rows() -> Vec<Row> {
    let packed = include_bytes!("../../data/h200/runs.csv.gz");
    let mut text = String::new();
    let mut reader = flate2::read::GzDecoder::new(packed.as_slice());
    reader.read_to_string(&mut text).unwrap();
    let rows = csv::Reader::from_reader(text.as_bytes()).into_deserialize();
    rows.map(Result::unwrap).collect()
}

fn profile(run: &str) -> Profile {
    let mut profile = Profile::default();
    match run {
        "slots16" => profile.max_running_requests = 16,
        name if name.starts_with("two") => profile.gpu_share = SHARE_OF_TWO,
        _ => {}
    }
    profile
}

fn figures(rows: &[&Row], all: &[Times]) -> [f64; 9] {
    let ttft = column(all, |one| one.first);
    let total = column(all, |one| one.finish);
    let tpot = column(all, Times::tpot);
    let queued = column(all, |one| one.admitted - one.queued);
    let ends = column(all, |one| one.came + one.finish);
    let span = ends.into_iter().fold(0.0, f64::max) - all[0].came;
    let prompts: usize = rows.iter().map(|row| row.prompt).sum();
    let cached: u32 = all.iter().map(|one| one.cached).sum();
    [
        quantile(&ttft, 0.5),
        quantile(&ttft, 0.99),
        quantile(&total, 0.5),
        quantile(&total, 0.99),
        quantile(&tpot, 0.5),
        quantile(&tpot, 0.99),
        queued.iter().sum::<f64>() / queued.len() as f64,
        rows.len() as f64 / span * 1e3,
        f64::from(cached) / prompts as f64 * 100.0,
    ]
}

fn real(rows: &[&Row]) -> [f64; 9] {
    let ms = |tenths: i64| tenths as f64 / 10.0;
    let times = rows.iter().map(|row| Times {
        came: ms(row.arrival),
        queued: ms(row.queued),
        admitted: ms(row.admitted),
        first: ms(row.first),
        finish: ms(row.finish),
        output: row.output,
        cached: row.cached,
    });
    figures(rows, &times.collect::<Vec<_>>())
}

fn model(rows: &[&Row], profile: Profile) -> [f64; 9] {
    // Whoever found something in the cache shares that much with its group.
    let shared = rows.iter().map(|row| row.cached).max().unwrap() as usize;
    let start = Stamp::from_nanos(0);
    let mut engine = Engine::new(profile.clone(), start);
    let mut all = Vec::new();
    for (id, row) in (0..).zip(rows) {
        let own = |place: usize| match place < shared {
            true => row.group,
            false => 1_000_000 + id,
        };
        let one = Times {
            came: row.arrival as f64 / 10.0,
            output: row.output,
            ..Times::default()
        };
        let queued = (one.came + IN_MS) / 1e3 + profile.tokenize_s(row.prompt as u64);
        let request = Request {
            id: id.into(),
            prompt: Prompt::Tokens((0..row.prompt).map(own).collect()),
            output_tokens: row.output,
        };
        engine.submit(request, start.plus_seconds(queued));
        all.push(one);
    }
    for event in engine.advance(start.plus_seconds(1e4)) {
        let one = &mut all[event.id as usize];
        let at = event.at.since(start) * 1e3 - one.came;
        match event.kind {
            EventKind::Queued => one.queued = at,
            EventKind::Admitted { cached } => (one.admitted, one.cached) = (at, cached),
            EventKind::Token { last } => {
                one.first = if one.first == 0.0 {
                    at + BACK_MS
                } else {
                    one.first
                };
                one.finish = if last { at + BACK_MS } else { one.finish };
            }
            _ => {}
        }
    }
    figures(rows, &all)
}

/// The stated distances, and the table that docs/dev/CALIBRATION.md shows.
#[test]
fn replayed_rows_come_out_as_on_the_real_gpu() {
    let rows = rows();
    let line = "---|".repeat(COLUMNS.len() + 2);
    let mut table = format!("| run | | {} |\n|{line}\n", COLUMNS.join(" | "));
    let mut off = Vec::new();
    for run in RUNS {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.run == run).collect();
        let (real, model) = (real(&rows), model(&rows, profile(run)));
        for (name, what, figures) in [(run, "H200", real), ("", "model", model)] {
            let figures = figures.map(short).join(" | ");
            let _ = writeln!(table, "| {name} | {what} | {figures} |");
        }
        for (column, most) in BOUNDS {
            let is_off = (model[column] / real[column] - 1.0).abs() > most;
            if is_off && (column != 6 || real[6] > 1.0) {
                off.push((run, COLUMNS[column]));
            }
        }
        assert!((model[8] - real[8]).abs() < 0.5, "{run}: {table}");
    }
    assert!(off.is_empty(), "{off:?}\n{table}");
    has_table("docs/dev/CALIBRATION.md", "replay", &table);
}
