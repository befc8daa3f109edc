use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::clock::Stamp;
use crate::request::{End, Endpoint, Observer, Side};
use crate::traffic::tests::planned;
use dataset::Dataset;
use formats::Limits;
use formats::tests::WHOLE;

/// The plan of these flags, with 20 words or ids and 8 tokens where the data set does not set lengths.
fn load(line: &str) -> RunPlan {
    planned(&format!(
        "--random-input-len 20 --random-output-len 8 {line}"
    ))
}

/// The same with this backend and data set.
fn workload(backend: Backend, dataset: Dataset) -> RunPlan {
    let mut plan = load("");
    plan.args.backend = backend;
    plan.dataset = Arc::new(dataset);
    plan
}

fn body(sent: &Bytes) -> Value {
    serde_json::from_slice(sent).unwrap()
}

fn prompts(text: &str) -> Dataset {
    formats::read_custom(text.as_bytes()).unwrap()
}

#[test]
fn lengths_are_uniform_from_the_ratio_of_the_maximum_to_the_maximum() {
    // The range of bench_serving's compute_random_lens: randint(max(int(len * ratio), 1), len + 1).
    for (max, ratio, ends) in [
        (125, 0.6, (75, 125)),
        (7, 1.0, (7, 7)),
        (7, 0.5, (3, 7)),
        (7, 0.0, (1, 7)),
        (1, 0.9, (1, 1)),
        (0, 1.0, (1, 1)),
        (5, f64::NAN, (1, 5)),
    ] {
        let (low, high) = length_range(max, ratio).into_inner();
        assert_eq!((low, high), ends, "{max} {ratio}");
    }
    // All of them are drawn, and no others.
    let load = planned("--random-input-len 125 --random-range-ratio 0.6");
    let drawn: BTreeSet<u64> = (0..5_000).map(|n| load.lengths(n, 0).input).collect();
    assert!(drawn.into_iter().eq(75..=125));
}

#[test]
fn custom_entries_are_sent_in_order_and_again_unchanged_and_their_words_counted_as_in_rows() {
    // An ideographic space separates no words.
    let (one, two) = ("one two\u{3000}x", "x");
    let entries =
        json!([{"prompt": one, "completion": "a b c", "id": 7}, {"prompt": two, "id": "q"}]);
    let load = workload(Backend::Sglang, prompts(&entries.to_string()));
    for (index, text, words, asked, id) in [
        (0, one, 2, 3, "7"),
        (1, two, 1, 8, "q"),
        (2, one, 2, 3, "7"),
    ] {
        let sent = load.request(index);
        assert_eq!(body(&sent)["text"], text);
        let lengths = load.lengths(index, 0);
        assert_eq!((lengths.input, lengths.output), (words, asked));
        assert_eq!(lengths.data_id.as_deref(), Some(id));
        let mut observer = Observer::new(Side::Traffic, Endpoint::Generate, String::new());
        observer.request_body(&sent);
        let rows = observer.finish(End::Complete, Stamp::from_nanos(0));
        assert_eq!(rows[0].input_length, Some(words));
    }
    let parts = json!([{"type": "text", "text": "who is it"}]);
    let messages =
        json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]);
    let chat = json!([{"messages": messages, "completion": "me"}]).to_string();
    let load = workload(Backend::SglangOaiChat, prompts(&chat));
    let lengths = load.lengths(0, 0);
    assert_eq!((lengths.input, lengths.output), (5, 1));
    assert_eq!(body(&load.request(0))["messages"], messages);
}

#[test]
fn a_byte_order_mark_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    // Files of all formats are opened by one function.
    std::fs::write(&path, "\u{feff}[{\"prompt\":\"a\"}]").unwrap();
    let line = format!("--dataset-name custom --dataset-path {}", path.display());
    assert_eq!(body(&planned(&line).request(0))["text"], "a");
}

/// The words of a request's prompt.
fn prompt(sent: &Bytes) -> Vec<String> {
    let text = body(sent)["text"].as_str().unwrap().to_owned();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn only_prompts_of_a_group_share_a_prefix() {
    let load = planned(
        "--dataset-name generated-shared-prefix --gsp-num-groups 3 --gsp-prompts-per-group 4 --gsp-system-prompt-len 50 \
         --gsp-question-len 10 --gsp-output-len 6 --seed 5",
    );
    assert_eq!(load.dataset.count, Some(12));
    let mut groups = BTreeMap::<String, BTreeSet<Vec<String>>>::new();
    let mut questions = BTreeSet::new();
    // After the last, new questions of the same groups follow.
    for index in 0..24 {
        let lengths = load.lengths(index, 0);
        let words = prompt(&load.request(index));
        assert_eq!((lengths.input, lengths.output, words.len()), (60, 6, 60));
        let prefixes = groups.entry(lengths.data_id.unwrap()).or_default();
        prefixes.insert(words[..50].to_vec());
        questions.insert(words[50..].to_vec());
    }
    assert!(groups.values().all(|prefixes| prefixes.len() == 1));
    let prefixes: BTreeSet<_> = groups.into_values().flatten().collect();
    assert_eq!((prefixes.len(), questions.len()), (3, 24));
    // No warm-up request has a prefix of the run.
    assert!((0..12).all(|index| !prefixes.contains(&prompt(&load.warmup(index))[..50])));
}

#[test]
fn the_same_block_of_a_trace_has_the_same_words_also_if_it_is_cut() {
    let file = include_str!("../../../tests/data/datasets/mooncake.jsonl");
    let read = |text: &str| {
        let speed = Some(2.0);
        let read = formats::read_trace(text.as_bytes(), false, Limits { speed, ..WHOLE });
        workload(Backend::Sglang, read.unwrap())
    };
    let load = read(file);
    let sent = |index| prompt(&load.request(index));
    // By time, and again: blocks 7 8 9, 7 11, none, 7 8 12.
    let all @ [one, two, _, four, again] = &[0, 1, 2, 3, 4].map(sent);
    assert_eq!(all.each_ref().map(Vec::len), [1200, 700, 20, 1300, 1200]);
    let at = load.dataset.times.as_deref().unwrap();
    assert_eq!(at, [0, 0, 1_250, 1_500].map(|ms| ms * 1_000_000));
    assert_eq!(one, again);
    assert_eq!(one[..512], two[..512]);
    assert_eq!(one[..1024], four[..1024]);
    let common = |a: &[String], b: &[String]| a.iter().zip(b).filter(|(a, b)| a == b).count();
    // Two random words are equal with probability 1/700; 20 of 176 are with less than 1e-20.
    assert!(common(&one[512..700], &two[512..700]) < 20);
    assert!(common(&one[1024..], &four[1024..]) < 20);
    let warm = prompt(&load.warmup(0));
    assert!(common(&warm[..512], &one[..512]) < 20);
    // A cut block is the beginning of the whole one.
    let cut = "{\"timestamp\":0,\"input_length\":100,\"output_length\":1,\"hash_ids\":[7]}";
    assert_eq!(prompt(&read(cut).request(0)), one[..100]);
}
