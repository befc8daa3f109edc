//! Data sets and traces as a user asks for them: what is sent, when, and what the files of the run say. Of conversations each turn is sent
//! with the replies before it, when they have ended and been thought about.

use std::collections::BTreeMap;
use std::path::PathBuf;

use queuescope::error::USAGE;
use serde_json::json;

use super::*;
use crate::support::assert_says;
use crate::support::upstream::DONE;

/// A file of `tests/data/datasets`, all of which are synthetic.
pub fn file(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/data/datasets").join(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_run_at_its_times_and_the_summary_says_of_which_file() {
    let server = good().await;
    let path = file("azure-2023.csv");
    let line = "--dataset-name azure --arrival trace --trace-speed 20 --dataset-path";
    let (done, summary, folder) = ran(server.addr, &format!("{line} {}", path.display())).await;
    done.assert_ran();
    // 1.5 s and 4.0000007 s, at 20 times the speed.
    let schedule = read(folder.path(), "schedule.csv");
    for row in [
        "\n0,0.000000000,30,4,",
        "\n1,0.075000000,12,9,",
        "\n2,0.200000035,51,1,",
    ] {
        assert_says(&schedule, row);
    }
    // By `sha256sum`.
    let sum = "be1425403dc78c4e573d783e4f75de36916617c5876bef7f05ca7417c27a436c";
    let config = &summary["config"];
    assert_eq!(config["dataset_sha256"], sum);
    assert_eq!(config["dataset_path"], path.to_str().unwrap());
    let offered = summary["offered_rate"].as_f64().unwrap();
    assert!((offered - 2.0 / 0.200000035).abs() < 1e-6, "{offered}");
}

#[test]
fn ids_differ_from_run_to_run_whatever_the_seed() {
    let line = "--num-prompts 2 --seed 7 --random-range-ratio 0.1";
    let [one, two] = [line; 2].map(|line| generator::plan("http://127.0.0.1:1", line).unwrap());
    assert_ne!(one.request_id_prefix, two.request_id_prefix);
    assert_eq!(one.lengths(1, 0), two.lengths(1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sharegpt_is_taken_from_the_cache_or_told_how_to_get_there() {
    let server = good().await;
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let run = |mirror: SocketAddr| {
        let line = "--dataset-name sharegpt --num-prompts 3 --seed 2";
        let mut command = command(server.addr, &dir, line);
        command.env("XDG_CACHE_HOME", root.path().join("cache"));
        command.env("HF_ENDPOINT", format!("http://{mirror}"));
        run_aside(command)
    };
    let kept = "cache/queuescope/ShareGPT_V3_unfiltered_cleaned_split.json";
    let kept = root.path().join(kept);
    let path = "/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main/";
    let round = "HTTP/1.1 301 M\r\nlocation: /a/set.json\r\ncontent-length: 0\r\n\r\n";
    let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[]".to_vec();
    for (steps, said) in [
        (vec![Step::Close], "curl ended with exit status: 52"),
        (
            vec![Step::Send(cut), Step::Close],
            "curl ended with exit status: 18",
        ),
        (
            vec![Step::Send(wire::answer("404 X", "{}"))],
            "curl ended with exit status: 22",
        ),
        (
            vec![Step::Send(round.into())],
            "curl ended with exit status: 47",
        ),
        (vec![Step::ok()], "but the published one has 35f0e213"),
    ] {
        let mirror = Upstream::playing(steps).await;
        let done = run(mirror.addr).await;
        done.assert_status(&[1]);
        for said in [
            &format!("error: cannot download http://{}{path}", mirror.addr),
            said,
            &format!("--dataset-path FILE, or put it at {}\n", kept.display()),
        ] {
            assert_says(&done.err, said);
        }
        let left = std::fs::read_dir(kept.parent().unwrap()).unwrap().count();
        assert!(left == 0 && !dir.exists(), "nothing is left");
    }

    std::fs::copy(file("sharegpt.json"), &kept).unwrap();
    let done = run(refusing().await).await;
    done.assert_ran();
    let summary = summary(&dir, &done);
    assert_eq!(summary["config"]["dataset_path"], *kept.to_str().unwrap());
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    for seen in &seen {
        assert_says(&body(seen)["text"].to_string(), "synthetic: ");
    }
}

const TALK: &str = "--dataset-name conversations --turns 3 --think-time-s 0.03 --num-prompts 5 \
                    --request-rate 100 --follow-up-len 4 --random-output-len 6 --request-id-prefix talk";

/// What the API of a request answers with this text.
fn answer(seen: &Seen, text: &str) -> Vec<Step> {
    let is_stream = body(seen)["stream"] == true;
    let mut answer = match seen.head.split(' ').nth(1).unwrap() {
        "/generate" => json!({"text": text}),
        "/v1/completions" => json!({"choices": [{"text": text}]}),
        _ if is_stream => json!({"choices": [{"delta": {"content": text}}]}),
        _ => json!({"choices": [{"message": {"content": text}}]}),
    };
    answer["meta_info"] =
        json!({"id": "e", "completion_tokens": 4, "finish_reason": {"type": "stop"}});
    if !is_stream {
        return vec![Step::Send(wire::json_response(&answer.to_string()))];
    }
    let events = format!("data: {answer}\n\n{DONE}");
    let pieces = [wire::stream_head(), wire::chunk(events), wire::chunk("")];
    pieces.map(Step::Send).into()
}

fn id(seen: &Seen) -> usize {
    place(&seen.header("x-request-id").unwrap())
}

#[tokio::test]
async fn a_turn_holds_the_replies_before_it_and_waits_for_them_whatever_the_api() {
    let reply = |place: usize| format!(" this is my reply {place}");
    let server = Upstream::start(move |_, seen| answer(seen, &reply(id(seen)))).await;
    for (api, prompt, tokens) in [
        ("sglang", "text", "/sampling_params/max_new_tokens"),
        ("sglang-oai", "prompt", "/max_tokens"),
        ("sglang-oai-chat", "messages", "/max_tokens"),
    ] {
        for more in ["", " --disable-stream"] {
            let before = server.seen().len();
            let line = format!("--backend {api} --model m --random-range-ratio 0.3 {TALK}{more}");
            let plan = plan(server.addr, &line);
            let run = drive(plan.clone()).await.unwrap();
            assert_eq!(outcomes(&run), [Outcome::Ok; 15], "{line}");
            let seen = server.seen();
            let sent = seen[before..].iter().map(|seen| (id(seen), body(seen)));
            let sent = BTreeMap::from_iter(sent);
            assert!(sent.keys().copied().eq(0..15), "each place once");
            let rows = run.rows.iter().map(|row| (place(row.request_id()), row));
            let rows = BTreeMap::from_iter(rows);
            for place in (0..15).filter(|place| place % 3 > 0) {
                let next = plan.follow_up(place as u64 / 3, place % 3).unwrap();
                let mut expected = sent[&(place - 1)].clone();
                *expected.pointer_mut(tokens).unwrap() = json!(next.output_length);
                let (said, text) = (reply(place - 1), &next.text);
                match &mut expected[prompt] {
                    Value::String(before) => *before += &format!("{said}\n\n{text}"),
                    messages => messages.as_array_mut().unwrap().extend([
                        json!({"role": "assistant", "content": said}),
                        json!({"role": "user", "content": text}),
                    ]),
                }
                assert_eq!(sent[&place], expected, "{line}");
                // Due when the reply had ended and the think time had passed, and not sent before that.
                let due = at(rows[&place], Moment::Scheduled);
                let ended = at(rows[&(place - 1)], Moment::Finish);
                let waited = due.nanos_since(ended);
                assert!(waited >= next.think_ns, "{place}: {waited} ns");
                assert!(at(rows[&place], Moment::Sent) >= due);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_goes_wrong_ends_its_conversation_and_the_rest_is_counted() {
    // Of places 0, 4 and 8: the first turn of one conversation, the second of another, the last of a third.
    let server = Upstream::start(|_, seen| match id(seen) {
        0 | 4 | 8 => vec![Step::Send(BROKEN.to_vec())],
        _ => answer(seen, " fine"),
    })
    .await;
    let line = format!("--random-input-len 8 --max-concurrency 2 --disable-stream {TALK}");
    let (done, summary, folder) = ran(server.addr, &line).await;
    done.assert_ran();
    let keys = ["requests", "completed", "scheduled"];
    assert_eq!(counts(&summary, keys), [12, 9, 15]);
    let told = "3 of 15 scheduled requests were never sent or have no row";
    assert_says(&done.out, told);
    assert_says(&done.err, "15 requests, ids from ");
    // The rate asked for is one of conversations.
    assert_says(&done.out, " conversations (schedule ");
    // All turns stand in the schedule; only of the first ones is it known when.
    let schedule = read(folder.path(), "schedule.csv");
    let rows = schedule.lines().skip(1);
    let due: Vec<bool> = rows.map(|row| row.split(',').nth(1) != Some("")).collect();
    assert_eq!(due, [true, false, false].repeat(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_stopped_run_the_turns_of_what_had_begun_are_counted() {
    let server = Upstream::start(|_, seen| answer(seen, " fine")).await;
    let root = tempfile::tempdir().unwrap();
    // Three conversations of three turns: one begins at once, the others much later.
    let line = "--dataset-name conversations --turns 3 --think-time-s 3000 --num-prompts 3 \
                --arrival constant --rate-curve 0:10,0.05:10,0.05:0.001 --follow-up-len 4 --random-output-len 6 --disable-stream";
    let child = command(server.addr, root.path(), line).spawn().unwrap();
    until("one arrived", || server.seen().len() == 1).await;
    signal(&child, Signal::SIGTERM);
    let done = ended(child).await;
    done.assert_status(&[143]);
    let summary = summary(root.path(), &done);
    let keys = ["requests", "completed", "scheduled"];
    assert_eq!(counts(&summary, keys), [1, 1, 9], "{done:?}");
    let unsent = "8 of 9 scheduled requests were never sent or have no row";
    assert_says(&done.out, unsent);
}

#[tokio::test]
async fn shards_begin_at_the_moment_that_all_are_told() {
    let server = good().await;
    let clock = Clock::system();
    let line = "--request-rate 100 --num-prompts 10 --shard 1/2";
    let mut plan = plan(server.addr, line);
    let start = clock.now().plus_seconds(1.5);
    plan.args.start_at = Some(start);
    let run = drive(plan.clone()).await.unwrap();
    assert_eq!(run.started, start);
    let places = run.rows.iter().map(|row| place(row.request_id()));
    assert_eq!(Vec::from_iter(places), [1, 3, 5, 7, 9]);
    assert!(run.rows.iter().all(|row| at(row, Moment::Sent) >= start));
    let late = drive(plan).await.unwrap_err();
    assert_eq!(late.code, USAGE);
    assert_says(&late.to_string(), "name a later moment");
}
