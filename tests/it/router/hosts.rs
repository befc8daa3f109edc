//! Hops on another host: a process whose wall clock is an hour off, and that is restarted with yet another.

use std::collections::BTreeMap;

use queuescope::request::column::Value;
use queuescope::request::columns::COLUMNS;
use queuescope::request::row;

use crate::support::generator::{flags, sim};
use crate::support::proxy::{Row, assert_cells, number};
use crate::support::router::{Router, Which, free_port};
use crate::support::stack::{Hops, Process, Stack, traffic};

const FLAGS: &str = "--backend sglang --request-rate 50 --num-prompts 60 --random-input-len 32 --random-output-len 8";

/// By how much a wall clock may have been corrected between the starts of two processes, seconds.
const CORRECTED: f64 = 0.001;

/// An offset and its error.
type Offset = (f64, f64);

/// What a row of the generator says of a clock, in seconds.
fn told(record: &row::Row, name: &str) -> Offset {
    let seconds = |name: &str| {
        let column = COLUMNS.iter().find(|column| column.name == name).unwrap();
        match (column.get)(record) {
            Value::Nanos(nanos) => nanos as f64 / 1e9,
            other => panic!("{name}: {other:?}"),
        }
    };
    (seconds(name), seconds(&format!("{name}_error")))
}

/// The same of a row of the front.
fn written(row: &Row, name: &str) -> Offset {
    (number(row, name), number(row, &format!("{name}_error")))
}

/// A stated interval holds the truth.
fn assert_holds((offset, error): Offset, truth: f64, corrected: f64) {
    let is_held = (offset - truth).abs() <= error + corrected;
    assert!(is_held, "{offset} ± {error} is not {truth}");
}

/// The front's row, and the hop's row of the same request.
fn check(row: &Row, hop: &Row, ahead: f64) {
    assert_cells(row, [("outcome", "ok"), ("inconsistency", "")]);
    let cells = [
        ("seen_by", "hop"),
        ("outcome", "ok"),
        ("inconsistency", ""),
        ("host", &*row["host"]),
        ("worker", &row["worker"]),
    ];
    assert_cells(hop, cells);
    let offset = written(row, "hop_clock_offset");
    assert_holds(offset, ahead, CORRECTED);
    let (_, error) = offset;
    // This request alone bounds it, but for what clocks may drift meanwhile.
    let own = (number(row, "response_head_time") - number(row, "forwarded_time")) / 2.0;
    assert!(error <= own + 0.001, "{error} {own}");
    // The router held it from our send to the hop's reading: seconds of an hour must not leak in.
    let in_router = number(row, "queue_time_in_router");
    assert!((-error..5.0).contains(&in_router), "{in_router} ± {error}");
    // The hop's own stamps, moved by the truth, lie within the front's own.
    let arrived = number(hop, "router_send_time") - ahead;
    let sent = number(row, "forwarded_time") - CORRECTED;
    let answered = number(row, "response_head_time") + CORRECTED;
    assert!((sent..=answered).contains(&arrived), "{row:?} {hop:?}");
    assert!((number(row, "router_send_time") - arrived).abs() <= error + CORRECTED);
    // What the hop measured on its own clock is what the front finds through the offsets.
    let [ours, theirs] = [row, hop].map(|row| number(row, "pure_queue_time"));
    assert!((ours - theirs).abs() < 1e-5, "{ours} {theirs}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_an_hour_off_and_restarted_give_right_rows() {
    for (which, first, then) in [
        (Which::Sglang032, 3600, -3600),
        (Which::Smg113, -3600, 5400),
    ] {
        let mut stack = Stack::start(which, Hops::Ahead(first)).await;
        let mut runs = vec![(stack.traffic("before", &flags(FLAGS)).await, first as f64)];
        stack.hops.as_mut().unwrap().restart(then);
        runs.push((stack.traffic("after", &flags(FLAGS)).await, then as f64));

        let served = stack.served();
        let hops = stack.hops.as_mut().unwrap().rows().into_iter();
        let by_span = hops.map(|row| (row["parent_span_id"].clone(), row));
        let hops: BTreeMap<String, Row> = by_span.collect();
        let front = stack.front.rows();
        // Each request once in each file.
        assert_eq!((front.len(), hops.len()), (120, 120));
        for row in &front {
            let is_before = row["req_id"].starts_with("before");
            let ahead = if is_before { first } else { then };
            check(row, &hops[&row["span_id"]], ahead as f64);
            assert_eq!(Some(&row["host"]), served.get(&row["req_id"]));
        }
        // The generator puts three clocks on its own.
        for (run, ahead) in &runs {
            assert_eq!(run.rows.len(), 60);
            for record in &run.rows {
                assert_eq!(record.inconsistency, None, "{}", record.request_id());
                assert_holds(told(record, "hop_clock_offset"), *ahead, CORRECTED);
                // The servers' clock is the generator's.
                assert_holds(told(record, "clock_offset"), 0.0, 1e-6);
            }
        }
    }
}

/// Two hosts with a hop and a server each, which both call their server `127.0.0.1:30000`; the servers' clocks differ by
/// seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_one_name_on_two_hosts_are_two_clocks() {
    let sims = [3.0, -3.0].map(|skew| sim(|config| config.clock_skew_s = skew));
    let hops = [free_port(), free_port()];
    let mut processes = Vec::new();
    let folder = tempfile::tempdir().unwrap();
    for (n, (hop, sim)) in hops.iter().zip(&sims).enumerate() {
        let config = folder.path().join(format!("w{n}.toml"));
        let worker = format!(
            "[[worker]]\nname = \"w{n}\"\nlisten = \"{hop}\"\nupstream = \"{}\"\nhost = \"127.0.0.1:30000\"\n",
            sim.addr()
        );
        std::fs::write(&config, worker).unwrap();
        let line = format!("--config {}", config.display());
        processes.push(Process::start(line, 0));
    }
    let router = free_port();
    let mut front = Process::start(format!("--upstream {router}"), 0);
    let _router = Router::start_at(Which::Smg113, router, &hops, &[]).await;
    let run = traffic(front.addr(), "two", &flags(FLAGS)).await;
    let skews = BTreeMap::from([("w0", 3.0), ("w1", -3.0)]);
    let rows = front.rows();
    assert_eq!((rows.len(), run.rows.len()), (60, 60));
    for row in &rows {
        assert_eq!(row["host"], "127.0.0.1:30000");
        let skew = skews[row["worker"].as_str()];
        assert_holds(written(row, "clock_offset"), skew, CORRECTED);
        assert_eq!(row["inconsistency"], "", "{row:?}");
    }
    for record in &run.rows {
        let skew = skews[record.worker.as_deref().unwrap()];
        assert_holds(told(record, "clock_offset"), skew, CORRECTED);
    }
    for worker in ["w0", "w1"] {
        assert!(rows.iter().any(|row| row["worker"] == worker));
    }
}
