//! A server of a run, which can be killed, restarted and given faults during the run.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use http::Method;

use crate::fault::Fault;
use crate::report::files::ServerFile;

use super::access::{Access, poll};
use super::process::Process;

/// How long flushing a cache is retried. A server refuses while requests run, which may be of an earlier run.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// A server of a deployment.
#[derive(Debug)]
pub struct Server {
    /// Its entry in `run.json`.
    pub file: ServerFile,
    /// The address of its hop.
    pub hop: Option<SocketAddr>,
    /// The port by which decode servers find it, if it is a prefill server.
    pub(super) bootstrap: Option<u16>,
    /// `None` for an external server.
    pub(super) process: Option<Process>,
    pub(super) access: Access,
    /// The proxy's admin listener, once there is one.
    pub(super) admin: Option<SocketAddr>,
    pub(super) start_timeout: Duration,
}

impl Server {
    /// Kills its process group and waits until that is gone. An external server has none.
    pub async fn kill(&self) {
        if let Some(process) = &self.process {
            process.kill().await;
        }
    }

    /// Starts it again after a kill, with the same command and port.
    ///
    /// # Errors
    /// It is running, or cannot be started.
    pub fn start(&self) -> anyhow::Result<()> {
        self.process.as_ref().map_or(Ok(()), Process::start)
    }

    /// Waits until it is ready, through its hop if it has one.
    ///
    /// # Errors
    /// It ended, or is not ready within the start timeout.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let hop = self.hop.map(|hop| format!("http://{hop}"));
        self.is_ready_at(hop.as_deref().unwrap_or(&self.file.url))
            .await
    }

    /// Waits until it is ready at `url`, which may bypass its hop.
    pub(super) async fn is_ready_at(&self, url: &str) -> anyhow::Result<()> {
        let check = async || self.access.is_ready(url, "/health").await;
        if let Some(process) = &self.process {
            return process.ready(self.start_timeout, check).await;
        }
        let polled = poll(self.start_timeout, check).await;
        polled.map_err(|reason| {
            let name = &self.file.name;
            anyhow!("{name}: {url} is not ready ({reason})")
        })
    }

    /// Has its hop inject a fault; `None` lifts it.
    ///
    /// # Errors
    /// It has no hop, or the hop refuses the fault.
    pub async fn set_fault(&self, fault: Option<&Fault>) -> anyhow::Result<()> {
        let name = &self.file.name;
        let admin = self.admin.with_context(|| format!("{name} has no hop"))?;
        let (method, body) = match fault {
            Some(fault) => (Method::PUT, serde_json::to_vec(fault)?.into()),
            None => (Method::DELETE, Bytes::new()),
        };
        let (url, path) = (format!("http://{admin}"), format!("/faults/{name}"));
        let response = Access::default().request(&url, method, &path, body).await;
        let (status, text) = response.map_err(anyhow::Error::msg)?;
        let text = String::from_utf8_lossy(&text);
        let text = text.trim();
        ensure!(status == 200, "the hop of {name} answers {status}: {text}");
        Ok(())
    }
}

/// Empties the cache of the server (or of the servers behind the router) at `url`, with retries.
///
/// # Errors
/// Why it cannot be emptied.
pub(super) async fn flush_cache(access: &Access, url: &str) -> Result<(), String> {
    let flush = async || {
        let response = access.request(url, Method::POST, "/flush_cache", Bytes::new());
        match response.await? {
            (200, _) => Ok(Ok(())),
            // It will never do it.
            (status @ (401 | 403 | 404 | 405), _) => Ok(Err(format!("it answered {status}"))),
            (status, _) => Err(format!("it answered {status}")),
        }
    };
    let flushed = poll(FLUSH_TIMEOUT, flush).await.flatten();
    flushed.map_err(|reason| format!("the cache of {url} was not emptied before the run: {reason}"))
}
