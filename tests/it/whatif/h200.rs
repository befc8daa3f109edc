//! What rows of a real GPU teach, and how near predictions of the other runs come.

use queuescope::report::reader;
use queuescope::whatif::fit::{Fit, Replayed};
use queuescope::whatif::load::Load;

use super::files;
use crate::support::docs::{has_table, markdown};

/// The bounds at and beyond saturation, as [`beyond`] has them: TTFT's p50, total time's p50, throughput.
const SATURATED: [(f64, f64); 6] = {
    let any = (f64::INFINITY, 0.0);
    [(0.3, 15.0), any, (0.15, 15.0), any, any, (0.03, 0.0)]
};

/// The loads of a folder.
fn loads(of: &str) -> Vec<Load> {
    let loaded = reader::load(&files(of)).unwrap();
    let loads = loaded.runs.iter().map(Load::of);
    loads.map(Result::unwrap).collect()
}

/// Each run, and what the others taught of it.
fn predicted_by_others(loads: &[Load]) -> Vec<Replayed> {
    let one = |at: usize| {
        // Two servers that share a GPU are in one run alone: what that costs is of itself.
        let mut others = loads.to_vec();
        if loads[at].servers.len() == 1 {
            others.remove(at);
        }
        Fit::of(&others).unwrap().replay(&loads[at])
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..loads.len())
            .map(|at| scope.spawn(move || one(at)))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn runs_of_a_real_gpu_are_predicted_by_the_others() {
    let loads = loads("rows");
    let limits = loads.iter().flat_map(|load| load.slots.clone());
    let limits: Vec<_> = limits.flatten().collect();
    assert_eq!(limits, [16], "the only run that waited had 16 slots");
    let runs = predicted_by_others(&loads);
    let (p50, p99) = ((0.15, 15.0), (0.3, 50.0));
    let quiet = [p50, p99, p50, p99, (0.15, 15.0), (0.02, 0.0)];
    let off = beyond(&runs, quiet);
    assert!(off.is_empty(), "{off:?}\n{}", table(&runs));
    has_table("docs/WHATIF.md", "whatif", &table(&runs));
}

/// Another H200 with slower processors: what runs below saturation teach of runs at and beyond it, and of other limits.
#[test]
fn saturation_is_predicted_by_runs_below_it() {
    let below = [
        "2048-64-rate5",
        "2048-64-rate10",
        "512-128-rate12",
        "128-512-rate4",
        "mixed-rate8",
    ];
    let is_below = |load: &Load| below.iter().any(|name| load.name.contains(name));
    let (taught, kept): (Vec<Load>, Vec<Load>) = loads("full").into_iter().partition(is_below);
    let slots = kept.iter().map(|load| load.slots[0].unwrap_or(0));
    let slots: Vec<usize> = slots.collect();
    // 64 slots were never full where 10 came a second.
    assert_eq!(slots, [32, 32, 0, 32, 32, 32, 32, 4, 4, 64]);
    let fit = Fit::of(&taught).unwrap();
    let runs: Vec<Replayed> = kept.iter().map(|load| fit.replay(load)).collect();
    let shown = table(&runs);
    let off = beyond(&runs, SATURATED);
    // The first and the last two are of servers that were faster than those that taught (the test after this one); in the second this
    // host was slower than in the others.
    let missed = [
        ("random-128-512-slots64-rate10.csv.gz", 2),
        ("random-512-128-rate21.csv.gz", 5),
        ("random-512-128-slots4-rate4.csv.gz", 0),
        ("random-512-128-slots4-rate4.csv.gz", 2),
    ];
    let missed = missed.map(|(name, at)| (name.to_owned(), at));
    assert_eq!(off, missed, "{shown}");
    has_table("docs/WHATIF.md", "whatif full", &shown);
    // What a prediction says of its own error is kept by two of three figures.
    let (mut within, mut all) = (0, 0);
    for (load, run) in kept.iter().zip(&runs) {
        let most = fit.expected_errors(&fit.original(load), load, &run.predicted);
        for (off, most) in run.errors().into_iter().zip(most) {
            within += usize::from(off.abs() <= most);
            all += 1;
        }
    }
    assert!(within * 3 >= all * 2, "{within} of {all}");
}

/// The servers of 4 and of 64 slots were processes of their own, and faster than that of 32. Taught by the other run of the same server,
/// what the test before misses there is within the bounds.
#[test]
fn runs_of_another_limit_are_predicted_by_the_same_server() {
    let loads = loads("full");
    let find = |name: &str| loads.iter().find(|load| load.name.contains(name)).unwrap();
    for (name, other) in [
        ("128-512-slots64-rate10", "512-128-slots64-rate32"),
        ("512-128-slots4-rate4", "512-128-slots4-rate12"),
    ] {
        let fit = Fit::of(std::slice::from_ref(find(other))).unwrap();
        let runs = [fit.replay(find(name))];
        let off = beyond(&runs, SATURATED);
        assert!(off.is_empty(), "{off:?}\n{}", table(&runs));
    }
}

/// What of runs is farther off than this share and than this many milliseconds.
fn beyond(runs: &[Replayed], bounds: [(f64, f64); 6]) -> Vec<(String, usize)> {
    let mut off = Vec::new();
    for run in runs {
        let (measured, predicted) = (run.measured.compared(), run.predicted.compared());
        for (at, (share, most)) in bounds.into_iter().enumerate() {
            let apart = (predicted[at] - measured[at]).abs();
            if apart > share * measured[at] && apart > most {
                off.push((run.name.clone(), at));
            }
        }
    }
    off
}

fn table(runs: &[Replayed]) -> String {
    let heads = "run||TTFT p50|TTFT p99|total p50|total p99|queue mean|done a second";
    let row = |name: &str, what: &str, figures: [f64; 6]| {
        let shown = figures.map(|of| format!("{of:.0$}", if of < 100.0 { 2 } else { 0 }));
        let names = [name, what].map(str::to_owned);
        [&names[..], &shown].concat()
    };
    let rows = runs.iter().flat_map(|run| {
        let (measured, predicted) = (run.measured.compared(), run.predicted.compared());
        let measured = row(&run.name, "H200", measured);
        [measured, row("", "predicted", predicted)]
    });
    markdown(&heads.split('|').collect::<Vec<_>>(), rows)
}
