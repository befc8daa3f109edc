//! How soon the server's connection closes after the client has left, while the server is silent
//! (`cargo bench --bench disconnect`).
//!
//! Client, server and clock are this process; what stands between them are processes of their own. Measured from
//! before the client's `close` to the return of the server's `read` that tells it. Settings by environment:
//! `DISCONNECT_TRIALS` a case and round, `DISCONNECT_ROUNDS`, `DISCONNECT_CLIENTS` at a time, `DISCONNECT_THREADS` of each proxy.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench prints what it found and may fail loudly"
)]

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};

use queuescope::clock::Clock;
use queuescope::stats::quantile;

#[path = "../chains/bare.rs"]
mod bare;
#[path = "../chains/chain.rs"]
mod chain;
#[path = "../chains/setting.rs"]
mod setting;
mod trial;

use chain::{Chain, Way};
use setting::{load, middle, print_where, setting};
use trial::{Server, Silence};

/// One case of one round: how long each trial took, in ms, ascending; and those that the server never noticed.
struct Round {
    took: Vec<f64>,
    unnoticed: usize,
}

/// The 99th percentile through front and hop may be so many ms (on a quiet machine).
const TARGET_MS: f64 = 10.0;

fn main() {
    bare::run_if_asked();
    let trials = setting("DISCONNECT_TRIALS", 1000.0) as usize;
    let rounds = setting("DISCONNECT_ROUNDS", 3.0) as usize;
    let clients = setting("DISCONNECT_CLIENTS", 4.0) as usize;
    let threads = setting("DISCONNECT_THREADS", 2.0) as usize;
    print_where();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::start(listener, Clock::system());
    let mut chains = Chain::start_all(address, threads);
    println!(
        "{trials} trials a case and round, {clients} at a time, {rounds} rounds, {threads} threads a proxy process"
    );
    let cases: Vec<(usize, Silence)> = [Silence::BeforeHead, Silence::MidStream]
        .into_iter()
        .flat_map(|silence| (0..chains.len()).map(move |chain| (chain, silence)))
        .collect();
    let mut found: Vec<Vec<Round>> = cases.iter().map(|_| Vec::new()).collect();
    for chain in &chains {
        run(&server, chain, Silence::MidStream, 50, clients);
    }
    for _ in 0..rounds {
        for ((chain, silence), found) in cases.iter().zip(&mut found) {
            found.push(run(&server, &chains[*chain], *silence, trials, clients));
        }
    }
    for chain in &mut chains {
        chain.must_run();
    }
    print(&chains, &cases, &found);
    println!("load average at the end {}", load());
}

/// So many trials through `chain`, `clients` at a time.
fn run(server: &Server, chain: &Chain, silence: Silence, trials: usize, clients: usize) -> Round {
    let left = AtomicU64::new(trials as u64);
    let one_client = || {
        let mut took = Vec::new();
        let take = |left: u64| left.checked_sub(1);
        while left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
        {
            took.push(server.trial(chain.entry, silence));
        }
        took
    };
    let all: Vec<Option<f64>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(one_client)).collect();
        let took = clients.into_iter().map(|client| client.join().unwrap());
        took.flatten().collect()
    });
    let mut took: Vec<f64> = all.iter().copied().flatten().collect();
    took.sort_by(f64::total_cmp);
    Round {
        unnoticed: all.len() - took.len(),
        took,
    }
}

fn print(chains: &[Chain], cases: &[(usize, Silence)], found: &[Vec<Round>]) {
    println!("\nfrom the client's close() to the server's read() of it, ms; medians over rounds");
    println!(
        "{:<24} {:<12} {:>8} {:>8} {:>8} {:>10} {:>10}",
        "through", "silent", "median", "p90", "p99", "largest", "unnoticed"
    );
    for ((chain, silence), rounds) in cases.iter().zip(found) {
        let way = chains[*chain].way;
        let over = |q: f64| {
            let one = |round: &Round| quantile(&round.took, q).unwrap_or(f64::NAN);
            rounds.iter().map(one).collect::<Vec<f64>>()
        };
        let largest = over(1.0).into_iter().fold(0.0, f64::max);
        let unnoticed: usize = rounds.iter().map(|round| round.unnoticed).sum();
        let p99 = middle(over(0.99));
        let is_ours = matches!(way, Way::Front | Way::OneProcess | Way::TwoProcesses);
        let verdict = match p99 <= TARGET_MS && unnoticed == 0 {
            _ if !is_ours => "",
            true => "  target met",
            false => "  TARGET MISSED",
        };
        println!(
            "{:<24} {:<12} {:>8.3} {:>8.3} {:>8.3} {:>10.3} {:>10}{verdict}",
            way.name(),
            silence.name(),
            middle(over(0.5)),
            middle(over(0.9)),
            p99,
            largest,
            unnoticed
        );
    }
    println!("the largest is that of all rounds; target: p99 of at most {TARGET_MS} ms");
}
