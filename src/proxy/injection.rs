//! What an injected fault does to a request.

use std::future::pending;
use std::time::Duration;

use crate::fault::Kind;
use crate::fault::registry::{Injected, Request, WorkerFaults};

use super::failure::Failure;

/// The fault of a request.
#[derive(Debug)]
pub struct RequestFault(Injected);

/// What becomes of a piece of the response's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Treated {
    /// It is held back for so long.
    pub held: Option<Duration>,
    /// The response ends with it.
    pub is_cut: bool,
}

impl RequestFault {
    /// That of a request whose head was read, if it has one.
    ///
    /// # Errors
    /// The request ends here: by a reset, or as its client `left` while it was held.
    pub async fn of(
        faults: &WorkerFaults,
        request: Request,
        left: impl Future<Output = ()>,
    ) -> Result<Option<RequestFault>, Failure> {
        let Some(mut injected) = faults.request(request) else {
            return Ok(None);
        };
        match injected.kind {
            Kind::Refuse | Kind::Reset => Err(Failure::Injected),
            Kind::Stall { ms } => tokio::select! {
                () = for_ms(ms) => Ok(None),
                () = injected.removed() => Ok(None),
                () = left => Err(Failure::ClientGone),
            },
            Kind::Cut { .. } | Kind::Slow { .. } => Ok(Some(RequestFault(injected))),
        }
    }

    /// How long after the request's head the response ends, where it does by time.
    pub fn cut_ms(&self) -> Option<u32> {
        match self.0.kind {
            Kind::Cut { after_ms, .. } => after_ms,
            _ => None,
        }
    }

    /// A piece of the response's body comes. What is beyond a cut is taken away.
    pub fn piece(&mut self, piece: &mut Vec<u8>) -> Treated {
        if piece.is_empty() {
            return Treated::default();
        }
        let (passed, pieces) = self.0.so_far();
        let left = self.0.kind.cuts(passed, pieces, piece.len() as u64);
        if let Some(left) = left {
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        }
        self.0.passed(piece.len() as u64);
        Treated {
            held: self.0.kind.delay(piece.len()),
            is_cut: left.is_some(),
        }
    }
}

/// Waits so many milliseconds; without an end where none is given.
pub async fn for_ms(ms: Option<u32>) {
    match ms {
        Some(ms) => tokio::time::sleep(Duration::from_millis(ms.into())).await,
        None => pending().await,
    }
}
