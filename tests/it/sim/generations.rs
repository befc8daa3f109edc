//! What the simulator tells as each generation, through the reader: it is taken for that generation and gives the
//! moments that bodies of it give which were written by hand (`crate::generations`).

use clap::ValueEnum;
use queuescope::clock::Clock;
use queuescope::request::{End, Endpoint, Moment, Outcome, Row};
use queuescope::sim::config::{Config, Dialect};
use queuescope::sim::{Served, Sim};
use serde_json::json;

use super::{fast, posted};
use crate::generations::{self, shown};
use crate::support::admin::get;
use crate::support::observed::{begun, in_pieces};
use crate::support::table;

/// Floats of epoch seconds resolve 0.24 µs; a moment is put together of up to three.
const ROUNDING_NANOS: i64 = 2_000;

/// Each generation, and the bodies of `tests/data/synthetic` that a server of it writes: with metrics and without.
const BODIES: &str = "\
0.4.0 | 0.4.0 | 0.4.0
0.4.6 | 0.4.6 | 0.4.6
seed-fork | fork-perf_counter | fork-perf_counter
seed-fork-epoch | fork-epoch | fork-epoch
0.5.4 | 0.5.4.post3 | 0.5.4.post3
0.5.5 | 0.5.5 | 0.5.5-metrics-off
0.5.6 | 0.5.6 | 0.5.9-metrics-off
0.5.7 | 0.5.7 | 0.5.9-metrics-off
0.5.10 | 0.5.10 | 0.5.11-metrics-off
0.5.12 | 0.5.12 | 0.5.12-metrics-off
0.5.21 | 0.5.21 | 0.5.23-metrics-off
0.5.22 | 0.5.22 | 0.5.23-metrics-off
0.5.23 | 0.5.23 | 0.5.23-metrics-off";

/// The record of one request.
async fn observed(sim: &Sim, stream: bool) -> Row {
    let sampling = json!({"max_new_tokens": 8});
    let body = json!({"text": "one two", "sampling_params": sampling, "stream": stream});
    let reply = posted(sim, "/generate", &body.to_string()).await;
    let observer = begun(Endpoint::Generate, &reply.header("content-type").unwrap());
    let pieces = reply.chunks.iter().map(|chunk| (0, chunk));
    let rows = in_pieces(observer, pieces, End::Complete);
    rows.into_iter().next().unwrap()
}

/// Moments that the reader has are those of the server's own log.
fn is_as_served(row: &Row, served: &Served, case: &str) {
    for (moment, truth) in [
        (Moment::ServerCreated, Some(served.received)),
        (Moment::QueueStart, served.moments.queue_start),
        (Moment::QueueEnd, served.moments.queue_end),
        (Moment::ServerFinish, served.moments.finish),
    ] {
        let Some(read) = row.timeline.raw(moment) else {
            continue;
        };
        let off = read.nanos_since(truth.unwrap());
        assert!(
            off.abs() <= ROUNDING_NANOS,
            "{case}: {moment:?} is {off} ns off"
        );
    }
}

#[tokio::test]
async fn each_dialect_is_read_as_its_generation_and_gives_its_moments() {
    let mut all = Vec::new();
    for [version, on, off] in table(BODIES) {
        let dialect = Dialect::from_str(version, false).unwrap();
        all.push(dialect);
        for (name, metrics) in [(on, true), (off, false)] {
            let mut config = Config {
                dialect,
                metrics,
                ..fast()
            };
            // A wait of no time is told by nobody.
            config.profile.schedule_ms = 0.35;
            let sim = Sim::start(config, Clock::system()).unwrap();
            let info = get(sim.addr(), "/server_info").await.text();
            let told = format!("\"version\":\"{version}\"");
            let is_told = info.contains(&told) || name.starts_with("fork");
            assert!(is_told, "{info}");
            for (stream, ending) in [(true, "sse"), (false, "json")] {
                let case = format!("{dialect:?}, metrics {metrics}, stream {stream}");
                let row = observed(&sim, stream).await;
                assert_eq!(row.outcome(), Outcome::Ok, "{case}");
                let by_hand = generations::observed(name, ending, usize::MAX);
                let generation = row.internal.generation;
                assert_eq!(generation, by_hand.internal.generation, "{case}");
                let ended = Row::ended(vec![row.clone()]);
                assert_eq!(ended[0].inconsistency, None, "{case}");
                assert_eq!(row.actual_output_tokens, Some(8), "{case}");
                let has = |row| Vec::from_iter(shown(row).split(' ').map(|cell| cell != "-"));
                assert_eq!(has(&row), has(&by_hand), "{case}: {row:?}");
                is_as_served(&row, sim.served().last().unwrap(), &case);
            }
        }
    }
    assert_eq!(all, Dialect::value_variants());
}
