//! What rows teach, what is predicted of it, and what is refused.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Parser;
use queuescope::report::files::SeriesRow;
use queuescope::report::reader::{self, Run};
use queuescope::upstream::policy::Policy;
use queuescope::whatif::command::{self, Args};
use queuescope::whatif::figures::Figures;
use queuescope::whatif::fit::Fit;
use queuescope::whatif::load::{Load, Request};
use queuescope::whatif::replay::{Deployment, Model};
use queuescope::whatif::settings::{deployment, sweeps};

mod h200;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    args: Args,
}

fn files(of: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/h200")
        .join(of);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn file(name: &str) -> String {
    let all = files("rows");
    let found = all
        .iter()
        .find(|path| path.display().to_string().contains(name));
    found.unwrap().display().to_string()
}

fn run(flags: &[&str]) -> Result<(String, Option<String>), String> {
    let flags = Flags::try_parse_from([&["whatif"], flags].concat());
    let args = flags.map_err(|error| error.to_string())?.args;
    command::run(&args).map_err(|error| error.to_string())
}

#[test]
fn what_is_read_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.csv.gz");
    std::fs::copy(file("slots16"), &rows).unwrap();
    let (load, before) = (rows.to_str().unwrap(), std::fs::read(&rows).unwrap());
    let notes = folder.path().join("notes.txt");
    std::fs::write(&notes, "mine").unwrap();
    let mine = notes.to_str().unwrap();
    for (flags, wrong) in [
        (["--html", load, "--set", "rate=1"], "is the same file as"),
        (["--profile", load, "--html", mine], "is there already"),
        (["--fit", load, "--profile", mine], "is there already"),
    ] {
        let error = run(&[&[load][..], &flags].concat()).unwrap_err();
        assert!(error.contains(wrong), "{error}");
    }
    let page = folder.path().join("page.html");
    let page = page.to_str().unwrap();
    let error = run(&[load, "--html", page, "--profile", page]).unwrap_err();
    assert!(error.contains("two outputs"), "{error}");
    assert_eq!(std::fs::read(&rows).unwrap(), before);
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "mine");
}

#[test]
fn predictions_for_programs_have_every_setting_of_the_grid() {
    let load = file("slots16");
    let flags = [
        load.as_str(),
        "--set",
        "num_gpus=1,2",
        "--set",
        "rate=1.5",
        "--json",
    ];
    let (shown, refused) = run(&flags).unwrap();
    assert_eq!(refused, None);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(
        shown["validation"][0]["file"]
            .as_str()
            .unwrap()
            .contains("slots16")
    );
    let step = &shown["fit"]["parameters"]["decode_step_ms"];
    assert!(step["low"].as_f64() < step["value"].as_f64());
    let predictions = shown["predictions"].as_array().unwrap();
    let settings: Vec<_> = predictions.iter().map(|one| &one["settings"]).collect();
    assert_eq!(
        settings[0],
        &serde_json::json!({"num_gpus": 1, "rate": 1.5})
    );
    assert_eq!(
        settings[1],
        &serde_json::json!({"num_gpus": 2, "rate": 1.5})
    );
    let queue = |at: usize| {
        predictions[at]["pure_queue_time_ms"]["mean"]
            .as_f64()
            .unwrap()
    };
    assert!(queue(0) > 300.0 && queue(1) < 20.0, "{shown:#}");
    for latency in ["ttft_ms", "total_latency_ms", "pure_queue_time_ms"] {
        for figure in ["mean", "p50", "p99"] {
            assert!(
                predictions[0][latency][figure].is_f64(),
                "{latency} {figure}"
            );
        }
    }
    assert!(predictions[0]["request_throughput"].is_f64());
}

#[test]
fn what_cannot_be_predicted_is_named() {
    let (load, other) = (file("shared"), file("slots16"));
    let find = ["--find", "rate", "--goodput", "ttft:500", "--set"];
    for (flags, said) in [
        (&["--set", "slots"][..], "--set slots: must be KEY=VALUE"),
        (
            &["--set", "max_runing_requests=3"],
            "--set max_runing_requests: is no key that can be set: use rate,",
        ),
        (
            &["--set", "max_running_requests=0"],
            "--set max_running_requests = 0: must be a whole number, 1 or more",
        ),
        (
            &["--set", "num_gpus=0"],
            "--set num_gpus = 0: must be a number from 1 to 1024",
        ),
        (
            &["--set", "rate=-1"],
            "--set rate = -1: must be a number from 0.001 to 1000",
        ),
        (
            &["--set", "rate=2000"],
            "--set rate = 2000: must be a number from 0.001 to 1000",
        ),
        (
            &["--set", "request_rate=2000000"],
            "--set request_rate = 2000000: must be a number from 0.001 to 1000000",
        ),
        (
            &["--set", "disable_radix_cache=3"],
            "--set disable_radix_cache = 3: must be one of true, false",
        ),
        (
            &["--set", "rate=2", "--set", "request_rate=3"],
            "--set rate: must be given once",
        ),
        (
            &["--set", "rate=2", "--set", "rate=3"],
            "--set rate: must be given once",
        ),
        (
            &["--set", "routing_policy=cache_aware"],
            "which prompts share a beginning",
        ),
        (
            &["--goodput", "client_stall:3"],
            "`client_stall` is no latency that is predicted: use one of ttft, e2el, tpot,",
        ),
        (
            &["--goodput", "foo:3"],
            "`foo` is no latency that is predicted: use one of ttft, e2el, tpot,",
        ),
        (&["--goodput", "ttft"], "write NAME:MILLISECONDS"),
        (
            &["--goodput", "ttft:500", "tpot:9", "ttft:300"],
            "--goodput: ttft must have one limit",
        ),
        (&["--format", "csv"], "possible values: text, json"),
        (&["--goodput-share", "0.9"], "--goodput <GOAL>"),
        (
            &["--goodput", "ttft:9", "--goodput-share", "2"],
            "must be a number from 0 to 1",
        ),
        (
            &[&find[..], &["request_rate=3"]].concat(),
            "--set request_rate: must be given once, not with --find of the same",
        ),
        (
            &[&find[..], &["rate=3"]].concat(),
            "must be given once, not with --find of the same, and rate not with request_rate",
        ),
        (
            &[other.as_str()],
            "give the folder or the file of that one alone",
        ),
    ] {
        let error = run(&[&[load.as_str()], flags].concat()).unwrap_err();
        assert!(error.contains(said), "{flags:?}: {error}");
    }
}

#[test]
fn a_setting_does_not_undo_another() {
    let [cache, slots] = ["disable_radix_cache=true", "max_running_requests=4"];
    for given in [[cache, slots], [slots, cache]] {
        let sweeps = sweeps(&given.map(str::to_owned)).unwrap().into_iter();
        let settings: Vec<_> = sweeps.map(|mut of| (of.key, of.values.remove(0))).collect();
        let was = Deployment::of(&Model::default(), &of_slots(&[2]));
        let made = deployment(was, &Load::default(), &settings).unwrap();
        assert!(made.model.profile.disable_radix_cache, "{given:?}");
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

/// The pool that a file tells of is the one that is replayed.
#[test]
fn a_kv_cache_of_known_size_is_replayed() {
    let mut run = reader::load(&[file("slots16").into()])
        .unwrap()
        .runs
        .remove(0);
    let servers = |run: &Run| Deployment::of(&Model::default(), &Load::of(run).unwrap());
    assert_eq!(servers(&run).model.profile.max_total_tokens, 800_000);
    run.series = vec![SeriesRow {
        time: 1.0,
        source: "metrics".into(),
        server: run.table.text("host", 0).to_owned(),
        metric: "max_total_num_tokens".into(),
        value: 700.0,
    }];
    let small = servers(&run);
    assert_eq!(small.model.profile.max_total_tokens, 700);
    // It has room for one request at a time.
    let load = Load::of(&run).unwrap();
    let waited = |servers: &Deployment| Figures::of(&servers.serve(&load), &[]).compared()[4];
    let mut large = small.clone();
    large.model.profile.max_total_tokens = 800_000;
    assert!(waited(&small) > 20.0 * waited(&large), "{small:?}");
}

/// A server that is twice as slow as the usual one in prefill and three times in decode, with what it made of some requests.
fn simulated(model: &Model, pace: f64) -> Load {
    let request = |n: u32| Request {
        at: f64::from(n) / pace + f64::from(n * 7_919 % 97) / 50.0,
        prompt: 200 + n * 7_919 % 3_000,
        cached: 0,
        output: 16 + n * 104_729 % 200,
        server: 0,
        seen: None,
    };
    let mut requests: Vec<Request> = (0..150).map(request).collect();
    requests.sort_by(|a, b| a.at.total_cmp(&b.at));
    let load = Load {
        requests,
        servers: vec!["one".to_owned()],
        slots: vec![Some(32)],
        ..Load::default()
    };
    Deployment::of(model, &load).serve(&load)
}

/// A fit does not take a full server's queue for the scheduler's work.
#[test]
fn a_server_that_was_always_full_is_learnt_too() {
    let mut load = simulated(&Model::default(), 5.0);
    load.slots = vec![Some(4)];
    let full = Deployment::of(&Model::default(), &load).serve(&load);
    let waits = full.requests.iter().filter_map(|of| of.seen);
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
    untold.requests.iter_mut().for_each(|of| of.seen = None);
    let fit = Fit::of(&[load, untold]).unwrap();
    assert_eq!(fit.validation.len(), 1);
    assert!(fit.error() < 0.1, "{:?}", fit.validation);
}

/// A policy knows what was sent out before, though it is not in a queue yet; and each server does what it did if it were alone.
#[test]
fn a_policy_chooses_when_requests_arrive() {
    let mut model = Model::default();
    model.profile.tokenize_token_us = 1_000.0;
    let pair = |n: u32| {
        let request = |late, prompt| Request {
            at: f64::from(n) * 4.0 + late,
            prompt,
            cached: 0,
            output: 4,
            server: 0,
            seen: None,
        };
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
        let made = servers.replay(&load.requests);
        for pair in made.chunks(2) {
            assert_ne!(pair[0].server, pair[1].server, "{policy:?}");
            let is_turn = policy == Policy::RoundRobin;
            assert!(
                !is_turn || pair[0].server == 0,
                "who comes first has the first turn"
            );
        }
        for server in 0..2 {
            let own = |made: &&Request| made.server == server;
            let own: Vec<Request> = made.iter().filter(own).copied().collect();
            let alone = Deployment::of(&model, &of_slots(&[1])).replay(&own);
            let seen = |all: &[Request]| all.iter().map(|of| of.seen.unwrap()).collect::<Vec<_>>();
            assert_eq!(seen(&own), seen(&alone), "{policy:?} {server}");
        }
    }
}

/// A quiet load that is driven to saturation: a little of speed decides about its queue, and that is said.
#[test]
fn what_saturation_may_be_off_by_is_told() {
    let [load, more] = ["2048-64-rate10", "2048-64-rate5"].map(file);
    let goal = [
        "--goodput",
        "ttft:100",
        "--json",
        "--set",
        "rate=0.5,1.5",
        "--set",
        "max_running_requests=32",
        "--fit",
    ];
    let flags = [&[load.as_str()], &goal[..], &[load.as_str(), more.as_str()]].concat();
    let (shown, refused) = run(&flags).unwrap();
    assert_eq!(refused, None);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let off = |at: usize| {
        shown["predictions"][at]["error"]["ttft_ms.p50"]
            .as_f64()
            .unwrap()
    };
    assert!(off(0) < 0.15 && off(1) > 0.25, "{shown:#}");
    // What was measured of LOAD is told as its predictions are.
    let measured = &shown["load"]["measured"];
    assert!((measured["ttft_ms"]["p50"].as_f64().unwrap() - 96.67).abs() < 0.01);
    assert!(
        (0.4..0.7).contains(&measured["goodput_share"].as_f64().unwrap()),
        "{measured}"
    );
}

/// Servers that shared a GPU have one each where their number is set, were it the same; and who is refused is not forgotten.
#[test]
fn predictions_hold_together() {
    let load = file("two-servers");
    let json = |flags: &[&str]| -> serde_json::Value {
        let (shown, refused) =
            run(&[&[load.as_str(), "--format", "json"], flags].concat()).unwrap();
        assert_eq!(refused, None);
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()["predictions"].take()
    };
    let made = json(&["--set", "num_gpus=1,2,3"]);
    let p50 = |at: usize| made[at]["total_latency_ms"]["p50"].as_f64().unwrap();
    assert!(p50(0) > p50(1) && p50(1) >= p50(2), "{made}");
    let made = json(&["--set", "max_total_tokens=10", "--goodput", "ttft:100000"]);
    assert_eq!(made[0]["refused"], 300);
    assert_eq!(made[0]["goodput_share"], 0.0);
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
        way_in: 0.001,
        way_back: 0.001,
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
    for learnt in &fit.learnt {
        let [low, high] = learnt.bounds;
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

/// A file of the rows of 16 slots, each so many seconds late, with one column more.
fn rewritten(late: impl Fn(usize) -> f64, more: [&str; 2]) -> tempfile::TempDir {
    let Run { table, .. } = reader::load(&[file("slots16").into()])
        .unwrap()
        .runs
        .remove(0);
    let folder = tempfile::tempdir().unwrap();
    let mut text = format!(
        "req_id,success,host,actual_prompt_tokens,actual_output_tokens,arrival_time,server_created_time,queue_time_start,\
         queue_time_end,server_first_token_time,finish_time,outcome,pure_queue_time,{}\n",
        more[0]
    );
    for row in 0..table.len() {
        let at = |name: &str| table.number(name, row).unwrap();
        let late = late(row);
        let _ = writeln!(
            text,
            "{row},True,a,{},{},{},{},{},{},{},{},ok,{},{}",
            at("actual_prompt_tokens"),
            at("actual_output_tokens"),
            at("arrival_time"),
            at("server_created_time"),
            at("queue_time_start"),
            at("queue_time_end") + late,
            at("server_first_token_time") + late,
            at("finish_time") + late,
            at("pure_queue_time") + late,
            if row == 7 { more[1] } else { "" },
        );
    }
    std::fs::write(folder.path().join("rows.csv"), text).unwrap();
    folder
}

#[test]
fn an_engine_that_explains_nothing_predicts_nothing() {
    // Every second request is told to have waited ten seconds while others did not: no engine does that.
    let folder = rewritten(|row| if row % 2 == 0 { 10.0 } else { 0.0 }, ["x", ""]);
    let path = folder.path().join("rows.csv");
    let (shown, refused) = run(&[path.to_str().unwrap(), "--format", "json"]).unwrap();
    let refused = refused.unwrap();
    assert!(
        refused.starts_with("no prediction is to be had") && refused.contains("more than 20 %"),
        "{refused}"
    );
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["no_prediction"], refused);
    assert_eq!(shown["predictions"], serde_json::json!([]));
}

#[test]
fn rows_that_are_left_out_and_pairs_are_told() {
    let folder = rewritten(|_| 0.0, ["cached_tokens", "many"]);
    let path = folder.path().join("rows.csv");
    let goal = ["--goodput", "ttft:200", "--set", "rate=2"];
    let (shown, _) = run(&[&[path.to_str().unwrap()][..], &goal].concat()).unwrap();
    let note = "note: rows.csv: 1 of 240 rows cannot be read and are left out: ";
    assert!(shown.contains(note), "{shown}");
    // The share of those that keep the goal is measured, and predicted.
    let kept = shown.lines().filter(|line| {
        let is_one = line.starts_with("measured: ") || line.starts_with("predicted: ");
        is_one && line.ends_with(" %")
    });
    assert_eq!(kept.count(), 2, "{shown}");
    let folder = rewritten(|_| 0.0, ["disaggregated", "True"]);
    let path = folder.path().join("rows.csv");
    let error = run(&[path.to_str().unwrap()]).unwrap_err();
    assert!(
        error.starts_with("rows.csv: ") && error.contains("pairs are not predicted"),
        "{error}"
    );
}

#[test]
fn as_many_servers_or_requests_as_keep_a_goal_are_found() {
    let load = file("slots16");
    let found = |what: &str, set: &str| {
        let page = tempfile::tempdir().unwrap();
        let page = page.path().join("page.html");
        let flags = [
            load.as_str(),
            "--find",
            what,
            "--goodput",
            "ttft:200",
            "--set",
            set,
            "--format",
            "json",
            "--html",
            page.to_str().unwrap(),
        ];
        let (shown, refused) = run(&flags).unwrap();
        assert_eq!(refused, None);
        let page = std::fs::read_to_string(page).unwrap();
        for said in [
            "predicted, not measured",
            r#""kind":"what-if""#,
            r#""off":{"#,
        ] {
            assert!(page.contains(said), "{said}");
        }
        assert!(!page.contains("was not measured: no worker hop"));
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()
    };
    let shown = found("servers", "rate=2");
    let one = &shown["predictions"][0];
    assert!(one["goodput_share"].as_f64().unwrap() >= 0.95, "{shown:#}");
    let servers = one["settings"]["num_gpus"].as_u64().unwrap();
    assert!((2..=4).contains(&servers), "{shown:#}");
    let shown = found("rate", "num_gpus=1");
    let rate = shown["predictions"][0]["settings"]["request_rate"].as_f64();
    assert!((8.0..13.0).contains(&rate.unwrap()), "{shown:#}");
}

/// What is not found is said with its reason, and is no success, in words as in JSON.
#[test]
fn nothing_is_found_for_a_reason() {
    let load = file("slots16");
    let flags = ["--find", "servers", "--goodput", "ttft:0.001"];
    let none = "no number of servers up to 1024 keeps ttft:0.001 in 95.0 % of the requests";
    let (shown, failed) = run(&[&[load.as_str(), "--json"][..], &flags].concat()).unwrap();
    assert_eq!(failed.as_deref(), Some(none));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["predictions"], serde_json::json!([]));
    let said = serde_json::json!([{ "settings": {}, "reason": none }]);
    assert_eq!(shown["not_found"], said);
    let (shown, failed) = run(&[&[load.as_str()][..], &flags].concat()).unwrap();
    assert_eq!(failed.as_deref(), Some(none));
    assert!(shown.contains(none), "{shown}");
}
