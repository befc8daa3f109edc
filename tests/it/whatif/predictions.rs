//! The command `whatif`: what it prints, for people and programs, and what it refuses.

use clap::Parser;
use queuescope::experiment::plan::keys::ExperimentKind;
use queuescope::experiment::plan::{Plan, grid as read};
use queuescope::report;
use queuescope::sim::engine::Profile;
use queuescope::whatif::figures::GOAL_LATENCIES;
use serde_json::{Value, json};

use super::{file, rewritten, run, said, told, tried};
use crate::support::assert_says;
use crate::support::docs::assert_cases;
use crate::support::generator::flags;

#[test]
fn what_is_read_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [load, mine, page] = ["rows.csv.gz", "notes.txt", "page.html"].map(path);
    std::fs::copy(file("slots16"), &load).unwrap();
    std::fs::write(&mine, "mine").unwrap();
    for (flags, wrong) in [
        (["--html", &load, "--set", "rate=1"], "is the same file as"),
        (["--profile", &load, "--html", &mine], "is there already"),
        (["--fit", &load, "--profile", &mine], "is there already"),
        (["--html", &page, "--profile", &page], "two outputs"),
    ] {
        assert_says(&run(&[&[&*load][..], &flags].concat()).unwrap_err(), wrong);
    }
    let before = std::fs::read(file("slots16")).unwrap();
    assert_eq!(std::fs::read(&load).unwrap(), before);
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "mine");
}

/// What was learnt is kept as a plan's `[sim]`, below the command of the simulator, with the limits that were found and the share of a
/// GPU: a simulator with the profile is a server of LOAD.
#[test]
fn a_profile_is_what_the_simulator_and_plans_take() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("learnt.toml");
    let kept = |load: &str, fit: &str| {
        let line = format!("{fit} --force --profile {}", path.display());
        let fit = told(&[load], &line)["fit"].take();
        let text = std::fs::read_to_string(&path).unwrap();
        let plan = read::file(&text).unwrap();
        Plan::new(ExperimentKind::Node, Vec::new(), plan.clone()).unwrap();
        (fit, text, plan)
    };
    let [slots, pair, quiet] = ["slots16", "two-servers", "2048-64-rate5"].map(file);
    let (fit, text, plan) = kept(&slots, "");
    let of_plan = |wanted: &str| &plan.iter().find(|(key, _)| key == wanted).unwrap().1;
    let command = text.lines().next().unwrap();
    let command = flags(command.strip_prefix("# queuescope ").unwrap());
    for (name, learnt) in fit["parameters"].as_object().unwrap() {
        let value = learnt["value"].as_f64().unwrap();
        let of_plan = of_plan(&format!("sim.{name}")).as_float().unwrap();
        assert!((of_plan - value).abs() < 1e-6, "{name}: {of_plan} {value}");
        let flag = format!("--{} {value:.6}", name.replace('_', "-"));
        let mut given = command.windows(2);
        assert!(given.any(|two| two.join(" ") == flag), "{flag} {text}");
    }
    let made = Profile::try_parse_from(command).unwrap();
    let limits = (made.max_running_requests, made.gpu_share);
    assert_eq!(limits, (16, 1.0), "{text}");
    let slots = of_plan("max_running_requests").as_integer();
    assert_eq!(slots, Some(16), "{text}");
    let (fit, text, _) = kept(&pair, &format!("--fit {pair} {quiet}"));
    let share = fit["gpu_share"]["2"].as_f64().unwrap();
    assert!(share < 1.0);
    assert_says(&text, &format!("\ngpu_share = {share}\n"));
    // Nobody knows their slots.
    assert!(!text.contains("max_running_requests ="), "{text}");
}

#[test]
fn predictions_have_every_setting_of_the_grid() {
    // Every latency that can be a goal is predicted.
    let goals = GOAL_LATENCIES.map(|name| format!("{name}:9e9")).join(" ");
    let line = format!("--set num_gpus=1,2 --set rate=1.5 --goodput {goals}");
    let shown = told(&[&file("slots16")], &line);
    assert_says(&shown["validation"][0]["file"].to_string(), "slots16");
    let step = &shown["fit"]["parameters"]["decode_step_ms"];
    assert!(step["low"].as_f64() < step["value"].as_f64());
    let predictions = shown["predictions"].as_array().unwrap();
    assert_eq!(predictions.len(), 2);
    for (servers, queue, one) in [
        (1, 300.0..f64::INFINITY, &predictions[0]),
        (2, 0.0..20.0, &predictions[1]),
    ] {
        assert_eq!(one["settings"], json!({"num_gpus": servers, "rate": 1.5}));
        assert_eq!(one["goodput_share"], 1.0);
        let mean = one["pure_queue_time_ms"]["mean"].as_f64().unwrap();
        assert!(queue.contains(&mean), "{shown:#}");
    }
}

/// What was measured is what the report says of it, and what programs are told.
#[test]
fn what_was_measured_is_as_the_report_has_it() {
    let loads = ["two-servers", "slots16"].map(file);
    let asked = report::command::Args {
        dirs: loads.each_ref().map(Into::into).to_vec(),
        ..Default::default()
    };
    let of_report = report::command::run(&asked, None).unwrap();
    for load in &loads {
        let name = load.rsplit('/').next().unwrap();
        let cells = |text: &str| {
            let line = text.lines().find_map(|line| line.split_once(name));
            flags(line.unwrap().1).join(" ")
        };
        let shown = said(&[load], "--set rate=1");
        let table = shown.split_once("Measured and predicted").unwrap().1;
        assert_eq!(cells(table), cells(&of_report));
        let rate = &told(&[load], "")["loads"][0]["measured"]["request_throughput"];
        let rate = format!(" {:.2} ", rate.as_f64().unwrap());
        assert_says(&cells(table), &rate);
    }
}

#[test]
fn as_many_servers_or_requests_as_keep_a_goal_are_found() {
    let load = file("slots16");
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let found = |what: &str, set: &str| {
        let html = page.display();
        let line = format!("--find {what} --goodput ttft:200 --set {set} --force --html {html}");
        told(&[&load], &line)
    };
    let shown = found("servers", "rate=2");
    let one = &shown["predictions"][0];
    assert!(one["goodput_share"].as_f64().unwrap() >= 0.95, "{shown:#}");
    let servers = one["settings"]["num_gpus"].as_u64().unwrap();
    assert!((2..=4).contains(&servers), "{shown:#}");
    let shown = found("rate", "num_gpus=1");
    let rate = shown["predictions"][0]["settings"]["request_rate"].as_f64();
    assert!((8.0..13.0).contains(&rate.unwrap()), "{shown:#}");
    let page = std::fs::read_to_string(&page).unwrap();
    let kind = r#""kind":"what-if""#;
    assert!(page.contains("predicted, not measured") && page.contains(kind));
    assert!(!page.contains("was not measured: no worker hop"));
}

/// Rows of 16 requests at once do not tell how fast 64 are, and those of a quiet server nothing of a queue.
#[test]
fn a_prediction_far_from_what_was_measured_has_a_note() {
    let load = file("slots16");
    let line = "--set rate=1,3 --set max_running_requests=16,64";
    let all = told(&[&load], line);
    let most = all["fit"]["most_running"].as_u64().unwrap();
    assert!((16..25).contains(&most), "{most}");
    let more = format!("at most {most} did in the rows of --fit");
    for prediction in all["predictions"].as_array().unwrap() {
        let settings = &prediction["settings"];
        let is_far = settings["rate"] == 3;
        let has_note = prediction["note"].is_string();
        assert_eq!(has_note, is_far, "{prediction}");
        // No more than 2.5 times as many run in 16 slots, which are full.
        let is_more = prediction["note"].to_string().contains(&more);
        let has_more_slots = settings["max_running_requests"] == 64;
        assert_eq!(is_more, is_far && has_more_slots, "{prediction}");
    }
    let shown = said(&[&load], line);
    assert_eq!(shown.matches("± is too narrow").count(), 2, "{shown}");
    assert_says(&shown, "of the 16 slots of a server are in use on average");
}

/// What is not found is said with its reason, and is no success; the error says it, not the text as well.
#[test]
fn nothing_is_found_for_a_reason() {
    let load = file("slots16");
    let servers = "--find servers --goodput ttft:0.001";
    let none = "random-512-128-slots16-rate12.csv.gz: no number of servers up to 1024 keeps ttft:0.001 in 95.0 % of the requests";
    let (shown, failed) = tried(&[&load], &format!("{servers} --json"));
    assert_eq!(failed.as_deref(), Some(none));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["predictions"], json!([]));
    let name = &shown["loads"][0]["name"];
    let why = json!([{ "load": name, "settings": {}, "reason": none }]);
    assert_eq!(shown["not_found"], why);
}

/// What a command line predicts and remarks. `@NAME` is a load of the H200, and `MADE` a folder of files that are no loads, or hardly.
fn remarks(line: &str, folder: &str) -> String {
    let words = flags(line)
        .into_iter()
        .map(|word| match word.strip_prefix('@') {
            Some(name) => file(name),
            None => word.replace("MADE", folder),
        });
    let words: Vec<String> = words.collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = match run(&words) {
        Ok((text, refused)) => {
            // What was learnt, and how well it replays, is above the first of these.
            let (_, rest) = text
                .split_once("\nMeasured and predicted")
                .unwrap_or(("", &text));
            let lines = rest.lines().skip(1).map(|line| flags(line).join(" "));
            let refused = refused.map(|why| format!("refused: {why}"));
            Vec::from_iter(lines.chain(refused)).join("\n")
        }
        Err(error) => format!("error: {}", error.trim_start_matches("error: ")),
    };
    said.replace(folder, "MADE")
}

/// `UPDATE_GOLDEN` writes the file anew.
#[test]
fn remarks_and_errors_are_as_ever_golden() {
    let (made, _) = rewritten(["cached_tokens", "many"]);
    let (pairs, rows) = rewritten(["disaggregated", "True"]);
    let folder = made.path();
    std::fs::copy(rows, folder.join("pairs.csv")).unwrap();
    drop(pairs);
    let head = "req_id,success,outcome,host,arrival_time,actual_prompt_tokens,actual_output_tokens,finish_time";
    for (name, text) in [
        (
            "failed.csv",
            format!("{head}\na,False,server_error,h,1,10,10,2\n"),
        ),
        ("plain.csv", format!("{head}\na,True,ok,h,1,10,10,2\n")),
        ("broken.csv", "a,b\n".to_owned()),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let folder = folder.to_str().unwrap();
    assert_cases("tests/data/whatif/remarks.txt", |line| {
        remarks(line, folder)
    });
}

/// Rows of servers that were hardly busy do not tell what becomes of a queue; and the table is that of `queuescope routing`.
#[test]
fn a_quiet_load_that_is_pushed_to_saturation_has_a_note() {
    let load = file("2048-64-rate5");
    let line = "--set max_running_requests=8 --set rate=1,4";
    let all = told(&[&load], line);
    let note = |at: usize| all["predictions"][at]["note"].as_str();
    assert_eq!(note(0), None);
    assert_says(note(1).unwrap(), "± is too narrow");
    let shown = said(&[&load], line);
    let is_noted = |line: &&str| line.contains("rate=4: ") && line.contains("too narrow");
    assert_eq!(shown.lines().filter(is_noted).count(), 1, "{shown}");
    let mut heads = shown.lines().filter(|line| line.starts_with("run  "));
    let heads: Vec<&str> = heads.next().unwrap().split_whitespace().collect();
    let of_runs = "ok failed req/s TTFT p50 TTFT p99 total p99";
    assert_says(&heads.join(" "), of_runs);
}
