//! What rows teach, what is predicted of it, and what is refused.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Parser;
use queuescope::experiment::plan::grid as read;
use queuescope::report::files::SeriesRow;
use queuescope::report::reader::{self, Run};
use queuescope::request::ColumnId;
use queuescope::upstream::policy::Policy;
use queuescope::whatif::command::{self, Args};
use queuescope::whatif::figures::Figures;
use queuescope::whatif::fit::Fit;
use queuescope::whatif::load::{Load, Request};
use queuescope::whatif::replay::{Deployment, Model};
use queuescope::whatif::settings::{deployment, sweeps};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::generator::flags;
use crate::support::{self, assert_says};

mod h200;
mod loads;
mod predictions;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    args: Args,
}

fn files(of: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h200");
    support::files(&folder.join(of))
}

fn file(name: &str) -> String {
    let all = files("rows").into_iter();
    let mut all = all.map(|path| path.display().to_string());
    all.find(|path| path.contains(name)).unwrap()
}

fn run(flags: &[&str]) -> Result<(String, Option<String>), String> {
    let flags = Flags::try_parse_from([&["whatif"], flags].concat());
    let args = flags.map_err(|error| error.to_string())?.args;
    command::run(&args).map_err(|error| error.to_string())
}

/// What is said, in words, of loads under flags, and why nothing was predicted or found.
fn tried(loads: &[&str], line: &str) -> (String, Option<String>) {
    run(&[loads, &flags(line)].concat()).unwrap()
}

/// The same where all went well.
fn said(loads: &[&str], line: &str) -> String {
    let (said, refused) = tried(loads, line);
    assert_eq!(refused, None);
    said
}

/// The same for programs.
fn told(loads: &[&str], line: &str) -> Value {
    serde_json::from_str(&said(loads, &format!("{line} --json"))).unwrap()
}

#[test]
fn a_setting_does_not_undo_another() {
    let [cache, slots] = ["disable_radix_cache=true", "max_running_requests=4"];
    for given in [[cache, slots], [slots, cache]] {
        let given = given.map(|set| read::assignment(set).unwrap());
        let sweeps = sweeps(&given).into_iter();
        let settings: Vec<_> = sweeps
            .map(|(key, mut values)| (key, values.remove(0)))
            .collect();
        let was = Deployment::of(&Model::default(), &of_slots(&[2]));
        let made = deployment(was, 1.0, &settings).unwrap();
        assert!(made.model.profile.disable_radix_cache);
        assert_eq!(made.slots, [4]);
    }
}

/// Nothing that came to servers of so many slots.
fn of_slots(slots: &[usize]) -> Load {
    Load {
        slots: slots.iter().copied().map(Some).collect(),
        ..Load::default()
    }
}

/// The rows of 16 slots.
fn sixteen() -> Run {
    let loaded = reader::load(&[file("slots16").into()]).unwrap();
    loaded.runs.into_iter().next().unwrap()
}

/// The pool that a file tells of is the one that is replayed (what it does to a queue: `a_full_kv_cache_is_named_and_its_size_can_be_given`).
#[test]
fn a_kv_cache_of_known_size_is_replayed() {
    let mut run = sixteen();
    let servers = |run: &Run| Deployment::of(&Model::default(), &Load::of(run).unwrap());
    assert_eq!(servers(&run).model.profile.max_total_tokens, 800_000);
    run.series = vec![SeriesRow {
        time: 1.0,
        source: "metrics".into(),
        server: run.table.text(ColumnId::host, 0).to_owned(),
        metric: "max_total_num_tokens".into(),
        value: 700.0,
    }];
    let model = servers(&run).model;
    assert_eq!(model.profile.max_total_tokens, 700);
}

fn request(arrival: f64, prompt: u32, output: u32) -> Request {
    Request {
        arrival,
        prompt,
        cached: 0,
        output,
        server: 0,
        times: None,
    }
}

/// A server that is twice as slow as the usual one in prefill and three times in decode, with what it made of some requests.
fn simulated(model: &Model, pace: f64) -> Load {
    let request = |n: u32| {
        let arrival = f64::from(n) / pace + f64::from(n * 7_919 % 97) / 50.0;
        request(arrival, 200 + n * 7_919 % 3_000, 16 + n * 104_729 % 200)
    };
    let mut requests: Vec<Request> = (0..150).map(request).collect();
    requests.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
    let load = Load {
        requests,
        servers: vec!["one".to_owned()],
        slots: vec![Some(32)],
        ..Load::default()
    };
    served(model, &load)
}

/// What servers make of a load.
fn served(model: &Model, load: &Load) -> Load {
    Deployment::of(model, load).serve(load)
}

/// A fit does not take a full server's queue for the scheduler's work.
#[test]
fn a_server_that_was_always_full_is_learnt_too() {
    let mut load = simulated(&Model::default(), 5.0);
    load.slots = vec![Some(4)];
    let full = served(&Model::default(), &load);
    let waits = full.requests.iter().filter_map(|of| of.times);
    let waited = waits.filter(|times| times.admitted - times.queued > 0.1);
    assert!(waited.count() > 130);
    let fit = Fit::of(&[full]).unwrap();
    for (at, error) in fit.errors().into_iter().enumerate() {
        assert!(error < 0.1, "{at}: {:?}", fit.validation);
    }
}

/// A run of which nobody told anything is not held against what comes out.
#[test]
fn what_nobody_told_is_no_error() {
    let load = simulated(&Model::default(), 5.0);
    let mut untold = load.clone();
    untold.requests.iter_mut().for_each(|of| of.times = None);
    let fit = Fit::of(&[load, untold]).unwrap();
    assert_eq!(fit.validation.len(), 1);
    assert!(fit.error() < 0.1, "{:?}", fit.validation);
}

/// The server's clock may be behind ours by more than the way to it takes.
#[test]
fn the_way_to_a_server_takes_no_negative_time() {
    let mut load = simulated(&Model::default(), 5.0);
    let times = load.requests.iter_mut().filter_map(|of| of.times.as_mut());
    times.for_each(|times| times.created -= 0.001);
    assert_eq!(Fit::of(&[load]).unwrap().model.inbound_s, 0.0);
}

/// A policy knows what was sent out before, though it is not in a queue yet; and each server does what it did if it were alone.
#[test]
fn a_policy_chooses_when_requests_arrive() {
    let mut model = Model::default();
    model.profile.tokenize_token_us = 1_000.0;
    let pair = |n: u32| {
        let request = |late, prompt| request(f64::from(n) * 4.0 + late, prompt, 4);
        // The first is tokenized for two seconds, in which the second comes and goes.
        [request(0.0, 2_000), request(0.1, 20)]
    };
    let load = Load {
        requests: (0..20).flat_map(pair).collect(),
        ..Load::default()
    };
    for policy in [Policy::RoundRobin, Policy::ShortestQueue] {
        let servers = Deployment {
            policy: Some(policy),
            ..Deployment::of(&model, &of_slots(&[1, 1]))
        };
        let made = servers.serve(&load).requests;
        for pair in made.chunks(2) {
            assert_ne!(pair[0].server, pair[1].server, "{policy:?}");
            // Who comes first has the first turn.
            assert!(policy != Policy::RoundRobin || pair[0].server == 0);
        }
        for server in 0..2 {
            let own = |made: &&Request| made.server == server;
            let own: Vec<Request> = made.iter().filter(own).copied().collect();
            let alone = Load {
                requests: own.clone(),
                ..of_slots(&[1])
            };
            let alone = served(&model, &alone).requests;
            let seen = |all: &[Request]| all.iter().map(|of| of.times.unwrap()).collect::<Vec<_>>();
            assert_eq!(seen(&own), seen(&alone), "{policy:?} {server}");
        }
    }
}

/// A quiet load that is driven to saturation: a little of speed decides about its queue, and that is said.
#[test]
fn what_saturation_may_be_off_by_is_told() {
    let [load, more] = ["2048-64-rate10", "2048-64-rate5"].map(file);
    let line = "--set rate=0.5,1.5 --set max_running_requests=32 --fit";
    let shown = told(&[&load], &format!("{line} {load} {more}"));
    let off = |at: usize| shown["predictions"][at]["error"]["ttft_ms.p50"].as_f64();
    assert!(off(0) < Some(0.15) && off(1) > Some(0.25), "{shown:#}");
}

/// Servers that shared a GPU have one each where their number is set, were it the same; and who is refused is not forgotten.
#[test]
fn predictions_hold_together() {
    let load = file("two-servers");
    let predicted = |line: &str| told(&[&load], line)["predictions"].take();
    let made = predicted("--set num_gpus=1,2,3");
    let p50 = |at: usize| made[at]["total_latency_ms"]["p50"].as_f64().unwrap();
    assert!(p50(0) > p50(1) && p50(1) >= p50(2), "{made}");
    let made = predicted("--set max_total_tokens=10 --goodput ttft:100000");
    assert_eq!(made[0]["refused"], 300);
    assert_eq!(made[0]["goodput_share"], 0.0);
    assert!(made[0]["error"]["request_throughput"].is_null(), "{made}");
    let shown = said(&[&load], "--set max_total_tokens=10");
    assert!(!shown.contains("  ±"), "{shown}");
    // They have failed in the table.
    let mut lines = shown.lines();
    let line = lines.find(|line| line.starts_with("predicted: ")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("300"), "{shown}");
    // Of no request there is no latency.
    for latency in ["ttft_ms", "total_latency_ms", "pure_queue_time_ms"] {
        for figure in ["mean", "p50", "p99"] {
            assert!(made[0][latency][figure].is_null(), "{made}");
        }
    }
}

#[test]
fn what_rows_were_made_of_is_learnt_of_them() {
    let mut model = Model {
        inbound_s: 0.001,
        return_s: 0.001,
        ..Model::default()
    };
    let truth = &mut model.profile;
    truth.prefill_floor_ms *= 1.5;
    truth.prefill_stall_ms *= 1.5;
    truth.prefill_tokens_per_s /= 2.2;
    truth.decode_step_ms *= 3.0;
    truth.decode_launch_ms *= 2.5;
    truth.decode_context_ns *= 4.0;
    let truth = truth.clone();
    let fit = Fit::of(&[simulated(&model, 2.0), simulated(&model, 5.0)]).unwrap();
    for learnt in &fit.estimates {
        let (low, high) = (learnt.low, learnt.high);
        assert!(low < learnt.value && learnt.value < high, "{learnt:?}");
        let was = match learnt.name {
            "prefill_floor_ms" => truth.prefill_floor_ms,
            "prefill_tokens_per_s" => truth.prefill_tokens_per_s,
            "decode_step_ms" => truth.decode_step_ms,
            // The others stand in for each other, as far as these rows tell.
            _ => continue,
        };
        let off = (learnt.value / was).ln().abs();
        assert!(off < 0.15 && low < was && was < high, "{learnt:?}: {was}");
    }
    // A rate that it was not learnt of.
    let kept_back = simulated(&model, 8.0);
    let replayed = fit.replay(&kept_back);
    for (at, error) in replayed.errors().into_iter().enumerate() {
        assert!(error.abs() < 0.2, "{at}: {replayed:?}");
    }
}

/// A file of the rows of 16 slots, with one column more, and its path.
fn rewritten(more: [&str; 2]) -> (TempDir, String) {
    written(&Load::of(&sixteen()).unwrap(), more)
}

/// Rows of a load with these times, and one column more, which the eighth has.
fn written(load: &Load, [more, cell]: [&str; 2]) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut text = format!(
        "req_id,success,outcome,host,actual_prompt_tokens,actual_output_tokens,arrival_time,server_created_time,\
         queue_time_start,queue_time_end,server_first_token_time,finish_time,pure_queue_time,ttft_observed,total_latency,{more}\n"
    );
    for (n, (of, times)) in load.timed().enumerate() {
        let waited = times.admitted - times.queued;
        let last = if n == 7 { cell } else { "" };
        let _ = write!(text, "{n},True,ok,a,{},{}", of.prompt, of.output);
        let (arrival, first, finish) = (of.arrival, times.first, times.finish);
        let server = [times.created, times.queued, times.admitted];
        let took = [waited, first - arrival, finish - arrival];
        for time in [&[arrival], &server[..], &[first, finish], &took].concat() {
            let _ = write!(text, ",{time:.9}");
        }
        let _ = writeln!(text, ",{last}");
    }
    let path = folder.path().join("rows.csv");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn an_engine_that_explains_nothing_predicts_nothing() {
    // Every second request is told to have waited ten seconds while others did not: no engine does that.
    let mut load = Load::of(&sixteen()).unwrap();
    for times in load.requests.iter_mut().step_by(2) {
        let times = times.times.as_mut().unwrap();
        for time in [&mut times.admitted, &mut times.first, &mut times.finish] {
            *time += 10.0;
        }
    }
    let (_folder, path) = written(&load, ["cached_tokens", ""]);
    let (shown, refused) = tried(&[&path], "--format json");
    let refused = refused.unwrap();
    assert_says(&refused, "no prediction is possible");
    assert_says(&refused, "more than 20 %");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["no_prediction"], refused);
    assert_eq!(shown["predictions"], json!([]));
}

/// What requests waited for is named where it is not explained, and nothing else is; once its size is given, it is replayed.
#[test]
fn a_full_kv_cache_is_named_and_its_size_can_be_given() {
    let load = Load {
        slots: vec![None],
        pool: Some(12_000),
        ..simulated(&Model::default(), 5.0)
    };
    let (folder, path) = written(&served(&Model::default(), &load), ["cached_tokens", ""]);
    let profile = folder.path().join("learnt.toml");
    let (path, kept) = (path.as_str(), profile.to_str().unwrap());
    let (shown, refused) = tried(&[path], &format!("--profile {kept}"));
    let refused = refused.unwrap();
    for text in [&shown, &refused] {
        assert_says(text, "rows.csv: the KV memory was full for ");
        assert_says(text, "--max-total-tokens");
    }
    assert!(!shown.contains("no request waited"), "{shown}");
    assert!(!profile.exists());
    let line =
        "--max-running-requests 100 --max-total-tokens 12000 --set max_total_tokens=12000,400000";
    let all = told(&[path], &format!("{line} --profile {kept}"));
    let queue = |at: usize| all["predictions"][at]["pure_queue_time_ms"]["mean"].as_f64();
    assert!(queue(0) > queue(1).map(|ms| 10.0 * ms), "{all:#}");
    assert_eq!(all["loads"][0]["notes"], json!([]));
    let kept = std::fs::read_to_string(profile).unwrap();
    assert_says(&kept, "max_total_tokens = 12000\n");
    assert_says(&kept, "max_running_requests = 100\n");
}

/// Few waits do not show how many slots there were; the caller's number explains them.
#[test]
fn what_a_given_limit_explains_is_replayed() {
    let mut load = simulated(&Model::default(), 0.2);
    load.slots = vec![Some(1)];
    for at in 61..65 {
        load.requests[at].arrival = load.requests[60].arrival;
    }
    let (_folder, path) = written(&served(&Model::default(), &load), ["cached_tokens", ""]);
    let (_, refused) = tried(&[&path], "");
    assert_says(&refused.unwrap(), "what it waited for is not known for ");
    let all = told(&[&path], "--max-running-requests 1");
    assert_eq!(all["loads"][0]["notes"], json!([]));
}

/// A queue that is short beside the TTFT does not decide whether a load is explained.
#[test]
fn a_short_queue_weighs_little() {
    let load = simulated(&Model::default(), 5.0);
    let mut later = load.clone();
    let times = later.requests.iter_mut().filter_map(|of| of.times.as_mut());
    times.for_each(|times| times.admitted += 0.004);
    let [was, is] = [&load, &later].map(Figures::of);
    let error = is.errors_against(&was)[4];
    assert!(0.0 < error && error < 0.1, "{error}: {was:?}");
}
