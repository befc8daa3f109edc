//! Plans, before anything starts.

use super::started::Planned;
use crate::support::docs::assert_file;
use crate::support::generator::flags;
use crate::support::process::{queuescope, run};
use crate::support::table;

const WRONG: &str = "\
routing --num-gpus 0 | num_gpus = 0: must be a whole number from 1 to 1024
routing --request-rate 5,-1 | request_rate = -1: must be a positive number
routing --set sim.decode_step_ms=x | sim.decode_step_ms = x: must be a number
routing --failure-schedule {3=[9]} | there is no server 9
demo -n -3 | error: --num-prompts -3: must be a whole number from 1 to 1000000
demo -n 0 | error: --num-prompts 0: must be a whole number from 1 to 1000000
probe http://127.0.0.1:1 --input-len -3 | error: --input-len -3: must be a whole number from 1 to 1000000";

#[test]
fn what_is_wrong_is_one_line_and_status_2() {
    let plan = Planned::new("request_rates = 5");
    let told = plan.run("node", &[]);
    told.assert_refused("error: plan.toml: request_rates: no such key; request_rate is one\n");
    for [line, words] in table(WRONG) {
        let told = run(queuescope(&flags(line)));
        told.assert_refused(words);
        let lines = (told.out.lines().count(), told.err.lines().count());
        assert_eq!(lines, (0, 1), "{}", told.err);
    }
    assert!(!plan.path("experiment.json").exists(), "nothing was begun");
}

#[test]
fn what_no_run_would_find_is_told_once_before_the_first() {
    let plan = Planned::new("max_running_requests = [1, 2, 4]");
    let no_data = "node --dataset-name sharegpt --dataset-path none.json";
    let no_router = "routing --router sglang-router --router-program /no/smg";
    for (line, words) in [
        (no_data, "none.json"),
        (no_router, "the router's program /no/smg is not there"),
    ] {
        let (command, line) = line.split_once(' ').unwrap();
        let told = plan.run(command, &flags(line));
        assert!(matches!(told.code, Some(1 | 2)), "{}", told.err);
        assert_eq!(told.err.matches(words).count(), 1, "{}", told.err);
        assert!(!plan.path("").exists(), "nothing was begun");
    }
}

/// What a command shows, which a file holds.
fn assert_shown(args: &[&str], file: &str) {
    let shown = run(queuescope(args));
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    assert_file(&format!("tests/data/experiment/{file}"), &shown.out);
}

#[test]
fn plans_and_helps_are_shown_as_they_were() {
    for command in ["node", "routing"] {
        assert_shown(&[command, "--print-plan"], &format!("{command}.plan.toml"));
        assert_shown(&[command, "--help"], &format!("{command}.help.txt"));
    }
    assert_shown(&["demo", "--help"], "demo.help.txt");
    // Flags vary as they were typed: the last fastest.
    let flags = "routing --print-plan --router sglang-router --preset low-latency --vocab-size 90,80 --seed 3,4 \
                 --request-rate 5,inf --goodput ttft:5 --goodput e2el:9 --set sim.decode_step_ms=8 --set env.A=b";
    let args: Vec<&str> = flags.split_whitespace().collect();
    assert_shown(&args, "flags.plan.toml");
}
