//! A proxy as a process on a machine: what it says, also of what is wrong, stray signals, the limits that the system sets, and its end;
//! `queuescope check`, and the help, as their users see them.

use std::fmt::Write;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use super::restart::stream;
use super::tls::{Certificate, connect};
use super::*;
use crate::support::generator::flags;
use crate::support::process::run;

/// All lines that a process still says, to its end.
async fn last_lines(process: &mut Process) -> Vec<String> {
    process.signal(Signal::SIGTERM);
    assert!(process.exit().await.success());
    process.lines.iter().collect()
}

fn count(lines: &[String], piece: &str) -> usize {
    lines.iter().filter(|line| line.contains(piece)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_and_end_are_told_with_the_process_in_each_line() {
    let upstream = Upstream::ok().await;
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let config = folder.path().join("c.toml");
    std::fs::write(&config, "[proxy]\n").unwrap();
    let config = config.display().to_string();
    let upstream = upstream.addr.to_string();
    let args = ["--config", &config, "--upstream", &upstream];
    let mut process = Process::in_folder(folder, &args);
    let mut client = Client::connect(process.front).await;
    for path in ["/generate", "/generate", "/v1/models"] {
        client.ask(path, "", b"{}").await;
    }
    drop(client);
    let (pid, records) = (process.child.id(), process.records());
    let said = [process.begun.clone(), last_lines(&mut process).await].concat();
    let version = env!("CARGO_PKG_VERSION");
    let records = records.display();
    let begins =
        format!("queuescope {version} begins, process {pid}: config {config}, records {records}");
    assert!(said[0].ends_with(&begins), "{said:#?}");
    let ended = "ended: served 2 requests, passed 1 others through, wrote 2 rows, lost 0";
    assert!(said.last().unwrap().ends_with(ended), "{said:#?}");
    let with_pid = |line: &String| line.split(' ').nth(1) == Some(&pid.to_string());
    assert!(said.iter().all(with_pid), "{said:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_broken_heads_is_ten_lines_and_a_count() {
    let upstream = Upstream::ok().await;
    let flags = ["--drain-timeout-s", "9", "--request-head-max-bytes", "1000"];
    let mut process = Process::start(upstream.addr, &flags);
    for _ in 0..51 {
        let mut client = Client::connect(process.front).await;
        client.send("GET / HTT").await;
    }
    let mut large = Client::connect(process.front).await;
    let head = format!("GET / HTTP/1.1\r\na: {}", "x".repeat(1000));
    large.send(head).await;
    assert_eq!(large.response().await.status(), 431);
    let mut counted = 0;
    while counted < 52 {
        counted = process.metric("queuescope_broken_heads_total ").await;
    }
    let lines = last_lines(&mut process).await;
    assert!(upstream.seen().is_empty() && rows(&process.records()).is_empty());
    assert_eq!(count(&lines, "no request: cut off within its head"), 10);
    let more = |line: &String| {
        let more = line.split_once("] and ")?.1.split(' ').next()?;
        more.parse::<u32>().ok()
    };
    assert_eq!(lines.iter().filter_map(more).sum::<u32>(), 41, "{lines:#?}");
    // Another kind is not lost among them.
    assert_eq!(count(&lines, "request_head_max_bytes"), 1, "{lines:#?}");
    assert_eq!(count(&lines, "pingora"), 0, "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_file_descriptors_it_says_so_and_goes_on() {
    let upstream = Upstream::ok().await;
    let mut process = Process::limited("-n 64", upstream.addr, &[]);
    let mut first = Client::connect(process.front).await;
    let mut others = Vec::new();
    for _ in 0..100 {
        others.push(Client::connect(process.front).await);
    }
    let limit = "this process may have 64 files open";
    let said = process.says("cannot accept a connection: Too many open files");
    assert!(said.contains(limit) && said.contains("ulimit -n") && said.contains("max_connections"));
    let answer = first.ask("/generate", "", b"{}").await;
    assert_eq!(answer.status(), 500);
    assert_eq!(answer.json()["error"]["type"], "proxy_error");
    process.signal(Signal::SIGUSR2);
    let connecting = process.says("cannot open a connection to 127.0.0.1:");
    assert_says(&connecting, limit);
    assert_says(&process.says("SIGUSR2: cannot start"), limit);
    drop(others);
    // Those who wait in the backlog are accepted first, and found gone.
    let mut answers = Vec::new();
    while answers.last() != Some(&200) {
        assert!(answers.len() < 1000, "it does not come back: {answers:?}");
        let mut client = Client::connect(process.front).await;
        answers.push(client.ask("/generate", "", b"{}").await.status());
    }
    let lines = last_lines(&mut process).await;
    let rows = rows(&process.records());
    assert_eq!(rows.len(), 1 + answers.len());
    // A row is written after its answer, so the last answer's may come first.
    let (ok, failed): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row["outcome"] == "ok");
    assert_eq!(ok.len(), 1);
    for row in failed {
        assert_outcome(row, "proxy_error", "Too many open files");
        assert_eq!(row["status"], "500");
    }
    // It does not spin, and it is not the upstream's fault.
    assert!(count(&lines, "cannot accept") <= 10, "{lines:#?}");
    assert_eq!(count(&lines, "left out"), 0, "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_can_grow_no_more_is_told_once_and_in_the_last_line() {
    let upstream = Upstream::ok().await;
    let mut process = Process::limited("-f 16", upstream.addr, &[]);
    let mut client = Client::connect(process.front).await;
    let mut sent = 0_u64;
    let lost = "queuescope_rows_lost_total{reason=\"write\"} ";
    while process.metric(lost).await < 3 {
        assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
        sent += 1;
        assert!(sent < 1000, "16 blocks hold no thousand rows");
    }
    let written = "queuescope_rows_written_total ";
    while process.metric(lost).await + process.metric(written).await < sent {}
    // A new file takes the next row, and none that was lost.
    let records = process.records();
    let full = records.with_extension("full");
    std::fs::rename(&records, &full).unwrap();
    assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
    sent += 1;
    let lines = last_lines(&mut process).await;
    let path = records.display().to_string();
    let warning = format!("{path}: cannot be written: File too large (os error 27); what is lost");
    // Once each time that it fails: a shorter row may fit after one that did not.
    let (told, again) = (count(&lines, &warning), count(&lines, "takes them again"));
    assert!(told > 0 && told == again, "{lines:#?}");
    assert_eq!(rows(&records).len(), 1);
    let written = rows(&full).len() as u64 + 1;
    let lost = sent - written;
    assert!(written > 1 && lost >= 3);
    let ended = format!(
        "ended: served {sent} requests, passed 0 others through, wrote {written} rows, lost {lost}; \
         last error: cannot be written: File too large (os error 27)"
    );
    assert_eq!(count(&lines, &ended), 1, "{lines:#?}");
}

/// A process of ours that is no proxy, under a low limit on open files.
fn other(args: &[&str]) -> Child {
    let mut command = tokio::process::Command::from(limited("-S -n 128"));
    let command = command.args(args).env_remove("RUST_LOG").kill_on_drop(true);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// It may have as many files open as the system lets it, and minds no signal but the one that ends it well.
async fn assert_hardy(mut process: Child) {
    let id = process.id().unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
    let mut lines = limits.lines();
    let line = lines.find(|line| line.starts_with("Max open files"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert!(words[3] == words[4] && words[3] != "128", "{words:?}");
    use Signal::{SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
    for signal in [SIGXFSZ, SIGUSR1, SIGUSR2, SIGTERM, SIGTERM] {
        kill(Pid::from_raw(id.cast_signed()), signal).unwrap();
    }
    let status = process.wait().await.unwrap();
    assert!(status.code().is_some(), "a signal ended it: {status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stray_signals_end_no_process_and_every_process_may_have_many_files() {
    let upstream = Upstream::ok().await;
    let process = Process::limited("-S -n 128", upstream.addr, &[]);
    process.signal(Signal::SIGUSR1);
    process.signal(Signal::SIGHUP);
    process.says("reloaded: every key is as before");
    process.signal(Signal::SIGPIPE);
    process.signal(Signal::SIGXFSZ);
    assert_eq!(process.ready().await, 200);
    assert!(process.metric("process_max_fds ").await > 128);

    let mut sim = other(&["sim", "--port", "0"]);
    let mut said = BufReader::new(sim.stdout.take().unwrap()).lines();
    let line = said.next_line().await.unwrap().unwrap();
    assert_says(&line, "listening");
    assert_hardy(sim).await;

    let silent = Upstream::playing(vec![Step::Silence]).await;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run").display().to_string();
    let url = format!("http://{}", silent.addr);
    let traffic = other(&["traffic", "--base-url", &url, "--output-dir", &dir]);
    until("it sends", || !silent.seen().is_empty()).await;
    assert_hardy(traffic).await;
}

/// What a command line says, in a folder of its own that holds this config.
fn said(config: &str, line: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("c.toml"), config).unwrap();
    let mut command = queuescope(&flags(line));
    command.current_dir(folder.path()).env_remove("COLUMNS");
    let done = run(command);
    let has_begun = folder.path().join("results").exists();
    assert!(done.code == Some(0) || !has_begun, "nothing was begun");
    let said = done.out + &done.err;
    assert!(!said.contains("panicked") && !said.contains("HIDE"));
    format!("exit {}\n{said}", done.code.unwrap())
}

/// Holds a file of cases to what is said; `UPDATE_DOCS` writes it anew.
fn golden(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut cases = text.split("\n## ");
    let mut now = cases.next().unwrap().to_owned();
    for case in cases {
        let (case, rest) = case.split_once("\n$ queuescope ").unwrap();
        let (_, config) = case.split_once('\n').unwrap_or_default();
        let (line, _) = rest.split_once('\n').unwrap();
        let said = said(&format!("{config}\n"), line);
        write!(now, "\n## {case}\n$ queuescope {line}\n{said}").unwrap();
    }
    assert_file(file, &now);
}

#[test]
fn configs_right_and_wrong_helps_and_plans_are_told_as_ever() {
    golden("tests/data/config/check.txt");
    golden("tests/data/config/help.txt");
}

#[test]
fn completions_and_man_pages_come_of_the_same_definitions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = said("", &format!("completions {shell}"));
        assert!(said.starts_with("exit 0"), "{said}");
        assert_says(&said, "upstream-idle-timeout-s");
    }
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new/man1");
    let done = run(queuescope(&["man", new.to_str().unwrap()]));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let page = std::fs::read_to_string(new.join("queuescope-proxy.1")).unwrap();
    assert_says(&page, "Where clients connect");
    let absent = run(queuescope(&["man", "/dev/null/man1"]));
    let why = "error: DIR /dev/null/man1: cannot be written: Not a directory (os error 20); name a folder that can be made or \
               written\n";
    assert_eq!((absent.code, absent.err.as_str()), (Some(1), why));
}

/// What the system says of it differs from one machine to another. Addresses that are taken: tests/data/refused.txt.
#[test]
fn an_upstream_without_an_address_stops_the_start() {
    let line = "proxy --upstream no-such-host.invalid:1 --listen 127.0.0.1:0 --admin 127.0.0.1:0";
    let done = run(queuescope(&flags(line)));
    assert_eq!((done.code, &*done.out), (Some(1), ""), "{}", done.err);
    let errors = done.err.lines().filter(|line| !line.contains(" INFO "));
    let errors: Vec<&str> = errors.collect();
    let begin = "error: upstream: cannot resolve no-such-host.invalid:1: ";
    assert!(
        errors.len() == 1 && errors[0].starts_with(begin),
        "{errors:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_streams_finish_and_ends_with_the_last() {
    let gate = Gate::new();
    let upstream = gated(&gate).await;
    let mut process = Process::start(upstream.addr, &["--drain-timeout-s", "3600"]);
    assert_eq!(process.ready().await, 200);
    let mut idle = Client::connect(process.front).await;
    let mut kept = Client::connect(process.front).await;
    let answer = kept.ask("/generate", "", b"{}").await;
    assert_eq!(answer.header("connection").unwrap(), "keep-alive");
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(stream(process.front).await);
    }
    process.signal(Signal::SIGTERM);
    process.says("draining");
    // A connection that has served has one more request.
    let last = kept.ask("/generate", "", b"{}").await;
    assert!(last.whole);
    assert_eq!(last.header("connection").unwrap(), "close");
    assert_eq!(process.ready().await, 503);
    // No new connections, and idle ones go; the process stays for the streams.
    // Refused once is enough: the port is free then, and another test may take it.
    let addr = process.front;
    let refuses = || std::net::TcpStream::connect(addr).is_err();
    until("the listener closes", refuses).await;
    assert!(idle.is_closed().await);
    assert!(process.child.try_wait().unwrap().is_none());
    gate.open();
    for client in &mut clients {
        let rest = client.read_to_close().await;
        let end = b"data: [DONE]\n\n\r\n0\r\n\r\n";
        assert!(rest.ends_with(end), "{}", rest.escape_ascii());
    }
    assert!(process.exit().await.success());
    let rows = rows(&process.records());
    assert_eq!(rows.len(), 5);
    rows.iter().for_each(|row| assert_outcome(row, "ok", ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_and_the_drain_timeout_end_what_does_not_end_with_all_records() {
    let both = [Signal::SIGINT, Signal::SIGTERM];
    for (timeout, signals) in [("3600", &both[..]), ("0.3", &both[1..])] {
        let upstream = gated(&Gate::new()).await;
        let mut process = Process::start(upstream.addr, &["--drain-timeout-s", timeout]);
        let mut client = stream(process.front).await;
        process.signal(signals[0]);
        process.says("draining");
        signals[1..].iter().for_each(|again| process.signal(*again));
        assert!(process.exit().await.success());
        client.read_to_close().await;
        let rows = rows(&process.records());
        assert_eq!(rows.len(), 1);
        assert_outcome(&rows[0], "proxy_error", "shut down");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_head_or_handshake_does_not_hold_up_the_end() {
    let (upstream, certificate) = (Upstream::ok().await, Certificate::new());
    let keys = "drain_timeout_s = 3600.0\nclient_head_timeout_s = 3600.0";
    let front = certificate.front(upstream.addr, keys).await;
    let mut silent = front.client().await;
    let mut first = connect(front.addr(), &certificate.der).await;
    first.send("POST /generate HTTP/1.1\r\nhost: h\r\n").await;
    let mut later = connect(front.addr(), &certificate.der).await;
    assert_eq!(later.ask("/generate", "", b"{}").await.status(), 200);
    later.send("POST /gen").await;
    let drain = tokio::time::timeout(PATIENCE, front.proxy.drain());
    drain.await.expect("it ends long before drain_timeout_s");
    assert!(first.is_closed().await && later.is_closed().await && silent.is_closed().await);
    assert_eq!(front.rows().await.len(), 1);
}
