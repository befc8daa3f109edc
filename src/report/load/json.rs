//! The summary as JSON.

use serde_json::{Map, Value, json};

use crate::request::last_seen::LastSeen;
use crate::stats;

use super::failures::Failures;
use super::flow::OverTime;
use super::spent::TimeSpent;
use super::{Group, RunFacts, Summary, way_back};

type Object = Map<String, Value>;
type Figure = fn(&stats::Summary) -> f64;

pub fn summary(summary: &Summary) -> Value {
    let run = &summary.run;
    let mut object = group(&summary.all, run);
    let put = &mut |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("duration", json!(run.duration()));
    put("scheduled", json!(run.scheduled));
    put("request_rate", json!(run.offered_rate));
    put("offered_rate", json!(run.offered_rate));
    put("config", run.config.clone());
    put(
        "versions",
        json!({ "queuescope": env!("CARGO_PKG_VERSION") }),
    );
    let machine = run.machine.as_ref().map(|machine| {
        json!({
            "cores": machine.cores,
            "cpu_model": machine.cpu_model,
            "kernel": machine.kernel,
        })
    });
    put("machine", json!(machine));
    let hosts = summary.hosts.iter();
    let hosts: Object = hosts
        .map(|(host, figures)| (host.clone(), Value::Object(group(figures, run))))
        .collect();
    put("hosts", Value::Object(hosts));
    let goals: Object = run
        .goodput
        .iter()
        .map(|(name, most_ms)| (name.clone(), json!(most_ms)))
        .collect();
    put("goodput_goals_ms", Value::Object(goals));
    Value::Object(object)
}

/// What is said of all requests, and of each server's.
fn group(group: &Group, run: &RunFacts) -> Object {
    let mut object = Object::new();
    counts(&mut object, group);
    rates(&mut object, group, run);
    latencies(&mut object, group);
    benchs_names(&mut object, group);
    seeds_names(&mut object, group);
    over_time(&mut object, group.flow.over_time.as_ref());
    object.insert("time_spent".to_owned(), time_spent(group));
    failures(&mut object, &group.failures);
    if let Some(goodput) = &group.goodput {
        object.insert("goodput_requests".to_owned(), json!(goodput.good));
        object.insert("goodput_unknown".to_owned(), json!(goodput.unknown));
        let rate = run.a_second(goodput.good as f64);
        object.insert("request_goodput".to_owned(), json!(rate));
    }
    object
}

fn counts(object: &mut Object, group: &Group) {
    let counts = &group.counts;
    let put = &mut |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("requests", json!(counts.requests));
    put("rows", json!(counts.rows));
    put("completed", json!(counts.ok()));
    put("failed", json!(counts.failed()));
    put("given_up", json!(counts.given_up));
    put("success_rate", json!(counts.success_rate()));
    let outcomes = counts.outcomes.iter();
    let outcomes: Object = outcomes
        .map(|(outcome, count)| (outcome.name().to_owned(), json!(count)))
        .collect();
    put("outcomes", Value::Object(outcomes));
    // Bounded: texts can be as many as requests.
    let errors = counts.errors.iter().take(20);
    let errors: Vec<Value> = errors
        .map(|(error, count)| json!({ "error": error, "count": count }))
        .collect();
    put("errors", Value::Array(errors));
    put("attempts", json!(counts.attempts));
    put("retried_requests", json!(counts.retried));
    let failed = counts.failed_attempts.iter().take(20);
    let failed: Vec<Value> = failed
        .map(|(of, count)| {
            json!({ "host": of.host, "outcome": of.outcome, "status": of.status, "count": count })
        })
        .collect();
    put("failed_attempts", Value::Array(failed));
    put("inconsistent_rows", json!(counts.inconsistent.0));
    put("left_out_clock_error", json!(group.left_out));
}

fn rates(object: &mut Object, group: &Group, run: &RunFacts) {
    let put = &mut |key: &str, value: Value| object.insert(key.to_owned(), value);
    let tokens = &group.tokens;
    put("schedule_rate", json!(group.flow.schedule_rate));
    put("achieved_rate", json!(group.flow.achieved_rate));
    let completed = json!(run.a_second(group.counts.ok() as f64));
    put("completed_rate", completed.clone());
    put("request_throughput", completed);
    put("total_input_tokens", json!(tokens.input));
    put("total_output_tokens", json!(tokens.output));
    put(
        "output_tokens_unknown_requests",
        json!(tokens.output_unknown),
    );
    let a_second = |tokens: Option<u64>| json!(tokens.and_then(|n| run.a_second(n as f64)));
    put("input_throughput", a_second(tokens.input));
    put("output_throughput", a_second(tokens.output));
    put("total_throughput", a_second(tokens.total()));
    put(
        "max_output_tokens_per_s",
        json!(group.flow.peak_output_tokens),
    );
    // bench_serving's: time in flight of the requests that went well, over the run.
    let in_flight = Some(group.latencies.e2e_sum).filter(|_| group.latencies.e2e.is_some());
    put(
        "concurrency",
        json!(in_flight.and_then(|sum| run.a_second(sum))),
    );
}

/// Every latency in seconds.
fn latencies(object: &mut Object, group: &Group) {
    let all = group.latencies.all.iter();
    let all: Object = all
        .map(|latency| {
            let mut shown = figures(latency.summary.as_ref());
            if let (Some(shown), count @ 1..) = (shown.as_object_mut(), latency.within_clock_error)
            {
                shown.insert("within_clock_error".to_owned(), count.into());
            }
            (latency.name.to_owned(), shown)
        })
        .collect();
    object.insert("latency".to_owned(), Value::Object(all));
}

fn figures(summary: Option<&stats::Summary>) -> Value {
    let figure = |get: Figure| summary.map(get);
    json!({
        "count": summary.map_or(0, |summary| summary.count),
        "mean": figure(|s| s.mean),
        "std": figure(|s| s.std),
        "p50": figure(|s| s.p50),
        "p90": figure(|s| s.p90),
        "p95": figure(|s| s.p95),
        "p99": figure(|s| s.p99),
        "p99.9": figure(|s| s.p999),
        "max": figure(|s| s.max),
    })
}

/// What SGLang's bench_serving has, by its names, in milliseconds.
fn benchs_names(object: &mut Object, group: &Group) {
    let latencies = &group.latencies;
    for (name, summary) in [
        ("e2e_latency", &latencies.e2e),
        ("ttft", &latencies.ttft),
        ("tpot", &latencies.tpot),
    ] {
        let figures: [(&str, Figure); 6] = [
            ("mean", |s| s.mean),
            ("median", |s| s.p50),
            ("std", |s| s.std),
            ("p90", |s| s.p90),
            ("p95", |s| s.p95),
            ("p99", |s| s.p99),
        ];
        for (figure, get) in figures {
            object.insert(format!("{figure}_{name}_ms"), ms(summary.as_ref().map(get)));
        }
    }
    object.insert("mean_itl_ms".to_owned(), ms(latencies.itl_mean));
    object.insert("max_itl_ms".to_owned(), ms(latencies.itl_max));
}

/// What the seed's scripts read, in milliseconds.
fn seeds_names(object: &mut Object, group: &Group) {
    for name in ["server_latency", "total_latency", "ttft"] {
        let mean = group.latencies.get(name).map(|summary| summary.mean);
        object.insert(format!("avg_{name}"), ms(mean));
    }
    let p99 = group
        .latencies
        .get("server_latency")
        .map(|summary| summary.p99);
    object.insert("p99_server_latency".to_owned(), ms(p99));
}

fn over_time(object: &mut Object, over_time: Option<&OverTime>) {
    let queued = over_time.and_then(|o| o.queued.as_ref());
    let running = over_time.and_then(|o| o.running.as_ref());
    for (name, place) in [("queued", queued), ("running", running)] {
        let unknown = place.map(|place| place.unknown);
        object.insert(format!("{name}_unknown_requests"), json!(unknown));
    }
    let concurrencies = [
        ("concurrency", over_time.map(|o| &o.in_flight)),
        ("queued", queued.map(|place| &place.known)),
        ("running", running.map(|place| &place.known)),
    ];
    let mut series = Object::new();
    series.insert("bucket_s".to_owned(), json!(over_time.map(|o| o.bucket_s)));
    for (name, concurrency) in concurrencies {
        object.insert(format!("mean_{name}"), json!(concurrency.map(|c| c.mean)));
        object.insert(format!("peak_{name}"), json!(concurrency.map(|c| c.peak)));
        series.insert(name.to_owned(), json!(concurrency.map(|c| &c.series)));
    }
    object.insert("series".to_owned(), Value::Object(series));
}

fn parts(spent: &TimeSpent) -> Vec<Value> {
    let parts = spent.parts.iter().map(|(what, nanos, requests)| {
        json!({
            "stage": what.name(),
            "share": spent.share(*nanos),
            "mean": spent.mean(*nanos),
            "requests": requests,
        })
    });
    parts.collect()
}

/// What became of the failed, and what that says of all.
fn failures(object: &mut Object, failures: &Failures) {
    let kinds = failures.kinds.iter().map(|kind| {
        json!({
            "outcome": kind.outcome.name(),
            "ended_in": kind.last_seen.map(LastSeen::name),
            "requests": kind.requests,
            "waited": figures(kind.waited.as_ref()),
            "parts": parts(&kind.spent),
        })
    });
    object.insert("failures".to_owned(), kinds.collect());
    let at_least = failures.at_least.iter();
    let at_least: Object = at_least
        .map(|(name, summary)| ((*name).to_owned(), figures(summary.as_ref())))
        .collect();
    object.insert("latency_at_least".to_owned(), Value::Object(at_least));
}

fn time_spent(group: &Group) -> Value {
    let spent = &group.spent;
    let unseen = spent.unseen.iter();
    let unseen: Object = unseen
        .map(|(what, requests)| (what.name().to_owned(), json!(requests)))
        .collect();
    json!({
        "requests": spent.requests,
        "mean": spent.mean(spent.total_nanos),
        "parts": parts(spent),
        "unseen": unseen,
        "sentence": group.verdict(),
        "findings": way_back::finding(group).into_iter().collect::<Vec<_>>(),
    })
}

fn ms(seconds: Option<f64>) -> Value {
    json!(seconds.map(|seconds| seconds * 1e3))
}
