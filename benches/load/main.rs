//! How well the generator keeps its schedule, and what a request costs it (`cargo bench --bench load`).
//!
//! A server that answers at once (`queuescope sim --instant`, a process of its own) is loaded at several
//! rates, several rounds each; medians over the rounds are printed. Settings by environment:
//! `LOAD_RATES` (requests a second, by commas), `LOAD_SECONDS`, `LOAD_ROUNDS`, `LOAD_TOKENS`.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench prints what it found and may fail loudly"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use clap::Parser;
use nix::sys::resource::{UsageWho, getrusage};
use queuescope::clock::{Clock, NANOS};
use queuescope::request::{Moment, Period, Row};
use queuescope::stats::{quantile, sorted};
use queuescope::traffic::{self, Args, Run, Stop};

/// One round's figures, lag in milliseconds.
struct Round {
    asked_rate: f64,
    sent_rate: f64,
    lag: [f64; 3],
    cpu_ms: f64,
    ok: usize,
    requests: usize,
}

fn main() {
    let rates = setting("LOAD_RATES", "50,200,1000");
    let seconds: f64 = setting("LOAD_SECONDS", "20").parse().unwrap();
    let rounds: u64 = setting("LOAD_ROUNDS", "3").parse().unwrap();
    let tokens = setting("LOAD_TOKENS", "64");
    let server = Server::start();
    println!(
        "traffic of {seconds} s against `sim --instant`, {tokens} events a response, {rounds} rounds"
    );
    println!(
        "{:>8} {:>11} {:>11} {:>8} {:>9} {:>9} {:>9} {:>11} {:>12}",
        "req/s",
        "schedule/s",
        "sent/s",
        "off %",
        "lag p50",
        "lag p99",
        "lag max",
        "CPU ms/req",
        "ok"
    );
    for rate in rates.split(',') {
        let rounds: Vec<Round> = (1..=rounds)
            .map(|seed| round(&server.url, rate, seconds, &tokens, seed))
            .collect();
        let middle = |get: fn(&Round) -> f64| {
            let all = sorted(rounds.iter().map(get));
            quantile(&all, 0.5).unwrap()
        };
        println!(
            "{rate:>8} {:>11.3} {:>11.3} {:>8.3} {:>9.3} {:>9.3} {:>9.3} {:>11.3} {:>12}",
            middle(|round| round.asked_rate),
            middle(|round| round.sent_rate),
            middle(|round| (round.sent_rate / round.asked_rate - 1.0).abs() * 100.0),
            middle(|round| round.lag[0]),
            middle(|round| round.lag[1]),
            middle(|round| round.lag[2]),
            middle(|round| round.cpu_ms),
            format!(
                "{}/{}",
                rounds.iter().map(|round| round.ok).sum::<usize>(),
                rounds.iter().map(|round| round.requests).sum::<usize>()
            ),
        );
    }
}

fn round(url: &str, rate: &str, seconds: f64, tokens: &str, seed: u64) -> Round {
    let (seconds, seed) = (seconds.to_string(), seed.to_string());
    let line = [
        "load",
        "--base-url",
        url,
        "--request-rate",
        rate,
        "--duration",
        &seconds,
        "--seed",
        &seed,
        "--random-input-len",
        "128",
        "--random-output-len",
        tokens,
        "--warmup-requests",
        "2",
    ];
    let plan = Args::parse_from(line).plan().expect("a plan");
    let before = cpu_seconds();
    let runtime = traffic::runtime().expect("a runtime");
    let run = runtime.block_on(traffic::drive(
        plan,
        Clock::system(),
        Arc::default(),
        Stop::default(),
    ));
    let run = run.expect("a run");
    drop(runtime);
    let requests = run.rows.len();
    let lag = |row: &Row| Some(row.timeline.nanos(Period::SCHEDULE_LAG)? as f64 / 1e6);
    let lag = sorted(run.rows.iter().filter_map(lag));
    let (asked_rate, sent_rate) = both_rates(&run);
    Round {
        asked_rate,
        sent_rate,
        lag: [0.5, 0.99, 1.0].map(|q| quantile(&lag, q).unwrap()),
        cpu_ms: (cpu_seconds() - before) / requests as f64 * 1e3,
        ok: run.rows.iter().filter(|row| row.is_ok()).count(),
        requests,
    }
}

/// The schedule's own rate from its first to its last request, and the rate that they were sent at.
fn both_rates(run: &Run) -> (f64, f64) {
    let gaps = (run.plan.offsets.len() - 1) as f64;
    let offsets = run.plan.offsets.first().zip(run.plan.offsets.last());
    let (first, last) = offsets.unwrap();
    let asked = (last - first) as f64 / NANOS as f64;
    let rows = run.rows.iter();
    let mut sent: Vec<_> = rows
        .filter_map(|row| row.timeline.raw(Moment::Sent))
        .collect();
    sent.sort();
    let taken = sent[sent.len() - 1].since(sent[0]);
    (gaps / asked, (sent.len() - 1) as f64 / taken)
}

/// What this process has used of the processors.
fn cpu_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
        .sum()
}

fn setting(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// The simulator, ended when dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_queuescope"))
            .args(["sim", "--instant", "--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the simulator starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line
            .split_whitespace()
            .find(|word| word.starts_with("http://"));
        let url = url.unwrap_or_else(|| panic!("no URL in `{line}`"));
        Server {
            url: url.trim_end_matches('/').to_owned(),
            child,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
