//! Data sets and traces as a user asks for them: what is sent, when, and what the files of the run say.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;
use crate::support::assert_says;

/// A file of `tests/data/datasets`, all of which are synthetic.
pub fn file(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/data/datasets").join(name)
}

fn planned(line: &str) -> Result<RunPlan, Error> {
    generator::plan("http://127.0.0.1:1", &flags(line))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_run_at_its_times_and_the_summary_says_of_which_file() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let path = file("azure-2023.csv");
    let line = "--dataset-name azure --arrival trace --trace-speed 20 --dataset-path";
    let (done, summary, folder) = ran(server.addr, &format!("{line} {}", path.display())).await;
    done.assert_ran();
    // 1.5 s and 4.0000007 s, at 20 times the speed.
    let schedule = read(folder.path(), "schedule.csv");
    for row in [
        "\n0,0.000000000,30,4,",
        "\n1,0.075000000,12,9,",
        "\n2,0.200000035,51,1,",
    ] {
        assert_says(&schedule, row);
    }
    let asked = server.seen().into_iter().map(|seen| {
        let body = body(&seen);
        let tokens = body["sampling_params"]["max_new_tokens"].as_u64();
        let words = body["text"].as_str().unwrap().split(' ').count();
        (words, tokens.unwrap())
    });
    let asked = BTreeSet::from_iter(asked);
    assert_eq!(asked, [(12, 9), (30, 4), (51, 1)].into());

    // By `sha256sum`.
    let sum = "be1425403dc78c4e573d783e4f75de36916617c5876bef7f05ca7417c27a436c";
    let config = &summary["config"];
    assert_eq!(config["dataset_sha256"], sum);
    assert_eq!(config["dataset_path"], path.to_str().unwrap());
    let offered = summary["offered_rate"].as_f64().unwrap();
    assert!((offered - 2.0 / 0.200000035).abs() < 1e-6, "{offered}");
}

#[test]
fn ids_differ_from_run_to_run_whatever_the_seed() {
    let line = "--num-prompts 2 --seed 7 --random-range-ratio 0.1";
    let [one, two] = [line; 2].map(|line| planned(line).unwrap());
    assert_ne!(one.request_id_prefix, two.request_id_prefix);
    assert_eq!(one.lengths(1, 0), two.lengths(1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sharegpt_is_taken_from_the_cache_or_told_how_to_get_there() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let nowhere = refusing().await;
    let root = tempfile::tempdir().unwrap();
    let run = |name: &str| {
        let line = "--dataset-name sharegpt --num-prompts 3 --seed 2";
        let mut command = command(server.addr, &root.path().join(name), line);
        command.env("XDG_CACHE_HOME", root.path().join("cache"));
        command.env("HF_ENDPOINT", format!("http://{nowhere}"));
        run_aside(command)
    };
    let done = run("offline").await;
    done.assert_status(&[1]);
    let kept = "cache/queuescope/ShareGPT_V3_unfiltered_cleaned_split.json";
    let kept = root.path().join(kept);
    let path = "/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main/";
    for said in [
        format!("error: cannot download http://{nowhere}{path}"),
        format!("--dataset-path FILE, or put it at {}\n", kept.display()),
    ] {
        assert_says(&done.err, &said);
    }
    let is_left = root.path().join("offline").exists();
    assert!(!is_left, "nothing is left of a run that never was");

    std::fs::copy(file("sharegpt.json"), &kept).unwrap();
    let done = run("there").await;
    done.assert_ran();
    let summary = summary(&root.path().join("there"), &done);
    assert_eq!(summary["config"]["dataset_path"], *kept.to_str().unwrap());
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    for seen in &seen {
        assert_says(&body(seen)["text"].to_string(), "synthetic: ");
    }
}
