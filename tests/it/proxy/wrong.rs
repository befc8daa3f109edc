//! What is wrong in a config or on the command line is one clear line.

use std::net::TcpListener;

use crate::support::process::{self, Done, queuescope};

/// Runs `queuescope proxy` with a config file of this text, and gives its exit code and what it says but for news.
fn run(config: Option<&str>, args: &[&str]) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut args = [&["proxy"], args].concat();
    if let Some(text) = config {
        std::fs::write(folder.path().join("c.toml"), text).unwrap();
        args.extend(["--config", "c.toml"]);
    }
    let mut command = queuescope(&args);
    command.current_dir(folder.path());
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

const FREE: [&str; 4] = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
const UP: [&str; 2] = ["--upstream", "127.0.0.1:1"];

#[test]
fn wrong_config_files_are_told_in_one_line() {
    let flags = [&FREE[..], &UP].concat();
    let worker = "[[worker]]\nname = \"w\"\nlisten = ";
    let up = "[proxy]\nupstream = [\"127.0.0.1:1\"]\n";
    for (text, pieces) in [
        (
            "[proxy]\nlissen = \"a\"\n".into(),
            "c.toml, line 2|lissen|did you mean `listen`",
        ),
        ("[proxi]\n".into(), "line 1|[proxi]: write `[proxy]`"),
        (
            format!("{worker}\"127.0.0.1:0\"\nupstrem = \"c:1\"\n"),
            "did you mean `upstream`",
        ),
        ("[proxy]\nstamps = \"all\"\n".into(), "line 2|all|loopback"),
        ("[proxy]\nthreads = -1\n".into(), "line 2|-1"),
        ("[proxy\n".into(), "line 1"),
        (
            format!("{up}drain_timeout_s = -3.0\n"),
            "drain_timeout_s = -3|from 0",
        ),
        (format!("{up}stamps = \"token\"\n"), "stamps_token"),
        (
            format!("{up}{worker}\"nowhere\"\nupstream = \"a:1\"\n"),
            "line 5: listen|nowhere|IP:PORT",
        ),
    ] {
        let pieces: Vec<&str> = pieces.split('|').collect();
        assert_line(run(Some(&text), &flags), 2, &pieces);
    }
    let alone = run(Some("[proxy]\n"), &FREE);
    assert_line(alone, 2, &["upstream", "--upstream http://"]);
    assert_line(
        run(None, &["--config", "absent.toml"]),
        2,
        &["absent.toml", "No such file"],
    );
}

#[test]
fn wrong_flags_are_told_in_one_line() {
    let line = |args: &str, pieces: &[&str]| {
        let args: Vec<&str> = FREE.into_iter().chain(args.split_whitespace()).collect();
        assert_line(run(None, &args), 2, pieces);
    };
    for (args, pieces) in [
        ("", &["upstream", "--upstream http://127.0.0.1:30000"][..]),
        (
            "--upstream https://a:x",
            &["upstream", "https://a:x", "the port must be a number"],
        ),
        (
            "--upstream https://a:1 --upstream-ca no/ca.pem",
            &["upstream_ca = \"no/ca.pem\"", "cannot be read", "PEM file"],
        ),
        ("--upstream a", &["--upstream a: ", "port is missing"]),
        (
            "--upstream http://a:1/v1",
            &["http://a:1/v1", "only a host and a port"],
        ),
        ("--upstream a:1 --threads 0", &["--threads 0: ", "from 1"]),
        (
            "--upstream a:1 --upstream-read-timeout-s 0",
            &["--upstream-read-timeout-s 0: must be from 0.001"],
        ),
        (
            "--upstream a:1 --drain-timeout-s -1",
            &["--drain-timeout-s -1: ", "from 0"],
        ),
        (
            "--upstream a:1 --drain-timeout-s long",
            &["--drain-timeout-s long", "a number of seconds"],
        ),
        (
            "--upstream a:1 --stamps all",
            &["--stamps all: must be one of loopback, token, never"],
        ),
        (
            "--worker w=a",
            &["--worker w=a: give NAME=LISTEN=UPSTREAM, as in"],
        ),
    ] {
        line(args, pieces);
    }
    for number in ["x", "1.5", "-1"] {
        let said = format!("--threads {number}: must be a whole number, 0 or more");
        line(&format!("--upstream a:1 --threads {number}"), &[&said]);
    }
    let many = "9".repeat(30);
    line(
        &format!("--upstream a:1 --threads {many}"),
        &["--threads 999", "must be a whole number"],
    );
    // What clap itself finds is clap's text, with its usage line.
    for args in [&["--listen"][..], &["--thread", "2"], &["--no-such"]] {
        let (code, stderr) = run(None, args);
        assert_eq!(code, 2, "{stderr}");
        assert!(
            stderr.starts_with("error: ") && stderr.contains(args[0]),
            "{stderr}"
        );
    }
}

#[test]
fn one_flag_does_not_hide_another() {
    let line = "--upstream ftp://x --worker bad --worker w=u:secret@h --threads x --stamps all --drain-timeout-s -1 \
                --listen foo --policy best --time-base now --upstream-kind x --upstream-idle-timeout-s y";
    let args: Vec<&str> = line.split(' ').collect();
    let (code, said) = run(Some("[proxy]\nrecord_queue = 0\n"), &args);
    assert_eq!(code, 2, "{said}");
    for piece in [
        "error: --upstream ftp://x: ",
        "error: --worker bad: give NAME=LISTEN=UPSTREAM",
        "error: --worker: give NAME=LISTEN=UPSTREAM",
        "error: --threads x: must be a whole number, 0 or more",
        "error: --stamps all: must be one of loopback, token, never",
        "error: --drain-timeout-s -1: must be from 0",
        "error: --listen foo: not an address",
        "error: --policy best: must be one of round_robin, ",
        "error: --time-base now: must be one of epoch, run",
        "error: --upstream-kind x: must be one of router, server",
        "error: --upstream-idle-timeout-s y: must be a number of seconds",
        "error: c.toml, line 2: record_queue = 0: must be from 1",
    ] {
        assert!(
            said.lines().any(|line| line.starts_with(piece)),
            "{piece}: {said}"
        );
    }
    assert_eq!(said.lines().count(), 12, "{said}");
    assert!(!said.contains("secret"), "{said}");
}

#[test]
fn what_only_a_start_can_find_is_told_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let start = |args: &[&str]| run(None, &[&UP[..], args].concat());
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

#[test]
fn a_proxy_is_not_its_own_upstream() {
    // Should a loop be taken, the records' folder stops the start.
    let absent = ["--records", "no/such/folder/r.csv"];
    let own = ["--listen", "127.0.0.1:18800", "--admin", "127.0.0.1:0"];
    let line = |args: &[&str], key: &str, value: &str| {
        let (code, stderr) = run(None, &[&own[..], &absent, args].concat());
        let said = format!("{key} = \"{value}\": is this proxy's own listener; give the router's");
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(&said), "{stderr}");
        assert!(
            stderr.contains("there is no folder no/such/folder"),
            "{stderr}"
        );
    };
    let itself = "127.0.0.1:18800";
    line(&["--upstream", itself], "upstream", itself);
    line(
        &["--upstream", "http://localhost:18800/"],
        "upstream",
        "localhost:18800",
    );
    for to in [itself, "127.0.0.1:18801"] {
        let worker = format!("w0=127.0.0.1:18801={to}");
        line(
            &["--upstream", "127.0.0.1:1", "--worker", &worker],
            "worker w0: upstream",
            to,
        );
    }
}
