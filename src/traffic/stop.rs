//! Ends a run from outside.

use tokio_util::sync::CancellationToken;

/// A handle that ends a run in two steps: no more requests, then none under way either.
#[derive(Clone, Debug)]
pub struct Stop {
    aborted: CancellationToken,
    /// A child of `aborted`.
    stopped: CancellationToken,
}

impl Default for Stop {
    fn default() -> Stop {
        let aborted = CancellationToken::new();
        let stopped = aborted.child_token();
        Stop { aborted, stopped }
    }
}

impl Stop {
    /// A handle of a run that goes on.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Sends no further request; those under way may finish.
    pub fn stop(&self) {
        self.stopped.cancel();
    }

    /// Ends the requests under way as well.
    pub fn abort(&self) {
        self.aborted.cancel();
    }

    /// Whether [`Stop::stop`] or [`Stop::abort`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }

    /// Waits for [`Stop::stop`] or [`Stop::abort`].
    pub async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    /// Waits for [`Stop::abort`].
    pub async fn aborted(&self) {
        self.aborted.cancelled().await;
    }
}
