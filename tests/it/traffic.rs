//! The traffic generator against a scripted server.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use clap::Parser;
use queuescope::clock::{Clock, Stamp};
use queuescope::report::load::{RunFacts, Summary};
use queuescope::request::outcome::Outcome;
use queuescope::request::row::Row;
use queuescope::request::timeline::Moment;
use queuescope::traffic::{self, Error, Live, Run, RunPlan, Stop};
use serde_json::Value;

use crate::support::generator::{self, drive, flags};
use crate::support::recordings;
use crate::support::upstream::{Gate, Seen, Step, Upstream, refusing};
use crate::support::wire::{self, until};

mod client;
mod command;
mod data;
mod front;
mod open_loop;
mod pinned;
mod secret;
mod talk;
mod tls;
mod verdict;

/// A plan of a few quick requests, with `more` on the command line.
fn plan(addr: SocketAddr, more: &[&str]) -> RunPlan {
    let more = [&["--random-input-len", "8"], more].concat();
    generator::plan(&format!("http://{addr}"), &more).unwrap()
}

/// A recorded response as bytes on the wire, a chunk a read.
fn recorded(case: &str) -> Vec<u8> {
    let recording = recordings::named(case);
    let kind = recording
        .headers
        .iter()
        .find(|(name, _)| name == "content-type");
    let mut bytes = format!(
        "HTTP/1.1 {} X\r\ncontent-type: {}\r\ntransfer-encoding: chunked\r\n\r\n",
        recording.status,
        kind.unwrap().1
    )
    .into_bytes();
    for (_, piece) in &recording.pieces {
        bytes.extend(wire::chunk(piece));
    }
    bytes.extend(wire::chunk(""));
    bytes
}

/// Why the run counts as failed.
fn failure(run: &Run) -> Option<String> {
    let facts = RunFacts {
        started: run.started,
        ended: run.ended,
        offered_rate: None,
        scheduled: run.schedule.len(),
        config: Value::Null,
        goodput: Vec::new(),
        machine: None,
    };
    Summary::of(&run.records, &facts).failure()
}

/// The place in the schedule of a request of this id.
fn place(req_id: &str) -> usize {
    req_id.rsplit_once('-').unwrap().1.parse().unwrap()
}

fn outcomes(run: &Run) -> Vec<Outcome> {
    run.records.iter().map(|row| row.outcome()).collect()
}

fn at(row: &Row, moment: Moment) -> Stamp {
    row.timeline.time(moment).unwrap()
}

fn body(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}
