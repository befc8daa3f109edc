//! What the proxy costs, beside no proxy, bare Pingora, nginx, HAProxy and SGLang's routers in the same run (`cargo bench --bench overhead`).
//!
//! Clients, server and clock are this process; what stands between them are processes of their own, whose
//! processor time is read from `/proc`. Settings by environment: `OVERHEAD_ROUNDS`, `OVERHEAD_SECONDS` a case and
//! round, `OVERHEAD_STREAMS` at a time, `OVERHEAD_MANY` for the memory of each, `OVERHEAD_PACE_MS` from event to event, `OVERHEAD_THREADS` of each proxy
//! process.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench prints what it found and may fail loudly"
)]

use std::net::TcpListener;
use std::time::Duration;

use queuescope::clock::Clock;
use queuescope::stats::quantile;

#[path = "../chains/bare.rs"]
mod bare;
#[path = "../chains/chain.rs"]
mod chain;
mod client;
mod process;
mod server;
#[path = "../chains/setting.rs"]
mod setting;
mod table;

use chain::Chain;
use client::Load;
use setting::{load, print_where, setting};

/// A load under which the chains are measured.
struct Case {
    kind: Kind,
    load: Load,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A thousand streams at a time, for what each holds; once, before the others.
    Many,
    /// Events at a pace, as an engine makes them.
    Paced,
    /// Events as fast as they can be written.
    BackToBack,
    /// Responses of one event, one after another.
    Requests,
}

/// One case of one round through one chain.
struct Round {
    /// From the server's write to the client's read, microseconds.
    p50: f64,
    p99: f64,
    /// Of whole requests.
    request_p50: f64,
    request_p99: f64,
    /// The proxies' processor time, microseconds.
    cpu_event: f64,
    cpu_request: f64,
    events_a_second: f64,
    requests_a_second: f64,
    /// Right after the case.
    resident_mb: f64,
    /// More than before it, for each of the streams, KB.
    stream_kb: f64,
}

/// Events of a response.
const EVENTS: usize = 64;

fn main() {
    bare::run_if_asked();
    let rounds = setting("OVERHEAD_ROUNDS", 3.0) as usize;
    let threads = setting("OVERHEAD_THREADS", 1.0) as usize;
    let cases = cases();
    print_where();
    let clock = Clock::system();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    server::start(listener, clock.clone());
    let mut chains = Chain::start_all(address, threads);
    println!("{rounds} rounds, {threads} threads a proxy process");
    for chain in &chains {
        for case in &cases {
            let seconds = 0.3;
            Load {
                seconds,
                ..case.load
            }
            .run(chain.entry, &clock);
        }
    }
    let mut found: Vec<Vec<Vec<Round>>> = Vec::new();
    for case in &cases {
        let mut each: Vec<Vec<Round>> = chains.iter().map(|_| Vec::new()).collect();
        let rounds = if case.kind == Kind::Many { 1 } else { rounds };
        for _ in 0..rounds {
            for (chain, found) in chains.iter().zip(&mut each) {
                found.push(round(chain, case.load, &clock));
            }
        }
        found.push(each);
    }
    for chain in &mut chains {
        chain.must_run();
    }
    for (case, found) in cases.iter().zip(&found) {
        table::print(case, &chains, found);
    }
    table::quoted(&cases, &chains, &found);
    println!("load average at the end {}", load());
}

fn cases() -> [Case; 4] {
    let seconds = setting("OVERHEAD_SECONDS", 3.0);
    let paced = Load {
        clients: setting("OVERHEAD_STREAMS", 32.0) as usize,
        events: EVENTS,
        pace: Duration::from_secs_f64(setting("OVERHEAD_PACE_MS", 5.0) / 1e3),
        seconds,
    };
    let unpaced = |events| Load {
        clients: 16,
        events,
        pace: Duration::ZERO,
        seconds: seconds / 2.0,
    };
    let many = Load {
        clients: setting("OVERHEAD_MANY", 1000.0) as usize,
        events: 8,
        pace: Duration::from_millis(500),
        seconds: 4.0,
    };
    [
        Case {
            kind: Kind::Many,
            load: many,
        },
        Case {
            kind: Kind::Paced,
            load: paced,
        },
        Case {
            kind: Kind::BackToBack,
            load: unpaced(EVENTS),
        },
        Case {
            kind: Kind::Requests,
            load: unpaced(1),
        },
    ]
}

fn round(chain: &Chain, load: Load, clock: &Clock) -> Round {
    let (before, resident) = (process::cpu_seconds(chain), process::resident_mb(chain));
    let found = load.run(chain.entry, clock);
    let cpu = (process::cpu_seconds(chain) - before) * 1e6;
    let events = found.took.len() as f64;
    let requests = found.requests.len() as f64;
    let took = |q| quantile(&found.took, q).unwrap_or(f64::NAN);
    let request = |q| quantile(&found.requests, q).unwrap_or(f64::NAN);
    let resident_mb = process::resident_mb(chain);
    Round {
        p50: took(0.5),
        p99: took(0.99),
        request_p50: request(0.5),
        request_p99: request(0.99),
        cpu_event: cpu / events,
        cpu_request: cpu / requests,
        events_a_second: events / found.seconds,
        requests_a_second: requests / found.seconds,
        resident_mb,
        stream_kb: (resident_mb - resident) * 1e3 / load.clients as f64,
    }
}
