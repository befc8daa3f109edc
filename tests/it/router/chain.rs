//! Every endpoint and stream mode, with servers and hops on hosts whose wall clocks differ, and hops that are restarted with yet
//! other ones. Every process has a clock of its own. Where answers tell no times, the servers' own spans do.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use queuescope::request::cell::Value;
use queuescope::request::row;
use queuescope::request::{ColumnId, Period};
use queuescope::sim::{Served, Sim};

use super::{Stack, ended, traffic};
use crate::support::generator::sim;
use crate::support::proxy::{Row, assert_cells, number};
use crate::support::router::{Which, free_port};
use crate::support::wire::until_async;

const REQUESTS: usize = 100;
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

/// How each endpoint is asked for streams and whole replies, and the columns that rows then have; before the last, hops are restarted.
const RUNS: [(&str, &[&str]); 7] = [
    ("--backend sglang", &[ALWAYS, ENGINE, STREAM]),
    ("--backend sglang --disable-stream", &[ALWAYS, ENGINE]),
    ("--backend sglang-oai", &[ALWAYS, STREAM]),
    ("--backend sglang-oai --disable-stream", &[ALWAYS]),
    ("--backend sglang-oai-chat", &[ALWAYS, STREAM]),
    ("--backend sglang-oai-chat --disable-stream", &[ALWAYS]),
    ("--backend sglang", &[ALWAYS, ENGINE, STREAM]),
];

/// What the ids of streamed chat begin with, whose answers tell no times.
const CHAT_STREAM: &str = "4-";
/// Seconds: how well a moment is to be known.
const TOLERANCE: f64 = 1e-3;
/// By how much a wall clock may have been corrected between the starts of two processes, seconds.
const CORRECTED: f64 = 0.001;

/// By how many seconds the wall clocks of a host are ahead: its hop's, that after the restart, and its server's.
type Clocks = (i64, i64, f64);

/// A stated interval holds the truth.
#[track_caller]
fn assert_holds([offset, error]: [f64; 2], truth: f64, corrected: f64) {
    let is_held = (offset - truth).abs() <= error + corrected;
    assert!(is_held, "{offset} ± {error} is not {truth}");
}

/// What is known of a request: its hop's and its server's names, how far ahead the hop's wall clock was and the server's is, and what the
/// server's own log has.
struct Truth {
    worker: String,
    host: String,
    ahead: f64,
    skew: f64,
    served: Served,
}

const OFFSET: [&str; 2] = ["clock_offset", "clock_offset_error"];
const HOP_OFFSET: [&str; 2] = ["hop_clock_offset", "hop_clock_offset_error"];

/// A row of the generator is right, and as complete as its endpoint allows: it puts three clocks on its own.
fn check_record(record: &row::Row, wanted: &[&str], truth: &Truth) {
    let id = record.request_id();
    assert!(record.is_ok(), "{id}: {:?}", record.error);
    let mut wanted = wanted.iter().flat_map(|all| all.split(' '));
    let value = |name: &str| (ColumnId::named(name).unwrap().column().get)(record);
    let empty = wanted.find(|name| value(name) == Value::Empty);
    assert_eq!(empty, None, "{id}");
    assert_eq!(record.host.as_ref(), Some(&truth.host), "{id}");
    assert_eq!(record.worker.as_ref(), Some(&truth.worker), "{id}");
    assert_eq!(record.inconsistency, None, "{id}");
    let took = |period| record.timeline.nanos(period).unwrap() as f64 / 1e9;
    let second = |nanos: Option<i64>| nanos.unwrap() as f64 / 1e9;
    let of_hop = [record.hop_clock_offset, record.hop_clock_offset_error].map(second);
    assert_holds(of_hop, truth.ahead, CORRECTED);
    // The router sends between arrival, on the front's clock, and the server's receipt.
    let error = of_hop[1] + second(record.front_clock_offset_error);
    let in_router = took(Period::QUEUE_IN_ROUTER);
    assert!(in_router >= -error, "{id}: {in_router} ± {error}");
    if record.clock_offset.is_some() {
        // The server runs on the generator's clock, but for its skew. A float rounds.
        let [offset, error] = [record.clock_offset, record.clock_offset_error].map(second);
        assert_holds([offset, error], truth.skew, 1e-6);
        // The hop's clock has when the router sent.
        let (network, error) = (took(Period::NETWORK), error + of_hop[1]);
        assert!(network >= -error - 1e-6, "{id}: {network} ± {error}");
    }
}

/// The front's row, and the hop's row of the same request.
fn check_row(row: &Row, hop: &Row, truth: &Truth) {
    let cells = [
        ("outcome", "ok"),
        ("inconsistency", ""),
        ("host", &*truth.host),
        ("worker", &truth.worker),
    ];
    assert_cells(row, cells);
    assert_cells(hop, cells);
    assert_cells(hop, [("seen_by", "hop")]);
    let written = |names: [&str; 2]| names.map(|name| number(row, name));
    assert_holds(written(HOP_OFFSET), truth.ahead, CORRECTED);
    let [_, error] = written(HOP_OFFSET);
    // This request alone bounds it, but for what clocks may drift meanwhile.
    let own = (number(row, "response_head_time") - number(row, "forwarded_time")) / 2.0;
    assert!(error <= own + 0.001, "{error} {own}");
    // The router held it from our send to the hop's reading: seconds of an hour must not leak in.
    let in_router = number(row, "queue_time_in_router");
    assert!((-error..5.0).contains(&in_router), "{in_router} ± {error}");
    // The hop's own stamps, moved by the truth, lie within the front's own.
    let arrived = number(hop, "router_send_time") - truth.ahead;
    let sent = number(row, "forwarded_time") - CORRECTED;
    let answered = number(row, "response_head_time") + CORRECTED;
    assert!((sent..=answered).contains(&arrived), "{row:?} {hop:?}");
    assert!((number(row, "router_send_time") - arrived).abs() <= error + CORRECTED);
    assert_holds(written(OFFSET), truth.skew, CORRECTED);
    // What the hop measured on its own clock is what the front finds through the offsets.
    if row["timing_source"] == "meta_info" {
        let [ours, theirs] = [row, hop].map(|row| number(row, "pure_queue_time"));
        assert!((ours - theirs).abs() < 1e-5, "{ours} {theirs}");
    }
}

/// A row has what the server's log says: durations, and moments on our clock with an error that the row states.
fn check_moments(row: &Row, Truth { served, skew, .. }: &Truth) {
    assert!(served.is_finished);
    let moments = [
        Some(served.received),
        served.moments.queue_start,
        served.moments.queue_end,
        served.moments.first_token,
    ];
    let [received, start, end, first] = moments.map(|at| at.unwrap());
    let error = TOLERANCE + number(row, "clock_offset_error");
    for (column, truth, error) in [
        ("tokenize_time", start.since(received), TOLERANCE),
        ("pure_queue_time", end.since(start), TOLERANCE),
        ("queue_time_in_server", first.since(received), TOLERANCE),
        ("server_created_time", received.seconds() - skew, error),
        ("queue_time_start", start.seconds() - skew, error),
        ("queue_time_end", end.seconds() - skew, error),
        ("server_first_token_time", first.seconds() - skew, error),
    ] {
        let told = number(row, column);
        assert!((told - truth).abs() < error, "{column} {told} {truth}");
    }
}

/// A server in which requests queue, and which tells its spans.
fn server(skew: f64, traces: SocketAddr) -> Sim {
    sim(|config| {
        config.telemetry.enable_trace = true;
        config.telemetry.otlp_traces_endpoint = traces.to_string();
        config.clock_skew_s = skew;
        config.profile.tokenize_ms = 0.5;
        config.profile.max_running_requests = 3;
        config.profile.decode_step_ms = 9.0;
    })
}

async fn check(which: Which, host: Option<&str>, clocks: [Clocks; 2]) {
    let traces = free_port();
    let server = |(first, _, skew): Clocks| (server(skew, traces), first);
    let front = format!("[engine]\nwait_s = 20.0\n[engine.traces]\nlisten = \"{traces}\"");
    let mut stack = Stack::start(which, clocks.map(server).into(), host, &front, "").await;
    let mut known: BTreeMap<String, Truth> = BTreeMap::new();
    for (number, (line, wanted)) in RUNS.iter().enumerate() {
        let is_last = number == RUNS.len() - 1;
        if is_last {
            stack.restart(clocks.map(|(_, then, _)| then)).await;
        }
        let (name, line) = (format!("{number}-"), format!("{FLAGS} {line}"));
        let run = traffic(stack.front.front, &name, &line).await;
        assert_eq!(run.rows.len(), REQUESTS);
        for (n, (sim, (first, then, skew))) in stack.sims.iter().zip(clocks).enumerate() {
            let ours = sim.served().into_iter().filter_map(|served| {
                let id = served.x_request_id.clone()?;
                let truth = Truth {
                    worker: format!("w{n}"),
                    host: host.map_or(sim.addr().to_string(), str::to_owned),
                    ahead: if is_last { then } else { first } as f64,
                    skew,
                    served,
                };
                id.starts_with(&name).then_some((id, truth))
            });
            let before = known.len();
            known.extend(ours);
            let served = known.len() - before;
            assert!((40..=60).contains(&served), "{line}: w{n} served {served}");
        }
        for record in &run.rows {
            check_record(record, wanted, &known[record.request_id()]);
        }
        let has_waited = |row: &&row::Row| row.pure_queue_time > Some(1_000_000);
        let waited = run.rows.iter().filter(has_waited).count();
        assert!(
            waited > 10 || !wanted.contains(&ENGINE),
            "{waited} queued in the servers"
        );
    }
    let mut hops = BTreeMap::new();
    for hop in &mut stack.hops {
        let rows = ended(hop).await.into_iter();
        hops.extend(rows.map(|row| (row["parent_span_id"].clone(), row)));
    }
    let metric = "queuescope_engine_waiting";
    let has_none = async || stack.front.metric(metric).await == 0;
    until_async("that no row waits", has_none).await;
    let front = ended(&mut stack.front).await;
    // Each request once in each file.
    let all = known.len();
    assert_eq!(
        (all, front.len(), hops.len()),
        (RUNS.len() * REQUESTS, all, all)
    );
    let chats = front.iter();
    let mut chats = chats.filter(|row| row["req_id"].starts_with(CHAT_STREAM));
    let has_waited = chats.any(|row| number(row, "pure_queue_time") > TOLERANCE);
    assert!(has_waited, "nothing that spans tell waited");
    for row in &front {
        let truth = &known[&row["req_id"]];
        let source = match &row["req_id"][..1] {
            "0" | "1" | "6" => "meta_info",
            _ => "trace",
        };
        assert_eq!(row["timing_source"], source);
        if row["req_id"].starts_with(CHAT_STREAM) {
            check_moments(row, truth);
        }
        check_row(row, &hops[&row["span_id"]], truth);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_endpoint_and_stream_mode_gives_right_rows_with_hops_an_hour_off_and_restarted() {
    check(
        Which::Sglang032,
        None,
        [(3600, -3600, 0.0), (-3600, 5400, 0.0)],
    )
    .await;
    // Two clocks, of servers that are called the same.
    let host = Some("127.0.0.1:30000");
    check(
        Which::Smg113,
        host,
        [(-3600, 5400, 3.0), (5400, -3600, -3.0)],
    )
    .await;
}
