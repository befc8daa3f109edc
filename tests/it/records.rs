//! The records files of real processes: killed ones, and two that were given the same path.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::files;
use crate::support::process::{Process, run};
use crate::support::proxy::Front;
use crate::support::upstream::Upstream;
use crate::support::wire::{self, Client, json_response, post, until};

/// A front to `upstream` with its records in `folder`. Small files: there is a rotation every fifty rows or so.
fn start(upstream: SocketAddr, folder: &Arc<TempDir>) -> Process {
    let config = folder.path().join("config.toml");
    let text = format!("[proxy]\nupstream = [\"{upstream}\"]\nrecords_rotate_mb = 0.02\n");
    std::fs::write(&config, text).unwrap();
    Process::in_folder(folder.clone(), &["--config", config.to_str().unwrap()])
}

/// Sends requests one after another until the other side is gone, or `limit` are answered. Returns how many were, in full.
async fn keep_asking(front: SocketAddr, name: String, limit: usize) -> usize {
    let Ok(stream) = TcpStream::connect(front).await else {
        return 0;
    };
    let mut client = Client::from_stream(stream);
    for n in 0..limit {
        let request = post("/generate", &format!("x-request-id: {name}-{n}\r\n"), b"{}");
        let sent = client.stream.write_all(&request).await;
        if sent.is_err() || !client.response().await.whole {
            return n;
        }
    }
    limit
}

/// Eight clients that keep asking.
fn load(front: SocketAddr, name: &str, limit: usize) -> JoinSet<usize> {
    let ask = |n| keep_asking(front, format!("{name}.{n}"), limit);
    (0..8).map(ask).collect()
}

fn records(folder: &Path) -> Vec<PathBuf> {
    let mut all = files(folder);
    all.retain(|path| path.display().to_string().contains("/records.csv"));
    all
}

/// The ids of all rows of all files. Fails unless each file has one header, and no line but for a torn one at the end
/// of at most `torn` files lacks a column.
fn ids(folder: &Path, mut torn: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for path in records(folder) {
        let mut text = match std::fs::read_to_string(&path) {
            // Moved away since it was listed.
            Err(error) if torn > 0 && error.kind() == ErrorKind::NotFound => continue,
            text => text.unwrap(),
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            let left = torn.checked_sub(1);
            torn = left.unwrap_or_else(|| panic!("{path:?} ends in {:?}", &text[whole..]));
        }
        text.truncate(whole);
        let mut rows = csv::Reader::from_reader(text.as_bytes());
        let header = rows.headers().unwrap().clone();
        for row in rows.records() {
            // The reader itself refuses a row that has more or fewer cells than the header.
            let row = row.unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert_ne!(row, header, "{path:?} has its header twice");
            ids.push(row[0].to_owned());
        }
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_leave_whole_rows_but_for_the_last_and_take_none_of_anothers() {
    const ROUNDS: usize = 3;
    let server = Upstream::always(json_response("{}")).await;
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let rows_of = |name: &str| {
        let ids = ids(folder.path(), ROUNDS + 1);
        ids.iter().filter(|id| id.starts_with(name)).count()
    };
    let mut survivor = start(server.addr, &folder);
    let lasting = load(survivor.front, "lasting", 150);
    for round in 0..ROUNDS {
        let name = format!("killed{round}");
        let mut killed = start(server.addr, &folder);
        let doomed = load(killed.front, &name, 100_000);
        let both = || rows_of(&name) > 100 && rows_of("lasting") > 100;
        until("rows of both under load", both).await;
        killed.signal(Signal::SIGKILL);
        killed.exit().await;
        doomed.join_all().await;
    }
    assert_eq!(lasting.join_all().await, [150; 8]);
    survivor.signal(Signal::SIGTERM);
    survivor.exit().await;
    let all = ids(folder.path(), ROUNDS);
    let rows: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(rows.len(), all.len(), "a row stands twice");
    // Nothing is lost of a process that ends in good order, and the others' death took none of it.
    let answered = (0..8).flat_map(|n| (0..150).map(move |id| format!("lasting.{n}-{id}")));
    let missing: Vec<String> = answered.filter(|id| !rows.contains(id)).collect();
    let said: Vec<String> = survivor.lines.try_iter().collect();
    assert!(missing.is_empty(), "missing: {missing:?}\n{said:#?}");
    // A crowd of rows goes into one file as a block, so that a busy machine makes few.
    assert!(records(folder.path()).len() > 1 + ROUNDS, "it was rotated");
}

/// What Python's `csv` reads of a file, strictly: a list of rows by column.
fn read_by_python(file: &Path) -> serde_json::Value {
    let script = "import csv, json, sys\n\
        with open(sys.argv[1], newline='', encoding='utf-8') as f:\n\
        \x20   print(json.dumps(list(csv.DictReader(f, strict=True))))";
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(file);
    let done = run(python);
    assert_eq!(done.code, Some(0), "{}", done.err);
    serde_json::from_str(&done.out).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_clients_and_servers_send_others_can_read_the_file() {
    let answer = r#"{"error":{"message":"=cmd|' /C calc'!A0 \u0000\u001b[31m"}}"#;
    let status = "500 Bad\r\nx-smg-routed-worker-id: =h\tb";
    let server = Upstream::always(wire::answer(status, answer)).await;
    let front = Front::start(server.addr).await;
    let id = b"=\xc3\xa9,\"\tb\xc2\x85";
    let body = b"{\"model\":\"+m\\u0000\\u001b\\n\\r\\u007f\\u0085\\u2029\xff\",\"text\":\"a\"}";
    let request = post("/generate", "", body);
    let (first, rest) = request.split_at(b"POST /generate HTTP/1.1\r\n".len());
    let head = [first, b"x-request-id: ", id, b"\r\n", rest].concat();
    let mut client = front.sent(head).await;
    assert_eq!(client.response().await.status(), 500);
    front.first_row().await;
    let file = front.records();
    let raw = std::fs::read_to_string(&file).unwrap();
    assert!(!raw.replace('\n', "").contains(char::is_control), "{raw:?}");
    assert_eq!(raw.lines().count(), 2);
    let rows = read_by_python(&file);
    let [row] = &rows.as_array().unwrap()[..] else {
        panic!("{rows}");
    };
    for (column, cell) in [
        ("req_id", "'=é,\"\\x09b\\x85"),
        ("host", "'=h\\x09b"),
        ("status", "500"),
        ("error", "500 =cmd|' /C calc'!A0 \\x00\\x1b[31m"),
        ("model", "'+m\\x00\\x1b\\x0a\\x0d\\x7f\\x85\\x2029\u{fffd}"),
    ] {
        assert_eq!(row[column], cell, "{column}");
    }
}
