//! A proxy as a process on a machine: what it says, stray signals, and the limits that the system sets.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::process::{Process, limited, lines_of};
use crate::support::proxy::{assert_outcome, rows};
use crate::support::upstream::Upstream;
use crate::support::wire::{Client, PATIENCE, until};

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
    let args = [
        "--config",
        &config,
        "--upstream",
        &upstream.addr.to_string(),
    ];
    let mut process = Process::in_folder(folder, &args);
    let mut client = Client::connect(process.front).await;
    for path in ["/generate", "/generate", "/v1/models"] {
        client.ask(path, "", b"{}").await;
    }
    drop(client);
    let (pid, records) = (process.child.id(), process.records());
    let said = [process.begun.clone(), last_lines(&mut process).await].concat();
    let version = env!("CARGO_PKG_VERSION");
    let begins = format!(
        "queuescope {version} begins, process {pid}: config {config}, records {}",
        records.display()
    );
    assert!(said[0].ends_with(&begins), "{said:#?}");
    let ended = "ended: served 2 requests, passed 1 others through, wrote 2 rows, lost 0";
    assert!(said.last().unwrap().ends_with(ended), "{said:#?}");
    let with_pid = |line: &String| line.split(' ').nth(1) == Some(&pid.to_string());
    assert!(said.iter().all(with_pid), "{said:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_broken_heads_is_ten_lines_and_a_count() {
    let upstream = Upstream::ok().await;
    let mut process = Process::start(upstream.addr, &["--drain-timeout-s", "9"]);
    for _ in 0..51 {
        let mut client = Client::connect(process.front).await;
        client.send("GET / HTT").await;
    }
    let mut large = Client::connect(process.front).await;
    large
        .send(format!("GET / HTTP/1.1\r\na: {}", "x".repeat(70_000)))
        .await;
    assert_eq!(large.response().await.status(), 431);
    let mut counted = 0;
    while counted < 52 {
        counted = process.metric("queuescope_broken_heads_total ").await;
    }
    let lines = last_lines(&mut process).await;
    assert_eq!(count(&lines, "no request: cut off within its head"), 10);
    assert_eq!(count(&lines, "and 41 more in the last minute"), 1);
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
    assert!(said.contains(limit) && said.contains("max_connections"));
    let answer = first.ask("/generate", "", b"{}").await;
    assert_eq!(answer.status(), 500);
    assert_eq!(answer.json()["error"]["type"], "proxy_error");
    let said = process.says("cannot open a connection to 127.0.0.1:");
    assert!(said.contains(limit), "{said}");
    process.signal(Signal::SIGUSR2);
    let said = process.says("SIGUSR2: cannot start");
    assert!(said.contains(limit), "{said}");
    drop(others);
    // Those who wait in the backlog are accepted first, and found gone.
    let mut answers = Vec::new();
    while answers.last() != Some(&200) {
        assert!(answers.len() < 1000, "it does not come back: {answers:?}");
        let mut client = Client::connect(process.front).await;
        client.post("/generate", "", b"{}").await;
        answers.push(client.response().await.status());
    }
    let lines = last_lines(&mut process).await;
    let rows = rows(&process.records());
    assert_eq!(rows.len(), 1 + answers.len());
    let (last, failed) = rows.split_last().unwrap();
    assert_outcome(last, "ok", "");
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
    while process
        .metric("queuescope_rows_lost_total{reason=\"write\"} ")
        .await
        < 3
    {
        assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
        sent += 1;
        assert!(sent < 1000, "16 blocks hold no thousand rows");
    }
    let lines = last_lines(&mut process).await;
    let path = process.records().display().to_string();
    let warning = format!("cannot write {path}: File too large (os error 27); rows are lost");
    assert_eq!(count(&lines, &warning), 1, "{lines:#?}");
    let written = rows(&process.records()).len() as u64;
    let lost = sent - written;
    assert!(written > 0 && lost >= 3);
    let ended = format!(
        "ended: served {sent} requests, passed 0 others through, wrote {written} rows, lost {lost} \
         ({lost} not written: {path}: File too large (os error 27))"
    );
    assert_eq!(count(&lines, &ended), 1, "{lines:#?}");
}

/// A process of ours that is no proxy. It is killed when dropped.
struct Other(Child);

impl Other {
    fn start(mut command: Command, args: &[&str]) -> Other {
        let command = command.args(args).env_remove("RUST_LOG");
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Other(command.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }

    /// It may have as many files open as the system lets it.
    fn may_have_many_files(&self) {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", self.0.id())).unwrap();
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        let mut words = line.unwrap().split_whitespace().skip(3);
        let (soft, hard) = (words.next().unwrap(), words.next().unwrap());
        assert!(soft == hard && soft != "128", "{soft} {hard}");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends what would end a process that does not mind it, and ends it well.
fn heeds_only_the_end(mut process: Other) {
    for signal in [Signal::SIGXFSZ, Signal::SIGUSR1, Signal::SIGUSR2] {
        process.signal(signal);
    }
    process.signal(Signal::SIGTERM);
    process.signal(Signal::SIGTERM);
    let status = process.0.wait().unwrap();
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

    let mut sim = Other::start(limited("-S -n 128"), &["sim", "--port", "0"]);
    let said = lines_of(sim.0.stdout.take().unwrap());
    let line = said.recv_timeout(PATIENCE).unwrap();
    assert!(line.contains("listening"), "{line}");
    sim.may_have_many_files();
    heeds_only_the_end(sim);

    let silent = Upstream::start(|_, _| vec![crate::support::upstream::Step::Silence]).await;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run").display().to_string();
    let url = format!("http://{}", silent.addr);
    let args = ["traffic", "--base-url", &url, "--output-dir", &dir];
    let traffic = Other::start(limited("-S -n 128"), &args);
    until("it sends", || !silent.seen().is_empty()).await;
    traffic.may_have_many_files();
    heeds_only_the_end(traffic);
}
