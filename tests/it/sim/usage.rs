//! The command line, and values out of range.

use clap::{Args, Command, CommandFactory};
use queuescope::clock::Clock;
use queuescope::sim::config::Config;
use queuescope::sim::server::Sim;
use queuescope::traffic;

use super::fast;
use crate::support::assert_says;
use crate::support::process::{Done, queuescope, run};

fn sim(args: &[&str]) -> Done {
    run(queuescope(&[&["sim"], args].concat()))
}

#[test]
fn values_out_of_range_name_their_flag_and_what_would_be_right() {
    for args in [
        ["--prefill-tokens-per-s", "-5"],
        ["--prefill-tokens-per-s", "0"],
        ["--decode-step-ms", "-1"],
        ["--decode-step-ms", "NaN"],
        ["--decode-step-per-seq-ms", "-0.5"],
        ["--tokenize-ms", "-1"],
        ["--clock-skew-s", "inf"],
        ["--max-running-requests", "0"],
        ["--max-queued-requests", "0"],
        ["--max-total-tokens", "2"],
        ["--chunked-prefill-size", "0"],
        ["--default-output-len", "0"],
        ["--context-length", "1"],
        ["--trace-level", "4"],
        ["--otlp-traces-endpoint", "localhost"],
        ["--gpu-share", "0"],
        ["--port", "70000"],
        ["--host", "no.such.host.invalid"],
    ] {
        let output =
            sim(&[&["--port", "0"][..], &args[..]].concat()[(args[0] == "--port") as usize * 2..]);
        let error = output.err;
        assert_eq!(output.code, Some(2), "{args:?}: {error}");
        let line = error.lines().next().unwrap();
        assert!(line.starts_with("error: "), "{error}");
        assert!(line.contains(args[0]) && line.contains(args[1]), "{error}");
        assert!(!error.contains("panicked"), "{error}");
    }
    let folder = [
        "--export-metrics-to-file",
        "--export-metrics-to-file-dir",
        "/dev/null/log",
    ];
    let output = sim(&[&["--port", "0"][..], &folder].concat());
    assert_eq!(output.code, Some(2));
    assert_says(
        &output.err,
        "error: --export-metrics-to-file-dir /dev/null/log: must be a folder that can be made",
    );
}

#[test]
fn every_flag_of_a_time_a_rate_or_a_share_takes_the_same_units() {
    let sim = Config::augment_args(Command::new("sim"));
    let mut tried = 0;
    for command in [traffic::Args::command(), sim] {
        for flag in command.get_arguments() {
            let name = flag.get_value_names().map_or("", |names| &names[0]);
            let value = match name {
                "SECONDS" | "S" | "MS" | "US" | "NS" => "20ms",
                "RATE" => "480/min",
                "SHARE" => "20%",
                _ => continue,
            };
            let line = ["x", &format!("--{}", flag.get_long().unwrap()), value];
            let read = command.clone().try_get_matches_from(line);
            assert!(read.is_ok(), "{line:?}: {}", read.unwrap_err());
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
}

#[tokio::test]
async fn a_port_in_use_is_told_in_one_line() {
    let server = Sim::start(fast(), Clock::system()).unwrap();
    let port = server.addr().port().to_string();
    let output = tokio::task::spawn_blocking(move || sim(&["--port", &port]));
    let output = output.await.unwrap();
    let error = output.err;
    assert_eq!(output.code, Some(1), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert_says(&error, "--port");
    assert_says(&error, &server.addr().to_string());
}
