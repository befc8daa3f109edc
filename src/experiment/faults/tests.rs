//! What a schedule may say, beside what tests/data/experiment/wrong-plans.txt has.

use super::*;

#[test]
fn servers_go_down_and_up_as_the_schedule_lists_them() {
    let plan = "{ '10min' = [], 30s = [1, 2], '0.5' = [2], 300 = [2] }";
    let plan = Schedule::parse(plan).unwrap();
    assert_eq!(plan.changes(0), [(30.0, true), (300.0, false)]);
    assert_eq!(plan.changes(1), [(0.5, true), (600.0, false)]);
    assert_eq!(plan.changes(2), []);
}
