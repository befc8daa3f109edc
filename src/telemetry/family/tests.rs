use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus::proto::{self, LabelPair};

use super::*;

const COUNTER: Metric = Metric {
    name: "c_total",
    kind: Kind::Counter,
    help: "Counts.",
    labels: &["worker", "kind"],
};
const TIMES: Metric = Metric {
    name: "t_seconds",
    kind: Kind::Histogram(&[0.001, 0.1, 2.0]),
    help: "Times.",
    labels: &[],
};

fn counter(most: usize) -> (Registry, Family<IntCounter>) {
    let registry = Registry::new();
    let family = Family::new(&registry, COUNTER, most).unwrap();
    (registry, family)
}

/// The label sets, sorted, and their counts.
fn shown(registry: &Registry) -> Vec<(String, f64)> {
    let families = registry.gather();
    let all = families.iter().flat_map(MetricFamily::get_metric);
    let sets = all.map(|one| {
        // The crate has them by name: the kind, then the worker.
        let values = one.get_label().iter().rev().map(LabelPair::value);
        let values: Vec<&str> = values.collect();
        (values.join(" "), one.get_counter().get_value())
    });
    let mut sets: Vec<_> = sets.collect();
    sets.sort_by(|a, b| a.0.cmp(&b.0));
    sets
}

#[test]
fn counts_with_the_same_labels_are_one() {
    let (registry, family) = counter(64);
    family.with(&["a", "x"]).inc_by(1);
    family.with(&["a", "x"]).inc_by(2);
    family.with(&["x", "a"]).inc_by(5);
    // One after the other they read the same.
    family.with(&["b", "cd"]).inc_by(7);
    family.with(&["bc", "d"]).inc_by(11);
    let expected = [("a x", 3.0), ("b cd", 7.0), ("bc d", 11.0), ("x a", 5.0)];
    assert_eq!(
        shown(&registry),
        expected.map(|(set, count)| (set.to_owned(), count))
    );
}

#[test]
fn beyond_its_most_only_closed_labels_are_told_apart() {
    let (registry, family) = counter(6);
    // Longer than a label may be, and as long.
    let (longer, longest) = ("m".repeat(LONGEST + 1), "m".repeat(LONGEST));
    family.with(&[&longer, "x"]).inc_by(1);
    family.with(&[&longest, "x"]).inc_by(1);
    for n in 0..20 {
        family.with(&[&format!("w{n:02}"), "x"]).inc_by(1);
    }
    family.with(&["w00", "x"]).inc_by(100);
    family.with(&["new", "y"]).inc_by(1);
    family.with(&["newer", "y"]).inc_by(1);
    family.with(&["", "y"]).inc_by(1);
    let shown: Vec<String> = shown(&registry)
        .into_iter()
        .map(|(values, count)| format!("{values} {count}"))
        .collect();
    assert_eq!(
        shown,
        [
            " y 1",
            &format!("{longest} x 1"),
            "other x 17",
            "other y 2",
            "w00 x 101",
            "w01 x 1",
            "w02 x 1",
            "w03 x 1",
        ]
    );
}

#[test]
fn threads_that_come_together_make_no_set_too_many_but_their_own() {
    let (registry, family) = counter(10);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let family = &family;
            scope.spawn(move || {
                for n in 0..1000 {
                    family.with(&[&format!("{thread}-{n}"), "x"]).inc_by(1);
                }
            });
        }
    });
    let shown = shown(&registry);
    // Each may have looked before another's last one was there; and the one of all others.
    assert!(shown.len() <= 10 + 3 + 1, "{shown:?}");
    assert_eq!(shown.iter().map(|(_, count)| count).sum::<f64>(), 4000.0);
}

#[test]
fn many_values_at_once_add_up() {
    let registry = Registry::new();
    let family: Family<Gaps> = Family::new(&registry, TIMES, 64).unwrap();
    family.with(&[]).add(&[3, 1, 1, 1], 11_000_000_000);
    family.with(&[]).add(&[1, 0, 4, 0], -1);
    let families = registry.gather();
    let shown = families[0].get_metric()[0].get_histogram();
    let buckets = shown.get_bucket().iter();
    let buckets: Vec<_> = buckets
        .map(|b| (b.upper_bound(), b.cumulative_count()))
        .collect();
    assert_eq!(buckets, [(0.001, 4), (0.1, 5), (2.0, 10)]);
    assert_eq!(
        (shown.get_sample_count(), shown.get_sample_sum()),
        (11, 11.0)
    );
}

/// A number that a scrape reads until it is told to go on.
#[derive(Clone)]
struct Slow;
static BEGUN: Barrier = Barrier::new(2);
static GO_ON: AtomicBool = AtomicBool::new(false);

impl Shown for Slow {
    fn metric(&self) -> proto::Metric {
        BEGUN.wait();
        // Where nobody can tell it, it ends by itself, and the test fails.
        for _ in 0..500 {
            if GO_ON.load(Ordering::SeqCst) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        proto::Metric::default()
    }
}

impl One for Slow {
    const TYPE: MetricType = MetricType::GAUGE;
    const MAKE: fn(HistogramOpts) -> Result<Slow> = |_| Ok(Slow);
}

#[test]
fn a_scrape_holds_up_nobody_who_counts_something_new() {
    let registry = Registry::new();
    let family: Family<Slow> = Family::new(&registry, COUNTER, 64).unwrap();
    family.with(&["a", "x"]);
    std::thread::scope(|scope| {
        let scrape = scope.spawn(|| registry.gather());
        BEGUN.wait();
        family.with(&["b", "x"]);
        assert!(!scrape.is_finished(), "it was waited for");
        GO_ON.store(true, Ordering::SeqCst);
    });
}
