//! A server of a run, and what is done to it while that goes on.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use http::Method;
use tokio::time::{sleep, timeout};

use crate::fault::Fault;
use crate::report::files::ServerFile;

use super::ask::Access;
use super::process::{Process, until};

/// How long servers are asked to empty their caches: one refuses while requests are under way, and those of an earlier run
/// may be.
const FLUSHING: Duration = Duration::from_secs(30);
/// How often.
const FLUSH_EVERY: Duration = Duration::from_millis(250);

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
    /// The proxy's admin listener, where there are hops, and how that is asked.
    pub(super) admin: Option<(SocketAddr, Access)>,
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
        let limit = self.start_timeout;
        let last = Mutex::new("no answer".to_owned());
        let is_ready = async || {
            let why = self.access.refuses(url).await;
            let is_ready = why.is_none();
            *last.lock().unwrap_or_else(PoisonError::into_inner) = why.unwrap_or_default();
            is_ready
        };
        if let Some(process) = &self.process {
            return process.ready(limit, is_ready).await;
        }
        let asked = timeout(limit, until(is_ready)).await;
        asked.map_err(|_| {
            let why = last.lock().unwrap_or_else(PoisonError::into_inner);
            let (name, limit) = (&self.file.name, limit.as_secs_f64());
            anyhow!("{name}: {url} is not ready after {limit} s ({why}); start the server, or give its URL")
        })
    }

    /// Has its hop inject a fault; `None` takes it away.
    ///
    /// # Errors
    /// It has no hop, or the hop does not take the fault.
    pub async fn set_fault(&self, fault: Option<&Fault>) -> anyhow::Result<()> {
        let name = &self.file.name;
        let admin = self.admin.as_ref();
        let (admin, access) = admin.with_context(|| format!("{name} has no hop"))?;
        let (method, body) = match fault {
            Some(fault) => (Method::PUT, serde_json::to_vec(fault)?.into()),
            None => (Method::DELETE, Bytes::new()),
        };
        let (url, path) = (format!("http://{admin}"), format!("/faults/{name}"));
        let asked = access.ask(&url, method, &path, body).await;
        let (status, said) = asked.map_err(anyhow::Error::msg)?;
        let said = String::from_utf8_lossy(&said);
        ensure!(
            status == 200,
            "the hop of {name} answers {status}: {}",
            said.trim()
        );
        Ok(())
    }
}

/// Has the server (or the router before servers) at `url` empty its cache, and again until it has.
///
/// # Errors
/// Why it has not.
pub(super) async fn flushed(access: &Access, url: &str) -> Result<(), String> {
    let asked = emptied(async || {
        let asked = access.ask(url, Method::POST, "/flush_cache", Bytes::new());
        asked.await.map(|(status, _)| status)
    });
    asked
        .await
        .map_err(|why| format!("the cache of {url} was not emptied before the run: {why}"))
}

/// Asks until the answer is 200, for [`FLUSHING`] at most; an answer that cannot change is the last.
async fn emptied(ask: impl AsyncFn() -> Result<u16, String>) -> Result<(), String> {
    let mut last = String::new();
    let asked = async {
        loop {
            match ask().await {
                Ok(200) => return Ok(()),
                Ok(status @ (401 | 403 | 404 | 405)) => {
                    return Err(format!("it answered {status}"));
                }
                Ok(status) => last = format!("it answered {status}"),
                Err(why) => last = why,
            }
            log::debug!("/flush_cache: {last}; it is asked again");
            sleep(FLUSH_EVERY).await;
        }
    };
    match timeout(FLUSHING, asked).await {
        Ok(done) => done,
        Err(_) => Err(format!("{last}, for {} s", FLUSHING.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cache_is_asked_to_be_emptied_until_it_is() {
        let asked = |answers: &'static [u16]| async move {
            let count = Cell::new(0);
            let done = emptied(async || {
                let n = count.replace(count.get() + 1);
                Ok(answers[n.min(answers.len() - 1)])
            });
            (done.await, count.get())
        };
        assert_eq!(asked(&[400, 400, 503, 200]).await, (Ok(()), 4));
        // A router that reached some of its servers only.
        let (done, count) = asked(&[206]).await;
        assert_eq!(done, Err("it answered 206, for 30 s".to_owned()));
        assert!(count > 10, "{count}");
        assert_eq!(asked(&[404]).await, (Err("it answered 404".to_owned()), 1));
    }
}
