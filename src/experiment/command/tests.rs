//! Announcements of plans.

use super::*;

fn announced(text: &str) -> String {
    let plan = Plan::new(ExperimentKind::Node, Vec::new(), grid::file(text).unwrap()).unwrap();
    announcement(&plan)
}

/// Plans, whose lines `;` ends, each with the first line of its announcement and another.
const ANNOUNCED: &str = "\
max_running_requests = [8, 16]; request_rate = 10; num_prompts = 500; repeats = 2 | 4 runs, about 3 min | num_prompts = 500, request_rate = 10, repeats = 2
request_rate = [5, inf] | 2 runs | request_rate = 5, inf
request_rate = 10; duration = 20; gpu_id = 1 | 1 run, about 22 s | note: gpu_id has no effect with engine sim
request_rate = 0.1; engine = 'sglang'; model_path = 'm' | 1 run, about 168 min | engine = sglang
rate_curve = '0:5,60:50'; seed = 2 | 1 run | engine = sim, num_gpus = 1, router = none, dataset_name = random
find_max_rate = true; goodput = ['ttft:500']; goodput_share = '95%' | search: the highest request rate at which 95 % of the requests keep ttft:500 |
find_max_rate = true; goodput = ['ttft:500']; goodput_share = 0.55 | search: the highest request rate at which 55 % of the requests keep ttft:500 |";

#[test]
fn an_announcement_has_the_number_of_runs_their_time_and_the_varied_keys() {
    for line in ANNOUNCED.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let text = announced(&cells[0].replace("; ", "\n"));
        assert_eq!(text.lines().next(), Some(cells[1]), "{line}");
        assert!(text.contains(cells[2]), "{text}");
    }
    assert!(!announced("gpu_id = 0\ntp_size = 1").contains("means nothing"));
    let servers = "engine = 'external'\nservers = ['http://h:1', 'http://h:2']\nrouter = 'builtin'";
    assert!(!announced(servers).contains("num_gpus"));
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
