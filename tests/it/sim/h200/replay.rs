//! The default profile against real rows: the same arrivals and lengths, in the model's own time.
//!
//! `tests/data/h200/runs.csv.gz` has seven runs of SGLang 0.5.23 on one H200 (the README there says which).

use std::io::Read as _;

use super::*;

/// Where the model begins and ends, as measured: from sending to the server's having it, and from the end
/// of prefill to the first event, milliseconds.
const IN_MS: f64 = 1.2;
const BACK_MS: f64 = 1.7;
/// What a server gets of a GPU that two share: less than half.
const SHARE_OF_TWO: f64 = 0.45;

#[derive(Debug, serde::Deserialize)]
struct Row {
    run: String,
    /// Who shares a prefix.
    group: u32,
    #[serde(flatten)]
    times: Times,
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

/// How far the model may be off, as a share, in the order of the columns.
const BOUNDS: [f64; 6] = [0.10, 0.30, 0.03, 0.16, 0.03, 0.17];

/// A run, what the model made of it before these rows were known (its steps twice as long for two servers), and what was learned of the other runs alone: launches of
/// prefill and decode, prefill a token and for each before it, decode, a request, a token, the longest one.
struct Run {
    name: &'static str,
    before: [f64; 8],
    others: [f64; 8],
}

#[rustfmt::skip]
const RUNS: [Run; 8] = [
    Run { name: "2048-64-rate5", before: [77.1, 244.0, 645.0, 1363.0, 8.80, 18.8, 0.35, 4.74], others: [24.43, 3.19, 43_590.0, 2.11, 5.155, 0.0187, 25.8, 0.122] },
    Run { name: "2048-64-rate10", before: [128.0, 500.0, 1219.0, 2322.0, 16.4, 33.6, 3.85, 9.08], others: [24.28, 3.36, 43_880.0, 2.05, 5.166, 0.0175, 25.4, 0.128] },
    Run { name: "128-512", before: [39.3, 64.8, 3490.0, 3783.0, 6.76, 7.31, 0.35, 4.96], others: [24.42, 3.19, 43_520.0, 1.98, 5.155, 0.0195, 25.3, 0.125] },
    Run { name: "mixed", before: [40.0, 76.9, 972.0, 1963.0, 6.71, 8.70, 0.35, 6.78], others: [24.35, 3.18, 43_380.0, 2.0, 5.135, 0.0194, 25.6, 0.127] },
    Run { name: "slots16", before: [48.7, 490.0, 1044.0, 1391.0, 7.52, 8.57, 47.8, 11.0], others: [24.33, 3.24, 43_520.0, 2.08, 5.146, 0.0185, 25.8, 0.124] },
    Run { name: "shared", before: [45.1, 119.0, 1001.0, 1608.0, 9.99, 15.6, 0.35, 11.2], others: [24.87, 3.23, 43_520.0, 2.09, 5.158, 0.0180, 25.1, 0.129] },
    Run { name: "two-servers-server1", before: [125.0, 707.0, 1704.0, 3328.0, 25.4, 48.6, 0.35, 5.66], others: [24.49, 3.25, 43_420.0, 2.03, 5.146, 0.0192, 25.6, 0.123] },
    Run { name: "two-servers-server2", before: [124.0, 923.0, 1705.0, 3461.0, 25.1, 50.9, 0.35, 5.67], others: [24.49, 3.25, 43_420.0, 2.03, 5.146, 0.0192, 25.6, 0.123] },
];

/// What was measured in a run, from its first request on.
fn measured(run: &str) -> (Vec<Times>, Vec<u32>) {
    let packed = include_bytes!("../../../data/h200/runs.csv.gz");
    let mut text = String::new();
    let mut reader = flate2::read::GzDecoder::new(packed.as_slice());
    reader.read_to_string(&mut text).unwrap();
    let mut rows = csv::Reader::from_reader(text.as_bytes());
    let rows = rows.deserialize::<Row>().map(Result::unwrap);
    let (mut all, groups): (Vec<Times>, _) = rows
        .filter(|row| row.run == run)
        .map(|row| (row.times, row.group))
        .unzip();
    let start = all[0].came;
    for one in &mut all {
        one.came -= start;
        let Times {
            came,
            queued,
            admitted,
            first,
            finish,
            ..
        } = one;
        // They are told in tenths.
        for time in [came, queued, admitted, first, finish] {
            *time /= 10.0;
        }
    }
    (all, groups)
}

fn profile(run: &Run) -> Profile {
    let mut profile = Profile::default();
    match run.name {
        "slots16" => profile.max_running_requests = 16,
        name if name.starts_with("two") => profile.gpu_share = SHARE_OF_TWO,
        _ => {}
    }
    profile
}

fn learned_of_others(run: &Run) -> Profile {
    let [
        launch,
        decode_launch,
        tokens,
        context,
        step,
        per_seq,
        read,
        longest,
    ] = run.others;
    Profile {
        prefill_floor_ms: launch,
        decode_launch_ms: decode_launch,
        prefill_tokens_per_s: tokens,
        prefill_context_ns: context,
        decode_step_ms: step,
        decode_step_per_seq_ms: per_seq,
        decode_context_ns: read,
        decode_longest_ns: longest,
        ..profile(run)
    }
}

fn figures(all: &[Times]) -> [f64; 9] {
    COLUMNS.map(|name| figure(name, all))
}

fn model(real: &[Times], groups: &[u32], profile: Profile) -> Vec<Times> {
    // Whoever found something in the cache shares that much with its group.
    let shared = real.iter().map(|one| one.cached).max().unwrap();
    let asked = (0..).zip(real.iter().zip(groups));
    let asked = asked.map(|(id, (one, group))| {
        let own = |place: u64| match place < u64::from(shared) {
            true => *group,
            false => 1_000_000 + id,
        };
        let prompt = Prompt::Tokens((0..one.prompt).map(own).collect());
        (one.came, prompt, one.output)
    });
    modelled(&profile, (IN_MS, BACK_MS), asked)
}

/// The stated distances, and the table that docs/dev/CALIBRATION.md shows.
#[test]
fn replayed_rows_come_out_as_on_the_real_gpu() {
    let (mut table, mut off) = (head("run", &COLUMNS), Vec::new());
    let mut was_off = 0;
    for run in &RUNS {
        let (all, groups) = measured(run.name);
        let real = figures(&all);
        let after = figures(&model(&all, &groups, profile(run)));
        let of_others = figures(&model(&all, &groups, learned_of_others(run)));
        let before = format!("{} | –", run.before.map(short).join(" | "));
        for (name, what, figures) in [
            (run.name, "H200", real.map(short).join(" | ")),
            ("", "before", before),
            ("", "now", after.map(short).join(" | ")),
            ("", "held out", of_others.map(short).join(" | ")),
        ] {
            let _ = writeln!(table, "| {name} | {what} | {figures} |");
        }
        let outside = |figures: &[f64]| {
            let apart = |column: usize| (figures[column] / real[column] - 1.0).abs();
            let columns = (0..BOUNDS.len()).filter(|column| apart(*column) > BOUNDS[*column]);
            columns.map(|column| COLUMNS[column]).collect::<Vec<_>>()
        };
        let both = [outside(&after), outside(&of_others)].concat();
        off.extend(both.into_iter().map(|column| (run.name, column)));
        assert!((after[8] - real[8]).abs() < 0.5, "{}: {table}", run.name);
        was_off += usize::from(!outside(&run.before).is_empty());
    }
    // The bounds tell models apart: the one of before keeps them in no run.
    assert_eq!(was_off, RUNS.len(), "{table}");
    assert!(off.is_empty(), "{off:?}\n{table}");
    has_table(PAGE, "replay", &table);
}
