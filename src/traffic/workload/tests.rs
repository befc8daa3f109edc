use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::timeline::Side;
use crate::traffic::tests::planned;
use custom::Custom;
use dataset::Dataset;
use trace::{Limits, Trace};

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
    records::read(text.as_bytes(), Custom::default()).unwrap()
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
        let (low, high) = words::length_range(max, ratio).into_inner();
        assert_eq!((low, high), ends, "{max} {ratio}");
    }
    // All of them are drawn, and no others.
    let load = planned("--random-input-len 125 --random-range-ratio 0.6");
    let drawn: BTreeSet<u64> = (0..5_000).map(|n| load.lengths(n).input).collect();
    assert!(drawn.into_iter().eq(75..=125));
}

#[test]
fn a_body_has_the_fields_of_its_api() {
    let ids = body(&load("--dataset-name random-ids").request(0));
    let sampling = json!({"max_new_tokens": 8, "ignore_eos": true, "temperature": 0.0});
    assert_eq!(ids["sampling_params"], sampling);
    assert_eq!((&ids["stream"], ids.get("model")), (&json!(true), None));
    let ids: Vec<u64> = serde_json::from_value(ids["input_ids"].clone()).unwrap();
    let are_inside = ids.iter().all(|id| (1000..32_000).contains(id));
    assert!(ids.len() == 20 && are_inside, "{ids:?}");
    let streamed = body(&load("--backend sglang-oai").request(3));
    let prompt = streamed["prompt"].as_str().unwrap();
    assert_eq!(prompt.split_whitespace().count(), 20);
    assert_eq!(streamed["max_tokens"], 8);
    assert_eq!(streamed["stream_options"]["include_usage"], true);
    let chat = body(&load("--backend sglang-oai-chat").request(3));
    let messages = json!([{"role": "user", "content": prompt}]);
    assert_eq!(chat["messages"], messages);
    // Nothing of SGLang's own.
    let other = body(&load("--backend openai-chat").request(3));
    let keys = other.as_object().unwrap().keys().map(String::as_str);
    let expected = "max_tokens messages stream stream_options temperature";
    assert_eq!(Vec::from_iter(keys).join(" "), expected);

    let whole = "--backend sglang-oai --disable-stream --disable-ignore-eos --model m";
    let whole = body(&load(whole).request(0));
    assert!(whole.get("stream_options").is_none());
    let fields = ["stream", "ignore_eos", "model"].map(|key| &whole[key]);
    assert_eq!(fields, [&json!(false), &json!(false), &json!("m")]);
}

#[test]
fn extra_fields_are_merged_into_the_body() {
    let extra = r#"{"sampling_params":{"top_p":0.9,"temperature":1.0,"ignore_eos":null},"lora_path":"x","stream":null,"never":null}"#;
    let body = body(&load(&format!("--extra-request-body {extra}")).request(0));
    let sampling = json!({"top_p": 0.9, "temperature": 1.0, "max_new_tokens": 8});
    assert_eq!(body["sampling_params"], sampling);
    assert_eq!(body["lora_path"], "x");
    // Null removes a field.
    assert_eq!((body.get("stream"), body.get("never")), (None, None));
}

#[test]
fn content_that_a_backend_cannot_send_is_refused_with_a_backend_that_can() {
    let chat = prompts(r#"{"messages":[{"role":"user","content":"a b"}]}"#);
    let ids = Dataset::endless(Content::Ids(9));
    let check = |backend, dataset: &Dataset| {
        let checked = workload(backend, dataset.clone()).check();
        checked.map_or_else(|error| error.to_string(), |()| "fine".to_owned())
    };
    for (result, expected) in [
        (
            check(Backend::SglangOaiChat, &ids),
            "--backend sglang or sglang-oai",
        ),
        (check(Backend::SglangOai, &ids), "fine"),
        (check(Backend::Sglang, &chat), "--backend sglang-oai-chat"),
        (check(Backend::SglangOaiChat, &chat), "fine"),
    ] {
        assert!(result.contains(expected), "{result}");
    }
}

#[test]
fn custom_entries_are_sent_in_order_and_again() {
    // An ideographic space is white space too.
    let text = "{\"prompt\":\"one two\u{3000}x\",\"completion\":\"a b c\",\"id\":7}\n\n{\"prompt\":\"x\",\"id\":\"q\"}\n";
    let load = workload(Backend::Sglang, prompts(text));
    for (index, text, input, output, id) in [
        (0, "one two\u{3000}x", 3, 3, "7"),
        (1, "x", 1, 8, "q"),
        (2, "one two\u{3000}x", 3, 3, "7"),
    ] {
        assert_eq!(body(&load.request(index))["text"], text);
        let lengths = load.lengths(index);
        assert_eq!((lengths.input, lengths.output), (input, output));
        assert_eq!(lengths.data_id.as_deref(), Some(id));
    }
    // The row counts the same number of words.
    let mut observer = Observer::new(Side::Traffic, Endpoint::Generate, String::new());
    observer.request_body(&load.request(0));
    let rows = observer.finish(End::Complete, Stamp::from_nanos(0));
    assert_eq!(rows[0].input_length, Some(3));
}

#[test]
fn an_array_is_a_data_set_too_and_messages_are_sent_unchanged() {
    let messages = r#"[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"who is it"}]}]"#;
    let text = format!(r#"[ {{"messages": {messages}, "completion": "me"}} ]"#);
    let load = workload(Backend::SglangOaiChat, prompts(&text));
    let lengths = load.lengths(0);
    assert_eq!((lengths.input, lengths.output), (5, 1));
    let messages: Value = serde_json::from_str(messages).unwrap();
    assert_eq!(body(&load.request(0))["messages"], messages);
}

/// Files, each with a part of the error; NL is a line break.
const WRONG: &str = r#"
{"prompt":"a"}NLNL{"prompt":3} | , line 3: `prompt`: invalid type: integer `3`, expected a string; must be a JSON array or JSON lines of
[NL{"prompt":"a"},NL{"prompt":"a"},NL{"prompt":NL"a","completion":[]}NL] | , line 4: `completion`: invalid type: sequence, expected a string
{"prompt":"a"NL | , line 1: is not JSON: EOF
[{"prompt":"a"},NL3] | , line 2: is not JSON: must be an object
[{"prompt":"a"},NL | , line 2: is not JSON: the list does not end
[ | , line 1: is not JSON
[{"prompt":"a"}]] | , line 1: is not JSON: must be an object
[{"prompt":"a"}NL{"prompt":"b"}] | , line 2: is not JSON: expected `,` or `]`
[{"prompt":"a"}NL,,{"prompt":"a"}] | , line 2: is not JSON: must be an object
{"prompt":"a","id":[]} | , line 1: `id` must be a string or number
{"prompt":"a"}NLx | , line 2: is not JSON: must be an object
3 | , line 1: is not JSON: must be an object
{} | neither `prompt` nor `messages`
{"prompt":" "} | `prompt` must not be empty
{"prompt":"a","messages":[{"role":"user"}]} | has both
{"messages":[]} | neither `prompt` nor
{"messages":{}} | `messages`: invalid type: map, expected a sequence
{"messages":[{"content":"a"}]} | `messages[0]`: `role` must be a string
{"messages":[{"role":"user","content":1}]} | `messages[0]`: `content` must be a string or an array of parts
 | : holds no entries; must be a JSON array
[] | : holds no entries"#;

#[test]
fn an_error_names_file_line_and_field() {
    for line in WRONG.lines().skip(1) {
        let (text, part) = line.split_once(" | ").unwrap();
        let text = text.replace("NL", "\n");
        let error = records::read(text.as_bytes(), Custom::default()).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
    let root = tempfile::tempdir().unwrap();
    let wrong = root.path().join("d.jsonl");
    std::fs::write(&wrong, "{\"prompt\":\"a\"}\n{}").unwrap();
    for (path, problem) in [
        (wrong, ", line 2: has neither"),
        (root.path().join("none"), ": No such"),
    ] {
        let error = source::read(&path, Custom::default()).unwrap_err();
        let start = format!("--dataset-path {}{problem}", path.display());
        let is_named = error.is_usage() && error.to_string().starts_with(&start);
        assert!(is_named, "{error}");
    }
}

#[test]
fn a_byte_order_mark_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    for (name, file) in [
        ("custom", "custom.jsonl"),
        ("sharegpt", "sharegpt.json"),
        ("mooncake", "mooncake.jsonl"),
        ("azure", "azure-2023.csv"),
    ] {
        let text = std::fs::read_to_string(format!("tests/data/datasets/{file}")).unwrap();
        let line = format!("--dataset-name {name} --dataset-path {}", path.display());
        let sent = ["", "\u{feff}"].map(|mark| {
            std::fs::write(&path, format!("{mark}{text}")).unwrap();
            planned(&line).request(0)
        });
        assert_eq!(sent[0], sent[1], "{name}");
    }
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
        let lengths = load.lengths(index);
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
    let trace = |text: &str| {
        let trace = Trace::new(false, Limits::default());
        let read = records::read(text.as_bytes(), trace);
        workload(Backend::Sglang, read.unwrap())
    };
    let load = trace(file);
    let sent = |index| prompt(&load.request(index));
    // By time: blocks 7 8 9, 7 11, none, 7 8 12.
    let all @ [one, two, _, four] = &[0, 1, 2, 3].map(sent);
    assert_eq!(all.each_ref().map(Vec::len), [1200, 700, 20, 1300]);
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
    assert_eq!(prompt(&trace(cut).request(0)), one[..100]);
}
