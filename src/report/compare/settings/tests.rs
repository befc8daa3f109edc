use super::super::tests;
use super::*;

/// `between`: the names of both settings, a letter each.
fn difference(metric: ColumnId, between: &str, seconds: f64, shown: bool) -> Difference {
    let (a, b) = between.split_at(1);
    let reach = if shown { 0.5 } else { 2.0 } * seconds.abs();
    Difference {
        metric: Some(metric),
        a: a.to_owned(),
        b: b.to_owned(),
        repeats: 3,
        ..tests::difference(seconds, seconds - reach, seconds + reach)
    }
}

#[test]
fn the_best_is_named_with_the_settings_it_beats() {
    // The settings of each group, a letter each.
    let of = |groups: &str, all: &[Difference]| {
        let letters = |group: &str| group.chars().map(String::from).collect();
        let comparison = Comparison {
            differences: all.to_vec(),
            groups: groups.split(' ').map(letters).collect(),
            ..Comparison::default()
        };
        comparison.answers()
    };
    let all = [
        difference(ColumnId::ttft, "xy", -0.5, true),
        difference(ColumnId::ttft, "xz", 0.05, false),
        difference(ColumnId::ttft, "yz", 0.05, false),
    ];
    let expected = "best on p99 TTFT: y, shown against x; not shown against z.";
    assert_eq!(of("xyz", &all), [expected]);
    let of_one_run = all.clone().map(|of| Difference { repeats: 1, ..of });
    assert_eq!(of("xyz", &of_one_run), [expected, FEW_REPEATS]);
    // Before who fails more.
    let fails_more = Difference {
        metric: None,
        ..of_one_run[0].clone()
    };
    assert_eq!(of("xyz", &[fails_more])[0], FEW_REPEATS);
    // Two groups with two bests each.
    let latencies = [ColumnId::ttft, ColumnId::total_latency];
    let of_group = |names| {
        latencies.map(|metric| Difference {
            repeats: 1,
            ..difference(metric, names, -0.5, true)
        })
    };
    let answers = of("xy zw", &["xy", "zw"].map(of_group).concat());
    assert_eq!(answers.len(), 5, "{answers:?}");
    assert_eq!(answers[MAX_ANSWERS - 1], FEW_REPEATS);
    // A beaten setting is not the best, however many it beats.
    let all = [
        difference(ColumnId::total_latency, "xy", 0.5, true),
        difference(ColumnId::total_latency, "xz", 0.5, true),
        difference(ColumnId::total_latency, "xw", -0.5, true),
        difference(ColumnId::total_latency, "zw", 0.05, false),
    ];
    let expected = "best on p99 total latency: w, shown against x; not shown against z; not compared with the other 1.";
    assert_eq!(of("xyzw", &all), [expected]);
    // Of several that beat the first and were not compared with each other, the one that does by the most.
    let all = [("ab", -0.4), ("ac", -0.1), ("ad", -0.3)];
    let all = all.map(|(between, by)| difference(ColumnId::ttft, between, by, true));
    let expected = "best on p99 TTFT: b, shown against a; not compared with the other 2.";
    assert_eq!(of("abcd", &all), [expected]);
    let expected = "No setting is shown to be the best by TTFT or total latency (comparisons: 1): run longer, or with more repeats.";
    // By its time per output token none is the best.
    let other = of("xy", &[difference(ColumnId::tpot, "xy", 0.05, true)]);
    assert_eq!(other, [expected]);
    assert_eq!(of("xy", &[]), Vec::<String>::new());
}
