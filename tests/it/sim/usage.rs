//! The command line, and values out of range.

use clap::{Args, Command, CommandFactory};
use queuescope::sim::config::Config;
use queuescope::{sim, traffic};

use crate::support::assert_says;
use crate::support::process::{Done, queuescope, run};

#[test]
fn values_out_of_range_name_their_flag_and_what_would_be_right() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for [flag, value] in [
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
        ["--chunked-prefill-size", "-2"],
        ["--context-length", "1"],
        ["--otlp-traces-endpoint", "localhost"],
        ["--gpu-share", "0"],
        ["--port", "70000"],
        ["--port", &port],
        ["--disaggregation-bootstrap-port", &port],
        ["--host", "no.such.host.invalid"],
        ["--export-metrics-to-file-dir", "/dev/null/log"],
    ] {
        let more: &[&str] = match flag {
            "--port" => &[],
            "--disaggregation-bootstrap-port" => {
                &["--port", "0", "--disaggregation-mode", "prefill"]
            }
            "--export-metrics-to-file-dir" => &["--port", "0", "--export-metrics-to-file"],
            _ => &["--port", "0"],
        };
        let Done { code, err, .. } = run(queuescope(&[&["sim", flag, value], more].concat()));
        let is_taken = value == port;
        assert_eq!(code, Some(if is_taken { 1 } else { 2 }), "{flag}: {err}");
        let line = err.lines().next().unwrap();
        let is_told = line.starts_with("error: ") && line.contains(flag) && line.contains(value);
        assert!(is_told && !err.contains("panicked"), "{err}");
        assert!(!is_taken || err.lines().count() == 1, "{err}");
    }
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

/// A runtime in a runtime panics.
#[tokio::test]
async fn within_a_runtime_the_command_refuses_to_run() {
    let error = sim::run(super::fast()).unwrap_err().to_string();
    assert_says(&error, "Sim::start");
}
