use std::path::Path;

use super::*;

fn workload(backend: Backend, dataset: Dataset) -> Workload {
    Workload {
        backend,
        dataset,
        input: LengthRange::up_to(20, 0.5).unwrap(),
        output: LengthRange::up_to(8, 1.0).unwrap(),
        seed: 1,
        options: BodyOptions {
            stream: true,
            ignore_eos: true,
            model: None,
            extra: Map::new(),
        },
    }
}

fn body(sent: &Bytes) -> Value {
    serde_json::from_slice(sent).unwrap()
}

const IDS: Dataset = Dataset::RandomIds { vocab_size: 32_000 };

#[test]
fn lengths_are_uniform_from_the_ratio_of_the_most_to_the_most() {
    // What bench_serving's compute_random_lens draws from: randint(max(int(len * ratio), 1), len + 1).
    for (most, ratio, ends) in [
        (125, 0.6, (75, 125)),
        (7, 1.0, (7, 7)),
        (7, 0.5, (3, 7)),
        (7, 0.0, (1, 7)),
        (1, 0.9, (1, 1)),
    ] {
        let range = LengthRange::up_to(most, ratio).unwrap();
        assert_eq!((range.low, range.high), ends, "{most} {ratio}");
    }
    assert_eq!(LengthRange::up_to(0, 1.0), None);
    assert_eq!(LengthRange::up_to(5, 1.1), None);
    assert_eq!(LengthRange::up_to(5, -0.1), None);
    assert_eq!(LengthRange::up_to(5, f64::NAN), None);
    let range = LengthRange::up_to(125, 0.6).unwrap();

    // χ² of 51 equal cells over 51 000 draws: 50 degrees of freedom exceed 116 with probability 3e-7.
    let mut load = workload(Backend::Sglang, IDS);
    load.input = range;
    let mut cells = [0_f64; 51];
    for index in 0..51_000 {
        let mut rng = ChaCha8Rng::seed_from_u64(load.seed);
        rng.set_stream(index + 1);
        cells[(load.input.draw(&mut rng) - 75) as usize] += 1.0;
    }
    let chi: f64 = cells.iter().map(|n| (n - 1000.0).powi(2) / 1000.0).sum();
    assert!(chi < 116.0, "{chi}");
}

#[test]
fn random_ids_have_exact_counts_in_the_vocabulary() {
    let load = workload(Backend::Sglang, IDS);
    for index in 0..50 {
        let draft = load.request(index);
        let body = body(&draft);
        let ids = body["input_ids"].as_array().unwrap();
        assert_eq!(ids.len() as u64, load.lengths(index).input);
        let inside = |id: &Value| (1000..32_000).contains(&id.as_u64().unwrap());
        assert!(ids.iter().all(inside));
        assert_eq!(body["sampling_params"]["max_new_tokens"], 8);
        assert_eq!(body["sampling_params"]["ignore_eos"], true);
        assert_eq!(body["sampling_params"]["temperature"], 0.0);
        assert_eq!(body["stream"], true);
        assert!(body.get("model").is_none());
    }
}

#[test]
fn random_words_are_counted_as_the_record_counts_them() {
    let load = workload(Backend::SglangOai, Dataset::Random);
    let body = body(&load.request(3));
    let prompt = body["prompt"].as_str().unwrap();
    let words = prompt.split_whitespace().count() as u64;
    assert_eq!(words, load.lengths(3).input);
    assert_eq!(body["max_tokens"], 8);
    assert_eq!(body["stream_options"]["include_usage"], true);
    let chat = workload(Backend::SglangOaiChat, Dataset::Random).request(3);
    let chat = self::body(&chat);
    assert_eq!(chat["messages"][0]["role"], "user");
    assert_eq!(chat["messages"][0]["content"], prompt);
}

#[test]
fn a_request_depends_on_seed_and_index_only() {
    let load = workload(Backend::Sglang, Dataset::Random);
    assert_eq!(load.request(5), load.request(5));
    assert_ne!(load.request(5), load.request(6));
    assert_ne!(load.request(0), load.warmup(0));
    let mut other = load.clone();
    other.seed = 2;
    assert_ne!(load.request(5), other.request(5));
}

#[test]
fn a_request_without_a_stream_asks_for_no_stream_options() {
    let mut load = workload(Backend::SglangOai, Dataset::Random);
    load.options.stream = false;
    load.options.ignore_eos = false;
    load.options.model = Some("m".to_owned());
    let body = body(&load.request(0));
    assert_eq!(body["stream"], false);
    assert!(body.get("stream_options").is_none());
    assert_eq!(body["ignore_eos"], false);
    assert_eq!(body["model"], "m");
}

#[test]
fn extra_fields_go_over_ours_and_into_our_objects() {
    let mut load = workload(Backend::Sglang, Dataset::Random);
    let extra = json!({"sampling_params": {"top_p": 0.9, "temperature": 1.0}, "lora_path": "x"});
    load.options.extra = extra.as_object().unwrap().clone();
    let body = body(&load.request(0));
    assert_eq!(body["sampling_params"]["top_p"], 0.9);
    assert_eq!(body["sampling_params"]["temperature"], 1.0);
    assert_eq!(body["sampling_params"]["max_new_tokens"], 8);
    assert_eq!(body["lora_path"], "x");
}

#[test]
fn what_a_backend_cannot_send_is_refused_with_the_one_that_can() {
    let ids = workload(Backend::SglangOaiChat, IDS).check().unwrap_err();
    assert!(
        ids.to_string().contains("--backend sglang or sglang-oai"),
        "{ids}"
    );
    let chat = custom::parse(r#"{"messages":[{"role":"user","content":"a b"}]}"#, "f").unwrap();
    let dataset = Dataset::Custom(chat);
    let wrong = workload(Backend::Sglang, dataset.clone())
        .check()
        .unwrap_err();
    assert!(
        wrong.to_string().contains("--backend sglang-oai-chat"),
        "{wrong}"
    );
    workload(Backend::SglangOaiChat, dataset).check().unwrap();
    workload(Backend::SglangOai, IDS).check().unwrap();
}

#[test]
fn custom_entries_come_in_order_and_again() {
    let text = "{\"prompt\":\"one two\",\"completion\":\"a b c\",\"id\":7}\n\n{\"prompt\":\"x\",\"id\":\"q\"}\n";
    let entries = custom::parse(text, "f").unwrap();
    let load = workload(Backend::Sglang, Dataset::Custom(entries));
    assert_eq!(body(&load.request(0))["text"], "one two");
    let first = load.lengths(0);
    assert_eq!((first.input, first.output), (2, 3));
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
    let entries = custom::parse(text, "f").unwrap();
    assert_eq!(
        (entries[0].input_words, entries[0].output_words),
        (5, Some(1))
    );
    let load = workload(Backend::SglangOaiChat, Dataset::Custom(entries));
    let sent = body(&load.request(0));
    assert_eq!(sent["messages"][1]["content"][0]["text"], "who is it");
}

#[test]
fn a_wrong_entry_is_named_by_file_line_and_field() {
    let message = |text: &str| custom::parse(text, "d.jsonl").unwrap_err().to_string();
    let good = r#"{"prompt":"a"}"#;
    assert_eq!(
        message(&format!("{good}\n\n{{\"prompt\":3}}")),
        "--dataset-path d.jsonl, line 3: `prompt` must be a string, not a number"
    );
    assert_eq!(
        message(&format!(
            "[\n{good},\n{good},\n{{\"prompt\":\n\"a\",\"completion\":[]}}\n]"
        )),
        "--dataset-path d.jsonl, line 4: entry 3: `completion` must be a string, not an array"
    );
    for (text, part) in [
        ("{\"prompt\":\"a\"\n", "line 1: is not JSON"),
        ("[{\"prompt\":\"a\"}\n,]", "line 2: is not JSON"),
        (
            "[{\"prompt\":\"a\"}\n{}]",
            "line 2: is not JSON: expected `,` or `]`",
        ),
        ("[{\"prompt\":\"a\"},\n", "line 2: "),
        ("[", "line 1: "),
        ("[{\"prompt\":\"a\"}]]", "trailing characters"),
        ("[] []", "trailing characters"),
        (
            "[{\"prompt\":\"a\"}] x",
            "line 1: is not JSON: trailing characters",
        ),
        ("3", "must be an object, not a number"),
        ("{}", "neither `prompt` nor `messages`"),
        ("{\"prompt\":\" \"}", "`prompt` must not be empty"),
        ("{\"prompt\":\"a\",\"messages\":[]}", "has both"),
        (
            "{\"prompt\":\"a\",\"id\":[]}",
            "`id` must be a string or number",
        ),
        ("{\"messages\":[]}", "`messages` must not be empty"),
        ("{\"messages\":{}}", "`messages` must be an array"),
        ("{\"messages\":[{\"content\":\"a\"}]}", "`messages[0].role`"),
        (
            "{\"messages\":[{\"role\":\"user\",\"content\":1}]}",
            "`messages[0].content`",
        ),
        ("", "holds no entries"),
        ("[]", "holds no entries"),
    ] {
        assert!(message(text).contains(part), "{text}: {}", message(text));
    }
    let missing = custom::load(Path::new("/nowhere/d.jsonl"))
        .unwrap_err()
        .to_string();
    assert!(
        missing.starts_with("--dataset-path /nowhere/d.jsonl: "),
        "{missing}"
    );
}

#[test]
fn the_bodies_of_probes_have_the_names_of_their_apis() {
    let body = |backend| -> Value {
        serde_json::from_slice(&workload(backend, Dataset::Random).request(3)).unwrap()
    };
    let responses = body(Backend::Responses);
    assert!(responses["input"].is_string() && responses["max_output_tokens"].is_u64());
    let messages = body(Backend::Messages);
    assert!(messages["messages"][0]["content"].is_string() && messages["max_tokens"].is_u64());
}
