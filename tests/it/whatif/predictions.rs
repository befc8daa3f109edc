//! The command `whatif`: what it prints, for people and programs, and what it refuses.

use clap::Parser;
use queuescope::experiment::plan::keys::ExperimentKind;
use queuescope::experiment::plan::{Plan, grid as read};
use queuescope::report;
use queuescope::sim::engine::Profile;
use queuescope::whatif::figures::GOAL_LATENCIES;
use serde_json::{Value, json};

use super::{file, rewritten, run, said, told};
use crate::support::generator::flags;
use crate::support::{assert_says, table};

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

#[derive(Parser)]
struct Simulated {
    #[command(flatten)]
    profile: Profile,
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
    let made = Simulated::try_parse_from(command).unwrap().profile;
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

const HEAD: &str = "req_id,success,outcome,host,arrival_time,actual_prompt_tokens,actual_output_tokens,finish_time";

/// An error of a load says which.
#[test]
fn an_error_of_a_load_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, outcome: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("{HEAD}\na,{outcome},h,1,10,10,2\n")).unwrap();
        path.display().to_string()
    };
    let failed = path("failed.csv", "False,server_error");
    let plain = path("plain.csv", "True,ok");
    let [broken, gone] = ["broken.csv", "gone.csv"].map(|name| folder.path().join(name));
    std::fs::write(&broken, "a,b\n").unwrap();
    let [broken, gone] = [broken, gone].map(|path| path.display().to_string());
    let load = file("slots16");
    let [unread, missing] = ["broken.csv: no file of rows", "gone.csv: No such file"];
    let none = "failed.csv: no request of one sequence went well";
    let few = "plain.csv: no server has 20 requests";
    let at_once = "plain.csv: --set rate: its requests all come at once";
    for (given, wrong) in [
        (&[&*failed][..], none),
        (&[&plain], few),
        (&[&load, "--fit", &plain], few),
        (&[&load, "--fit", &failed], none),
        // What is learnt hangs on each of them.
        (&[&load, "--fit", &load, &gone], missing),
        (&[&load, "--fit", &broken, &load], unread),
        (&[&broken, &gone], missing),
        (&[&load, &plain, "--set", "rate=2"], at_once),
    ] {
        let error = run(given).unwrap_err();
        assert_says(&error, wrong);
        assert!(!error.contains("--join"), "{error}");
    }
    // Beside others it is left out, and that is said; so is what cannot be read.
    let shown = said(&[&failed, &broken, &gone, &load], "--set rate=2");
    for note in [none, unread, missing] {
        let line = shown.lines().find(|line| line.contains(note));
        assert!(
            line.is_some_and(|line| line.starts_with("note: ")),
            "{shown}"
        );
    }
    // As is the load for which nothing is found.
    let flags = ["--find", "servers", "--goodput", "ttft:0.001"];
    let (_, nothing) = run(&[&[&*load, &file("shared")][..], &flags].concat()).unwrap();
    let none = "slots16-rate12.csv.gz: no number of servers";
    assert_says(&nothing.unwrap(), none);
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

/// The table has the figures that programs are given, and counts who is refused.
#[test]
fn the_table_has_the_figures_of_json() {
    let load = file("slots16");
    let small = "--set max_total_tokens=600";
    let (all, shown) = (told(&[&load], small), said(&[&load], small));
    let refused = &all["predictions"][0]["refused"];
    assert!(refused.as_u64().unwrap() > 0);
    let mut lines = shown.lines();
    let line = lines.find(|line| line.starts_with("predicted: ")).unwrap();
    let cells: Vec<&str> = line.split_whitespace().skip(3).collect();
    let rate = all["predictions"][0]["request_throughput"]
        .as_f64()
        .unwrap();
    let expected = [refused.to_string(), format!("{rate:.2}")];
    assert_eq!(cells[..2], expected, "{shown}");
}

/// What was measured is what the report says of it.
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
    }
}

/// Flags, and what is said of them.
const REFUSED: &str = "\
--set slots | must be KEY=VALUE
--set max_runing_requests=3 | --set max_runing_requests: is no key that can be set: use rate,
--set max_running_requests=0 | --set max_running_requests = 0: must be a whole number, 1 or more
--set num_gpus=0 | --set num_gpus = 0: must be a whole number from 1 to 1024
--set rate=2000 | --set rate = 2000: must be a number from 0.001 to 1000
--set request_rate=2000000 | --set request_rate = 2000000: must be a number from 0.001 to 1000000
--set disable_radix_cache=3 | --set disable_radix_cache = 3: must be one of true, false
--set rate=2 --set request_rate=3 | --set request_rate: is changed by --set rate already: give one of the two
--set rate=2 --set num_gpus=2 --set rate=3 | --set rate: is changed by --set rate already: give one of the two, several values as rate=A,B
--set num-gpus=2 --set num_gpus=3 | --set num_gpus: is changed by --set num_gpus already
--set rate=1,2,1.0 | --set rate = 1.0: is given twice: once is enough, as a prediction is the same each time
--set routing_policy=cache_aware | which prompts share a beginning
--goodput client_stall:3 | `client_stall` is no latency that is predicted: use one of ttft, e2el, tpot,
--goodput ttft | write NAME:MILLISECONDS
--goodput ttft:9 run/ | `run/` is no goal: write NAME:MILLISECONDS, such as ttft:500; every LOAD stands before --goodput
--goodput ttft:500 tpot:9 ttft:300 | --goodput: ttft must have one limit
--format csv | possible values: text, json
--goodput-share 0.9 | --goodput <GOAL>
--find servers | --goodput <GOAL>
--max-total-tokens 0 | must be a whole number, 1 or more
--goodput ttft:9 --goodput-share 2 | must be a share from 0 to 1, such as 0.05 or 5%
FIND request_rate=3 | --set request_rate: is changed by --find already: give one of the two
--find servers --goodput ttft:9 --set num_gpus=3 | --set num_gpus: is changed by --find already";

#[test]
fn what_cannot_be_predicted_is_named() {
    let load = file("shared");
    let find = "--find rate --goodput ttft:500 --set";
    for [given, said] in table(REFUSED) {
        let given = given.replace("FIND", find);
        let line = [vec![load.as_str()], flags(&given)].concat();
        assert_says(&run(&line).expect_err(&given), said);
    }
}

/// What is not so is not said: no cache has no cached tokens; and servers that may have shared a GPU are no others.
#[test]
fn notes_fit_the_settings() {
    let load = file("shared");
    for (set, has_note) in [("true", false), ("false", true), ("true,false", true)] {
        let shown = said(&[&load], &format!("--set disable_radix_cache={set}"));
        let is_said = shown.contains("cached tokens are taken");
        assert_eq!(is_said, has_note, "{shown}");
    }
    let pair = file("two-servers");
    let note = "no run of --fit has a single server";
    assert_says(&said(&[&pair], "--set num_gpus=2"), note);
    for line in [
        "--set rate=1".to_owned(),
        format!("--set num_gpus=2 --fit {pair} {load}"),
    ] {
        let shown = said(&[&pair], &line);
        assert!(!shown.contains(note), "{shown}");
    }
}

#[test]
fn rows_that_are_left_out_and_pairs_are_told() {
    let (_folder, path) = rewritten(["cached_tokens", "many"]);
    let shown = said(&[&path], "--goodput ttft:200 --set rate=2");
    let note = "note: rows.csv: 1 of 240 rows cannot be read and are left out: ";
    assert_says(&shown, note);
    // The share of those that keep the goal is measured, and predicted.
    for of in ["measured: ", "predicted: "] {
        let line = shown.lines().find(|line| line.starts_with(of));
        assert!(line.unwrap().ends_with(" %"), "{shown}");
    }
    let (_folder, path) = rewritten(["disaggregated", "True"]);
    let error = run(&[&path]).unwrap_err();
    assert_says(&error, "rows.csv: ");
    assert_says(&error, "pairs are not predicted");
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

/// What is not found is said with its reason, and is no success, in words as in JSON.
#[test]
fn nothing_is_found_for_a_reason() {
    let load = file("slots16");
    let servers = ["--find", "servers", "--goodput", "ttft:0.001"];
    let none = "random-512-128-slots16-rate12.csv.gz: no number of servers up to 1024 keeps ttft:0.001 in 95.0 % of the requests";
    let (shown, failed) = run(&[&[load.as_str(), "--json"][..], &servers].concat()).unwrap();
    assert_eq!(failed.as_deref(), Some(none));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["predictions"], json!([]));
    let name = &shown["loads"][0]["name"];
    let why = json!([{ "load": name, "settings": {}, "reason": none }]);
    assert_eq!(shown["not_found"], why);
    // The error says it, not the text as well.
    let (shown, failed) = run(&[&[load.as_str()][..], &servers].concat()).unwrap();
    assert_eq!(failed.as_deref(), Some(none));
    assert!(!shown.contains("no number of servers"), "{shown}");
    // Where something else is found, nothing failed, and it stands with the others.
    let found = "--find servers --goodput ttft:200 --set tokenize_ms=1,100000";
    let shown = said(&[&load], found);
    let none = "rate12.csv.gz: tokenize_ms=100000: no number of servers";
    assert_says(&shown, none);
    // Nor does a setting under which any rate keeps the goal end the others.
    let find = flags("--find rate --goodput ttft:50000 --json --set tokenize_ms=1,100000");
    let (shown, _) = run(&[&[load.as_str()][..], &find].concat()).unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let reason = |at: usize| shown["not_found"][at]["reason"].as_str().unwrap();
    let any = "give a stricter goal: any rate, also all at once, keeps ttft:50000 in 95.0 %";
    assert_says(reason(0), any);
    assert_says(reason(1), "no rate from");
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
