use std::collections::BTreeSet;

use super::*;

const SYNTHETIC: &str = include_str!("../../../../tests/data/datasets/sharegpt.json");

const ANY: SharegptArgs = lengths(None, None);

const fn lengths(output: Option<u64>, context: Option<u64>) -> SharegptArgs {
    SharegptArgs {
        sharegpt_output_len: output,
        sharegpt_context_len: context,
    }
}

fn drawn(text: &str, lengths: &SharegptArgs, count: usize, max_turns: usize) -> Vec<Arc<Entry>> {
    read(text.as_bytes(), lengths, count, max_turns, 1)
        .unwrap()
        .entries
}

fn sample(count: usize, seed: u64) -> Vec<Arc<Entry>> {
    let dataset = read(SYNTHETIC.as_bytes(), &ANY, count, 1, seed);
    dataset.unwrap().entries
}

fn ids(entries: &[Arc<Entry>]) -> Vec<&str> {
    let ids = entries.iter().map(|entry| entry.data_id.as_deref());
    ids.map(Option::unwrap).collect()
}

#[test]
fn first_turns_of_conversations_with_two_turns_are_sent() {
    let entries = sample(10, 1);
    let all: BTreeSet<&str> = ids(&entries).into_iter().collect();
    assert_eq!(all, ["4", "syn_0", "syn_3", "syn_6"].into());
    let is_first = |entry: &&Arc<Entry>| entry.data_id.as_deref() == Some("syn_0");
    let first = entries.iter().find(is_first).unwrap();
    let tokens = "The Nile, the Ob and the Yenisei all flow north.".len() as u64 / 4;
    assert_eq!((first.input, first.output), (Some(7), Some(tokens)));
    let prompt = "synthetic: name three rivers that flow north";
    assert!(matches!(&first.content, Content::Text(text) if text == prompt));
    assert_eq!(first.later, LaterTurns::Given(Vec::new()));
    let fixed = drawn(SYNTHETIC, &lengths(Some(33), None), 10, 1);
    assert!(fixed.iter().all(|entry| entry.output == Some(33)));
    // 38 bytes and 16: 10 + 4 tokens.
    let short = drawn(SYNTHETIC, &lengths(None, Some(16)), 10, 1);
    assert_eq!(ids(&short), ["4"]);
}

#[test]
fn later_turns_are_sent_as_long_as_they_have_a_reply_and_fit() {
    let texts = "first of all|an answer|second|answered too|no|x|third|fine by me";
    let turn = |text| format!(r#"{{"from":"any","value":"{text}"}}"#);
    let turns: Vec<String> = texts.split('|').map(turn).collect();
    let follow_ups = |turns: &[String], max_turns, context_len| {
        let text = format!(r#"[{{"id":"a","conversations":[{}]}}]"#, turns.join(","));
        match &drawn(&text, &lengths(None, context_len), 1, max_turns)[0].later {
            LaterTurns::Given(turns) => turns.clone(),
            other => panic!("{other:?}"),
        }
    };
    let second = [("second".to_owned(), 3)];
    assert_eq!(follow_ups(&turns, 1, None), []);
    assert_eq!(follow_ups(&turns, 9, None), second, "`no` is too short");
    assert_eq!(follow_ups(&turns, 9, Some(11)), second);
    // 3 + 3 and 2 + 3 tokens.
    assert_eq!(follow_ups(&turns, 9, Some(10)), []);
    assert_eq!(follow_ups(&turns[..3], 9, None), [], "it has no answer");
    let whole = [&turns[..4], &turns[6..]].concat();
    assert_eq!(follow_ups(&whole, 9, None).len(), 2);
    let odd = [&turns[..2], &["{\"value\":null}".to_owned()], &turns[2..]].concat();
    assert_eq!(follow_ups(&odd, 9, None), []);
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
