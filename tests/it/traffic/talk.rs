//! Conversations: each turn is sent with the replies before it, when they have ended and been thought about.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;

const TALK: &str = "--dataset-name conversations --turns 3 --think-time fixed --think-time-s 0.03 --num-prompts 5 \
                    --request-rate 100 --follow-up-len 4 --random-output-len 6 --request-id-prefix talk";

const BROKEN: &[u8] = b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n";

/// An answer whose events tell the whole text so far, as `/generate` does.
fn answer(words: &[&str]) -> Vec<Step> {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut steps = vec![Step::Send(head.as_bytes().to_vec())];
    for count in 1..=words.len() {
        let text = words[..count].concat();
        let event = format!(
            "data: {{\"text\":\"{text}\",\"meta_info\":{{\"id\":\"e\",\"completion_tokens\":{count},\
             \"finish_reason\":{{\"type\":\"stop\"}}}}}}\n\n"
        );
        steps.push(Step::Send(wire::chunk(event)));
        steps.push(Step::Pause(Duration::from_millis(2)));
    }
    let end = [wire::chunk("data: [DONE]\n\n"), wire::chunk("")].concat();
    steps.push(Step::Send(end));
    steps
}

fn id(seen: &Seen) -> usize {
    place(&seen.header("x-request-id").unwrap())
}

#[tokio::test]
async fn a_turn_holds_the_replies_before_it_and_waits_for_them() {
    let server = Upstream::start(|_, seen| {
        let number = format!(" reply {}", id(seen));
        answer(&[" this", " is", " my", &number])
    })
    .await;
    let plan = plan(server.addr, &flags(TALK));
    let workload = plan.clone();
    let run = drive(plan).await.unwrap();
    assert_eq!(outcomes(&run), [Outcome::Ok; 15]);
    let sent: BTreeMap<usize, Value> = server
        .seen()
        .iter()
        .map(|seen| (id(seen), body(seen)))
        .collect();
    assert!(sent.keys().copied().eq(0..15), "each place once");
    let rows: BTreeMap<usize, &Row> = run
        .records
        .iter()
        .map(|row| (place(row.request_id()), row))
        .collect();
    for (place, body) in &sent {
        assert_eq!(body["sampling_params"]["max_new_tokens"], 6);
        let (number, turn) = (*place as u64 / 3, place % 3);
        let Some(before) = turn.checked_sub(1).map(|_| place - 1) else {
            let planned = run.schedule[number as usize].offset_nanos;
            assert_eq!(
                at(rows[place], Moment::Scheduled),
                run.started.plus_nanos(planned)
            );
            continue;
        };
        let said = sent[&before]["text"].as_str().unwrap();
        let next = workload.follow_up(number, turn).unwrap().text;
        let text = format!("{said} this is my reply {before}\n\n{next}");
        assert_eq!(body["text"], text);
        // Due when the reply had ended and 30 ms had passed, and not sent before that.
        let due = at(rows[place], Moment::Scheduled);
        let ended = at(rows[&before], Moment::Finish);
        assert!(due.since(ended) >= 0.03, "{place}: {} s", due.since(ended));
        assert!(at(rows[place], Moment::Sent) >= due);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_goes_wrong_ends_its_conversation_and_the_rest_is_counted() {
    // Of places 0, 4 and 8: the first turn of one conversation, the second of another, the last of a third.
    let server = Upstream::start(|_, seen| match id(seen) {
        0 | 4 | 8 => vec![Step::Send(BROKEN.to_vec())],
        _ => answer(&[" fine"]),
    })
    .await;
    let line = format!("--random-input-len 8 --max-concurrency 2 {TALK}");
    let (done, summary, folder) = ran(server.addr, &line).await;
    done.assert_ran();
    let keys = ["requests", "completed", "scheduled", "turns_not_sent"];
    assert_eq!(counts(&summary, keys), [12, 9, 12, 3]);
    let told = "3 turns of conversations were not sent: one before them went wrong, or";
    assert!(done.out.contains(told), "{}", done.out);
    let announced = "15 requests of 5 conversations";
    assert!(done.err.contains(announced), "{}", done.err);
    assert_eq!(
        summary["config"]["workload_sha256"].as_str().unwrap().len(),
        64
    );
    // All turns stand in the schedule; only of the first ones is it known when.
    let schedule = read(folder.path(), "schedule.csv");
    let due = schedule
        .lines()
        .skip(1)
        .map(|row| row.split(',').nth(1) != Some(""));
    let due: Vec<bool> = due.collect();
    assert_eq!(due, [true, false, false].repeat(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_stopped_run_the_turns_of_what_had_begun_are_counted() {
    let server = Upstream::start(|_, _| answer(&[" fine"])).await;
    let root = tempfile::tempdir().unwrap();
    // Three conversations of three turns: one begins at once, the others much later.
    let line = "--dataset-name conversations --turns 3 --think-time fixed --think-time-s 3000 --num-prompts 3 \
                --arrival constant --rate-curve 0:10,0.05:10,0.05:0.001 --follow-up-len 4 --random-output-len 6";
    let child = command(server.addr, root.path(), line).spawn().unwrap();
    until("one arrived", || server.seen().len() == 1).await;
    signal(&child, Signal::SIGTERM);
    let done = ended(child).await;
    done.assert_status(&[143]);
    let summary = summary(root.path(), &done);
    let keys = ["requests", "completed", "scheduled", "turns_not_sent"];
    assert_eq!(counts(&summary, keys), [1, 1, 7, 2], "{done:?}");
    for told in [
        "2 turns of conversations were not sent",
        "6 of 7 scheduled requests have no record",
    ] {
        assert!(done.out.contains(told), "{}", done.out);
    }
}

#[tokio::test]
async fn every_backend_is_fed_its_replies() {
    let sim = generator::sim(|_| {});
    for backend in ["sglang", "sglang-oai", "sglang-oai-chat"] {
        for more in ["", " --disable-stream"] {
            let line = format!("--backend {backend} {TALK} --random-input-len 200{more}");
            let url = format!("http://{}", sim.addr());
            let plan = generator::plan(&url, &flags(&line)).unwrap();
            let run = drive(plan).await.unwrap();
            assert_eq!(outcomes(&run), [Outcome::Ok; 15]);
            for row in &run.records {
                // A reply of 6 tokens and a question of 4 words join the 200 of the first turn, and a blank line.
                let turn = place(row.request_id()) as u64 % 3;
                let words = row.input_length.unwrap();
                assert!(
                    (200 + turn * 7..=200 + turn * 16).contains(&words),
                    "{backend}{more}, turn {turn}: {words} words"
                );
            }
        }
    }
}

#[tokio::test]
async fn shards_begin_at_the_moment_that_all_are_told() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let clock = Clock::system();
    let line = flags("--request-rate 100 --num-prompts 10 --shard 1/2");
    let mut plan = plan(server.addr, &line);
    let start = clock.now().plus_seconds(1.5);
    plan.args.start_at = Some(start);
    let run = drive(plan.clone()).await.unwrap();
    assert_eq!(run.started, start);
    let places: Vec<usize> = run
        .records
        .iter()
        .map(|row| place(row.request_id()))
        .collect();
    assert_eq!(places, [1, 3, 5, 7, 9]);
    assert!(run.records.iter().all(|row| at(row, Moment::Sent) >= start));
    let late = drive(plan).await.unwrap_err();
    assert!(late.is_usage());
    let told = late.to_string();
    assert!(
        told.starts_with("--start-at 20") && told.contains("name a later moment"),
        "{told}"
    );
}
