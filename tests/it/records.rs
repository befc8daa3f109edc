//! The records file of real processes: killed ones, and two on one file.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::upstream::Upstream;
use crate::support::wire::{PATIENCE, Reader, json_response, post, until};

/// A proxy in a process of its own. Killed when dropped.
struct Process {
    child: Child,
    front: SocketAddr,
    /// What it says.
    lines: Receiver<String>,
}

impl Process {
    fn start(upstream: SocketAddr, folder: &Path) -> Process {
        let config = folder.join("config.toml");
        // Small files: there is a rotation every fifty rows or so.
        let text = format!(
            "[proxy]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nupstream = [\"{upstream}\"]\n\
             records = {:?}\nrecords_rotate_mb = 0.02\n",
            records(folder)
        );
        std::fs::write(&config, text).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_queuescope"))
            .args(["proxy", "--config"])
            .arg(&config)
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let front = loop {
            let line = lines.recv_timeout(PATIENCE).expect("its address");
            if let Some((_, rest)) = line.split_once("front on http://") {
                break rest.split(' ').next().unwrap().parse().unwrap();
            }
        };
        Process {
            child,
            front,
            lines,
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    async fn ended(&mut self) {
        for _ in 0..4000 {
            if self.child.try_wait().unwrap().is_some() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("it did not end");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn records(folder: &Path) -> PathBuf {
    folder.join("records.csv")
}

/// Ids of requests that were answered in full.
type Answered = Arc<Mutex<BTreeSet<String>>>;

/// Sends requests one after another until the other side is gone, or `limit` are answered.
async fn keep_asking(front: SocketAddr, name: String, limit: usize, answered: Answered) {
    let Ok(mut stream) = TcpStream::connect(front).await else {
        return;
    };
    for n in 0..limit {
        let id = format!("{name}-{n}");
        let request = post("/generate", &format!("x-request-id: {id}\r\n"), b"{}");
        if stream.write_all(&request).await.is_err() {
            return;
        }
        let mut reader = Reader::default();
        let mut buffer = vec![0; 4096];
        while !reader.is_whole(usize::MAX) {
            match stream.read(&mut buffer).await {
                Ok(read) if read > 0 => reader.feed(&buffer[..read]),
                _ => return,
            }
        }
        answered.lock().unwrap().insert(id);
    }
}

/// Eight clients that keep asking.
fn load(front: SocketAddr, name: &str, limit: usize, answered: &Answered) -> JoinSet<()> {
    let clients =
        (0..8).map(|n| keep_asking(front, format!("{name}.{n}"), limit, answered.clone()));
    clients.collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap();
    let paths = paths.map(|entry| entry.unwrap().path());
    let is_records = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("records.csv")
    };
    paths.filter(is_records).collect()
}

/// The ids of all rows of all files. Fails unless each file has one header, and no line but for the torn
/// one that may end the file under way (`may_be_torn`) lacks a column or its end.
fn ids(folder: &Path, may_be_torn: bool) -> Vec<String> {
    let mut ids = Vec::new();
    for path in files(folder) {
        let mut text = match std::fs::read_to_string(&path) {
            // Moved away since it was listed.
            Err(error) if may_be_torn && error.kind() == ErrorKind::NotFound => continue,
            text => text.unwrap(),
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        assert!(
            whole == text.len() || (may_be_torn && path == records(folder)),
            "{path:?} ends in {:?}",
            &text[whole..]
        );
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

fn assert_once_each(ids: &[String]) -> BTreeSet<String> {
    let set: BTreeSet<String> = ids.iter().cloned().collect();
    assert_eq!(set.len(), ids.len(), "a row stands twice");
    set
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_leaves_whole_rows_to_the_next() {
    let server = Upstream::always(json_response("{}")).await;
    let folder = tempfile::tempdir().unwrap();
    let answered = Answered::default();
    let mut rows_before = 0;
    for round in 0..4 {
        let mut process = Process::start(server.addr, folder.path());
        // The start has mended what the killed one left.
        let found = ids(folder.path(), false);
        assert!(found.len() >= rows_before);
        let mut load = load(process.front, &format!("r{round}"), 100_000, &answered);
        until("rows under load", || {
            ids(folder.path(), true).len() > rows_before + 200
        })
        .await;
        process.signal(Signal::SIGKILL);
        process.ended().await;
        while load.join_next().await.is_some() {}
        rows_before = ids(folder.path(), true).len();
    }
    let mut last = Process::start(server.addr, folder.path());
    let mut load = load(last.front, "last", 5, &answered);
    while load.join_next().await.is_some() {}
    last.signal(Signal::SIGTERM);
    last.ended().await;
    let rows = assert_once_each(&ids(folder.path(), false));
    assert!(files(folder.path()).len() > 2, "it was rotated");
    // Nothing is lost of a process that ends in good order.
    let of_last = rows.iter().filter(|id| id.starts_with("last."));
    assert_eq!(of_last.count(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_a_file_and_one_is_killed() {
    let server = Upstream::always(json_response("{}")).await;
    let folder = tempfile::tempdir().unwrap();
    let mut killed = Process::start(server.addr, folder.path());
    let mut survivor = Process::start(server.addr, folder.path());
    let answered = Answered::default();
    let mut doomed = load(killed.front, "killed", 100_000, &Answered::default());
    let mut lasting = load(survivor.front, "lasting", 150, &answered);
    let rows_of = |name: &str| {
        let ids = ids(folder.path(), true);
        ids.iter().filter(|id| id.starts_with(name)).count()
    };
    until("rows of both", || {
        rows_of("killed") > 100 && rows_of("lasting") > 100
    })
    .await;
    killed.signal(Signal::SIGKILL);
    killed.ended().await;
    while doomed.join_next().await.is_some() {}
    while lasting.join_next().await.is_some() {}
    survivor.signal(Signal::SIGTERM);
    survivor.ended().await;
    let rows = assert_once_each(&ids(folder.path(), false));
    let answered = answered.lock().unwrap();
    assert_eq!(answered.len(), 8 * 150);
    // The other's death and its rotations took none of these.
    let missing: Vec<_> = answered.difference(&rows).collect();
    let said: Vec<String> = survivor.lines.try_iter().collect();
    assert!(missing.is_empty(), "missing: {missing:?}\n{said:#?}");
    // A crowd of rows goes into one file as a block, so that a busy machine makes few.
    assert!(files(folder.path()).len() > 2, "it was rotated");
}
