use super::*;

const COUNTER: Metric = Metric::counter("c_total", &["worker", "kind"], "Counts.");
const TIMES: Metric = Metric::histogram("t_seconds", &[], &[0.001, 0.1, 2.0], "Times.");

fn counter(most: usize) -> (Registry, Family<Count>) {
    let registry = Registry::new();
    let family = Family::new(&registry, &COUNTER, most).unwrap();
    (registry, family)
}

/// The label sets, sorted, and their counts.
fn shown(registry: &Registry) -> Vec<(String, f64)> {
    let families = registry.gather();
    let all = families.iter().flat_map(MetricFamily::get_metric);
    let sets = all.map(|one| {
        let values = one.get_label().iter().map(LabelPair::value);
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
    family.with(&["a", "x"]).add(1);
    family.clone().with(&["a", "x"]).add(2);
    family.with(&["x", "a"]).add(5);
    assert_eq!(shown(&registry), [("a x".into(), 3.0), ("x a".into(), 5.0)]);
}

#[test]
fn open_labels_become_other_before_the_closed_ones_do() {
    let (registry, family) = counter(8);
    for n in 0..20 {
        family.with(&[&format!("w{n:02}"), "x"]).add(1);
    }
    family.with(&["w00", "x"]).add(100);
    family.with(&["new", "y"]).add(1);
    family.with(&["new", "z"]).add(1);
    family.with(&["new", "one too many"]).add(1);
    family.with(&["", "one too many"]).add(1);
    let shown: Vec<String> = shown(&registry)
        .into_iter()
        .map(|(values, count)| format!("{values} {count}"))
        .collect();
    assert_eq!(
        shown,
        [
            "other other 4",
            "other x 14",
            "w00 x 101",
            "w01 x 1",
            "w02 x 1",
            "w03 x 1",
            "w04 x 1",
            "w05 x 1",
        ]
    );
}

#[test]
fn a_label_is_not_as_long_as_somebody_likes() {
    let (registry, family) = counter(64);
    family.with(&[&"m".repeat(LONGEST), "x"]).add(1);
    family.with(&[&"m".repeat(LONGEST + 1), "x"]).add(1);
    let shown = shown(&registry);
    assert_eq!(shown[0].0.len(), LONGEST + 2);
    assert_eq!(shown[1].0, "other x");
}

#[test]
fn threads_that_come_together_make_no_set_too_many() {
    let (registry, family) = counter(10);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let family = &family;
            scope.spawn(move || {
                for n in 0..1000 {
                    family.with(&[&format!("{thread}-{n}"), "x"]).add(1);
                }
            });
        }
    });
    let shown = shown(&registry);
    assert!(shown.len() <= 10, "{shown:?}");
    assert_eq!(shown.iter().map(|(_, count)| count).sum::<f64>(), 4000.0);
}

#[test]
fn a_value_counts_up_to_its_bound_and_many_add_up() {
    let registry = Registry::new();
    let family: Family<Buckets> = Family::new(&registry, &TIMES, 64).unwrap();
    let times = family.with(&[]);
    for nanos in [-5, 0, 1_000_000, 1_000_001, 2_000_000_000, 9_000_000_000] {
        times.observe(nanos);
    }
    times.add(&[1, 0, 4, 0], 6_000_000_000);
    let families = registry.gather();
    let shown = families[0].get_metric()[0].get_histogram();
    let buckets = shown.get_bucket().iter();
    let buckets: Vec<_> = buckets
        .map(|b| (b.upper_bound(), b.cumulative_count()))
        .collect();
    assert_eq!(buckets, [(0.001, 4), (0.1, 5), (2.0, 10)]);
    assert_eq!(shown.get_sample_count(), 11);
    assert!((shown.get_sample_sum() - 17.002_000_001).abs() < 1e-9);
}

/// Shows 1 where a set could be added meanwhile.
#[derive(Debug)]
struct Probe;

static PROBED: std::sync::OnceLock<Family<Probe>> = std::sync::OnceLock::new();

impl Series for Probe {
    fn new(_: &Metric) -> Probe {
        Probe
    }

    fn show(&self, shown: &mut proto::Metric) {
        let family = PROBED.get().unwrap();
        let count = Count::new(&COUNTER);
        count.add(family.0.sets.try_write().is_some().into());
        count.show(shown);
    }
}

#[test]
fn a_scrape_holds_up_no_request_that_adds_a_set() {
    let registry = Registry::new();
    let family = Family::<Probe>::new(&registry, &COUNTER, 64).unwrap();
    PROBED.get_or_init(|| family).with(&["a", "x"]);
    assert_eq!(shown(&registry), [("a x".into(), 1.0)]);
}
