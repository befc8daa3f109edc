//! What only a start can find is one clear line.

use std::net::TcpListener;

use crate::support::process::{self, Done, queuescope};

/// Runs `queuescope proxy`, and gives its exit code and what it says but for news.
fn run(args: &[&str]) -> (i32, String) {
    let command = queuescope(&[&["proxy"], args].concat());
    let Done { code, out, err } = process::run(command);
    assert!(out.is_empty());
    let is_news = |line: &&str| line.starts_with('[') && line.contains(" INFO ");
    let lines: Vec<&str> = err.lines().filter(|line| !is_news(line)).collect();
    (code.unwrap(), lines.join("\n"))
}

/// What stops a start names the place, the value and what would be right.
fn assert_line(run: (i32, String), code: i32, pieces: &[&str]) {
    let (status, stderr) = run;
    assert_eq!(status, code, "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"));
    for piece in pieces {
        assert!(stderr.contains(piece), "`{piece}` is not in: {stderr}");
    }
}

const UP: [&str; 2] = ["--upstream", "127.0.0.1:1"];

#[test]
fn what_only_a_start_can_find_is_told_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let start = |args: &[&str]| run(&[&UP[..], args].concat());
    let free = "127.0.0.1:0";
    assert_line(
        start(&["--listen", &addr, "--admin", free]),
        1,
        &["listen", &addr, "in use"],
    );
    assert_line(
        start(&["--listen", free, "--admin", &addr]),
        1,
        &["admin", &addr, "in use"],
    );
    let worker = format!("w0={addr}=127.0.0.1:1");
    let (code, line) = start(&["--listen", free, "--admin", free, "--worker", &worker]);
    assert_line((code, line), 1, &["worker w0", &addr, "in use"]);
    let host = [
        "--upstream",
        "no-such-host.invalid:1",
        "--listen",
        free,
        "--admin",
        free,
    ];
    assert_line(start(&host), 1, &["upstream", "no-such-host.invalid:1"]);
}
