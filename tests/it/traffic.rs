//! The traffic generator against a scripted server.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::sys::signal::Signal;
use queuescope::clock::{Clock, Stamp};
use queuescope::error::Error;
use queuescope::request::{Moment, Outcome, Row};
use queuescope::traffic::{self, LiveProgress, Run, RunPlan, Stop};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::generator::{self, drive, flags};
use crate::support::process::{Done, queuescope, run_aside, signal};
use crate::support::upstream::{Gate, Seen, Step, Upstream, refusing};
use crate::support::wire::{self, until};
use crate::support::{proxy, recordings};

mod client;
mod command;
mod data;
mod open_loop;
mod pinned;
mod tls;

const BROKEN: &[u8] = b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n";

/// A plan of a few quick requests, with these flags.
fn plan(addr: SocketAddr, line: &str) -> RunPlan {
    let line = format!("--random-input-len 8 {line}");
    generator::plan(&format!("http://{addr}"), &line).unwrap()
}

/// Runs that plan to its end.
async fn sent(addr: SocketAddr, line: &str) -> Run {
    drive(plan(addr, line)).await.unwrap()
}

/// The program as its user starts it, sending to `addr` and writing to `dir`.
fn command(addr: SocketAddr, dir: &Path, line: &str) -> Command {
    let mut command = queuescope(&["traffic", "--base-url", &format!("http://{addr}")]);
    command.arg("--output-dir").arg(dir).args(flags(line));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn ended(child: Child) -> Done {
    let done = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    done.await.unwrap().into()
}

fn read(dir: &Path, file: &str) -> String {
    std::fs::read_to_string(dir.join(file)).unwrap_or_default()
}

/// What a run, of which is known what it said, left as its summary.
fn summary(dir: &Path, done: &Done) -> Value {
    serde_json::from_str(&read(dir, "summary.json")).unwrap_or_else(|_| panic!("{done:?}"))
}

/// Counts of a summary.
fn counts<const KEYS: usize>(summary: &Value, keys: [&str; KEYS]) -> [u64; KEYS] {
    keys.map(|key| summary[key].as_u64().unwrap())
}

/// A run of the program with these flags, its summary, and the folder of its files.
async fn ran(addr: SocketAddr, line: &str) -> (Done, Value, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let done = run_aside(command(addr, folder.path(), line)).await;
    let summary = summary(folder.path(), &done);
    (done, summary, folder)
}

fn column(dir: &Path, name: &str) -> Vec<String> {
    let rows = proxy::rows(&dir.join("requests.csv")).into_iter();
    rows.map(|row| row[name].clone()).collect()
}

/// A server that answers as recorded.
async fn good() -> Upstream {
    Upstream::always(recorded("generate_stream")).await
}

/// The same for so many requests; it never answers those after them.
async fn good_for(requests: usize) -> Upstream {
    let good = Step::Send(recorded("generate_stream"));
    let step = move |turn| {
        if turn < requests {
            good.clone()
        } else {
            Step::Silence
        }
    };
    Upstream::start(move |turn, _| vec![step(turn)]).await
}

/// A server that refuses requests.
async fn failing() -> Upstream {
    Upstream::always(recorded("err_generate_too_long")).await
}

/// A server that answers once the gate is open.
async fn held(gate: &Gate) -> Upstream {
    let answer = Step::Send(recorded("generate_stream"));
    Upstream::playing(vec![Step::Gate(gate.clone()), answer]).await
}

/// A recorded response as it was on the wire, but that the connection is kept.
fn recorded(case: &str) -> Vec<u8> {
    let text = String::from_utf8(recordings::named(case).raw.concat()).unwrap();
    text.replacen("Connection: close\r\n", "", 1).into_bytes()
}

/// The place in the schedule of a request of this id.
fn place(req_id: &str) -> usize {
    req_id.rsplit_once('-').unwrap().1.parse().unwrap()
}

fn outcomes(run: &Run) -> Vec<Outcome> {
    run.rows.iter().map(|row| row.outcome()).collect()
}

fn at(row: &Row, moment: Moment) -> Stamp {
    row.timeline.time(moment).unwrap()
}

fn body(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}
