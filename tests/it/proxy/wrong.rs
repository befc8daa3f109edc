//! What only a start can find is one clear line.

use std::net::TcpListener;

use crate::support::process;

use super::*;

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
#[test]
fn what_only_a_start_can_find_is_told_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let (up, free, nowhere) = ("127.0.0.1:1", "127.0.0.1:0", "no-such-host.invalid:1");
    let worker = format!("w0={addr}={up}");
    let start = |upstream: &str, listen: &str, admin: &str, more: &[&str]| {
        let args = ["--upstream", upstream, "--listen", listen, "--admin", admin];
        run(&[&args, more].concat())
    };
    for ((code, said), pieces) in [
        (start(up, &addr, free, &[]), ["listen", &addr, "in use"]),
        (start(up, free, &addr, &[]), ["admin", &addr, "in use"]),
        (
            start(up, free, free, &["--worker", &worker]),
            ["worker w0", &addr, "in use"],
        ),
        (start(nowhere, free, free, &[]), ["upstream", nowhere, ""]),
    ] {
        assert_eq!((code, said.trim_end().lines().count()), (1, 1), "{said}");
        assert!(!said.contains("panicked") && !said.contains("backtrace"));
        for piece in pieces {
            assert_says(&said, piece);
        }
    }
}
