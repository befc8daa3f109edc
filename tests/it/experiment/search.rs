//! The search of the highest rate.

use queuescope::report::files::{Trial, TrialFile};

use super::started::{Planned, executable};
use crate::support::assert_says;
use crate::support::process::PROGRAM;

/// A request of 8 tokens of 4 ms each, one at a time: at most 1 / (7 × 4 ms) can be served in a second, whatever the machine.
const MOST: f64 = 1.0 / (7.0 * 0.004);

#[test]
fn the_highest_rate_is_near_what_the_server_can_do() {
    let plan = Planned::new(
        "max_running_requests = 1\nfind_max_rate = true\ngoodput = ['e2el:400']\ngoodput_share = 0.9\nrequest_rate = 20\n\
         probe_s = 3\nrate_precision = 0.2",
    );
    let done = plan.ran("node", &[]);
    let found = plan.experiment().max_rate.unwrap();
    let (met, above) = (found.met.unwrap(), found.missed.or(found.invalid).unwrap());
    // A machine that is busy with other things finds less, never more: at twice the rate the queue grows by seconds.
    assert!(met > MOST / 8.0 && met < MOST * 1.25, "{found:?}");
    assert!(above <= met * 1.2, "{found:?}");
    let told = format!(
        "Highest rate at which 90.0 % of requests keep e2el:400, from send: {met:.2} requests/s (drawn: "
    );
    assert_says(&done.out, &told);
    // What was scheduled, and how many kept the limits, of each trial.
    let trials = found.trials;
    let of_met = trials.iter().rfind(|trial| trial.rate == met).unwrap();
    assert_eq!(of_met.result, Trial::Met);
    assert!(of_met.kept >= 0.9, "{trials:?}");
    let is_exact = |trial: &TrialFile| (trial.drawn.unwrap() / trial.rate - 1.0).abs() < 1e-4;
    assert!(trials.iter().all(is_exact), "{trials:?}");
    assert_eq!(trials.len(), plan.experiment().runs.len());
    assert_says(&done.out, " % kept them  met\n");
    assert_eq!(plan.experiment().keys, ["request_rate"]);
    plan.assert_nothing_is_left();
}

#[test]
fn a_trial_that_fails_ends_the_search_and_those_before_it_are_told() {
    let plan = Planned::new(&format!(
        "env.QUEUESCOPE = '{PROGRAM}'\nmax_running_requests = 8\nfind_max_rate = true\ngoodput = ['e2el:4000']\ngoodput_share = 0.5\nrequest_rate = 20\n\
         probe_s = 1\nmodel_path = 'm'\npython = './python'"
    ));
    // Begins once, and fails from then on.
    let script = "mkdir began || exit 9\nexec \"$QUEUESCOPE\" sim $3 $4 $5 $6 --decode-step-ms 4";
    executable(&plan.folder.path().join("python"), script);
    let done = plan.run("node", &["--engine", "sglang"]);
    done.assert_status(&[1]);
    let found = plan.experiment().max_rate.unwrap();
    // Of a trial on a machine too busy to send in time nothing is told.
    let is_late = done.err.contains("INVALID");
    let met = (!is_late).then_some(20.0);
    assert_eq!((found.met, found.trials.len()), (met, 1), "{}", done.err);
    let told = "note: the search ended with trial 2: server-1 ended";
    assert_says(&done.out, told);
    let highest = done.out.contains("Highest rate at which 50.0 %");
    assert!(highest || is_late, "{}", done.out);
}
