//! What is the user's: files in a folder that is given, and secrets of a plan.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use queuescope::report::files::RunState;

use super::started::{Planned, end, until};
use crate::support::generator::flags;
use crate::support::process::{lines_of, queuescope, run};
use crate::support::wire::PATIENCE;
use crate::support::{assert_says, files};

const ONE: &str = "request_rate = 200\nnum_prompts = 20";

/// All files in a folder and below it, with what they hold; what is no file is left out.
fn all(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = files(dir).into_iter();
    files
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

fn pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

#[test]
fn a_pipe_in_the_folder_is_not_waited_for() {
    for name in ["experiment.json", "experiment.toml"] {
        let plan = Planned::new(ONE);
        std::fs::create_dir(plan.path("")).unwrap();
        pipe(&plan.path(name));
        plan.run("node", &[]).assert_status(&[2]);
    }
}

#[test]
fn a_folder_with_runs_of_anothers_is_left_alone() {
    let plan = Planned::new(ONE);
    for name in ["runs/events.out.tfevents", "aside/thesis", "data"] {
        let path = plan.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "mine").unwrap();
    }
    let before = all(&plan.path(""));
    plan.run("node", &[]).assert_refused(": holds runs already");
    assert_eq!(all(&plan.path("")), before);
    // `aside` alone is in nobody's way.
    std::fs::remove_dir_all(plan.path("runs")).unwrap();
    plan.ran("node", &[]);
    let kept = std::fs::read_to_string(plan.path("aside/thesis"));
    assert_eq!(kept.unwrap(), "mine");
    // Nor is an experiment replaced.
    let before = all(&plan.path(""));
    plan.run("node", &[]).assert_status(&[2]);
    assert_eq!(all(&plan.path("")), before);
}

const SECRETS: [&str; 3] = ["S3cretHeader", "S3cretTokenOfAdmin", "S3cretOfTheHops0"];

#[test]
fn secrets_are_not_shown_and_kept_for_the_owner_alone() {
    let [header, token, hops] = SECRETS;
    let lines = format!(
        "{ONE}\nfront = true\nheader = [\"x-key: {header}\"]\nmax_concurrency = [1, 2]\n\
         proxy.admin_token = \"{token}\"\nproxy.hop_secret = \"{hops}\""
    );
    let plan = Planned::new(&lines);
    let shown = plan.run("node", &["--print-plan"]);
    shown.assert_status(&[0]);
    assert_says(&shown.out, "x-key:***");
    // What was shown is no plan.
    let copy = plan.folder.path().join("copy.toml");
    std::fs::write(&copy, &shown.out).unwrap();
    let told = run(queuescope(&["node", copy.to_str().unwrap()]));
    told.assert_refused("*** is in place of a hidden value");
    let done = plan.ran("node", &[]);
    // The second is done again by what the folder holds.
    let file = plan.path("runs/02-max_concurrency=2/run.json");
    let written = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, written.replace("done", "stopped")).unwrap();
    let resumed = plan.resume("node", &[]);
    resumed.assert_status(&[0, 3]);
    assert_eq!(plan.states(), [RunState::Done; 2]);
    let said = [&shown, &told, &done, &resumed].map(|done| done.out.clone() + &done.err);
    let mut holding = 0;
    for secret in SECRETS {
        assert!(!said.concat().contains(secret), "{said:?}");
        for (path, bytes) in all(&plan.path("")) {
            if String::from_utf8_lossy(&bytes).contains(secret) {
                let mode = path.metadata().unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{}", path.display());
                holding += 1;
            }
        }
    }
    // The plan all of them, and each run's proxy.toml two; one run was put aside.
    assert_eq!(holding, 3 + 2 * 3);
}

#[test]
fn what_is_wrong_with_a_secret_is_said_without_it() {
    let [secret, ..] = SECRETS;
    for flags in [
        ["--header", &format!("Authorization Bearer {secret}")],
        ["--header", &format!("-{secret}")],
        ["--set", &format!("header=[\"-{secret}\"]")],
        ["--set", &format!("proxy.admin_token:{secret}")],
        ["--set", &format!("proxy.hop_secret={}", &secret[..12])],
        ["--set", &format!("servers=[\"http://me:{secret}@h:1\"]")],
    ] {
        let more = ["--engine", "external", "--front"];
        let told = run(queuescope(&[&["node"], &flags[..], &more].concat()));
        told.assert_status(&[2]);
        let said = told.out + &told.err;
        assert!(!said.contains(&secret[..12]), "{said}");
    }
    // Named by its file, it is in no other.
    let plan = Planned::new(&format!("{ONE}\nheader = [\"@secret\"]"));
    let file = plan.folder.path().join("secret");
    std::fs::write(file, format!("x-key: {secret}\n")).unwrap();
    plan.ran("node", &[]);
    let found = all(&plan.path(""));
    let holds = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(secret);
    assert!(!found.iter().any(|(_, bytes)| holds(bytes)));
    let text = std::fs::read_to_string(plan.path("runs/01-run/summary.json")).unwrap();
    assert!(text.contains("x-key"), "{text}");
}

/// A command beside a plan, and the lines that it says.
fn begin(args: &[&str], plan: &Planned) -> (Child, Receiver<String>) {
    let mut process = queuescope(args);
    process.current_dir(plan.folder.path());
    process.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = process.spawn().unwrap();
    let lines = lines_of(child.stderr.take().unwrap());
    (child, lines)
}

#[test]
fn ctrl_c_ends_a_report_on_what_is_done() {
    let plan = Planned::new(ONE);
    plan.ran("node", &[]);
    // A report on so many rows takes its time.
    let rows = plan.path("runs/01-run/requests.csv");
    let text = std::fs::read_to_string(&rows).unwrap();
    let (head, of_run) = text.split_once('\n').unwrap();
    std::fs::write(&rows, format!("{head}\n{}", of_run.repeat(3_000))).unwrap();
    std::fs::remove_file(plan.path("summary.csv")).unwrap();
    let (mut child, lines) = begin(&["node", "--resume", "out"], &plan);
    let next = || lines.recv_timeout(PATIENCE).unwrap();
    while !next().contains("done before") {}
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    let mut status = None;
    // One may come while there is still an experiment to stop.
    until("its end", || {
        kill(pid, Signal::SIGINT).unwrap();
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
    assert!(!plan.path("summary.csv").exists(), "no report was made");
}

/// The status of a generator that reads a pipe into which nobody writes, and gets a SIGINT.
fn interrupted(command: &str, plan: &Planned) -> Option<i32> {
    let path = plan.folder.path().join("pipe");
    pipe(&path);
    let line = format!("{command} --dataset-name sharegpt --dataset-path pipe");
    let (child, lines) = begin(&flags(&line), plan);
    // Opened to be written, it is known to be read.
    let writer = std::fs::File::options().write(true).open(&path).unwrap();
    let code = end(child, Signal::SIGINT);
    drop(writer);
    // No child of its holds them open.
    while lines.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Disconnected) {}
    code
}

#[test]
fn ctrl_c_ends_the_reading_of_a_data_set() {
    for command in ["traffic", "node plan.toml"] {
        let plan = Planned::new(ONE);
        assert_eq!(interrupted(command, &plan), Some(130), "{command}");
    }
}
