//! `queuescope demo`, as a newcomer types it.

use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::assert_says;
use crate::support::process::{queuescope, run};
use crate::support::proxy::{Row, number, rows};

/// The demo's files are in `dir` of `folder`, and what was shown names it.
fn assert_whole(folder: &Path, dir: &str, shown: &str) {
    assert_says(shown, &format!("files: {dir}\n"));
    let lines = |file: &str| {
        let text = std::fs::read_to_string(folder.join(dir).join(file)).unwrap();
        text.lines().count()
    };
    for file in ["requests.csv", "schedule.csv", "proxy.csv"] {
        assert_eq!(lines(&format!("runs/01-run/{file}")), 31, "{file}");
    }
    assert!(lines("report.html") > 100);
    assert!(lines("runs/01-run/summary.json") > 100);
}

/// 20 of the 30 are sent on at once, and 8 run: others wait in the router, and others again in the server queues. Nothing is hidden,
/// also where 80 columns are all that there are.
#[test]
fn it_shows_the_routers_queue_and_the_servers_apart() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = queuescope(&["demo", "--num-prompts", "30", "--request-rate", "200"]);
    command.current_dir(folder.path()).env("COLUMNS", "80");
    let done = run(command);
    // A machine that is too busy to send in time ends with 3.
    done.assert_status(&[0, 3]);
    let shown = done.out;
    // The answer comes first.
    assert!(shown.starts_with("Of "), "{shown}");
    assert_says(&shown, "30 ok (100.0 %)");
    let (answer, rest) = shown.split_once("\nms, ok").unwrap();
    let answer = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    for queue in ["router queue", "server queue"] {
        assert_says(&answer, &format!("in the {queue}"));
        assert_says(&shown, &format!("\n{queue} "));
    }
    assert!(!shown.contains("unseen"), "{shown}");
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
    let table: Vec<&str> = rest.lines().take_while(|line| !line.is_empty()).collect();
    let is_whole = |line: &&str| line.split_whitespace().count() > 5;
    assert!(table.len() == 10 && table.iter().all(is_whole), "{shown}");
    let latest = std::fs::read_link(folder.path().join("results/demo/latest")).unwrap();
    let dir = format!("results/demo/{}", latest.display());
    assert_whole(folder.path(), &dir, &shown);
    assert_waits_are_told(&folder.path().join(&dir).join("runs/01-run/proxy.csv"));
}

fn assert_waits_are_told(path: &Path) {
    let rows = rows(path);
    // A machine that is held up for seconds loses what came too late.
    let told = rows.iter().filter(|row| row["timing_source"] == "log");
    assert!(told.count() >= 28, "{rows:?}");
    let seen = rows.iter().filter(|row| !row["prefill_time"].is_empty());
    for column in ["queue_time_in_router", "pure_queue_time"] {
        let longer = |row: &&Row| {
            !row[column].is_empty() && number(row, column) > number(row, "prefill_time")
        };
        assert!(seen.clone().filter(longer).count() >= 5, "{column}");
    }
}

#[test]
fn no_command_writes_into_a_folder_of_anothers() {
    for (line, file) in [
        ("demo", "experiment.json"),
        ("demo", "requests.csv"),
        ("demo", "proxy.csv"),
        ("node", "experiment.json"),
        ("node", "experiment.toml"),
        ("routing", "proxy.csv"),
        ("routing", "runs"),
        ("traffic", "experiment.json"),
        ("traffic --force", "experiment.json"),
        ("traffic", "requests.csv"),
        ("traffic", "requests.partial.csv"),
        ("report --merge .", "summary.json"),
        ("report --join . .", "requests.csv"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(file);
        // A pipe is not waited for.
        match line {
            "node" => mkfifo(&path, Mode::S_IRWXU).unwrap(),
            _ => std::fs::write(&path, "mine").unwrap(),
        }
        let dir = folder.path().display().to_string();
        let flags: Vec<&str> = line.split(' ').chain(["--output-dir", &dir]).collect();
        let done = run(queuescope(&flags));
        done.assert_refused(&format!("{dir}: holds {file} already; name another folder"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(line == "node" || std::fs::read_to_string(path).unwrap() == "mine");
    }
}
