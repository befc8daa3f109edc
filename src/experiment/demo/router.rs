//! A real router as a child process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::process::{Child, Command};
use tokio::time::{Duration, sleep};

use super::stack;

/// A router that runs. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Router {
    child: Child,
    addr: SocketAddr,
    metrics: SocketAddr,
}

/// Requests that it sends on at once; the others wait in it, so that its queue can be seen too.
const AT_ONCE: &str = "26";
/// Requests that may wait in it; it answers 429 to more.
const WAITING: &str = "400";
/// How often it is asked whether it serves, and how long it may take to.
const ASK_EVERY: Duration = Duration::from_millis(100);
const ASKED: u32 = 600;

impl Router {
    /// Starts `program` (`smg` of sglang-router or smg) on `addr` before `workers`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(
        program: &Path,
        addr: SocketAddr,
        workers: &[SocketAddr],
    ) -> anyhow::Result<Router> {
        let metrics = stack::free_address()?;
        let child = Command::new(program)
            .args(["launch", "--host", "127.0.0.1", "--port"])
            .arg(addr.port().to_string())
            .args(["--prometheus-host", "127.0.0.1", "--prometheus-port"])
            .arg(metrics.port().to_string())
            .args([
                "--max-concurrent-requests",
                AT_ONCE,
                "--queue-size",
                WAITING,
            ])
            .args([
                "--log-level",
                "error",
                "--policy",
                "round_robin",
                "--worker-urls",
            ])
            .args(workers.iter().map(|worker| format!("http://{worker}")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("--router {}", program.display()))?;
        Ok(Router {
            child,
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

    /// Waits until `is_ready` says so.
    ///
    /// # Errors
    /// It ended, or was not ready in a minute.
    pub(super) async fn ready(&mut self, is_ready: impl AsyncFn() -> bool) -> anyhow::Result<()> {
        for _ in 0..ASKED {
            if let Some(status) = self.child.try_wait()? {
                bail!("the router ended at once ({status}): start it by hand to see why");
            }
            if is_ready().await {
                return Ok(());
            }
            sleep(ASK_EVERY).await;
        }
        bail!("the router found no healthy server in a minute")
    }

    /// Waits for its end, which is not expected.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        match self.child.wait().await {
            Ok(status) => anyhow::anyhow!("the router ended: {status}"),
            Err(error) => error.into(),
        }
    }

    /// Ends it, and waits until it is gone.
    pub(super) async fn end(mut self) {
        // It fails only where the router is gone already.
        let _ = self.child.kill().await;
    }
}
