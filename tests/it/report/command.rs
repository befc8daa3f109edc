//! `queuescope report`: runs as the generator left them, finished or killed; shards. Nothing is destroyed that it reads, or that is
//! another's.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use queuescope::sim::Sim;
use queuescope::sim::config::Config;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::assert_says;
use crate::support::generator::{self, flags};
use crate::support::process::{Done, PROGRAM, queuescope, run, run_aside};
use crate::support::wire::until;

/// Runs of traffic to a simulated server, in folders of their own.
struct Runs {
    sim: Sim,
    folder: TempDir,
}

impl Runs {
    fn of(change: impl FnOnce(&mut Config)) -> Runs {
        Runs {
            sim: generator::sim(change),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }

    /// A run of traffic.
    fn command(&self, name: &str, more: &str) -> Command {
        let load = "--dataset-name random --random-input-len 20 --random-output-len 8 --seed 5";
        let url = format!("http://{}", self.sim.addr());
        let mut command = queuescope(&["traffic", "--base-url", &url, "--output-dir"]);
        let args = flags(load).into_iter().chain(flags(more));
        command.arg(self.path(name)).args(args);
        command
    }

    async fn traffic(&self, name: &str, more: &str) -> Done {
        let done = run_aside(self.command(name, more)).await;
        done.assert_status(&[0, 3]);
        done
    }

    /// What is said of some of them.
    fn reported(&self, args: &str) -> String {
        let done = report(self.folder.path(), args);
        done.assert_status(&[0]);
        done.out
    }

    /// The figures of a run by its report, which are those of its summary.
    fn figures(&self, name: &str) -> Value {
        let shown = self.reported(&format!("{name} --format json"));
        let mut shown: Value = serde_json::from_str(&shown).unwrap();
        let found = shown["runs"][0]["summary"].take();
        let told = self.json(&format!("{name}/summary.json"));
        for (key, value) in told.as_object().unwrap() {
            assert_eq!(&found[key], value, "{key}");
        }
        found
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_has_the_figures_of_a_run_of_its_window_and_of_its_shards() {
    let runs = Runs::of(|config| config.profile.max_running_requests = 2);
    let load = "--num-prompts 40 --request-rate 80 --upstream-kind server --goodput ttft:50 --time-base epoch";
    runs.traffic("run", load).await;
    assert_eq!(runs.figures("run")["requests"], 40);
    assert_eq!(runs.read("run/report.html"), "", "only beside words");
    // Of a window: its requests, in its time. Words come with a page.
    let edges = format!("{load} --leave-out-first 0.1 --leave-out-last 0.1");
    runs.traffic("part", &edges).await;
    assert!(runs.figures("part")["requests"].as_u64() < Some(40));
    let text = runs.reported("part");
    assert_says(&text, "figures are of the ");
    assert_says(&text, "report.html");
    assert_says(&runs.read("part/report.html"), "<html");

    // Shards merged are the run that one would have made.
    for shard in ["0", "1"] {
        let load = format!("--num-prompts 30 --request-rate 200 --shard {shard}/2");
        runs.traffic(shard, &load).await;
    }
    runs.reported("--merge --output-dir merged 1 0");
    let told = runs.json("merged/summary.json");
    let counts = ["requests", "completed", "scheduled"].map(|name| &told[name]);
    assert_eq!(counts, [30; 3]);

    // Who asked for figures of a part of a run does not take those of all of it for them.
    let load = "--num-prompts 1 --upstream-kind server --leave-out-first 10min --json";
    let said = "figures are of all requests: none would be left without the first";
    let done = runs.traffic("whole", load).await;
    assert_says(&done.err, said);
    for (format, also) in [("text", "1 request in "), ("markdown", ""), ("json", "")] {
        let shown = runs.reported(&format!("whole --format {format}"));
        assert_says(&shown, said);
        assert_says(&shown, also);
    }
    assert_says(&runs.read("whole/summary.json"), said);
    assert_says(&runs.read("whole/report.html"), said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_killed_is_reported_as_far_as_it_came() {
    let runs = Runs::of(|_| {});
    let load = "--num-prompts 200000 --request-rate 200 --shard 1/2";
    let mut command = runs.command("run", load);
    command.stderr(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let lines = || runs.read("run/requests.partial.csv").lines().count();
    until("rows", || lines() > 5).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let text = runs.reported("run");
    for said in ["UNFINISHED: run", " of 100000 requests had ended"] {
        assert_says(&text, said);
    }
    // It knew its settings when it began.
    let told = runs.reported("run --format json");
    assert_says(&told, "\"shard\": \"1/2\"");
    assert_eq!(runs.read("run/summary.json"), "");
}

const HEAD: &str = "req_id,success,host,arrival_time,total_latency,outcome\n";

/// The ways to name an output.
const OUTPUTS: [&str; 3] = ["--output", "--html", "--format parquet --output"];

/// Rows of 30 requests, as a proxy writes them.
fn rows() -> String {
    let row = |number: u32| format!("x-{number},True,h:1,{}.5,0.1,ok\n", 1_795_000_000 + number);
    HEAD.to_owned() + &(0..30).map(row).collect::<String>()
}

fn report(dir: &Path, args: &str) -> Done {
    let mut command = queuescope(&["report"]);
    command.args(flags(args)).current_dir(dir);
    run(command)
}

/// A folder with these files, in folders of their own.
pub fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

/// It is refused in one line that holds `why`, and all of `dir` is as it was.
fn refused(dir: &Path, args: &str, why: &str) {
    let all = || {
        // No times of folders: a report makes its file under another name and takes it away.
        let script = "find . -printf '%i %M %n %u %s %p %l\\n' | sort; \
                      find . -type f -printf '%T@ %p\\n' -exec sha256sum {} + | sort";
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(dir);
        run(command).out
    };
    let before = all();
    let done = report(dir, args);
    done.assert_status(&[2]);
    assert_says(&done.err, why);
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    assert_eq!(before, all(), "{args:?} left another folder");
}

#[test]
fn an_output_that_is_an_input_by_any_name_is_refused() {
    let folder = folder(&[
        ("r.csv", &rows()),
        ("r.csv.20261120T144800Z", &rows()),
        ("run/requests.csv", &rows()),
        ("run/series.csv", "time,source,server,metric,value\n"),
        ("run/summary.json", "{}"),
    ]);
    let dir = folder.path();
    std::fs::hard_link(dir.join("r.csv"), dir.join("hard")).unwrap();
    std::os::unix::fs::symlink("r.csv", dir.join("soft")).unwrap();
    let same = "is the same file as ";
    let names = format!(
        "r.csv hard soft run/../r.csv r.csv.20261120T144800Z {}/r.csv",
        dir.display()
    );
    for name in names.split(' ') {
        for flags in OUTPUTS {
            refused(dir, &format!("r.csv --force {flags} {name}"), same);
        }
    }
    for name in ["requests.csv", "series.csv", "summary.json"] {
        let args = format!("run --force --no-html --output run/{name}");
        refused(dir, &args, same);
    }
    refused(dir, "r.csv --output x --html ./x", "two outputs");
}

#[test]
fn what_is_anothers_is_replaced_by_force_alone_and_a_report_at_once() {
    let folder = folder(&[("run/requests.csv", &rows()), ("mine", "my thesis")]);
    let dir = folder.path();
    std::fs::set_permissions(dir.join("mine"), Permissions::from_mode(0o640)).unwrap();
    let why = "is no report that queuescope wrote";
    for flags in OUTPUTS {
        refused(dir, &format!("run {flags} mine"), why);
    }
    // The page that is written unasked as well.
    std::fs::write(dir.join("run/report.html"), "<h1>mine</h1>").unwrap();
    refused(dir, "run", why);
    std::fs::remove_file(dir.join("run/report.html")).unwrap();
    // A report in any form gives way to one in any other; only rows, which others may have made, do not.
    for format in [
        "text --force",
        "json --html page",
        "csv --html page",
        "parquet",
        "text --force",
        "parquet",
    ] {
        let args = format!("run --output mine --format {format}");
        report(dir, &args).assert_status(&[0]);
        let mode = dir.join("mine").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }
    refused(dir, "run --output mine", why);
    // Nothing can be read: what was written before stays.
    std::fs::write(dir.join("broken.csv"), "a,b\n").unwrap();
    for format in ["text", "parquet"] {
        let args = format!("broken.csv --output mine --force --format {format}");
        refused(dir, &args, "no file of rows");
    }
    let names = std::fs::read_dir(dir).unwrap().count();
    assert_eq!(names, 4, "nothing is left beside");
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let folder = folder(&[("run/requests.csv", &rows()), ("r.csv", &rows())]);
    let dir = folder.path();
    for name in ["pipe", "run/summary.json"] {
        let made = Command::new("mkfifo").arg(dir.join(name)).status();
        assert!(made.unwrap().success());
    }
    for args in [
        "pipe",
        "pipe --format parquet --output x",
        "run",
        "r.csv --output pipe",
        "r.csv --html pipe --force",
        "--join --output-dir new pipe r.csv",
    ] {
        refused(dir, args, "is a pipe; it must be a file");
    }
    refused(dir, "r.csv --output /dev/null", "is a device");
    refused(dir, "/dev/null", "is a device");
}

/// Files that nobody asked for by name are no reason to show nothing.
#[test]
fn of_a_folder_that_must_not_be_written_to_there_is_a_report() {
    let of_run = r#"{"dir":"runs/1","label":"run","settings":{},"repeat":0,"state":"done"}"#;
    let experiment = format!(r#"{{"kind":"routing","began":0,"keys":[],"runs":[{of_run}]}}"#);
    let folder = folder(&[
        ("theirs/experiment.json", &experiment),
        ("theirs/runs/1/requests.csv", &rows()),
    ]);
    let dir = folder.path();
    let theirs = dir.join("theirs");
    let permit = |mode| std::fs::set_permissions(&theirs, Permissions::from_mode(mode));
    permit(0o555).unwrap();
    // Who may write everywhere does without that.
    let may_override = std::fs::write(theirs.join("x"), "").is_ok();
    let report = |args: &str| {
        let words = ["--bounding-set", "-dac_override", PROGRAM, "report"];
        let mut command = match may_override {
            true => Command::new("setpriv"),
            false => Command::new(PROGRAM),
        };
        command.args(&words[if may_override { 0 } else { 3 }..]);
        command.args(flags(args)).current_dir(dir);
        run(command)
    };
    let all = ["summary.csv", "comparison.json", "report.html"];
    for (args, missing) in [
        ("theirs", &all[..]),
        ("theirs --html page.html", &all[..2]),
        ("theirs --no-html --json", &all[..2]),
    ] {
        let done = report(args);
        done.assert_status(&[0]);
        assert_says(&done.out, "30");
        let lines = done.err.lines().collect::<Vec<_>>().join(" ");
        assert_eq!(lines.matches("is not written").count(), missing.len());
        for name in missing {
            let note = format!("note: theirs/{name} is not written (permission denied)");
            assert_says(&lines, &note);
        }
    }
    assert!(dir.join("page.html").is_file());
    // What was asked for is an error.
    for args in ["--output theirs/text", "--html theirs/page"] {
        let done = report(&format!("theirs {args}"));
        done.assert_status(&[1]);
    }
    permit(0o755).unwrap();
}

#[test]
fn notes_on_a_join_are_not_in_its_json() {
    let side = |side| format!("req_id,arrival_time,outcome,seen_by\nx-1,1795000000.5,ok,{side}\n");
    let files = [("front.csv", &*side("front")), ("hop.csv", &side("hop"))];
    let folder = folder(&files);
    let json = report(
        folder.path(),
        "--join --output-dir out front.csv hop.csv --json",
    );
    assert!(serde_json::from_str::<Value>(&json.out).is_ok());
    assert_says(
        &json.err,
        "note: 1 of 1 attempts joined to 1 of 1 requests\n",
    );
}

#[test]
fn a_folder_called_as_a_formula_is_none_in_a_sheet() {
    let name = "=cmd|' C calc'!A1";
    let folder = folder(&[(&format!("{name}/requests.csv"), &rows())]);
    let mut command = queuescope(&["report", name, "--format", "csv"]);
    command.current_dir(folder.path());
    let done = run(command);
    done.assert_status(&[0]);
    let mut sheet = csv::Reader::from_reader(done.out.as_bytes());
    let row = sheet.records().next().unwrap().unwrap();
    assert_eq!(row[0], format!("'{name}"));
    assert!(!row.iter().any(|cell| cell.starts_with('=')), "{row:?}");
    // Figures stay numbers.
    assert!(row.iter().any(|cell| cell == "30"), "{row:?}");
}

#[tokio::test]
async fn ctrl_c_ends_a_report_at_once_and_leaves_what_was() {
    // Enough for many seconds.
    let many = HEAD.to_owned() + &rows()[HEAD.len()..].repeat(20_000);
    let folder = folder(&[("r.csv", &many), ("out", "")]);
    let dir = folder.path();
    let args = ["report", "r.csv", "--format", "parquet", "--output", "out"];
    let mut child = queuescope(&args).current_dir(dir).spawn().unwrap();
    until("a draft", || std::fs::read_dir(dir).unwrap().count() == 3).await;
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read(dir.join("out")).unwrap(), b"");
    let left = std::fs::read_dir(dir).unwrap().count();
    assert_eq!(left, 2, "no draft is left");
}
