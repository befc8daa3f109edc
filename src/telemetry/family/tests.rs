use super::*;

const COUNTER: Metric = Metric {
    name: "c_total",
    kind: MetricType::COUNTER,
    bounds: &[],
    help: "Counts.",
    labels: &["worker", "kind"],
};

fn counter(max_sets: usize) -> Family<IntCounter> {
    Family::new(&Registry::new(), COUNTER, max_sets).unwrap()
}

/// Renders the label sets with their counts, sorted.
fn shown(family: &Family<IntCounter>) -> Vec<String> {
    let sets = family.sets().into_iter();
    let sets = sets.map(|(values, series)| format!("{} {}", values.join(" "), series.get()));
    let mut sets = Vec::from_iter(sets);
    sets.sort();
    sets
}

#[test]
fn counts_with_the_same_labels_are_one() {
    let family = counter(64);
    // The values of the last two, written one after the other, are the same text.
    for (set, n) in [
        (["a", "x"], 1),
        (["a", "x"], 2),
        (["x", "a"], 5),
        (["b", "cd"], 7),
        (["bc", "d"], 11),
    ] {
        family.with(&set).inc_by(n);
    }
    assert_eq!(shown(&family), ["a x 3", "b cd 7", "bc d 11", "x a 5"]);
}

#[test]
fn a_full_metric_distinguishes_new_values_of_closed_labels_only() {
    let family = counter(6);
    // One longer than a value may be, and one as long.
    let (longer, longest) = ("m".repeat(MAX_VALUE_BYTES + 1), "m".repeat(MAX_VALUE_BYTES));
    let several = (0..20).map(|n| format!("w{n:02}"));
    for worker in [longer, longest.clone()].into_iter().chain(several) {
        family.with(&[&worker, "x"]).inc_by(1);
    }
    family.with(&["w00", "x"]).inc_by(100);
    for worker in ["new", "newer", ""] {
        family.with(&[worker, "y"]).inc_by(1);
    }
    let longest = format!("{longest} x 1");
    let few = ["other x 17", "other y 2", "w00 x 101", "w01 x 1", "w02 x 1"];
    let expected = [&[" y 1", &longest], &few[..], &["w03 x 1"]].concat();
    assert_eq!(shown(&family), expected);
}

#[test]
fn concurrent_threads_exceed_the_limit_by_at_most_one_set_each() {
    let family = counter(10);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let family = &family;
            let count = move |n| family.with(&[&format!("{thread}-{n}"), "x"]).inc_by(1);
            scope.spawn(move || (0..1000).for_each(count));
        }
    });
    let sets = family.sets();
    // Each thread may check the limit before another adds a set; and one set is that of `other`.
    assert!(sets.len() <= 10 + 3 + 1, "{}", sets.len());
    let total: u64 = sets.iter().map(|(_, series)| series.get()).sum();
    assert_eq!(total, 4000);
}

#[test]
fn many_values_at_once_add_up() {
    let times = Metric {
        kind: MetricType::HISTOGRAM,
        bounds: &[0.001, 0.1, 2.0],
        labels: &[],
        ..COUNTER
    };
    let family: Family<BatchHistogram> = Family::new(&Registry::new(), times, 64).unwrap();
    family.with(&[]).add(&[3, 1, 1, 1], 11_000_000_000);
    family.with(&[]).add(&[1, 0, 4, 0], -1);
    let metric = family.with(&[]).metric();
    let shown = metric.get_histogram();
    let buckets = shown.get_bucket().iter();
    let buckets = buckets.map(|b| (b.upper_bound(), b.cumulative_count()));
    assert!(buckets.eq([(0.001, 4), (0.1, 5), (2.0, 10)]), "{shown:?}");
    let sums = (shown.get_sample_count(), shown.get_sample_sum());
    assert_eq!(sums, (11, 11.0));
}
