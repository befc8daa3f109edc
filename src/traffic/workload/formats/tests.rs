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
    read_sharegpt(text.as_bytes(), lengths, count, max_turns, 1)
        .unwrap()
        .entries
}

fn sample(count: usize, seed: u64) -> Vec<Arc<Entry>> {
    let dataset = read_sharegpt(SYNTHETIC.as_bytes(), &ANY, count, 1, seed);
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

/// All of a trace, at its own speed.
pub(in crate::traffic::workload) const WHOLE: Limits = Limits {
    count: usize::MAX,
    end: i64::MAX,
    kept: MAX_KEPT,
    speed: Some(1.0),
};

const MOONCAKE_LINES: &str = include_str!("../../../../tests/data/datasets/mooncake.jsonl");
const AZURE_2023: &str = include_str!("../../../../tests/data/datasets/azure-2023.csv");
const AZURE_2024: &str = include_str!("../../../../tests/data/datasets/azure-2024.csv");
const BURST: &str = include_str!("../../../../tests/data/datasets/burstgpt.csv");
const SESSIONS: &str = include_str!("../../../../tests/data/datasets/burstgpt-sessions.csv");

const MS: i64 = 1_000_000;

/// A trace of CSV at its own speed: the first `count` requests, or those before `end` nanoseconds.
fn read(text: &str, count: Option<usize>, end: Option<i64>) -> Dataset {
    let limits = Limits {
        count: count.unwrap_or(usize::MAX),
        end: end.unwrap_or(i64::MAX),
        ..WHOLE
    };
    read_trace(text.as_bytes(), true, limits).unwrap()
}

/// Seconds, and lengths of prompt and response, of each request.
fn rows(trace: &Dataset) -> Vec<(f64, (u64, u64))> {
    let times = trace.times.iter().flat_map(|times| times.iter());
    let seconds = times.map(|at| *at as f64 / 1e9);
    let lengths = |one: &Arc<Entry>| (one.input.unwrap(), one.output.unwrap());
    let lengths = trace.entries.iter().map(lengths);
    seconds.zip(lengths).collect()
}

#[test]
fn each_format_gives_times_from_the_first_request_and_lengths() {
    for (text, seconds) in [
        (AZURE_2023, &[0.0, 1.5, 4.0000007][..]),
        (AZURE_2024, &[0.0, 0.25, 0.99007]),
        (BURST, &[0.0, 40.0, 113.0]),
        (SESSIONS, &[0.0, 40.25]),
    ] {
        let lengths = [(30, 4), (12, 9), (51, 1)];
        let sent = seconds.iter().copied().zip(lengths);
        assert_eq!(rows(&read(text, None, None)), Vec::from_iter(sent));
    }
}

#[test]
fn no_more_is_read_than_is_sent() {
    // The last line is invalid, and must not be read.
    let broken = AZURE_2023.to_owned() + "2023-11-17 00:02:00,1,1\nx,y,z\n";
    let azure = read(&broken, Some(2), None);
    assert_eq!(azure.entries.len(), 2);
    let azure = read(&broken, None, Some(1500 * MS));
    assert_eq!(rows(&azure), [(0.0, (30, 4))]);
    let azure = read(&broken, None, Some(1501 * MS));
    assert_eq!(azure.entries.len(), 2);
}

#[test]
fn a_duration_counts_from_the_first_request_that_is_sent() {
    let disorder = [(20, 5), (45, 5), (0, 5), (29, 5), (30, 5), (95, 5)];
    for (seconds, lines, times) in [
        // The first line has no response.
        (60, &[(0, 0), (100, 5), (101, 5)][..], &[0, 1][..]),
        (50, &[(0, 0), (30, 5), (61, 5)], &[0, 31]),
        // The first line is not the earliest: requests that its time let pass are left out again.
        (30, &disorder, &[0, 20, 29]),
    ] {
        let mut text = "Timestamp,Request tokens,Response tokens\n".to_owned();
        for (at, output) in lines {
            text += &format!("{at},9,{output}\n");
        }
        let trace = read(&text, None, Some(seconds * NANOS));
        let sent: Vec<i64> = rows(&trace).iter().map(|row| row.0 as i64).collect();
        assert_eq!(&sent[..], times);
    }
}

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
