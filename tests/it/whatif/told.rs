//! The command `whatif`: what it prints, for people and programs, and what it refuses.

use super::{file, rewritten, run};
use crate::support::generator::flags;
use crate::support::table;

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

/// Flags, and what is said of them.
const REFUSED: &str = "\
--set slots | --set slots: must be KEY=VALUE
--set max_runing_requests=3 | --set max_runing_requests: is no key that can be set: use rate,
--set max_running_requests=0 | --set max_running_requests = 0: must be a whole number, 1 or more
--set num_gpus=0 | --set num_gpus = 0: must be a number from 1 to 1024
--set rate=-1 | --set rate = -1: must be a number from 0.001 to 1000
--set rate=2000 | --set rate = 2000: must be a number from 0.001 to 1000
--set request_rate=2000000 | --set request_rate = 2000000: must be a number from 0.001 to 1000000
--set disable_radix_cache=3 | --set disable_radix_cache = 3: must be one of true, false
--set rate=2 --set request_rate=3 | --set rate: must be given once
--set rate=2 --set rate=3 | --set rate: must be given once
--set routing_policy=cache_aware | which prompts share a beginning
--goodput client_stall:3 | `client_stall` is no latency that is predicted: use one of ttft, e2el, tpot,
--goodput foo:3 | `foo` is no latency that is predicted: use one of ttft, e2el, tpot,
--goodput ttft | write NAME:MILLISECONDS
--goodput ttft:500 tpot:9 ttft:300 | --goodput: ttft must have one limit
--format csv | possible values: text, json
--goodput-share 0.9 | --goodput <GOAL>
--goodput ttft:9 --goodput-share 2 | must be a number from 0 to 1
FIND request_rate=3 | --set request_rate: must be given once, not with --find of the same
FIND rate=3 | must be given once, not with --find of the same, and rate not with request_rate
OTHER | give the folder or the file of that one alone";

#[test]
fn what_cannot_be_predicted_is_named() {
    let (load, other) = (file("shared"), file("slots16"));
    let find = "--find rate --goodput ttft:500 --set";
    for [given, said] in table(REFUSED) {
        let given = given.replace("FIND", find).replace("OTHER", &other);
        let line = [vec![load.as_str()], flags(&given)].concat();
        let error = run(&line).unwrap_err();
        assert!(error.contains(said), "{given}: {error}");
    }
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

/// Rows of 16 requests at once do not tell how fast 64 are.
#[test]
fn a_prediction_far_from_what_was_measured_has_a_note() {
    let load = file("slots16");
    let flags = ["--set", "rate=1,3", "--set", "max_running_requests=16,64"];
    let (shown, _) = run(&[&[load.as_str(), "--json"][..], &flags].concat()).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let most = shown["fit"]["most_running"].as_u64().unwrap();
    assert!((16..25).contains(&most), "{most}");
    for prediction in shown["predictions"].as_array().unwrap() {
        let is_far =
            prediction["settings"] == serde_json::json!({"max_running_requests": 64, "rate": 3});
        let note = prediction["note"].as_str().unwrap_or_default();
        assert_eq!(
            note.contains(&format!("at most {most} did in the rows of --fit")),
            is_far,
            "{prediction}"
        );
    }
    let (shown, _) = run(&[&[load.as_str()][..], &flags].concat()).unwrap();
    let noted = shown
        .lines()
        .filter(|line| line.starts_with("note: ") && line.contains("requests run at once"));
    assert_eq!(noted.count(), 1, "{shown}");
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
