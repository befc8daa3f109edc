//! Announcements of plans.

use super::*;
use crate::experiment::plan::tests::{golden, plan};

#[test]
fn an_announcement_has_the_number_of_runs_their_time_and_the_varied_keys() {
    golden("tests/data/experiment/announced.txt", |kind, text| {
        announcement(&plan(kind, text).unwrap())
    });
}

#[test]
fn tables_have_the_same_order_of_keys_in_an_announcement_and_in_labels() {
    let tables = "failure_schedule = [{ 30 = [1], 120 = [] }, { 5 = [1] }]";
    let kinds = "failure_kind = [{ kind = 'slow', count = 5, ms = 50 }, 'stall']";
    let rest = "\nhops = true\nfailure_schedule = { 1 = [1], 2 = [] }";
    for (key, rest) in [(tables, ""), (kinds, rest)] {
        let keys = grid::file(&format!("{key}{rest}")).unwrap();
        let plan = Plan::new(ExperimentKind::Node, Vec::new(), keys).unwrap();
        let labels = plan.runs.iter().map(|run| run.label.replace('=', " = "));
        let labels: Vec<String> = labels.collect();
        let (name, _) = labels[0].split_once(" = ").unwrap();
        let values = labels.join(", ").replace(&format!(", {name} = "), ", ");
        let text = announcement(&plan);
        assert!(text.contains(&format!("  {values}\n")), "{values}: {text}");
    }
}
