//! What users rely on and no change may alter unseen: what is sent, and the summary. The flags: `proxy/process.rs`, with all help.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ring::digest::{SHA256, digest};

use super::*;
use crate::support::docs::{assert_cases, assert_file};

/// Compares with a file of `tests/data/traffic`, or writes it.
fn is_pinned(name: &str, found: &str) {
    assert_file(&format!("tests/data/traffic/{name}"), found);
}

/// A plan of these flags, or why there is none. `@` is the folder of data sets.
fn planned(line: &str) -> Result<RunPlan, Error> {
    generator::plan(
        "http://127.0.0.1:1",
        &line.replace('@', "tests/data/datasets/"),
    )
}

/// The sum that a run's summary has, and one of what it leaves out: the rows of `schedule.csv`, warm-ups, the model.
fn sums(plan: &RunPlan) -> String {
    let mut more = String::new();
    for (place, due, lengths) in plan.requests() {
        let (input, output, id) = (lengths.input, lengths.output, lengths.data_id);
        writeln!(more, "{place} {due:?} {input} {output} {id:?}").unwrap();
    }
    let body = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    for number in [0, 1] {
        more += &body(&plan.warmup(number));
        more += &body(&plan.request(number));
    }
    let (rate, count) = (plan.offered_rate(), plan.count());
    writeln!(more, "{} {rate:?} {count}", plan.arrival.name()).unwrap();
    let sent = plan.workload_sha256();
    let more = digest(&SHA256, more.as_bytes());
    let more = more.as_ref()[..8].iter().map(|byte| format!("{byte:02x}"));
    format!("{sent} {}", more.collect::<String>())
}

#[test]
fn what_is_sent_of_each_data_set_stays() {
    let pinned = std::fs::read_to_string("tests/data/traffic/workloads.txt").unwrap();
    let mut found = String::new();
    for line in pinned.lines() {
        let (line, _) = line.split_once(" => ").unwrap();
        let plan = planned(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        writeln!(found, "{line} => {}", sums(&plan)).unwrap();
    }
    is_pinned("workloads.txt", &found);
}

#[test]
fn golden_bodies_are_as_ever() {
    assert_cases("tests/data/traffic/bodies.txt", |line| {
        match planned(&format!(
            "--random-input-len 20 --random-output-len 8 {line}"
        )) {
            Ok(plan) => String::from_utf8(plan.request(3).to_vec()).unwrap(),
            Err(error) => format!("error: {error}"),
        }
    });
}

#[test]
fn golden_of_files_that_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = path.to_str().unwrap();
    assert_cases("tests/data/traffic/wrong-files.txt", |case| {
        let (format, text) = case.split_once(' ').unwrap_or((case, ""));
        std::fs::write(file, text.replace("NL", "\r\n")).unwrap();
        let error = planned(&format!("--dataset-name {format} --dataset-path {file}"))
            .err()
            .unwrap();
        error.to_string().replace(file, "FILE")
    });
}

#[test]
fn golden_schedules_of_files_are_as_ever() {
    assert_cases("tests/data/traffic/schedules.txt", |line| {
        let (plan, mut told) = (planned(line).unwrap(), String::new());
        for (number, due) in plan.schedule() {
            let first = plan.lengths(number, 0);
            let id = first
                .data_id
                .map_or(String::new(), |id| format!(" of {id}"));
            let (input, output) = (first.input, first.output);
            writeln!(told, "{number}: {due} ns, {input} + {output} tokens{id}").unwrap();
            for turn in 1..plan.turns(number) {
                let next = plan.follow_up(number, turn).unwrap();
                writeln!(told, "  {:?} + {} tokens", next.text, next.output_length).unwrap();
            }
        }
        told
    });
}

/// What a run has there depends on how long it took, and on who served it.
const BY_RUN: [&str; 3] = ["/hosts", "/client/event_loop", "/time_spent/unseen"];

/// The paths of a value, with the values of `config`; those of a server are those of all requests.
fn paths(at: &str, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) if !members.is_empty() && !BY_RUN.contains(&at) => {
            for (key, value) in members {
                paths(&format!("{at}/{key}"), value, into);
            }
        }
        Value::Array(all) if all.iter().any(Value::is_object) => {
            let at = format!("{at}/*");
            all.iter().for_each(|value| paths(&at, value, into));
        }
        value => {
            let differs = at.ends_with("base_url") || at.ends_with("request_id_prefix");
            // So too whether the clocks were known well enough.
            into.insert(match at.starts_with("/config/") && !differs {
                true => format!("{at} = {value}"),
                false => at.to_owned(),
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_members_of_the_summary_stay() {
    let server = good().await;
    let mut found = String::new();
    for line in [
        "--num-prompts 3 --upstream-kind server --goodput ttft:500",
        "--num-prompts 2 --dataset-name conversations --turns 2 --think-time-s 0 --request-rate 100 --max-failed 1 \
         --header x-team:a --extra-request-body {\"a\":1} --shard 0/2 --seed 3 --leave-out-first 0.001",
        "--dataset-name azure --dataset-path tests/data/datasets/azure-2024.csv --arrival trace --trace-speed 9",
        "--dataset-name generated-shared-prefix --gsp-num-groups 2 --gsp-prompts-per-group 2",
    ] {
        let (_, summary, _) = ran(server.addr, line).await;
        let mut all = BTreeSet::new();
        // Only the settings differ from run to run.
        match found.is_empty() {
            true => paths("", &summary, &mut all),
            false => paths("/config", &summary["config"], &mut all),
        }
        writeln!(found, "# {line}").unwrap();
        found.extend(all.iter().map(|path| format!("{path}\n")));
    }
    is_pinned("summary.txt", &found);
}
