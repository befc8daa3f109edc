//! What the simulator says, to the letter: held against files in `tests/data/sim`. `UPDATE_GOLDEN=1` writes them anew.

use std::fmt::Write as _;

use clap::ValueEnum;
use queuescope::clock::{Clock, ManualClock};
use queuescope::sim::Sim;
use queuescope::sim::config::{Config, Dialect};
use serde_json::Value;

use super::told::{Told, above, kind_of_name};
use super::{START, asked, ms, on_manual_clock, posted, sent, slow, until_load, until_served};
use crate::support::docs::assert_file;
use crate::support::wire::until;

/// Compares with the file of that name.
fn same(name: &str, text: &str) {
    assert_file(&format!("tests/data/sim/{name}"), text);
}

/// The id of a trace of that number.
fn trace(number: u32) -> String {
    format!("000000000000000000000000000a{number:04}")
}

/// The text without the ids of traces.
fn plain(text: &str) -> String {
    (1..=5).fold(text.to_owned(), |text, n| text.replace(&trace(n), "RID"))
}

pub(super) fn generate(rid: &str, tokens: u32, stream: bool) -> String {
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
    let mut stream = asked(sim, &generate("r-1", 3, true), (0, 1)).await;
    for at in [7, 17, 27] {
        manual.set(ms(at));
        let chunk = stream.chunk().await.unwrap().unwrap();
        if at != 17 {
            say("stream", &chunk);
        }
    }
    manual.set(ms(100));
    let mut reply = asked(sim, &generate("r-2", 3, false), (0, 1)).await;
    manual.set(ms(200));
    say("reply", reply.response().await.text().as_bytes());

    let mut running = asked(sim, &generate("hold", 9, true), (0, 1)).await;
    manual.set(ms(202));
    until_load(sim.addr(), 1, 0).await;
    let mut waiting = asked(sim, &generate("wait", 9, true), (1, 1)).await;
    let mut rejected = asked(sim, &generate("full", 9, true), (1, 2)).await;
    manual.set(ms(207));
    say("rejected", &rejected.response().await.chunks[0]);
    running.chunk().await.unwrap();
    for (rid, client) in [("wait", &mut waiting), ("hold", &mut running)] {
        // All whose id begins so are meant.
        let body = format!(r#"{{"rid":"{}"}}"#, &rid[..2]);
        posted(sim, "/abort_request", &body).await;
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

/// Compares with spans and log lines of as many requests, without ids of traces and those that are made up anew. The last span of
/// each process is the one that the others are part of.
pub(super) async fn same_told(name: &str, told: &Told, requests: usize) {
    let count = |start: &str| {
        let spans = told.spans();
        let named = spans.iter().map(kind_of_name);
        named.filter(|name| name.starts_with(start)).count()
    };
    let ended = || [" Req", "Scheduler", "Tokenizer"].map(count) == [requests; 3];
    until("the spans", ended).await;
    let spans = told.spans();
    let mut lines: Vec<String> = spans.iter().map(|span| line(span, &spans)).collect();
    lines.sort();
    lines.extend(told.log().iter().map(|line| plain(line)));
    same(name, &(lines.join("\n") + "\n"));
}

fn line(span: &Value, all: &[Value]) -> String {
    let mut shown = span.clone();
    let name = kind_of_name(span);
    shown["name"] = name.into();
    for key in ["start_ns", "end_ns"] {
        shown[key] = (span[key].as_i64().unwrap() - START.nanos()).into();
    }
    shown["span_id"] = Value::Null;
    match above(span, all) {
        Some(above) => shown["parent"] = kind_of_name(above).into(),
        None if span["parent"].as_str().unwrap().starts_with("0000") => {}
        None => shown["parent"] = "UNTOLD".into(),
    }
    let made_anew = ["host_id", "pid", "bid"];
    let hide = |pairs: &mut Value| {
        let pairs = pairs.as_object_mut().unwrap();
        pairs.retain(|key, _| !made_anew.contains(&key.as_str()));
    };
    hide(&mut shown["attrs"]);
    for event in shown["events"].as_array_mut().unwrap() {
        hide(&mut event["attrs"]);
    }
    for link in shown["links"].as_array_mut().unwrap() {
        let to = all.iter().find(|other| other["span_id"] == link["span_id"]);
        *link = kind_of_name(to.unwrap()).into();
    }
    plain(&format!("{name} {shown}"))
}

/// The header line of a trace of that number.
pub(super) fn parent_of(number: u32) -> String {
    let trace = trace(number);
    format!("traceparent: 00-{trace}-00000000000b{number:04}-01\r\n")
}

#[tokio::test]
async fn spans_and_log_lines_are_what_they_were() {
    let config = super::with(config(), |config| config.context_len = 100);
    let (clock, manual) = Clock::manual(START);
    let it = Told::with(config, clock).await;
    let sim = &it.sim;
    let of_trace = async |path: &str, number, body: &str, load| {
        let extra = parent_of(number) + "tracestate: a=b\r\n";
        sent(sim, path, &extra, body, load).await
    };
    let traced = async |number, rid: &str, tokens, load| {
        of_trace("/generate", number, &generate(rid, tokens, true), load).await
    };
    let mut stream = traced(1, "made-1234", 3, (0, 1)).await;
    for at in [7, 17, 27] {
        manual.set(ms(at));
        stream.chunk().await.unwrap();
    }
    until_served(sim, 1).await;
    manual.set(ms(200));
    let chat = r#"{"messages":[{"content":"a b"}],"max_tokens":1,"temperature":0,"top_p":0.5,"rid":"x_chat-0001"}"#;
    let mut chat = of_trace("/v1/chat/completions", 2, chat, (0, 1)).await;
    manual.set(ms(202));
    until_load(sim.addr(), 1, 0).await;
    let mut waiting = traced(3, "wait-1234", 9, (1, 1)).await;
    let mut rejected = traced(4, "full-1234", 9, (1, 2)).await;
    manual.set(ms(204));
    chat.response().await;
    rejected.response().await;
    // Now it runs; who comes after it leaves while it waits.
    until_load(sim.addr(), 1, 0).await;
    let leaves = traced(5, "left-1234", 9, (1, 1)).await;
    manual.set(ms(209));
    waiting.chunk().await.unwrap();
    // The driver has told all of that round: who leaves knows that it was queued.
    until_load(sim.addr(), 1, 1).await;
    drop(leaves);
    until_load(sim.addr(), 1, 0).await;
    posted(sim, "/abort_request", r#"{"rid":"wait"}"#).await;
    waiting.chunk().await.unwrap();
    until_served(sim, 5).await;
    same_told("spans.txt", &it, 5).await;
}
