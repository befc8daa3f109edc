use super::super::tests;
use super::*;

fn difference(metric: ColumnId, between: [usize; 2], seconds: f64, shown: bool) -> Difference {
    Difference {
        metric: Some(metric),
        between: (0, between),
        shown,
        repeats: 3,
        ..tests::difference(seconds, seconds - 0.1, seconds + 0.1)
    }
}

#[test]
fn the_best_is_named_with_the_settings_it_beats() {
    let of = |names: &str, all: &[Difference]| {
        let comparison = Comparison {
            differences: all.to_vec(),
            groups: vec![names.chars().map(String::from).collect()],
            ..Comparison::default()
        };
        comparison.answers()
    };
    let all = [
        difference(ColumnId::ttft, [0, 1], -0.5, true),
        difference(ColumnId::ttft, [0, 2], 0.05, false),
        difference(ColumnId::ttft, [1, 2], 0.05, false),
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
    let of_group = |group| {
        latencies.map(|metric| Difference {
            between: (group, [0, 1]),
            repeats: 1,
            ..difference(metric, [0, 1], -0.5, true)
        })
    };
    let comparison = Comparison {
        differences: [0, 1].map(of_group).concat(),
        groups: ["xy", "zw"]
            .map(|names| names.chars().map(String::from).collect())
            .into(),
        ..Comparison::default()
    };
    let answers = comparison.answers();
    assert_eq!(answers.len(), 5, "{answers:?}");
    assert_eq!(answers[MAX_ANSWERS - 1], FEW_REPEATS);
    // A beaten setting is not the best, however many it beats.
    let all = [
        difference(ColumnId::total_latency, [0, 1], 0.5, true),
        difference(ColumnId::total_latency, [0, 2], 0.5, true),
        difference(ColumnId::total_latency, [0, 3], -0.5, true),
        difference(ColumnId::total_latency, [2, 3], 0.05, false),
    ];
    let expected = "best on p99 total latency: w, shown against x; not shown against z; not compared with the other 1.";
    assert_eq!(of("xyzw", &all), [expected]);
    // Of several that beat the first and were not compared with each other, the one that does by the most.
    let all = [(1, -0.4), (2, -0.1), (3, -0.3)];
    let all = all.map(|(at, by)| difference(ColumnId::ttft, [0, at], by, true));
    let expected = "best on p99 TTFT: b, shown against a; not compared with the other 2.";
    assert_eq!(of("abcd", &all), [expected]);
    let expected = "No setting is shown to be the best by TTFT or total latency (comparisons: 1): run longer, or with more repeats.";
    // By its time per output token none is the best.
    let other = of("xy", &[difference(ColumnId::tpot, [0, 1], 0.05, true)]);
    assert_eq!(other, [expected]);
    assert_eq!(of("xy", &[]), Vec::<String>::new());
}
