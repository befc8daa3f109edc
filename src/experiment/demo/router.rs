//! A real router as a child process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::experiment::launch::{Failure, Process, ask, command, ports};

/// A router that runs. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Router {
    process: Arc<Process>,
    failures: UnboundedReceiver<Failure>,
    addr: SocketAddr,
    metrics: SocketAddr,
}

/// Requests that it sends on at once; the others wait in it, so that its queue can be seen too.
const AT_ONCE: &str = "26";
/// Requests that may wait in it; it answers 429 to more.
const WAITING: &str = "400";
/// How long it may take until it serves.
const START: Duration = Duration::from_secs(60);

impl Router {
    /// Starts `program` (`smg` of sglang-router or smg) on `addr` before `workers`, and waits until it would send requests
    /// to each of them.
    ///
    /// # Errors
    /// It cannot be started, ended, or was not ready in a minute.
    pub(super) async fn start(
        program: &Path,
        addr: SocketAddr,
        workers: &[SocketAddr],
        log: &Path,
    ) -> anyhow::Result<Router> {
        let metrics = ports::free()?;
        let urls: Vec<String> = workers
            .iter()
            .map(|worker| format!("http://{worker}"))
            .collect();
        let flags = [
            "--max-concurrent-requests",
            AT_ONCE,
            "--queue-size",
            WAITING,
        ];
        let flags = [&flags[..], &["--log-level", "error"]].concat();
        let flags: Vec<String> = flags.into_iter().map(str::to_owned).collect();
        let command = command::router(program, addr, metrics, "round_robin", &urls, &flags);
        let (sender, failures) = unbounded_channel();
        let process = Process::new("router", command, log.to_owned(), None, sender);
        process.start()?;
        let url = format!("http://{addr}");
        let knows_all = || async { ask::workers(&url).await == workers.len() };
        process.ready(START, knows_all).await?;
        Ok(Router {
            process,
            failures,
            addr,
            metrics,
        })
    }

    /// Where it listens.
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where it serves `/metrics`.
    pub(super) fn metrics_addr(&self) -> SocketAddr {
        self.metrics
    }

    /// Waits for its end, which is not expected.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        match self.failures.recv().await {
            Some(failure) => failure.into(),
            None => anyhow::anyhow!("the router ended"),
        }
    }

    /// Ends it, and waits until it is gone.
    pub(super) async fn end(self) {
        self.process.stop().await;
    }
}
