//! What is the user's: files in a folder that is given, secrets of a plan, and what is left of an experiment that is ended before its time
//! and gone on with.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use queuescope::report::files::RunState;

use super::{Planned, end, until};
use crate::support::generator::flags;
use crate::support::process::{limited, lines_of, queuescope, run, signal};
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

const SECRETS: [&str; 3] = ["S3cretHeader", "S3cretTokenOfAdmin", "S3cretOfTheHops0"];

#[test]
fn secrets_are_not_shown_and_kept_for_the_owner_alone() {
    let [header, token, hops] = SECRETS;
    let lines = format!(
        "{ONE}\nfront = true\nheader = [\"x-key: {header}\", \"@secret\"]\nmax_concurrency = [1, 2]\n\
         proxy.admin_token = \"{token}\"\nproxy.hop_secret = \"{hops}\""
    );
    let plan = Planned::new(&lines);
    std::fs::write(plan.folder.path().join("secret"), "x-team: S3cretOfAFile").unwrap();
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
    let resumed = plan.resumed("node");
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
    // Named by its file, one is in no other.
    let found = all(&plan.path(""));
    let holds = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("S3cretOfAFile");
    assert!(!found.iter().any(|(_, bytes)| holds(bytes)));
    assert!(!said.concat().contains("S3cretOfAFile"), "{said:?}");
    let summary = plan.path("runs/01-max_concurrency=1/summary.json");
    assert_says(&std::fs::read_to_string(summary).unwrap(), "x-team");
}

/// A command beside a plan, and the lines that it says.
fn begin(line: &str, plan: &Planned) -> (Child, Receiver<String>) {
    let mut process = queuescope(&flags(line));
    process.current_dir(plan.folder.path());
    process.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = process.spawn().unwrap();
    let lines = lines_of(child.stderr.take().unwrap());
    (child, lines)
}

/// A report on so many rows takes its time.
fn swell(rows: &Path) {
    let text = std::fs::read_to_string(rows).unwrap();
    let (_, of_run) = text.split_once('\n').unwrap();
    let mut rows = File::options().append(true).open(rows).unwrap();
    rows.write_all(of_run.repeat(3_000).as_bytes()).unwrap();
}

#[test]
fn ctrl_c_ends_a_report_on_what_is_done() {
    let plan = Planned::new(ONE);
    plan.ran("node", &[]);
    swell(&plan.path("runs/01-run/requests.csv"));
    std::fs::remove_file(plan.path("summary.csv")).unwrap();
    let (mut child, lines) = begin("node --resume out", &plan);
    while !lines.recv_timeout(PATIENCE).unwrap().contains("before") {}
    let mut status = None;
    // One may come while there is still something to stop.
    until("its end", || {
        signal(&child, Signal::SIGINT);
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
    assert!(!plan.path("summary.csv").exists(), "a report was made");
}

#[test]
fn ctrl_c_ends_the_reading_of_a_data_set() {
    for command in ["traffic", "node plan.toml"] {
        let plan = Planned::new(ONE);
        let path = plan.folder.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let line = format!("{command} --dataset-name sharegpt --dataset-path pipe");
        let (child, lines) = begin(&line, &plan);
        // Opened to be written, it is known to be read.
        let writer = File::options().write(true).open(&path).unwrap();
        assert_eq!(end(child, Signal::SIGINT), Some(130), "{command}");
        drop(writer);
        // No child of its holds them open.
        while lines.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Disconnected) {}
    }
}

const PLAN: &str = "max_running_requests = [1, 8]\nrequest_rate = 50\nnum_prompts = 100";
const FIRST: &str = "01-max_running_requests=1";
const SECOND: &str = "02-max_running_requests=8";

/// The rows of a run.
fn rows(plan: &Planned, run: &str) -> Option<String> {
    std::fs::read_to_string(plan.path("runs").join(run).join("requests.csv")).ok()
}

#[test]
fn killed_at_any_moment_it_is_gone_on_with() {
    for moment in [FIRST, SECOND] {
        let plan = Planned::new(PLAN);
        // What else is in the folder is in nobody's way.
        let mine = plan.path("aside/thesis");
        std::fs::create_dir_all(plan.path("aside")).unwrap();
        std::fs::write(&mine, "mine").unwrap();
        let process = plan.begin("node", &[]);
        plan.until_loaded(moment);
        end(process, Signal::SIGKILL);
        plan.assert_nothing_is_left();
        assert_eq!(plan.run_file(moment).unwrap().state, RunState::Running);
        let first = rows(&plan, FIRST);
        assert_eq!(first.is_some(), moment == SECOND);

        let done = plan.resumed("node");
        assert_says(&done.err, "was not done: what it left is in ");
        assert_eq!(plan.states(), [RunState::Done; 2]);
        let aside = plan.path("aside").join(format!("{moment}-1"));
        assert!(aside.join("run.json").is_file() && aside.join("schedule.csv").is_file());
        let all = [FIRST, SECOND].map(|run| rows(&plan, run).unwrap());
        assert!(all.iter().all(|rows| rows.lines().count() == 101));
        // What was done stays.
        assert!(first.is_none_or(|first| first == all[0]));
        plan.assert_nothing_is_left();
        // Nothing is left to do: all of it stays.
        let again = plan.resume("node", &[]);
        assert_eq!(again.err.matches("done before").count(), 2, "{}", again.err);
        // What has lost a part is done again.
        let [first, second] = [FIRST, SECOND].map(|run| plan.path("runs").join(run));
        std::fs::remove_file(first.join("requests.csv")).unwrap();
        File::create(second.join("summary.json")).unwrap();
        let healed = plan.resumed("node");
        assert_eq!(
            healed.err.matches("was not done").count(),
            2,
            "{}",
            healed.err
        );
        assert_eq!(std::fs::read_to_string(mine).unwrap(), "mine");
    }
}

#[test]
fn a_run_with_too_many_failures_stays_one_when_it_is_gone_on_with() {
    for (max_failed, code) in [("max_failed = 0.5", 4), ("", 4), ("max_failed = 1.0", 0)] {
        let lines = format!("request_rate = 100\nnum_prompts = 40\n{max_failed}");
        // One runs and one waits: most fail, and not all.
        let flags = "--set sim.max_running_requests=1 --set sim.max_queued_requests=1";
        let run = || {
            let plan = Planned::new(&lines);
            (plan.run("node", &self::flags(flags)), plan)
        };
        // On a busy machine it may be INVALID, whatever failed.
        let mut runs = std::iter::repeat_with(run).take(10);
        let (done, plan) = runs.find(|(done, _)| done.code != Some(3)).unwrap();
        done.assert_status(&[code]);
        let file = plan.run_file("01-run").unwrap();
        assert_eq!(file.has_failed_too_often, code == 4);
        let again = plan.resume("node", &[]);
        again.assert_status(&[code]);
        assert_says(&again.err, "done before");
    }
}

#[test]
fn ctrl_c_ends_all_of_it_in_order_and_no_other_plan_goes_on_with_it() {
    let plan = Planned::new(PLAN);
    let process = plan.begin("node", &[]);
    plan.until_loaded(FIRST);
    let told = plan.resume("node", &[]);
    told.assert_refused("another process is at work on this experiment");
    assert_eq!(end(process, Signal::SIGINT), Some(130));
    plan.assert_nothing_is_left();
    assert_eq!(plan.states(), [RunState::Stopped, RunState::Planned]);
    assert_eq!(plan.run_file(FIRST).unwrap().state, RunState::Stopped);
    // What came until then can be looked at.
    assert!(rows(&plan, FIRST).is_some());
    assert!(plan.path("comparison.json").is_file());
    // The plan is that of the folder: what else is said is refused.
    for flags in [&["--seed", "6"][..], &["--set", "seed=6"], &["plan.toml"]] {
        plan.resume("node", flags).assert_refused("--resume");
    }
    let told = plan.resume("routing", &[]);
    told.assert_refused("experiment = \"node\": this is queuescope routing");
    assert!(!plan.path("aside").exists());
    // What is wrong with it is said with its name.
    let whole = std::fs::read_to_string(plan.path("experiment.toml")).unwrap();
    let (cut, _) = whole.rsplit_once("(config ").unwrap();
    for (text, said) in [
        (whole.clone() + "x = [", "experiment.toml: line "),
        (String::new(), "experiment.toml: was cut"),
        (cut.to_owned(), "experiment.toml: was cut"),
    ] {
        std::fs::write(plan.path("experiment.toml"), text).unwrap();
        plan.resume("node", &[]).assert_refused(said);
    }
    std::fs::write(plan.path("experiment.toml"), whole).unwrap();
    plan.resumed("node");
    assert_eq!(plan.states(), [RunState::Done; 2]);
}

/// A server that says when it is to end, and waits until it may; before that it does what `$MEANWHILE` stands for.
const SLOW_TO_END: &str = "\"$QUEUESCOPE\" sim $3 $4 $5 $6 --decode-step-ms 4 &\n$MEANWHILE\n\
    trap 'echo ending; until [ -e go ]; do sleep 0.1; done' TERM\nwait";

/// Ctrl-C while a server is to end, which it then may; gives the experiment's status.
fn ctrl_c_at_the_end(plan: &Planned, mut process: Child) -> Option<i32> {
    let has_it = |log: String| log.contains("\nending\n");
    let is_ending = |log: &PathBuf| std::fs::read_to_string(log).is_ok_and(has_it);
    let logs = plan.path("runs/01-run/logs");
    until("the end of the load", || {
        logs.is_dir() && files(&logs).iter().any(is_ending)
    });
    signal(&process, Signal::SIGINT);
    std::fs::write(plan.folder.path().join("go"), "").unwrap();
    process.wait().unwrap().code()
}

#[test]
fn ctrl_c_stops_nothing_when_the_last_run_is_done() {
    let plan = Planned::by_script(&SLOW_TO_END.replace("$MEANWHILE", ""), ONE);
    let process = plan.begin("node", &["--engine", "sglang"]);
    let code = ctrl_c_at_the_end(&plan, process);
    assert!(matches!(code, Some(0 | 3)), "{code:?}");
    assert_eq!(plan.states(), [RunState::Done]);
    assert!(plan.path("report.html").is_file());
}

#[test]
fn a_run_that_failed_before_ctrl_c_is_no_stopped_one() {
    // One of the two fails.
    let fails = "mkdir slow || { until [ -e fail ]; do sleep 0.1; done; exit 3; }";
    let script = SLOW_TO_END.replace("$MEANWHILE", fails);
    let plan = Planned::by_script(&script, "num_gpus = 2\nrequest_rate = 1\nnum_prompts = 500");
    let process = plan.begin("routing", &["--engine", "sglang"]);
    plan.until_loaded("01-run");
    std::fs::write(plan.folder.path().join("fail"), "").unwrap();
    assert_eq!(ctrl_c_at_the_end(&plan, process), Some(1));
    assert_eq!(plan.states(), [RunState::Failed]);
    plan.assert_nothing_is_left();
}

#[test]
fn a_stopped_run_says_that_the_disk_was_full() {
    let plan = Planned::new("request_rate = 50\nnum_prompts = 200");
    // Files of 16,384 bytes.
    let mut process = limited("-f 32");
    process.args(["node", "plan.toml", "--output-dir", "out"]);
    process.current_dir(plan.folder.path());
    let process = process.stdout(Stdio::null()).stderr(Stdio::null());
    let process = process.spawn().unwrap();
    let rows = plan.path("runs/01-run/requests.partial.csv");
    until("a full disk", || {
        std::fs::metadata(&rows).is_ok_and(|rows| rows.len() == 16_384)
    });
    assert_eq!(end(process, Signal::SIGINT), Some(130));
    let file = plan.run_file("01-run").unwrap();
    assert_eq!(file.state, RunState::Stopped);
    assert_says(&file.error.unwrap_or_default(), "File too large");
    assert!(rows.exists() && !rows.with_file_name("requests.csv").exists());
}
