use clap::Parser;

use super::*;

fn args(line: &str) -> Args {
    let line = format!("traffic --request-id-prefix t {line}");
    Args::try_parse_from(line.split_whitespace()).unwrap()
}

/// Makes the plan of these flags; ids begin with `t-`.
pub(super) fn planned(line: &str) -> RunPlan {
    args(line).plan().unwrap()
}

#[tokio::test]
async fn a_run_that_cannot_begin_leaves_no_task_behind() {
    let args = args("--base-url http://127.0.0.1:1");
    let run = run_with_progress(&args, Clock::system(), Arc::default(), Stop::default());
    run.await.unwrap_err();
    tokio::task::yield_now().await;
    let runtime = tokio::runtime::Handle::current();
    assert_eq!(runtime.metrics().num_alive_tasks(), 0);
}

#[test]
fn a_schedule_has_a_row_for_each_request() {
    let root = tempfile::tempdir().unwrap();
    let entry = r#"{"prompt": "a b c", "completion": "a b c d", "id": "=a,b"}"#;
    let data = root.path().join("data");
    std::fs::write(&data, entry).unwrap();
    let data = data.display();
    let line = format!(
        "--dataset-name custom --dataset-path {data} --arrival constant --request-rate 0.2 --shard 1/2 --num-prompts 3"
    );
    let folder = Folder::new(Some(root.path()), true, "unused");
    begin(&folder, &planned(&line), Stamp::from_nanos(NANOS)).unwrap();
    let text = std::fs::read_to_string(root.path().join(SCHEDULE)).unwrap();
    let rows = format!("{SCHEDULE_COLUMNS}\n1,7.500000000,3,4,t-1,\"'=a,b\"\n");
    assert_eq!(text, rows);
}

#[test]
fn the_model_is_the_first_in_the_file() {
    let cpus =
        "processor\t: 0\nmodel name\t: Fast CPU @ 3:2 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n";
    assert_eq!(cpu_model(cpus).as_deref(), Some("Fast CPU @ 3:2 GHz"));
    assert_eq!(cpu_model("processor : 0\n"), None);
    let machine = machine();
    let kernel = machine["kernel"].as_str().unwrap();
    assert!(machine["cores"].as_u64() > Some(0) && kernel.starts_with("Linux "));
}

/// The signal, the grade, how many of four requests failed, `--max-failed`, and the problem; what scripts are told.
const JUDGED: &str = "\
  | VALID | 1 | 0.25 | |
  | VALID | 1 | 0.249 | | 4: 1 of 4 requests failed, more than --max-failed 0.249 allows
  | VALID | 2 | | |
  | DEGRADED | 3 | | | 4: 3 of 4 requests failed, more than --max-failed 0.5 allows
  | DEGRADED | 3 | 1 | |
  | DEGRADED | 4 | | none succeeded | 1: none succeeded
  | INVALID | 4 | 0.5 | none succeeded | 4: none succeeded
  | INVALID | 0 | | | 3: the run is INVALID: its figures are not the server's
2 | INVALID | 4 | 0 | | 130: the run was stopped before its end";

#[test]
fn scripts_are_told_of_a_signal_of_an_invalid_verdict_and_of_too_many_failures() {
    for line in JUDGED.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [signal, grade, failed, max_failed, problem, expected] = cells[..] else {
            panic!("{line}");
        };
        let grade = Grade::named(grade).unwrap();
        let failed = (failed.parse().unwrap(), 4);
        let problem = Some(problem.to_owned()).filter(|problem| !problem.is_empty());
        let (signal, max_failed) = (signal.parse().ok(), max_failed.parse().ok());
        let failure = failure_of(signal, grade, failed, max_failed, problem.as_ref());
        let told = failure.map(|error| format!("{}: {}", error.code, error.message));
        assert_eq!(told.unwrap_or_default(), expected, "{line}");
    }
}
