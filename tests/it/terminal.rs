//! What the commands show on a terminal of 80 columns.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::assert_says;
use crate::support::generator::flags;
use crate::support::process::{queuescope, run};
use crate::support::upstream::Upstream;
use crate::support::wire::json_response;

const COLUMNS: u16 = 80;

/// Runs a command whose output is a terminal, to its end or to the Ctrl-C that stops it once it has said `stop_at`; its exit code,
/// and what was shown.
fn on_a_terminal(line: &[&str], stop_at: Option<&str>) -> (Option<i32>, String) {
    let size = Winsize {
        ws_row: 24,
        ws_col: COLUMNS,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pair = openpty(&size, None).unwrap();
    let mut reader = std::fs::File::from(pair.master);
    let mut child = command(line)
        .env("TERM", "dumb")
        .stdin(Stdio::null())
        .stdout(pair.slave.try_clone().unwrap())
        .stderr(pair.slave.try_clone().unwrap())
        .spawn()
        .unwrap();
    // Else the terminal would never end.
    drop(pair.slave);
    let mut shown = Vec::new();
    let mut piece = [0; 4096];
    // A terminal whose other end is closed is an error, not an end.
    let mut is_stopped = false;
    while let Ok(count @ 1..) = reader.read(&mut piece) {
        shown.extend_from_slice(&piece[..count]);
        let so_far = String::from_utf8_lossy(&shown);
        if !is_stopped && stop_at.is_some_and(|text| so_far.contains(text)) {
            is_stopped = true;
            let pid = Pid::from_raw(child.id().try_into().unwrap());
            kill(pid, Signal::SIGINT).unwrap();
        }
    }
    let code = child.wait().unwrap().code();
    let shown = String::from_utf8(shown).unwrap().replace("\r\n", "\n");
    (code, without_bar(&shown))
}

/// The lines that stay: the bar is drawn on one of its own, behind a carriage return, and taken away again.
fn without_bar(shown: &str) -> String {
    let lines = shown.split('\n').map(|line| {
        let last = line.rsplit(['\r', '\u{1b}']).next().unwrap();
        last.strip_prefix("[2K").unwrap_or(last)
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn command(line: &[&str]) -> Command {
    let mut command = queuescope(line);
    command.env_remove("COLUMNS").env("NO_COLOR", "1");
    command
}

fn through_a_pipe(line: &[&str]) -> String {
    let done = run(command(line));
    done.out + &done.err
}

fn assert_fits(shown: &str) {
    assert!(shown.lines().count() > 1, "{shown:?}");
    for line in shown.lines() {
        let columns = line.chars().count();
        assert!(columns <= usize::from(COLUMNS), "{line:?} in\n{shown}");
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

#[test]
fn help_a_drawn_config_and_an_error_fit_and_lose_no_word() {
    // A router there cannot be looked up, but only a start does.
    let config = "check --listen 127.0.0.1:18800 --upstream http://router.a.long.name.example:8000 \
         --worker first=127.0.0.1:19000=http://127.0.0.1:30000 \
         --worker second=127.0.0.1:19001=http://127.0.0.1:30001";
    for (line, status) in [
        ("node -h", 0),
        ("node --help", 0),
        ("node --help-all", 0),
        (config, 0),
        ("proxy", 2),
    ] {
        let line = flags(line);
        let (code, shown) = on_a_terminal(&line, None);
        assert_eq!(code, Some(status), "{line:?}");
        assert_fits(&shown);
        assert_eq!(words(&shown), words(&through_a_pipe(&line)), "{line:?}");
    }
}

#[test]
fn the_demo_fits_and_its_table_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("demo").display().to_string();
    let line = format!("demo --num-prompts 30 --request-rate 200 --output-dir {dir}");
    let (code, shown) = on_a_terminal(&flags(&line), None);
    // A busy machine sends too late: INVALID.
    assert!(matches!(code, Some(0 | 3)), "{shown}");
    assert_fits(&shown);
    assert!(words(&shown).join(" ").contains("; rows go to "), "{shown}");
    let part = |begins: &str| -> Vec<&str> {
        let lines = shown.lines().skip_while(|line| !line.starts_with(begins));
        lines.take_while(|line| !line.is_empty()).collect()
    };
    let table = part("ms, ok");
    assert_eq!(table.len(), 10, "{shown}");
    assert!(table.iter().all(|line| words(line).len() > 5), "{shown}");
}

#[test]
fn what_a_run_says_on_its_way_fits() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    // It takes connections, and answers nothing.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", server.local_addr().unwrap());
    let line = format!(
        "traffic --base-url {url} --request-rate 100 --num-prompts 500 --dataset-name random --drain-timeout-s 0.2 \
         --output-dir {}",
        dir.display()
    );
    let (code, shown) = on_a_terminal(&flags(&line), Some("rows go to"));
    assert_eq!(code, Some(130), "{shown}");
    assert_fits(&shown);
    let said = words(&shown).join(" ");
    assert_says(&said, "; rows go to ");
    let stops = "stopping: no further request is sent; waiting up to 0.2 s for ";
    assert_says(&said, stops);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_wrote_does_nothing_to_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let wild = r"a\u001b]0;owned\u0007\rb\u202ec\u009b2J";
    let spelt = r"a\x1b]0;owned\x07\x0db\x202ec\x9b2J";
    let body = format!("{{\"error\":{{\"message\":\"{wild}\"}}}}");
    let answer = String::from_utf8(json_response(&body)).unwrap();
    let server = Upstream::always(answer.replace("200 OK", "500 no")).await;
    let url = format!("http://{}", server.addr);
    let dir = folder.path().join("run").display().to_string();
    let load = "--num-prompts 3 --request-rate inf --dataset-name random --output-dir";
    let traffic = [&["traffic", "--base-url", &url][..], &flags(load), &[&dir]].concat();
    // Rows of somebody else.
    let rows = folder.path().join("foreign.csv");
    let row = |host: &str| format!("r-{},{host},200,ok,1.0,2.0,1.0\n", host.len());
    let wild: String = serde_json::from_str(&format!("\"{wild}\"")).unwrap();
    let text = "req_id,host,status,outcome,arrival_time,finish_time,total_latency\n".to_owned();
    std::fs::write(&rows, text + &row(&wild) + &row("other")).unwrap();
    let rows = rows.to_str().unwrap();
    for line in [
        &traffic[..],
        &["probe", &url],
        &["report", rows],
        &["report", rows, "--format", "markdown"],
    ] {
        let shown = through_a_pipe(line);
        assert!(shown.contains(spelt), "{line:?}: {shown:?}");
        let is_obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!shown.contains(is_obeyed), "{line:?}: {shown:?}");
    }
    // Programs read it as it is.
    let json = through_a_pipe(&["report", rows, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json.to_string().contains("\\u001b]0;owned"), "{json}");
}
