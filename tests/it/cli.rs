//! What all commands have alike: their help, and results for programs.

use std::fs::File;
use std::sync::Arc;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use queuescope::upstream::Policy;
use serde_json::Value;

use crate::support::generator::{flags, sim};
use crate::support::process::{Done, Process, queuescope, run, run_aside};
use crate::support::table;

/// What a command says of itself, as one reads it in a file.
fn help(line: &str) -> String {
    help_at("", line)
}

/// The same on a terminal of so many columns.
fn help_at(columns: &str, line: &str) -> String {
    let mut command = queuescope(&flags(line));
    command.env("COLUMNS", columns);
    let done = run(command);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{line}");
    done.out
}

/// The commands that the help names.
fn commands() -> Vec<String> {
    let help = help("--help");
    let (_, commands) = help.split_once("\nCommands:\n").unwrap();
    let names = commands.lines().map_while(|line| {
        let (name, _) = line.strip_prefix("  ")?.split_once(' ')?;
        Some(name.to_owned())
    });
    names.filter(|name| name != "help").collect()
}

/// What most users need of a command stands in each of its helps, first; all of them but the brief one go on to this.
const COMMON: &str = "\
traffic | --request-rate <RATE> | What is sent:
proxy | --upstream <URL> | Running it:
check | --upstream <URL> | Running it:
node | --max-running-requests <VALUE> | Router:
sim | --max-running-requests <N> | How fast it is:
probe | --output-len <N> | Where and to whom:";

const HELPS: [&str; 3] = ["-h", "--help", "--help-all"];

#[test]
fn a_help_has_three_lengths_that_each_end_in_an_example() {
    let commands = commands();
    assert!(commands.len() > 10, "{commands:?}");
    let flags = |help: &str| {
        let lines = help.lines();
        lines.filter(|line| line.starts_with("      --")).count()
    };
    for name in &commands {
        let all = HELPS.map(|flag| help(&format!("{name} {flag}")));
        for (flag, text) in HELPS.iter().zip(&all) {
            let (_, end) = text.rsplit_once("\nExample:\n").unwrap();
            assert!(end.starts_with(&format!("  queuescope {name}")), "{end}");
            assert!(end.ends_with("--log-format\n"), "{end}");
            let narrow = help_at("80", &format!("{name} {flag}"));
            let fits = narrow.lines().all(|line| line.chars().count() <= 80);
            assert!(fits && flags(&narrow) == flags(text), "{narrow}");
        }
        let lengths = all.each_ref().map(|text| text.lines().count());
        assert!(lengths.is_sorted(), "{name}: {lengths:?}");
        assert!(lengths[0] <= 60 && lengths[1] <= 120, "{name}: {lengths:?}");
        let [_, usual, whole] = &all;
        assert!(!usual.contains("--log-format <") && whole.contains("--log-format <"));
        assert_eq!(help(&format!("help {name}")), *whole);
    }
    for [name, common, group] in table(COMMON) {
        for flag in HELPS {
            let help = help(&format!("{name} {flag}"));
            let (common, group) = (help.find(common), help.find(&format!("\n{group}\n")));
            assert_eq!(group.is_some(), flag != "-h", "{help}");
            let is_first = group.is_none() || common < group;
            assert!(common.is_some() && is_first, "{help}");
        }
    }
}

/// Lines, a member of what comes out, its value, and a piece of what is said beside it.
const RESULTS: &str = "\
traffic -u URL LOAD -o DIR/run | /completed | 6 | 6 requests
demo -n 6 -r 100 -o DIR/demo | /completed | 6 | 6 requests
node --max-running-requests 2,4 LOAD -o DIR/node | /experiment/keys/0 | max_running_requests | max_running_requests=2
routing --routing-policy random --num-gpus 1 LOAD -o DIR/routing | /experiment/kind | routing | routing
report DIR/node --no-html | /experiment/kind | node |
whatif tests/data/h200/rows/random-512-128-slots16-rate12.csv.gz --set max_running_requests=64 | /predictions/0/settings/max_running_requests | 64 |
probe URL | /outcome | ok | timestamps are consistent";

#[tokio::test(flavor = "multi_thread")]
async fn json_alone_comes_out_and_words_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display();
    let server = sim(|_| ());
    let url = format!("http://{}", server.addr());
    let load = "-n 6 -r 100 --random-input-len 8 --random-output-len 2";
    let mut tried = Vec::new();
    let dir = dir.to_string();
    let replacements = [("URL", &*url), ("LOAD", load), ("DIR", &dir)];
    for [line, member, told, said] in table(RESULTS) {
        let replaced = replacements.iter();
        let line = replaced.fold(line.to_owned(), |line, (name, value)| {
            line.replace(name, value)
        });
        let words = format!("{line} --json");
        let done = run_aside(queuescope(&flags(&words))).await;
        // A busy machine sends too late: INVALID.
        done.assert_status(&[0, 3]);
        let results: Value = serde_json::from_str(&done.out).unwrap();
        let found = results.pointer(member).unwrap_or(&Value::Null);
        let told = serde_json::from_str(told).unwrap_or_else(|_| Value::from(told));
        assert_eq!(*found, told, "{line}");
        assert!(done.err.contains(said), "{line}: {}", done.err);
        tried.push(line.split(' ').next().unwrap().to_owned());
    }
    let has_json = |name: &String| help(&format!("{name} --help")).contains("--json");
    let mut all: Vec<String> = commands().into_iter().filter(has_json).collect();
    all.sort();
    tried.sort();
    assert_eq!(tried, all);
}

/// What prints a result, beside `traffic`.
const PRINTING: &str = "\
completions bash
--help
--version
check --upstream 127.0.0.1:1
node --print-plan
report tests/data/rows.csv
report tests/data/rows.csv --json
whatif tests/data/h200/rows/random-512-128-slots16-rate12.csv.gz --set max_running_requests=64";

#[test]
fn a_result_that_nobody_can_keep_is_a_failure_unless_nobody_wants_it() {
    for line in PRINTING.lines() {
        let printed_to = |out: File| {
            let mut command = queuescope(&flags(line));
            command.stdout(out).stderr(std::process::Stdio::piped());
            Done::from(command.spawn().unwrap().wait_with_output().unwrap())
        };
        let full = printed_to(File::options().write(true).open("/dev/full").unwrap());
        full.assert_status(&[1]);
        let told = "error: standard output cannot be written: No space left on device";
        assert!(full.err.contains(told), "{line}: {}", full.err);
        // As in `| head`.
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        let unread = printed_to(File::from(std::os::fd::OwnedFd::from(closed)));
        assert_eq!((unread.code, unread.err.as_str()), (Some(0), ""), "{line}");
    }
}

#[test]
fn a_secret_may_come_by_a_pipe_as_it_is_read_once() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let secret = folder.path().join("secret");
    mkfifo(&secret, Mode::S_IRWXU).unwrap();
    let line = format!(
        "--upstream 127.0.0.1:1 --admin-token-file {}",
        secret.display()
    );
    std::thread::spawn(move || std::fs::write(secret, "of sixteen letters"));
    Process::in_folder(folder, &flags(&line));
}

/// Help and messages list the policies by hand.
#[test]
fn every_policy_is_named_where_one_is_chosen() {
    let none = toml::Value::from("none").try_into::<Policy>().unwrap_err();
    let none = none.to_string();
    let policies: Vec<&str> = none.split('`').skip(3).step_by(2).collect();
    assert!(policies.contains(&"round_robin"), "{none}");
    let refused = run(queuescope(&flags(
        "whatif tests/data/h200/rows/random-512-128-slots16-rate12.csv.gz --set routing_policy=none",
    )));
    let deploy = std::fs::read_to_string("docs/DEPLOY.md").unwrap();
    let help = ["proxy", "routing", "whatif"].map(|name| help(&format!("{name} --help-all")));
    let places = help.iter().chain([&refused.err, &deploy]);
    for (at, text) in places.enumerate() {
        // What prompts have in common is not predicted.
        let known = |policy: &&&str| at != 2 || **policy != "cache_aware";
        for policy in policies.iter().filter(known) {
            assert!(text.contains(policy), "{policy} in place {at}:\n{text}");
        }
    }
}
