//! One process after another on the same listeners, with clients who must not notice.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::clients::{Clients, Way, server};
use crate::support::process::{Process, spawn};
use crate::support::proxy::rows;
use crate::support::upstream::{Gate, Step, Upstream};
use crate::support::wire::{Client, PATIENCE, chunk, json_response, stream_head, until};

/// Processes of one place: the same folder, takeover path and hop.
struct Place {
    folder: Arc<TempDir>,
    args: Vec<String>,
}

impl Place {
    fn new(upstream: SocketAddr) -> Place {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let args = [
            "--takeover".into(),
            folder.path().join("t.sock").display().to_string(),
            "--upstream".into(),
            upstream.to_string(),
            "--worker".into(),
            format!("w=127.0.0.1:0={upstream}"),
        ];
        Place {
            folder,
            args: args.into(),
        }
    }

    fn args<'a>(&'a self, extra: &[&'a str]) -> Vec<&'a str> {
        let own = self.args.iter().map(String::as_str);
        own.chain(extra.iter().copied()).collect()
    }

    fn start(&self) -> Process {
        Process::in_folder(self.folder.clone(), &self.args(&[]))
    }

    /// A process that takes over.
    fn next(&self) -> Process {
        let next = self.start();
        next.says("took over");
        next
    }

    /// How often each request id stands in the records.
    fn ids(&self) -> BTreeMap<String, usize> {
        let mut ids = BTreeMap::new();
        for row in rows(&self.folder.path().join("records.csv")) {
            *ids.entry(row["req_id"].clone()).or_default() += 1;
        }
        ids
    }
}

/// Short, streamed and kept, to every listener.
fn everywhere(process: &Process) -> Vec<(SocketAddr, Way)> {
    let (front, hop) = (process.front, process.hops[0]);
    vec![
        (front, Way::Kept),
        (front, Way::Kept),
        (front, Way::New),
        (front, Way::New),
        (front, Way::Stream),
        (front, Way::Stream),
        (hop, Way::Kept),
        (hop, Way::New),
        (hop, Way::Stream),
        (process.admin, Way::Health),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_restarts_under_load_fail_no_request() {
    let upstream = server().await;
    let place = Place::new(upstream.addr);
    let mut process = place.start();
    let clients = Clients::start(&everywhere(&process));
    let mut old = Vec::new();
    for _ in 0..20 {
        let before = clients.done();
        let next = place.next();
        assert_eq!(
            (next.front, &next.hops, next.admin),
            (process.front, &process.hops, process.admin)
        );
        old.push(std::mem::replace(&mut process, next));
        // Each has load of its own.
        until("requests", || clients.done() > before + 20).await;
    }
    let failures = clients.stop().await;
    assert_eq!(failures, [""; 0]);
    process.signal(Signal::SIGTERM);
    for process in old.iter_mut().chain([&mut process]) {
        assert!(process.exit().await.success());
    }
    // One row each of the front's requests, whichever process served it; the hop's leave none.
    let ids = place.ids();
    let front = everywhere(&process)
        .iter()
        .filter(|(addr, _)| *addr == process.front)
        .count();
    let sent = upstream.seen();
    let sent = sent.iter().filter_map(|seen| seen.header("x-request-id"));
    let is_front = |id: &String| {
        let number = id.trim_start_matches('c').split('-').next().unwrap();
        number.parse::<usize>().unwrap() < front
    };
    let mut sent: Vec<String> = sent.filter(is_front).collect();
    sent.sort();
    assert!(sent.len() > 400, "{}", sent.len());
    assert!(ids.values().all(|count| *count == 1), "{ids:?}");
    assert_eq!(ids.into_keys().collect::<Vec<_>>(), sent);
}
