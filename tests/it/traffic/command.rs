//! The program itself: files, words and exit codes. Keys, headers' values and what stands in URLs are never shown.

use std::collections::BTreeSet;

use super::*;
use crate::support::process::limited;
use crate::support::{assert_says, files, table};

/// The same by its other name.
fn generator(addr: SocketAddr, dir: &Path, line: &str) -> Command {
    let mut other = Command::new(env!("CARGO_BIN_EXE_queuescope-traffic"));
    other.args(command(addr, dir, line).get_args().skip(1));
    other.env_remove("OPENAI_API_KEY");
    other
}

#[tokio::test(flavor = "multi_thread")]
async fn both_names_of_the_program_write_the_three_files_and_a_summary() {
    let server = good().await;
    let root = tempfile::tempdir().unwrap();
    let line = "--random-input-len 8 --request-rate 200 --num-prompts 30 --seed 5 --request-id-prefix mine \
                --upstream-kind server";
    let announced = "30 requests, ids from mine-0 on; rows go to ";
    let wanted = ["requests.csv", "schedule.csv", "summary.json"];
    let programs = [generator, command as fn(SocketAddr, &Path, &str) -> Command];
    let mut schedules = Vec::new();
    for (program, more) in programs.into_iter().zip(["", " --time-base epoch"]) {
        let dir = root.path().join(format!("deep/{}", more.len()));
        let done = run_aside(program(server.addr, &dir, &format!("{line}{more}"))).await;
        done.assert_ran();
        for said in ["30 requests", "TTFT"] {
            assert_says(&done.out, said);
        }
        for said in [announced, dir.to_str().unwrap()] {
            assert_says(&done.err, said);
        }
        assert_eq!(column(&dir, "success"), ["True"; 30]);
        let summary = summary(&dir, &done);
        assert_eq!(summary["completed"], 30);
        // Whatever the times in the rows count from.
        assert_eq!(summary["latency"]["schedule_lag"]["count"], 30);
        assert!(summary["duration"].as_f64().unwrap() < 1e6);
        let schedule = read(&dir, "schedule.csv");
        let ids = schedule.lines().skip(1);
        let ids: BTreeSet<&str> = ids.map(|line| line.split(',').nth(4).unwrap()).collect();
        let rows = column(&dir, "req_id");
        assert_eq!(ids, rows.iter().map(String::as_str).collect());
        schedules.push(schedule);
        assert_eq!(files(&dir), wanted.map(|file| dir.join(file)));
    }
    assert_eq!(schedules[0], schedules[1], "same seed, same schedule");
}

/// What else is refused: tests/data/refused.txt.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_has_passed_is_refused_before_anything_is_sent() {
    let nowhere = refusing().await;
    let root = tempfile::tempdir().unwrap();
    let line = "--start-at 2020-01-01T00:00:00Z --request-id-prefix a --shard 1/2 --flush-cache";
    let done = run_aside(generator(nowhere, root.path(), line)).await;
    done.assert_refused("error: --start-at 2020-01-01T00:00:00Z: that was ");
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_work_ends_with_one() {
    let root = tempfile::tempdir().unwrap();
    let nowhere = refusing().await;
    let done = run_aside(command(nowhere, root.path(), "--num-prompts 3")).await;
    done.assert_status(&[1]);
    let said = format!("error: cannot reach http://{nowhere}: ");
    let is_told = done.err.starts_with(&said) && done.err.contains("refused");
    assert!(is_told && done.err.lines().count() == 1, "{}", done.err);

    // It answers, but never well: all rows are there all the same.
    let server = failing().await;
    for (more, code) in [("", 1), ("--max-failed 0.5", 4)] {
        let line = format!("--num-prompts 3 --force {more}");
        let done = run_aside(command(server.addr, root.path(), &line)).await;
        done.assert_status(&[code]);
        let last = done.err.lines().last().unwrap();
        let said = "error: none of 3 requests succeeded: 400";
        assert!(last.starts_with(said) && last.ends_with("(3×)"), "{last}");
        assert_eq!(column(root.path(), "outcome"), ["client_error"; 3]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_the_run_and_still_writes_everything() {
    let server = good_for(3).await;
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let line = "--num-prompts 200 --max-concurrency 100 --drain-timeout-s 0.1 --random-input-len 2";
    let child = command(server.addr, dir, line).spawn().unwrap();
    until("all slots are taken", || server.seen().len() == 103).await;
    let rows = || read(dir, "requests.partial.csv");
    until("three have ended", || rows().lines().count() == 4).await;
    signal(&child, Signal::SIGINT);
    let done = ended(child).await;
    done.assert_status(&[130]);
    for said in [
        "stopped before its end",
        "97 of 200 requests were never sent and 100 given up",
        "197 of 200 requests were given up when the run was stopped",
        "3 ok (1.5 %)\n",
    ] {
        assert_says(&done.out, said);
    }
    assert!(!done.out.contains(" VALID:"), "{}", done.out);
    for said in [
        "waiting up to 0.1 s for 100 in flight, Ctrl-C again drops them",
        "\ngiving up the requests in flight\n",
    ] {
        assert_says(&done.err, said);
    }
    let mut errors = column(dir, "error");
    errors.retain(|cell| !cell.is_empty());
    assert_eq!(errors, ["given up: the run was stopped"; 197]);
    let mut ended_in = column(dir, "ended_in");
    ended_in.retain(|cell| cell == "client lag");
    assert_eq!(ended_in.len(), 97, "they waited for a slot");
    let summary = summary(dir, &done);
    let keys = ["completed", "given_up", "failed"];
    assert_eq!(counts(&summary, keys), [3, 197, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_signal_costs_rows_that_wait_for_lines_of_the_servers_logs() {
    let server = Upstream::always(recorded("chat_stream_usage")).await;
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    // Nor does anybody wait until the spans are told as lost: it never answers.
    let collector = Upstream::playing(vec![Step::Silence]).await;
    let line = format!(
        "--backend sglang-oai-chat --model m --num-prompts 3 --max-concurrency 1 --engine-logs {} \
         --otlp-endpoint http://{}",
        root.path().display(),
        collector.addr
    );
    let mut child = command(server.addr, &dir, &line).spawn().unwrap();
    until("all have arrived", || server.seen().len() == 3).await;
    // They wait for seconds, as nobody writes those lines.
    until("it ends", || {
        signal(&child, Signal::SIGINT);
        child.try_wait().unwrap().is_some()
    })
    .await;
    let done = ended(child).await;
    done.assert_status(&[130]);
    let told = dir.join("requests.csv");
    assert_says(&done.err, &format!("; the rows are in {}", told.display()));
    assert!(!done.err.contains("traces: "), "{}", done.err);
    assert_eq!(column(&dir, "model"), ["m"; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_the_wait_for_the_next_request_and_none_sent_is_told() {
    let server = good().await;
    let root = tempfile::tempdir().unwrap();
    // Hours to the first request.
    let line = "--request-rate 0.0001 --num-prompts 5";
    let child = command(server.addr, root.path(), line).spawn().unwrap();
    let begun = root.path().join("begun.json");
    until("the run has begun", || begun.exists()).await;
    signal(&child, Signal::SIGINT);
    let done = ended(child).await;
    done.assert_status(&[130]);
    assert_says(&done.err, "error: no request was sent\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_rows_or_answers_hold_nothing_is_no_valid_one() {
    let root = tempfile::tempdir().unwrap();
    let full = root.path().join("full");
    let server = good().await;
    let line = "--num-prompts 100 --request-rate 500 --random-input-len 8";
    // Files of 16,384 bytes.
    let mut process = limited("-f 32");
    process.args(command(server.addr, &full, line).get_args());
    let done = run_aside(process).await;
    done.assert_status(&[1]);
    let unwritten = "have no row, as the file could not be written";
    assert_says(&done.out, unwritten);

    let empty = "content-type: application/json\r\ncontent-length: 9\r\n\r\n{\"foo\":1}";
    let answer = Step::Send(format!("HTTP/1.1 200 OK\r\n{empty}").into_bytes());
    let good = Step::Send(recorded("generate_stream"));
    let step = move |turn| if turn == 6 { &good } else { &answer }.clone();
    let server = Upstream::start(move |turn, _| vec![step(turn)]).await;
    let line = "--max-concurrency 1 --random-input-len 8 --num-prompts";
    for (count, told) in [(3, true), (4, false)] {
        let (done, summary, _folder) = ran(server.addr, &format!("{line} {count}")).await;
        let is_told = done.out.contains("went well without text or tokens");
        assert_eq!(is_told, told, "{}", done.out);
        assert_eq!(summary["client"]["empty"], 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_cannot_be_put_right_stay_as_they_were() {
    let gate = Gate::new();
    let server = held(&gate).await;
    let root = tempfile::tempdir().unwrap();
    let run = command(server.addr, root.path(), "--num-prompts 2").spawn();
    until("the run has begun", || server.seen().len() == 2).await;
    // A folder in the place of the file, which no file can replace.
    std::fs::create_dir(root.path().join("requests.csv")).unwrap();
    gate.open();
    let done = ended(run.unwrap()).await;
    done.assert_status(&[1]);
    let said = "requests.csv: Is a directory (os error 21); see requests.partial.csv for the rows";
    assert!(done.err.contains(said), "{}", done.err);
    assert_eq!(read(root.path(), "requests.partial.csv").lines().count(), 3);
    assert_eq!(summary(root.path(), &done)["completed"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_who_reads_is_no_reason_to_fail() {
    let server = good().await;
    let root = tempfile::tempdir().unwrap();
    let line = "--random-input-len 8 --num-prompts 3 --force";
    for program in [generator, command] {
        let done = unread(program(server.addr, root.path(), line), false).await;
        // On a busy machine the run is INVALID.
        done.assert_status(&[0, 3]);
        let is_told = done.err.contains("error");
        assert_eq!(is_told, done.code == Some(3), "{}", done.err);
        assert_eq!(column(root.path(), "success"), ["True"; 3]);
    }
    let nowhere = refusing().await;
    for (line, code) in [(line, 1), ("--num-prompts 0", 2)] {
        let failing = generator(nowhere, root.path(), line);
        unread(failing, true).await.assert_status(&[code]);
    }
}

/// Runs it with its output's other end closed, of its errors too if asked.
async fn unread(mut command: Command, errors_too: bool) -> Done {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer.try_clone().unwrap());
    command.stderr(match errors_too {
        true => writer.into(),
        false => Stdio::piped(),
    });
    ended(command.spawn().unwrap()).await
}

const KEY: &str = "sk-0a1b2c3d";
const TOKEN: &str = "tok-4e5f6071";

/// All that a command said, and all that it wrote into `dir`.
async fn all_of(line: &[&str], dir: &Path) -> String {
    let mut command = queuescope(line);
    command.env("OPENAI_API_KEY", KEY);
    let done = run_aside(command).await;
    let written = if dir.exists() { files(dir) } else { Vec::new() };
    let written = written
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap());
    [done.out, done.err].into_iter().chain(written).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_says_them_back_is_not_repeated() {
    let server = Upstream::start(|_, seen| {
        let key = seen.header("authorization").unwrap();
        let token = seen.header("x-token").unwrap_or_default();
        let body = format!("{{\"error\":{{\"message\":\"not taken: {key} {token}\"}}}}");
        vec![Step::Send(wire::answer("401 X", &body))]
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let url = format!("http://{}", server.addr);
    let line = format!(
        "--num-prompts 3 --header x-token:{TOKEN} --output-dir {}",
        dir.display()
    );
    let line = format!("traffic --base-url {url} {line}");
    let (traffic, probe) = (flags(&line), ["probe", &url]);
    for line in [&traffic[..], &probe] {
        let all = all_of(line, &dir).await;
        assert!(all.contains("not taken: ***"), "{all}");
        assert!(!all.contains(KEY) && !all.contains(TOKEN), "{all}");
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    let sent = |name: &str, value: &str| {
        let values = seen.iter().filter_map(|seen| seen.header(name));
        values.filter(|sent| sent == value).count()
    };
    assert_eq!(sent("authorization", &format!("Bearer {KEY}")), 4);
    assert_eq!(sent("x-token", TOKEN), 3);
}

/// Lines in which KEY stands for it (and NL for a line's end), and what is said of them.
const REFUSED: &str = "\
traffic --base-url http://me:KEY@a:1 | --base-url: must be like
traffic --base-url http://a:1/?key=KEY | --base-url: must be like
traffic --header Authorization_Bearer_KEY | --header ***: must be NAME:VALUE
traffic --header traceparent:KEY | --header traceparent:***: traceparent is set
traffic --api-key KEY\u{e4} | must be printable ASCII
probe http://me:KEY@a:1 | URL: must be like
probe http://a:1 --api-key KEYNL | must be printable ASCII
traffic --api-key --KEY\u{e4} | must be printable ASCII
probe http://a:1 --api-key --KEYNL | must be printable ASCII
traffic --api-key --disable-stream | --api-key: a flag follows it
traffic --api-key --num-prompts=5 | --api-key: a flag follows it
proxy --upstream http://me:KEY@a:1 | must be HOST:PORT
proxy --upstream a:1,b:1 | a flag has one, and is repeated
proxy --upstream a:1 --label-headers x-a,x-b | --label-headers has one, and is repeated
check --upstream http://me:KEY@a:1 | must be HOST:PORT
check --upstream a:1 --worker w=127.0.0.1:0=http://me:KEY@a:1 | must be HOST:PORT
traffic --help | OPENAI_API_KEY
probe --help | --api-key";

#[tokio::test]
async fn a_line_that_is_refused_is_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    for [line, said] in table(REFUSED) {
        let word = |word: &str| {
            word.replace("KEY", KEY)
                .replace("NL", "\n")
                .replace('_', " ")
        };
        let line: Vec<String> = line.split(' ').map(word).collect();
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let all = all_of(&line, &folder.path().join("none")).await;
        assert!(all.contains(said), "{line:?}: {all}");
        assert!(!all.contains(KEY), "{line:?}: {all}");
    }
}
