//! Experiments that are ended before their time, and gone on with.

use nix::sys::signal::Signal;
use queuescope::report::files::RunState;

use super::started::{Planned, end};
use crate::support::assert_says;
use crate::support::generator::flags;

const PLAN: &str = "max_running_requests = [1, 8]\nrequest_rate = 50\nnum_prompts = 100";
const FIRST: &str = "01-max_running_requests=1";
const SECOND: &str = "02-max_running_requests=8";

/// The rows of a run.
fn rows(plan: &Planned, run: &str) -> Option<String> {
    std::fs::read_to_string(plan.path("runs").join(run).join("requests.csv")).ok()
}

#[test]
fn killed_at_any_moment_it_is_gone_on_with() {
    for moment in [FIRST, SECOND] {
        let plan = Planned::new(PLAN);
        let process = plan.begin("node", &[]);
        plan.until_loaded(moment);
        end(process, Signal::SIGKILL);
        plan.assert_nothing_is_left();
        assert_eq!(plan.run_file(moment).unwrap().state, RunState::Running);
        let first = rows(&plan, FIRST);
        assert_eq!(first.is_some(), moment == SECOND);

        let done = plan.resume("node", &[]);
        done.assert_status(&[0, 3]);
        assert_says(&done.err, "was not done: what it left is in ");
        assert_eq!(plan.states(), [RunState::Done; 2]);
        let aside = plan.path("aside").join(format!("{moment}-1"));
        assert!(aside.join("run.json").is_file() && aside.join("schedule.csv").is_file());
        let all = [FIRST, SECOND].map(|run| rows(&plan, run).unwrap());
        assert!(all.iter().all(|rows| rows.lines().count() == 101));
        // What was done stays.
        assert!(first.is_none_or(|first| first == all[0]));
        plan.assert_nothing_is_left();
        // Nothing is left to do: all of it stays.
        let again = plan.resume("node", &[]);
        assert_eq!(again.err.matches("done before").count(), 2, "{}", again.err);
    }
}

#[test]
fn another_plan_is_not_gone_on_with() {
    let plan = Planned::new(PLAN);
    let process = plan.begin("node", &[]);
    plan.until_loaded(FIRST);
    let told = plan.resume("node", &[]);
    told.assert_refused("another process is at work on this experiment");
    end(process, Signal::SIGKILL);
    // The plan is that of the folder: what else is said is refused.
    for flags in [&["--seed", "6"][..], &["--set", "seed=6"], &["plan.toml"]] {
        plan.resume("node", flags).assert_refused("--resume");
    }
    let told = plan.resume("routing", &[]);
    told.assert_refused("experiment = \"node\": this is queuescope routing");
    assert!(!plan.path("aside").exists());
    plan.assert_nothing_is_left();
}

#[test]
fn a_run_with_too_many_failures_stays_one_when_it_is_gone_on_with() {
    for (max_failed, code) in [("max_failed = 0.5", 4), ("", 4), ("max_failed = 1.0", 0)] {
        let lines = format!("request_rate = 100\nnum_prompts = 40\n{max_failed}");
        // One runs and one waits: most fail, and not all.
        let flags = "--set sim.max_running_requests=1 --set sim.max_queued_requests=1";
        let run = || {
            let plan = Planned::new(&lines);
            (plan.run("node", &self::flags(flags)), plan)
        };
        // On a busy machine it may be INVALID, whatever failed.
        let mut runs = std::iter::repeat_with(run).take(10);
        let (done, plan) = runs.find(|(done, _)| done.code != Some(3)).unwrap();
        done.assert_status(&[code]);
        let file = plan.run_file("01-run").unwrap();
        assert_eq!(file.has_failed_too_often, code == 4);
        let again = plan.resume("node", &[]);
        again.assert_status(&[code]);
        assert_says(&again.err, "done before");
    }
}

#[test]
fn ctrl_c_ends_all_of_it_in_order() {
    let plan = Planned::new(PLAN);
    let process = plan.begin("node", &[]);
    plan.until_loaded(FIRST);
    assert_eq!(end(process, Signal::SIGINT), Some(130));
    plan.assert_nothing_is_left();
    assert_eq!(plan.states(), [RunState::Stopped, RunState::Planned]);
    assert_eq!(plan.run_file(FIRST).unwrap().state, RunState::Stopped);
    // What came until then can be looked at.
    assert!(rows(&plan, FIRST).is_some());
    assert!(plan.path("comparison.json").is_file());
    let done = plan.resume("node", &[]);
    done.assert_status(&[0, 3]);
    assert_eq!(plan.states(), [RunState::Done; 2]);
}
