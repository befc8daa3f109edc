//! Every endpoint and stream mode through the real routers. The proxy is a process of its own, so its clock is not
//! the generator's.

use std::collections::{BTreeMap, BTreeSet};

use queuescope::request::column::Value;
use queuescope::request::columns::COLUMNS;
use queuescope::request::row::Row;
use queuescope::request::timeline::Period;
use queuescope::traffic::Run;

use crate::support::generator::flags;
use crate::support::router::Which;
use crate::support::stack::{Hops, Stack};

/// 100 requests at 50 a second.
const FLAGS: &str = "--request-rate 50 --num-prompts 100 --random-input-len 32 --random-output-len 12 --random-range-ratio 0.5";

/// Columns that a row has whatever the endpoint.
const ALWAYS: &str = "req_id host input_length expected_output_length actual_prompt_tokens actual_output_tokens \
    actual_total_tokens decode_length arrival_time router_send_time finish_time server_latency \
    total_latency queue_time_in_router scheduled_time sent_time schedule_lag status attempts \
    trace_id engine_id";
/// Columns that need the engine's own moments.
const ENGINE: &str = "server_created_time queue_time_start queue_time_end server_first_token_time ttft \
    queue_time_in_server tokenize_time pure_queue_time prefill_end_time prefill_time network_time \
    server_queue_wait clock_offset clock_offset_error";
/// Columns that need a stream.
const STREAM: &str =
    "first_token_time decode_time ttft_observed ttft_from_schedule tpot itl_mean itl_p99 itl_max";

fn is_filled(record: &Row, name: &str) -> bool {
    let column = COLUMNS.iter().find(|column| column.name == name).unwrap();
    (column.get)(record) != Value::Empty
}

/// A run's rows are all there, right, and as complete as their endpoint allows.
fn check<'a>(
    run: &Run,
    wanted: impl Iterator<Item = &'a &'a str>,
    served: &BTreeMap<String, String>,
) {
    assert_eq!(run.rows.len(), 100);
    let wanted: Vec<&str> = wanted.flat_map(|all| all.split(' ')).collect();
    for record in &run.rows {
        let id = record.request_id();
        assert!(record.is_ok(), "{id}: {:?}", record.error);
        let empty = wanted.iter().find(|name| !is_filled(record, name));
        assert_eq!(empty, None, "{id}");
        assert_eq!(record.host.as_ref(), served.get(id), "{id}");
        assert_eq!(record.inconsistency, None, "{id}");
        // The router sends between arrival (on one clock, so without tolerance) and the server's receipt.
        let took = |period| record.timeline.nanos(period);
        assert!(took(Period::QUEUE_IN_ROUTER).unwrap() >= 0, "{id}");
        let network = took(Period::NETWORK).unwrap_or(0);
        assert!(network >= -clock_error(record), "{id}: {network}");
    }
    for sim in served.values().collect::<BTreeSet<_>>() {
        let all = run.rows.iter();
        let share = all.filter(|r| r.host.as_ref() == Some(sim)).count();
        assert!((40..=60).contains(&share), "{sim} served {share} of 100");
    }
}

/// How far the engine's moments may be off, nanoseconds: the offset's stated error and a float's rounding.
fn clock_error(record: &Row) -> i64 {
    record.clock_offset_error.unwrap_or(0) + 1_000
}

/// The servers run on the generator's clock here, whatever the proxy's says: the offset that was found
/// between the two must hold 0.
fn check_clock_and_queue(run: &Run) {
    for record in &run.rows {
        let (nanos, error) = (record.clock_offset.unwrap(), clock_error(record));
        assert!(nanos.abs() <= error, "{nanos} ± {error}");
    }
    let has_waited = |row: &&Row| row.pure_queue_time > Some(1_000_000);
    let waited = run.rows.iter().filter(has_waited).count();
    assert!(waited > 10, "requests queued in the servers: {waited}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_endpoint_and_stream_mode_through_the_real_router() {
    for which in Which::ALL {
        every_endpoint(which).await;
    }
}

async fn every_endpoint(which: Which) {
    let mut stack = Stack::start(which, Hops::Inside).await;
    let mut ids = Vec::new();
    for (backend, wanted) in [
        ("sglang", &[ALWAYS, ENGINE, STREAM][..]),
        ("sglang-oai", &[ALWAYS, STREAM]),
        ("sglang-oai-chat", &[ALWAYS, STREAM]),
    ] {
        for more in ["", "--disable-stream"] {
            let line = format!("{FLAGS} --backend {backend} {more}");
            let run = stack
                .traffic(&format!("{backend}{more}"), &flags(&line))
                .await;
            let wanted = wanted
                .iter()
                .filter(|all| more.is_empty() || **all != STREAM);
            check(&run, wanted, &stack.served());
            ids.extend(run.rows.iter().map(|row| row.request_id().to_owned()));
            if (backend, more) == ("sglang", "") {
                check_clock_and_queue(&run);
            }
        }
    }
    // The proxy wrote the same requests, each once.
    let rows = stack.front.rows().into_iter();
    let mut written: Vec<String> = rows.map(|row| row["req_id"].clone()).collect();
    written.sort();
    ids.sort();
    assert_eq!(written, ids);
}
