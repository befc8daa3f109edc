//! The search of the highest rate.

use super::started::Planned;

/// A request of 8 tokens of 4 ms each, one at a time: at most 1 / (7 × 4 ms) can be served in a second, whatever the machine.
const MOST: f64 = 1.0 / (7.0 * 0.004);

#[test]
fn the_highest_rate_is_near_what_the_server_can_do() {
    let plan = Planned::new(
        "max_running_requests = 1\nfind_max_rate = true\ngoodput = ['e2el:400']\ngoodput_share = 0.9\nrequest_rate = 20\n\
         probe_s = 3\nrate_precision = 0.2",
    );
    let done = plan.run("node", &[]);
    done.assert_status(&[0, 3]);
    let found = plan.experiment().max_rate.unwrap();
    let (met, above) = (found.met.unwrap(), found.missed.or(found.invalid).unwrap());
    // A machine that is busy with other things finds less, never more: at twice the rate the queue grows by seconds.
    assert!(met > MOST / 8.0 && met < MOST * 1.25, "{found:?}");
    assert!(above <= met * 1.2, "{found:?}");
    let told =
        format!("Highest rate at which 90.0 % of requests keep e2el:400: {met:.2} requests/s;");
    assert!(done.out.contains(&told), "{}", done.out);
    assert_eq!(plan.experiment().keys, ["request_rate"]);
    plan.assert_nothing_is_left();
}
