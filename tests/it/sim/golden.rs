//! What the simulator says, to the letter: held against files in `tests/data/sim`. `UPDATE_GOLDEN=1` writes them anew.

use std::fmt::Write as _;

use clap::ValueEnum;
use queuescope::clock::{Clock, ManualClock};
use queuescope::sim::Dialect;
use queuescope::sim::config::Config;
use queuescope::sim::engine::Profile;
use queuescope::sim::server::Sim;

use super::told::{Span, Told};
use super::{START, ms, on_manual_clock, slow, until_load, until_served};
use crate::support::docs::assert_file;
use crate::support::http::{Connection, exchange};
use crate::support::process::{queuescope, run};
use crate::support::wire::until;

/// Compares with the file of that name.
fn same(name: &str, text: &str) {
    assert_file(&format!("tests/data/sim/{name}"), text);
}

/// What is made up anew in each run, made equal.
fn plain(text: &str) -> String {
    let mut out = String::new();
    for piece in text.split_inclusive(|c: char| !c.is_ascii_hexdigit()) {
        let word = piece.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
        match word.len() {
            32 => out.push_str(&piece.replace(word, "RID")),
            _ => out.push_str(piece),
        }
    }
    out
}

/// Sends on a connection of its own; gives it back with as many requests waiting.
async fn sent(sim: &Sim, path: &str, body: &str, load: (usize, usize)) -> Connection {
    with(sim, path, &[], body, load).await
}

async fn with(
    sim: &Sim,
    path: &str,
    headers: &[&str],
    body: &str,
    (running, waiting): (usize, usize),
) -> Connection {
    let mut client = Connection::open(sim.addr()).await;
    client.send("POST", path, headers, body.as_bytes()).await;
    until_load(sim.addr(), running, waiting).await;
    client
}

fn generate(rid: &str, tokens: u32, stream: bool) -> String {
    format!(
        r#"{{"text":"a b c d e","sampling_params":{{"max_new_tokens":{tokens}}},"stream":{stream},"rid":"{rid}"}}"#
    )
}

/// A stream, a reply, and a rejected and two aborted requests.
async fn bodies(sim: &Sim, manual: &ManualClock) -> String {
    let mut out = String::new();
    let mut say = |what: &str, bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        writeln!(out, "{what}: {}", text.trim_end()).unwrap();
    };
    let mut stream = sent(sim, "/generate", &generate("r-1", 3, true), (0, 1)).await;
    stream.head().await;
    for at in [7, 17, 27] {
        manual.set(ms(at));
        let chunk = stream.chunk().await.unwrap().unwrap();
        if at != 17 {
            say("stream", &chunk);
        }
    }
    manual.set(ms(100));
    let mut reply = sent(sim, "/generate", &generate("r-2", 3, false), (0, 1)).await;
    manual.set(ms(200));
    say("reply", reply.response().await.unwrap().text().as_bytes());

    let mut running = sent(sim, "/generate", &generate("hold", 9, true), (0, 1)).await;
    manual.set(ms(202));
    until_load(sim.addr(), 1, 0).await;
    let mut waiting = sent(sim, "/generate", &generate("wait", 9, true), (1, 1)).await;
    let mut rejected = sent(sim, "/generate", &generate("full", 9, true), (1, 2)).await;
    manual.set(ms(207));
    say("rejected", &rejected.response().await.unwrap().chunks[0]);
    running.head().await;
    running.chunk().await.unwrap();
    for (rid, client) in [("wait", &mut waiting), ("hold", &mut running)] {
        let body = format!(r#"{{"rid":"{rid}"}}"#);
        exchange(sim.addr(), "POST", "/abort_request", body.as_bytes()).await;
        if rid == "wait" {
            client.head().await;
        }
        say("aborted", &client.chunk().await.unwrap().unwrap());
    }
    until_served(sim, 5).await;
    out
}

fn config() -> Config {
    let mut config = slow();
    config.profile.tokenize_ms = 2.0;
    config.profile.max_queued_requests = Some(1);
    config
}

#[test]
fn the_help_is_what_it_was() {
    let mut command = queuescope(&["sim", "--help"]);
    command.env("COLUMNS", "100");
    same("help.txt", &run(command).out);
}

#[tokio::test]
async fn bodies_of_every_dialect_are_what_they_were() {
    let mut out = String::new();
    for dialect in Dialect::value_variants() {
        for metrics in [true, false] {
            writeln!(out, "## {dialect:?}, metrics {metrics}").unwrap();
            let (sim, manual) = on_manual_clock(Config {
                dialect: *dialect,
                metrics,
                ..config()
            });
            out += &bodies(&sim, &manual).await;
        }
    }
    same("dialects.txt", &out);
}

/// Spans and log lines, without what is made up anew, of as many requests. The last span of each process is the one that
/// the others are part of.
async fn told(told: &Told, requests: usize, out: &mut String) {
    let count = |start: &str| {
        let spans = told.spans();
        spans
            .iter()
            .filter(|span| span.name.starts_with(start))
            .count()
    };
    let ended = || [count(" Req"), count("Scheduler"), count("Tokenizer")];
    until("the spans", || ended() == [requests; 3]).await;
    let spans = told.spans();
    let mut lines: Vec<String> = spans.iter().map(|span| line(span, &spans)).collect();
    lines.sort();
    lines.extend(told.log().iter().map(|line| plain(line)));
    lines
        .iter()
        .for_each(|line| writeln!(out, "{line}").unwrap());
}

fn line(span: &Span, all: &[Span]) -> String {
    let from_start = |nanos: u64| nanos as i64 - START.nanos();
    let mut text = format!("{span:?}");
    for nanos in [span.start, span.end] {
        text = text.replace(&nanos.to_string(), &from_start(nanos).to_string());
    }
    for other in all {
        text = text.replace(
            &format!("\"{}\"", other.id),
            &format!("<{}>", other.kind_of_name()),
        );
    }
    for (key, value) in span
        .attributes
        .iter()
        .chain(span.events.iter().flat_map(|(_, all)| all))
    {
        if ["host_id", "pid", "bid"].contains(&key.as_str()) {
            text = text.replace(&format!("(\"{key}\", {value:?})"), &format!("({key})"));
        }
    }
    if !all.iter().any(|other| other.id == span.parent) && !span.parent.starts_with("0000") {
        text = text.replace(&span.parent, "UNTOLD");
    }
    let named = span.kind_of_name();
    plain(&text.replace(&format!("{:?}", span.name), named))
}

/// A trace of that number.
fn traced(number: u32) -> [String; 2] {
    let parent = format!(
        "traceparent: 00-000000000000000000000000000a{number:04}-00000000000b{number:04}-01"
    );
    [parent, "tracestate: a=b".to_owned()]
}

#[tokio::test]
async fn spans_and_log_lines_are_what_they_were() {
    let mut out = String::new();
    for level in [3, 2, 1] {
        writeln!(out, "## level {level}").unwrap();
        let mut config = Config {
            context_len: 100,
            ..config()
        };
        config.telemetry.trace_level = level;
        let (clock, manual) = Clock::manual(START);
        let it = Told::with(config, clock).await;
        let sim = &it.sim;
        let parents: Vec<[String; 2]> = (1..=5).map(traced).collect();
        let headers: Vec<[&str; 2]> = parents.iter().map(|[a, b]| [a.as_str(), b]).collect();
        let asked = async |number: usize, rid: &str, tokens, load| {
            let body = generate(rid, tokens, true);
            with(sim, "/generate", &headers[number], &body, load).await
        };
        let mut stream = asked(0, "made-1234", 3, (0, 1)).await;
        stream.head().await;
        for at in [7, 17, 27] {
            manual.set(ms(at));
            stream.chunk().await.unwrap();
        }
        until_served(sim, 1).await;
        manual.set(ms(200));
        let chat = r#"{"messages":[{"content":"a b"}],"max_tokens":1,"temperature":0,"top_p":0.5,"rid":"x_chat-0001"}"#;
        let mut chat = with(sim, "/v1/chat/completions", &headers[1], chat, (0, 1)).await;
        manual.set(ms(202));
        until_load(sim.addr(), 1, 0).await;
        let mut waiting = asked(2, "wait-1234", 9, (1, 1)).await;
        let mut rejected = asked(3, "full-1234", 9, (1, 2)).await;
        manual.set(ms(204));
        chat.response().await.unwrap();
        rejected.response().await.unwrap();
        waiting.head().await;
        // Now it runs; who comes after it leaves while it waits.
        until_load(sim.addr(), 1, 0).await;
        let leaves = asked(4, "left-1234", 9, (1, 1)).await;
        manual.set(ms(209));
        waiting.chunk().await.unwrap();
        // The driver has told all of that round: who leaves knows that it was queued.
        until_load(sim.addr(), 1, 1).await;
        drop(leaves);
        until_load(sim.addr(), 1, 0).await;
        exchange(sim.addr(), "POST", "/abort_request", br#"{"rid":"wait"}"#).await;
        waiting.chunk().await.unwrap();
        until_served(sim, 5).await;
        told(&it, 5, &mut out).await;
    }
    same("spans.txt", &out);
}

#[tokio::test]
async fn spans_of_a_retraction_are_what_they_were() {
    let mut out = String::new();
    let profile = Profile {
        max_running_requests: 2,
        max_total_tokens: 60,
        schedule_conservativeness: 0.01,
        ..slow().profile
    };
    let (clock, manual) = Clock::manual(START);
    let config = Config { profile, ..slow() };
    let it = Told::with(config, clock).await;
    let body = generate("retract-1", 40, true);
    let mut clients = Vec::new();
    for (place, number) in (1..=2).enumerate() {
        let parents = traced(number);
        let headers = [parents[0].as_str()];
        let mut client = Connection::open(it.sim.addr()).await;
        client
            .send("POST", "/generate", &headers, body.as_bytes())
            .await;
        until_load(it.sim.addr(), 1, place).await;
        clients.push(client);
    }
    manual.set(ms(300));
    until_load(it.sim.addr(), 1, 1).await;
    manual.set(ms(10_000));
    for client in &mut clients {
        client.response().await.unwrap();
    }
    until_served(&it.sim, 2).await;
    told(&it, 2, &mut out).await;
    same("retraction.txt", &out);
}
