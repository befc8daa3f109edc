//! The figures as tables: medians over rounds, and what a second hop adds.

use crate::chain::{Chain, Way};
use crate::setting::middle;
use crate::{Case, Kind, Round};

/// One case, a row a chain.
pub fn print(case: &Case, chains: &[Chain], found: &[Vec<Round>]) {
    let load = case.load;
    let what = match case.kind {
        Kind::Many | Kind::Paced => format!(
            "{} streams of {} events, {:?} apart",
            load.clients, load.events, load.pace
        ),
        Kind::BackToBack => format!(
            "{} streams of {} events, back to back",
            load.clients, load.events
        ),
        Kind::Requests => format!(
            "{} clients, responses of one event, one after another",
            load.clients
        ),
    };
    println!("\n{what}; {} s a round, medians over rounds", load.seconds);
    println!(
        "{:<23} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7}",
        "through",
        "p50 us",
        "p99 us",
        "+p50 us",
        "+p99 us",
        "CPU us/ev",
        "CPU us/rq",
        "events/s",
        "req/s",
        "RSS MB"
    );
    let direct = &found[0];
    for (chain, rounds) in chains.iter().zip(found) {
        let over = |figure: fn(&Round) -> f64| middle(rounds.iter().map(figure).collect());
        let added = |figure: fn(&Round) -> f64| added(rounds, direct, figure);
        println!(
            "{:<23} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>9.2} {:>9.1} {:>9.0} {:>8.0} {:>7.1}",
            chain.way.name(),
            over(|round| round.p50),
            over(|round| round.p99),
            added(|round| round.p50),
            added(|round| round.p99),
            over(|round| round.cpu_event),
            over(|round| round.cpu_request),
            over(|round| round.events_a_second),
            over(|round| round.requests_a_second),
            over(|round| round.resident_mb)
        );
    }
    ratios(case, chains, found);
}

/// What one would quote, in one table as Markdown: a request and an event over the same round's without a proxy.
pub fn quoted(cases: &[Case], chains: &[Chain], found: &[Vec<Vec<Round>>]) {
    let of = |kind| {
        let case = cases.iter().position(|case| case.kind == kind);
        &found[case.expect("each case is there")]
    };
    println!(
        "\n| through | a request: +p50 us | +p99 us | an event: +p50 us | +p99 us | CPU us a request | CPU us an event | requests/s of a core | events/s of a core | KB a stream |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let (many, paced, requests) = (of(Kind::Many), of(Kind::Paced), of(Kind::Requests));
    for (index, chain) in chains.iter().enumerate().skip(1) {
        let added = |rounds: &[Vec<Round>], figure: fn(&Round) -> f64| {
            added(&rounds[index], &rounds[0], figure)
        };
        let over = |rounds: &[Vec<Round>], figure: fn(&Round) -> f64| {
            middle(rounds[index].iter().map(figure).collect())
        };
        let request = over(requests, |round| round.cpu_request);
        let event = over(paced, |round| round.cpu_event);
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {request:.0} | {event:.1} | {:.0} | {:.0} | {:.0} |",
            chain.way.name(),
            added(requests, |round| round.request_p50),
            added(requests, |round| round.request_p99),
            added(paced, |round| round.p50),
            added(paced, |round| round.p99),
            1e6 / request,
            1e6 / event,
            over(many, |round| round.stream_kb),
        );
    }
}

/// Ours against as many layers of bare Pingora, and what the second layer costs: medians of each round's.
fn ratios(case: &Case, chains: &[Chain], found: &[Vec<Round>]) {
    let figure = |round: &Round| match case.kind {
        Kind::Many | Kind::Paced | Kind::BackToBack => round.cpu_event,
        Kind::Requests => round.cpu_request,
    };
    let rounds = |way| {
        let index = chains.iter().position(|chain| chain.way == way);
        index.map_or(&[][..], |index| found[index].as_slice())
    };
    let (one, two) = (rounds(Way::Bare(1)), rounds(Way::Bare(2)));
    let front = rounds(Way::Front);
    let ratio = |ours, bare| paired(ours, bare, |ours, bare| figure(ours) / figure(bare));
    println!(
        "CPU, times bare Pingora of as many layers: front {:.2}, front+hop {:.2} (1 process), {:.2} (2 processes)",
        ratio(front, one),
        ratio(rounds(Way::OneProcess), two),
        ratio(rounds(Way::TwoProcesses), two)
    );
    for (name, both, first) in [
        ("bare Pingora", two, one),
        ("hop, 1 process", rounds(Way::OneProcess), front),
        ("hop, 2 processes", rounds(Way::TwoProcesses), front),
    ] {
        println!(
            "second layer, {name:<17} {:>8.2} us CPU, {:>6.0} us at p50",
            added(both, first, figure),
            added(both, first, |round| round.p50)
        );
    }
}

/// How much more a figure is than the same round's of others.
fn added(rounds: &[Round], others: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    paired(rounds, others, |round, other| figure(round) - figure(other))
}

/// The median over pairs of one round: what else the machine did then falls on both.
fn paired(rounds: &[Round], others: &[Round], figure: impl Fn(&Round, &Round) -> f64) -> f64 {
    let pairs = rounds.iter().zip(others);
    middle(pairs.map(|(round, other)| figure(round, other)).collect())
}
