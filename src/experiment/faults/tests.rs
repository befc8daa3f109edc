//! Plans of faults. Most invalid ones are in tests/data/experiment/wrong-plans.txt.

use super::*;

fn plan(schedule: &str, kind: &str) -> FaultPlan {
    let schedule = Schedule::parse(schedule).unwrap();
    let kind = FaultKind::parse(kind).unwrap();
    FaultPlan { kind, schedule }
}

#[test]
fn servers_go_down_and_up_as_the_schedule_lists_them() {
    let plan = plan(
        "{ '10min' = [], 30s = [1, 2], '0.5' = [2], 300 = [2] }",
        "kill",
    );
    assert_eq!(plan.changes(0), [(30.0, true), (300.0, false)]);
    assert_eq!(plan.changes(1), [(0.5, true), (600.0, false)]);
    assert_eq!(plan.changes(2), []);
    assert!(!plan.needs_hops());
}

#[test]
fn a_hop_accepts_the_fault_that_it_is_sent() {
    let slow = plan(
        "{ 1 = [1] }",
        "{ kind = \"slow\", ms = 50, probability = 0.5 }",
    );
    assert!(slow.needs_hops());
    let FaultKind::Hop(fault) = &slow.kind else {
        panic!("{slow:?}")
    };
    assert_eq!(fault.kind.name(), "slow");
    let sent = serde_json::to_vec(fault).unwrap();
    assert_eq!(Fault::parse(&sent).as_ref(), Ok(fault));
}
