use super::*;

const SYNTHETIC: &str = include_str!("../../../../tests/data/datasets/sharegpt.json");

fn sample(count: usize, seed: u64) -> Vec<Arc<Entry>> {
    let any = SharegptArgs {
        sharegpt_output_len: None,
        sharegpt_context_len: None,
    };
    let dataset = read_sharegpt(SYNTHETIC.as_bytes(), &any, count, 1, seed);
    dataset.unwrap().entries
}

fn ids(entries: &[Arc<Entry>]) -> Vec<&str> {
    let ids = entries.iter().map(|entry| entry.data_id.as_deref());
    ids.map(Option::unwrap).collect()
}

#[test]
fn a_larger_sample_of_the_same_seed_begins_with_a_smaller_one() {
    let all = sample(10, 3);
    for count in 1..=4 {
        let fewer = sample(count, 3);
        assert_eq!(ids(&fewer), ids(&all)[..count]);
    }
}

#[test]
fn every_conversation_is_equally_likely() {
    // The first of the sample is each of four with probability 1/4: χ² of 3 degrees of freedom exceeds 31 with 8e-7.
    let mut firsts = std::collections::BTreeMap::new();
    for seed in 0..2000 {
        let first = ids(&sample(1, seed))[0].to_owned();
        *firsts.entry(first).or_insert(0.0) += 1.0;
    }
    let off = firsts.values().map(|n: &f64| (n - 500.0).powi(2));
    let chi = off.sum::<f64>() / 500.0;
    assert!(firsts.len() == 4 && chi < 31.0, "{firsts:?}");
}

/// All of a trace, at its own speed.
pub(in crate::traffic::workload) const WHOLE: Limits = Limits {
    count: usize::MAX,
    end: i64::MAX,
    kept: MAX_KEPT,
    speed: Some(1.0),
};

const MOONCAKE_LINES: &str = include_str!("../../../../tests/data/datasets/mooncake.jsonl");
#[test]
fn a_trace_that_does_not_fit_into_memory_is_refused() {
    let read = |kept| {
        let limits = Limits { kept, ..WHOLE };
        read_trace(MOONCAKE_LINES.as_bytes(), false, limits)
    };
    assert_eq!(read(4).unwrap().entries.len(), 4);
    let error = read(2).unwrap_err();
    let part = ", line 3: holds more than 2 requests: say how many with --num-prompts";
    assert!(error.starts_with(part), "{error}");
}
