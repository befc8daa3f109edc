//! A server of a run, and what is done to it while that goes on.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use http::Method;

use crate::fault::Fault;
use crate::report::files::ServerFile;

use super::ask::{Access, Asked, until};
use super::process::Process;

/// How long servers are asked to empty their caches: one refuses while requests are under way, and those of an earlier run
/// may be.
const FLUSHING: Duration = Duration::from_secs(30);
/// What an SGLang (or what pretends to be one) that would generate answers; the second refuses one that wants a key, or is no SGLang.
const SERVES: [(&str, RangeInclusive<u16>); 2] =
    [("/health", 200..=200), ("/model_info", 100..=499)];

/// A server of a deployment, and what is done to it.
#[derive(Debug)]
pub struct Server {
    /// What `run.json` says of it.
    pub file: ServerFile,
    /// Where its hop listens.
    pub hop: Option<SocketAddr>,
    /// Where decode servers find it, if it prefills for them.
    pub(super) bootstrap: Option<u16>,
    /// `None`: an external one.
    pub(super) process: Option<Process>,
    pub(super) access: Access,
    /// The proxy's admin listener, once there is one.
    pub(super) admin: Option<SocketAddr>,
    pub(super) start_timeout: Duration,
}

impl Server {
    fn process(&self) -> anyhow::Result<&Process> {
        let process = self.process.as_ref();
        process.with_context(|| format!("{} was not started here", self.file.name))
    }

    /// Kills its process group. Returns when it is gone.
    ///
    /// # Errors
    /// It is not one that was started here.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.process()?.kill().await;
        Ok(())
    }

    /// Starts it again after a kill: the same command, the same port.
    ///
    /// # Errors
    /// It runs, is not one that was started here, or cannot be started.
    pub fn start(&self) -> anyhow::Result<()> {
        self.process()?.start()
    }

    /// Waits until it would generate again, through its hop if it has one.
    ///
    /// # Errors
    /// It ended, or does not answer within the start timeout.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let hop = self.hop.map(|hop| format!("http://{hop}"));
        self.ready_at(hop.as_deref().unwrap_or(&self.file.url))
            .await
    }

    /// The same at `url`: past its hop, which need not be there yet.
    pub(super) async fn ready_at(&self, url: &str) -> anyhow::Result<()> {
        let ask = async || self.access.answers(url, &SERVES).await;
        if let Some(process) = &self.process {
            return process.ready(self.start_timeout, ask).await;
        }
        let asked = until(self.start_timeout, ask).await;
        asked.map_err(|why| {
            let name = &self.file.name;
            anyhow!("{name}: {url} is not ready ({why}); start the server, or give its URL")
        })
    }

    /// Has its hop inject a fault; `None` takes it away.
    ///
    /// # Errors
    /// It has no hop, or the hop does not take the fault.
    pub async fn set_fault(&self, fault: Option<&Fault>) -> anyhow::Result<()> {
        let name = &self.file.name;
        let admin = self.admin.with_context(|| format!("{name} has no hop"))?;
        let (method, body) = match fault {
            Some(fault) => (Method::PUT, serde_json::to_vec(fault)?.into()),
            None => (Method::DELETE, Bytes::new()),
        };
        let (url, path) = (format!("http://{admin}"), format!("/faults/{name}"));
        let asked = Access::default().ask(&url, method, &path, body).await;
        let (status, said) = asked.map_err(anyhow::Error::msg)?;
        let said = String::from_utf8_lossy(&said);
        let said = said.trim();
        ensure!(status == 200, "the hop of {name} answers {status}: {said}");
        Ok(())
    }
}

/// Has the server (or the router before servers) at `url` empty its cache, and again until it has.
///
/// # Errors
/// Why it has not.
pub(super) async fn flushed(access: &Access, url: &str) -> Result<(), String> {
    let ask = async || {
        let asked = access.ask(url, Method::POST, "/flush_cache", Bytes::new());
        match asked.await {
            Ok((200, _)) => Asked::Yes,
            Ok((status @ (401 | 403 | 404 | 405), _)) => {
                Asked::Never(format!("it answered {status}"))
            }
            Ok((status, _)) => Asked::NotYet(format!("it answered {status}")),
            Err(why) => Asked::NotYet(why),
        }
    };
    let asked = until(FLUSHING, ask).await;
    asked.map_err(|why| format!("the cache of {url} was not emptied before the run: {why}"))
}
