//! Whether an upstream can be connected to, for `/readyz`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Mutex;

use crate::clock::{Clock, NANOS, Stamp};
use crate::upstream::Upstreams;

/// The latest answer. However often it is asked for, the upstreams see one connect a second.
#[derive(Debug, Default)]
pub struct Readiness {
    last: Mutex<Option<(Stamp, bool)>>,
}

/// How long an answer holds, nanoseconds.
const HOLDS: i64 = NANOS;
/// How long a connect may take.
const LIMIT: Duration = Duration::from_secs(1);

impl Readiness {
    /// Whether one of these can be connected to, now or a second ago.
    pub async fn ask(&self, upstreams: &[Arc<Upstreams>], clock: &Clock) -> bool {
        // Other requests meanwhile wait for the same answer.
        let mut last = self.last.lock().await;
        if let Some((at, can)) = *last
            && clock.now().nanos_since(at) < HOLDS
        {
            return can;
        }
        let can = any_connects(upstreams).await;
        *last = Some((clock.now(), can));
        can
    }
}

async fn any_connects(upstreams: &[Arc<Upstreams>]) -> bool {
    let all = upstreams.iter().flat_map(|all| all.all());
    let asked: FuturesUnordered<_> = all.map(|one| one.can_connect(LIMIT)).collect();
    asked.any(|can_connect| async move { can_connect }).await
}
