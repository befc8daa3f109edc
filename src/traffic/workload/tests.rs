use std::collections::BTreeSet;

use super::*;
use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::timeline::Side;
use crate::traffic::tests::planned;
use custom::Custom;
use dataset::Dataset;
use trace::{Limits, Trace};

/// Requests of 20 words or ids and 8 tokens, where the data set does not say, with these flags.
fn load(line: &str) -> RunPlan {
    planned(&format!(
        "--random-input-len 20 --random-output-len 8 {line}"
    ))
}

/// The same of a file's requests.
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
    records::read(text.as_bytes(), Custom::default()).unwrap().0
}

#[test]
fn lengths_are_uniform_from_the_ratio_of_the_most_to_the_most() {
    // What bench_serving's compute_random_lens draws from: randint(max(int(len * ratio), 1), len + 1).
    for (most, ratio, ends) in [
        (125, 0.6, (75, 125)),
        (7, 1.0, (7, 7)),
        (7, 0.5, (3, 7)),
        (7, 0.0, (1, 7)),
        (1, 0.9, (1, 1)),
        (0, 1.0, (1, 1)),
        (5, f64::NAN, (1, 5)),
    ] {
        let (low, high) = words::up_to(most, ratio).into_inner();
        assert_eq!((low, high), ends, "{most} {ratio}");
    }
    // All of them are drawn, and none beyond.
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let range = words::up_to(125, 0.6);
    let draw = |_| rng.random_range(range.clone());
    let drawn: BTreeSet<u64> = (0..5_000).map(draw).collect();
    assert!(drawn.into_iter().eq(75..=125));
}

#[test]
fn a_body_has_what_its_api_asks_for() {
    let load = self::load("--dataset-name random-ids");
    for index in 0..50 {
        let body = body(&load.request(index));
        let ids = body["input_ids"].as_array().unwrap();
        assert_eq!(ids.len() as u64, load.lengths(index).input);
        let inside = |id: &Value| (1000..32_000).contains(&id.as_u64().unwrap());
        assert!(ids.iter().all(inside));
        let sampling = json!({"max_new_tokens": 8, "ignore_eos": true, "temperature": 0.0});
        assert_eq!(body["sampling_params"], sampling);
        assert_eq!((&body["stream"], body.get("model")), (&json!(true), None));
    }
    let load = self::load("--backend sglang-oai");
    let streamed = body(&load.request(3));
    let prompt = streamed["prompt"].as_str().unwrap();
    // As the record counts them.
    let words = prompt.split_whitespace().count() as u64;
    assert_eq!(words, load.lengths(3).input);
    assert_eq!(streamed["max_tokens"], 8);
    assert_eq!(streamed["stream_options"]["include_usage"], true);
    let chat = body(&self::load("--backend sglang-oai-chat").request(3));
    assert_eq!(
        chat["messages"],
        json!([{"role": "user", "content": prompt}])
    );
    // Nothing of SGLang's own.
    let other = body(&self::load("--backend openai-chat").request(3));
    let known = [
        "max_tokens",
        "messages",
        "stream",
        "stream_options",
        "temperature",
    ];
    assert!(other.as_object().unwrap().keys().eq(known), "{other}");

    let whole = "--backend sglang-oai --disable-stream --disable-ignore-eos --model m";
    let whole = body(&self::load(whole).request(0));
    assert!(whole.get("stream_options").is_none());
    let said = ["stream", "ignore_eos", "model"].map(|key| &whole[key]);
    assert_eq!(said, [&json!(false), &json!(false), &json!("m")]);
}

#[test]
fn extra_fields_go_over_ours_and_into_our_objects() {
    let extra = r#"{"sampling_params":{"top_p":0.9,"temperature":1.0,"ignore_eos":null},"lora_path":"x","stream":null,"never":null}"#;
    let body = body(&load(&format!("--extra-request-body {extra}")).request(0));
    let sampling = json!({"top_p": 0.9, "temperature": 1.0, "max_new_tokens": 8});
    assert_eq!(body["sampling_params"], sampling);
    assert_eq!(body["lora_path"], "x");
    // Null takes one out.
    assert_eq!((body.get("stream"), body.get("never")), (None, None));
}

#[test]
fn what_a_backend_cannot_send_is_refused_with_the_one_that_can() {
    let chat = prompts(r#"{"messages":[{"role":"user","content":"a b"}]}"#);
    let ids = Dataset::endless(Content::Ids(9));
    for (backend, dataset, right) in [
        (
            Backend::SglangOaiChat,
            &ids,
            "--backend sglang or sglang-oai",
        ),
        (Backend::SglangOai, &ids, ""),
        (Backend::Sglang, &chat, "--backend sglang-oai-chat"),
        (Backend::SglangOaiChat, &chat, ""),
    ] {
        let checked = workload(backend, dataset.clone()).check();
        let told = checked.map_or_else(|wrong| wrong.to_string(), |()| String::new());
        assert!(
            told.contains(right) && told.is_empty() == right.is_empty(),
            "{told}"
        );
    }
}

#[test]
fn custom_entries_come_in_order_and_again() {
    // An ideographic space is white space, too.
    let text = "{\"prompt\":\"one two\u{3000}x\",\"completion\":\"a b c\",\"id\":7}\n\n{\"prompt\":\"x\",\"id\":\"q\"}\n";
    let entries = prompts(text);
    let load = workload(Backend::Sglang, entries);
    assert_eq!(body(&load.request(0))["text"], "one two\u{3000}x");
    let first = load.lengths(0);
    assert_eq!((first.input, first.output), (3, 3));
    let mut seen = Observer::new(Side::Traffic, Endpoint::Generate, String::new());
    seen.request_body(&load.request(0));
    let rows = seen.finish(End::Complete, Stamp::from_nanos(0));
    assert_eq!(rows[0].input_length, Some(first.input));
    assert_eq!(first.data_id.as_deref(), Some("7"));
    let second = load.lengths(1);
    assert_eq!((second.input, second.output), (1, 8));
    assert_eq!(second.data_id.as_deref(), Some("q"));
    assert_eq!(load.request(2), load.request(0));
}

#[test]
fn an_array_is_a_data_set_too_and_messages_are_sent_as_they_stand() {
    let text = r#"[ {"messages": [{"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "who is it"}]}], "completion": "me"} ]"#;
    let load = workload(Backend::SglangOaiChat, prompts(text));
    let lengths = load.lengths(0);
    assert_eq!((lengths.input, lengths.output), (5, 1));
    let sent = body(&load.request(0));
    assert_eq!(sent["messages"][1]["content"][0]["text"], "who is it");
}

/// Files, and what is said of them; NL ends a line.
const WRONG: &str = r#"
{"prompt":"a"}NLNL{"prompt":3} | , line 3: `prompt`: invalid type: integer `3`, expected a string; must be a JSON array or JSON lines of
[NL{"prompt":"a"},NL{"prompt":"a"},NL{"prompt":NL"a","completion":[]}NL] | , line 4: `completion`: invalid type: sequence, expected a string
{"prompt":"a"NL | , line 1: is not JSON: EOF
[{"prompt":"a"},NL3] | , line 2: is not JSON: must be an object
[{"prompt":"a"},NL | , line 2: is not JSON: the list does not end
[ | , line 1: is not JSON
[{"prompt":"a"}]] | , line 1: is not JSON: must be an object
[{"prompt":"a"}NL{"prompt":"b"}] | , line 2: is not JSON: expected `,` or `]`
[{"prompt":"a"},NL] | , line 2: is not JSON: must be an object
[{"prompt":"a"}NL,,{"prompt":"a"}] | , line 2: is not JSON: must be an object
[,{"prompt":"a"}] | , line 1: is not JSON: must be an object
{"prompt":"a","id":[]} | , line 1: `id` must be a string or number
[{"prompt":"a"}]NLx | , line 2: is not JSON: must be an object
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
fn a_wrong_entry_is_named_by_file_line_and_field() {
    for line in WRONG.lines().skip(1) {
        let (text, said) = line.split_once(" | ").unwrap();
        let text = text.replace("NL", "\n");
        let told = records::read(text.as_bytes(), Custom::default()).unwrap_err();
        assert!(told.contains(said), "{text}: {told}");
    }
    let root = tempfile::tempdir().unwrap();
    let wrong = root.path().join("d.jsonl");
    std::fs::write(&wrong, "{\"prompt\":\"a\"}\n{}").unwrap();
    for (path, said) in [
        (wrong, ", line 2: has neither"),
        (root.path().join("none"), ": No such"),
    ] {
        let told = source::read(&path, Custom::default()).unwrap_err();
        let named = format!("--dataset-path {}{said}", path.display());
        assert!(
            told.is_usage() && told.to_string().starts_with(&named),
            "{told}"
        );
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_data_set() {
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
fn prompts_of_a_group_begin_alike_and_others_do_not() {
    let load = planned(
        "--dataset-name generated-shared-prefix --gsp-num-groups 3 --gsp-prompts-per-group 4 --gsp-system-prompt-len 50 \
         --gsp-question-len 10 --gsp-output-len 6 --seed 5",
    );
    assert_eq!(load.dataset.count, Some(12));
    let mut groups = std::collections::BTreeMap::<String, Vec<Vec<String>>>::new();
    for index in 0..12 {
        let lengths = load.lengths(index);
        assert_eq!((lengths.input, lengths.output), (60, 6));
        let words = prompt(&load.request(index));
        assert_eq!(words.len(), 60);
        groups
            .entry(lengths.data_id.unwrap())
            .or_default()
            .push(words);
    }
    assert_eq!(groups.len(), 3);
    let mut prefixes = BTreeSet::new();
    let mut questions = BTreeSet::new();
    for prompts in groups.values() {
        assert_eq!(prompts.len(), 4);
        let (prefix, _) = prompts[0].split_at(50);
        assert!(prompts.iter().all(|words| words.starts_with(prefix)));
        prefixes.insert(prefix.to_owned());
        questions.extend(prompts.iter().map(|words| words[50..].to_owned()));
    }
    assert_eq!((prefixes.len(), questions.len()), (3, 12));
    // After the last come new questions of the same groups.
    let (first, again) = (prompt(&load.request(0)), prompt(&load.request(12)));
    assert_eq!(first[..50], again[..50]);
    assert_ne!(first, again);
    // No warm-up puts a prefix of the run into the cache.
    assert!((0..12).all(|index| !prefixes.contains(&prompt(&load.warmup(index))[..50])));
}

#[test]
fn the_same_block_of_a_trace_has_the_same_words_where_it_is_cut_too() {
    let file = include_str!("../../../tests/data/datasets/mooncake.jsonl");
    let trace = |text: &str| {
        let trace = Trace::new(false, Limits::default());
        let read = records::read(text.as_bytes(), trace);
        workload(Backend::Sglang, read.unwrap().0)
    };
    let load = trace(file);
    let sent = |index| prompt(&load.request(index));
    // By time: blocks 7 8 9, 7 11, none, 7 8 12.
    let (one, two, three, four) = (sent(0), sent(1), sent(2), sent(3));
    assert_eq!(
        [one.len(), two.len(), three.len(), four.len()],
        [1200, 700, 20, 1300]
    );
    assert_eq!(one[..512], two[..512]);
    assert_eq!(one[..1024], four[..1024]);
    let common = |a: &[String], b: &[String]| a.iter().zip(b).filter(|(a, b)| a == b).count();
    // Two random words are the same with probability 1/700: 20 of 176 are with less than 1e-20.
    assert!(common(&one[512..700], &two[512..700]) < 20);
    assert!(common(&one[1024..], &four[1024..]) < 20);
    assert_eq!(load.lengths(3).output, 60);
    assert_eq!(
        load.request(4).len(),
        load.request(0).len(),
        "again from the start"
    );
    let warm = prompt(&load.warmup(0));
    assert!(common(&warm[..512], &one[..512]) < 20);
    // A cut block is the beginning of the whole one.
    let cut = "{\"timestamp\":0,\"input_length\":100,\"output_length\":1,\"hash_ids\":[7]}";
    assert_eq!(prompt(&trace(cut).request(0)), one[..100]);
}
