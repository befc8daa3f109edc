//! How soon the server's connection closes after the client has left, while the server is silent
//! (`cargo bench --bench disconnect`).
//!
//! Client, server and clock are this process; what stands between them are processes of their own. Measured from
//! before the client's `close` (HTTP/2: before it resets its stream) to the return of the server's `read` that tells it.
//! Our front is measured with HTTP/1.1 and HTTP/2, in the clear and under TLS. Settings by environment: `DISCONNECT_TRIALS` a case and round, `DISCONNECT_ROUNDS`, `DISCONNECT_CLIENTS` at a time, `DISCONNECT_THREADS` of each proxy.

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
mod client;
#[path = "../chains/setting.rs"]
mod setting;
mod tls;
mod trial;

use chain::{Chain, Way};
use client::{Entry, Version};
use setting::{load, middle, print_where, setting};
use tls::TlsFront;
use trial::{Server, Silence};

/// A way from client to server.
struct Through {
    name: String,
    is_ours: bool,
    entry: Entry,
}

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
    let tls = TlsFront::start(address, threads);
    println!(
        "{trials} trials a case and round, {clients} at a time, {rounds} rounds, {threads} threads a proxy process"
    );
    let ways = ways(&chains, &tls);
    let cases: Vec<(usize, Silence)> = [Silence::BeforeHead, Silence::MidStream]
        .into_iter()
        .flat_map(|silence| (0..ways.len()).map(move |way| (way, silence)))
        .collect();
    let mut found: Vec<Vec<Round>> = cases.iter().map(|_| Vec::new()).collect();
    for way in &ways {
        run(&server, &way.entry, Silence::MidStream, 50, clients);
    }
    for _ in 0..rounds {
        for ((way, silence), found) in cases.iter().zip(&mut found) {
            found.push(run(&server, &ways[*way].entry, *silence, trials, clients));
        }
    }
    for chain in &mut chains {
        chain.must_run();
    }
    print(&ways, &cases, &found);
    println!("load average at the end {}", load());
}

/// Each chain with HTTP/1.1, and our front with all that it speaks.
fn ways(chains: &[Chain], tls: &TlsFront) -> Vec<Through> {
    let mut ways = Vec::new();
    let mut add = |name: String, is_ours, address, version, trusts| {
        let entry = Entry {
            address,
            version,
            trusts,
        };
        ways.push(Through {
            name,
            is_ours,
            entry,
        });
    };
    for chain in chains {
        let is_ours = matches!(chain.way, Way::Front | Way::OneProcess | Way::TwoProcesses);
        add(chain.way.name(), is_ours, chain.entry, Version::Http1, None);
        if chain.way == Way::Front {
            add(
                "front, HTTP/2".into(),
                true,
                chain.entry,
                Version::Http2,
                None,
            );
        }
    }
    for (name, version) in [
        ("front, TLS", Version::Http1),
        ("front, HTTP/2, TLS", Version::Http2),
    ] {
        let trusts = Some(tls.trusts.clone());
        add(name.into(), true, tls.address, version, trusts);
    }
    ways
}

/// So many trials by way of `entry`, `clients` at a time.
fn run(server: &Server, entry: &Entry, silence: Silence, trials: usize, clients: usize) -> Round {
    let left = AtomicU64::new(trials as u64);
    let one_client = || {
        let mut took = Vec::new();
        let take = |left: u64| left.checked_sub(1);
        while left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
        {
            took.push(server.trial(entry, silence));
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

fn print(ways: &[Through], cases: &[(usize, Silence)], found: &[Vec<Round>]) {
    println!("\nfrom the client's leaving to the server's read() of it, ms; medians over rounds");
    println!(
        "{:<24} {:<12} {:>8} {:>8} {:>8} {:>10} {:>10}",
        "through", "silent", "median", "p90", "p99", "largest", "unnoticed"
    );
    for ((way, silence), rounds) in cases.iter().zip(found) {
        let way = &ways[*way];
        let over = |q: f64| {
            let one = |round: &Round| quantile(&round.took, q).unwrap_or(f64::NAN);
            rounds.iter().map(one).collect::<Vec<f64>>()
        };
        let largest = over(1.0).into_iter().fold(0.0, f64::max);
        let unnoticed: usize = rounds.iter().map(|round| round.unnoticed).sum();
        let p99 = middle(over(0.99));
        let verdict = match p99 <= TARGET_MS && unnoticed == 0 {
            _ if !way.is_ours => "",
            true => "  target met",
            false => "  TARGET MISSED",
        };
        println!(
            "{:<24} {:<12} {:>8.3} {:>8.3} {:>8.3} {:>10.3} {:>10}{verdict}",
            way.name,
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
