//! A process of a run, which may be ended and started again.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, timeout};

use super::cause::is_hopeless;
use super::child::{Child, gone};
use super::command::CommandLine;
use super::failure::{Failure, What, said};

/// A process by its name.
#[derive(Debug)]
pub(in crate::experiment) struct Process {
    /// `server-1`, `router`, `proxy`.
    pub(super) name: String,
    pub(super) command: CommandLine,
    pub(super) log: PathBuf,
    slot: Mutex<Slot>,
    /// Queuescope's own, which ends what it started should we be killed.
    program: Option<PathBuf>,
    /// Who is told when it ends and nobody ended it.
    failures: UnboundedSender<Failure>,
}

#[derive(Debug, Default)]
struct Slot {
    child: Option<Child>,
    /// It is not to be started again.
    is_closed: bool,
}

/// How often its log is looked at meanwhile.
const READ_EVERY: Duration = Duration::from_secs(1);
/// How often something that starts is asked whether it is ready.
const ASK_EVERY: Duration = Duration::from_millis(50);

impl Process {
    /// One that is not started yet.
    pub(in crate::experiment) fn new(
        name: &str,
        command: CommandLine,
        log: PathBuf,
        program: Option<PathBuf>,
        failures: UnboundedSender<Failure>,
    ) -> Arc<Process> {
        Arc::new(Process {
            name: name.to_owned(),
            command,
            log,
            program,
            slot: Mutex::default(),
            failures,
        })
    }

    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started, runs already, or was stopped for good.
    pub(in crate::experiment) fn start(self: &Arc<Process>) -> anyhow::Result<()> {
        let mut slot = self.slot.lock();
        if slot.is_closed || slot.child.is_some() {
            bail!(
                "{}: {}",
                self.name,
                if slot.is_closed {
                    "was stopped"
                } else {
                    "runs already"
                }
            );
        }
        let child = Child::spawn(&self.command, &self.log, self.program.as_deref());
        let child =
            child.with_context(|| format!("{}: cannot start `{}`", self.name, self.command))?;
        tokio::spawn(watch(
            Arc::downgrade(self),
            child.pid().as_raw(),
            child.ended(),
        ));
        slot.child = Some(child);
        Ok(())
    }

    /// Waits until `is_ready` says so.
    ///
    /// # Errors
    /// It ended, or was not ready after `limit`.
    pub(in crate::experiment) async fn ready<F: Future<Output = bool>>(
        &self,
        limit: Duration,
        is_ready: impl Fn() -> F,
    ) -> anyhow::Result<()> {
        let ended = self.slot.lock().child.as_ref().map(Child::ended);
        let ended = ended.with_context(|| format!("{}: was stopped", self.name))?;
        let what = tokio::select! {
            biased;
            status = gone(ended) => What::Ended(status.with_context(|| format!("{}: was stopped", self.name))?),
            asked = timeout(limit, until(is_ready)) => match asked {
                Ok(()) => return Ok(()),
                Err(_) => What::NotReady(limit),
            },
            () = self.hopeless() => What::Hopeless,
        };
        Err(self.failure(what).into())
    }

    /// Waits until its log says what it does not recover from.
    async fn hopeless(&self) {
        loop {
            sleep(READ_EVERY).await;
            if is_hopeless(&said(&self.log, &self.command.to_string())) {
                return;
            }
        }
    }

    /// Kills it; it may be started again. Returns when it is gone.
    pub(super) async fn kill(&self) {
        let child = self.slot.lock().child.take();
        if let Some(child) = child {
            child.kill().await;
        }
    }

    /// Ends it for good. Returns when it is gone.
    pub(in crate::experiment) async fn stop(&self) {
        if let Some(child) = self.close() {
            child.stop().await;
        }
    }

    /// It is not to be started again. Gives what is to be ended.
    pub(super) fn close(&self) -> Option<Child> {
        let mut slot = self.slot.lock();
        slot.is_closed = true;
        slot.child.take()
    }

    fn failure(&self, what: What) -> Failure {
        Failure::new(&self.name, &self.command, what, &self.log)
    }
}

/// Asks until it is so.
pub(super) async fn until<F: Future<Output = bool>>(is_so: impl Fn() -> F) {
    while !is_so().await {
        sleep(ASK_EVERY).await;
    }
}

/// Tells of the end of a process that nobody ended.
async fn watch(process: Weak<Process>, pid: i32, ended: super::child::Ended) {
    let status = gone(ended).await;
    let Some((process, status)) = process.upgrade().zip(status) else {
        return;
    };
    let is_current = process
        .slot
        .lock()
        .child
        .as_ref()
        .is_some_and(|child| child.pid().as_raw() == pid);
    if is_current {
        // Nobody may be left to be told.
        let _ = process.failures.send(process.failure(What::Ended(status)));
    }
}
