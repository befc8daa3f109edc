//! Announcements of plans.

use super::*;

fn announced(text: &str) -> String {
    let plan = Plan::new(ExperimentKind::Node, Vec::new(), read::file(text).unwrap()).unwrap();
    announcement(&plan)
}

#[test]
fn an_announcement_has_the_number_of_runs_their_time_and_the_varied_keys() {
    for (plan, start, part) in [
        (
            "max_running_requests = [8, 16]\nrequest_rate = 10\nnum_prompts = 500\nrepeats = 2",
            "4 runs, each setting 2 times with seeds of its own, about 3 min\n",
            "  max_running_requests = 8, 16\n",
        ),
        (
            "request_rate = [5, inf]",
            "2 runs, for as long as the servers take\n",
            "",
        ),
        (
            "request_rate = 10\nduration = 20\ngpu_id = 1",
            "1 run, about 22 s\n",
            "note: gpu_id has no effect with engine sim\n",
        ),
        (
            "request_rate = 0.1\nengine = 'sglang'\nmodel_path = 'm'",
            "1 run, about 2.8 h\n",
            "",
        ),
        (
            "rate_curve = '0:5,60:50'\nseed = 2",
            "1 run, about 62 s\n",
            "  engine = sim, num_gpus = 1, router = none, dataset_name = random\n",
        ),
        // The integral of the rate is 100 after 11 s.
        (
            "rate_curve = '0:5,60:50'\nnum_prompts = 100",
            "1 run, about 13 s\n",
            "",
        ),
        (
            "find_max_rate = true\ngoodput = ['ttft:500']\ngoodput_share = '95%'",
            "search: the highest request rate at which 95 % of the requests keep ttft:500\n",
            "",
        ),
    ] {
        let text = announced(plan);
        assert!(text.starts_with(start) && text.contains(part), "{text}");
    }
    assert!(!announced("gpu_id = 0\ntp_size = 1").contains("means nothing"));
    let servers = "engine = 'external'\nservers = ['http://h:1', 'http://h:2']\nrouter = 'builtin'";
    assert!(!announced(servers).contains("num_gpus"));
}

#[test]
fn tables_have_the_same_order_of_keys_in_an_announcement_and_in_labels() {
    for (key, rest) in [
        (
            "failure_schedule = [{ 30 = [1], 120 = [] }, { 5 = [1] }]",
            "",
        ),
        (
            "failure_kind = [{ kind = 'slow', count = 5, ms = 50 }, 'stall']",
            "\nhops = true\nfailure_schedule = { 1 = [1], 2 = [] }",
        ),
    ] {
        let plan = Plan::new(
            ExperimentKind::Node,
            Vec::new(),
            read::file(&format!("{key}{rest}")).unwrap(),
        );
        let plan = plan.unwrap();
        let labels = plan.runs().iter().map(|run| run.label.replace('=', " = "));
        let labels: Vec<String> = labels.collect();
        let (name, _) = labels[0].split_once(" = ").unwrap();
        let values = labels.join(", ").replace(&format!(", {name} = "), ", ");
        let text = announcement(&plan);
        assert!(text.contains(&format!("  {values}\n")), "{values}: {text}");
    }
}
