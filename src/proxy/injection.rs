//! What an injected fault does to a request, in Pingora's hooks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use tokio::task::AbortHandle;

use crate::edge::connection::{Connection, Ending};
use crate::fault::Kind;
use crate::fault::registry::{Injected, Request, WorkerFaults};

use super::identity;

/// The name of the error that ends a request on purpose.
pub const INJECTED: ErrorType = ErrorType::Custom("injected");

/// The fault of a request, if it has one.
#[derive(Debug, Default)]
pub struct RequestFault {
    injected: Option<Injected>,
    cut_at: Option<AbortHandle>,
}

impl Drop for RequestFault {
    fn drop(&mut self) {
        if let Some(timer) = &self.cut_at {
            timer.abort();
        }
    }
}

impl RequestFault {
    /// A request's head was read: it is reset, held or marked.
    ///
    /// # Errors
    /// When the request ends here, by a reset.
    pub async fn request(
        &mut self,
        faults: &WorkerFaults,
        session: &Session,
        generates: bool,
    ) -> Result<()> {
        let connection = Connection::current();
        let request = Request {
            peer: connection.as_ref().map(|connection| connection.peer),
            id: identity::request_id(&session.req_header().headers),
            generates,
            is_spared: connection.as_ref().is_some_and(|c| c.take_spared()),
        };
        let Some(mut injected) = faults.request(request) else {
            return Ok(());
        };
        match injected.kind {
            Kind::Refuse | Kind::Reset => {
                if let Some(connection) = connection {
                    connection.end(Ending::Reset);
                }
                return Err(Error::new_in(INJECTED));
            }
            Kind::Stall { ms: Some(ms) } => {
                let time = tokio::time::sleep(Duration::from_millis(ms.into()));
                tokio::select! {
                    () = time => {}
                    () = injected.removed() => {}
                }
            }
            Kind::Stall { ms: None } => injected.removed().await,
            Kind::Cut { after_ms, .. } => {
                self.cut_at = after_ms
                    .zip(connection)
                    .map(|(ms, connection)| cut_after(ms, connection));
                self.injected = Some(injected);
            }
            Kind::Slow { .. } => self.injected = Some(injected),
        }
        Ok(())
    }

    /// A piece of the response's body: how long it is held back. What is beyond a cut is taken away.
    pub fn piece(&mut self, body: &mut Option<Bytes>) -> Option<Duration> {
        let injected = self.injected.as_mut()?;
        let piece = body.as_mut().filter(|piece| !piece.is_empty())?;
        let connection = Connection::current();
        if connection.as_ref().and_then(|c| c.ending()) == Some(Ending::Cut) {
            piece.clear();
            return None;
        }
        let (passed, pieces) = injected.so_far();
        if let Some(left) = injected.kind.cuts(passed, pieces, piece.len() as u64) {
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            if let Some(connection) = connection {
                connection.end(Ending::Cut);
            }
        }
        injected.passed(piece.len() as u64);
        injected.kind.delay(piece.len())
    }
}

fn cut_after(ms: u32, connection: Arc<Connection>) -> AbortHandle {
    let timer = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(ms.into())).await;
        connection.end(Ending::Cut);
    });
    timer.abort_handle()
}
