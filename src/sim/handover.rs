//! Hands a request from the prefill server of a pair to the decode server, as with SGLang's `--disaggregation-mode`.
//!
//! Both servers get each request; a number in its body, its room, relates the two. SGLang transfers the KV cache by protocols
//! of its own. Here the decode server connects to the prefill server's bootstrap port once it has reserved memory for the
//! request, sends the room's number, and reads one byte when the KV cache has been sent. A connection that closes without that
//! byte means that the prefill server is lost.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::clock::Stamp;

use super::Shared;
use super::config::Disaggregation;
use super::driver::{Submission, Update};
use super::engine::EventKind;
use super::sequence::Bootstrap;

/// The byte that reports a finished transfer.
const SENT: u8 = 1;
/// From the scheduler's receipt of a request until it looks for the other server.
pub(super) const PREPARE_NANOS: i64 = 200_000;

/// The rooms of a prefill server, and its link to the decode servers.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    rooms: Mutex<HashMap<u64, Weak<Room>>>,
    /// When the last transfer over the link ends.
    busy_until: Mutex<Option<Stamp>>,
    /// Counts, by its references, the requests that wait for memory on a decode server.
    pub waiting: Arc<()>,
    /// Counts, by its references, the requests whose KV cache is in transfer.
    pub sending: Arc<()>,
}

/// The state of a request that both servers share.
#[derive(Debug, Default)]
struct Room {
    /// Cancelled when the decode server has reserved memory.
    reserved: CancellationToken,
    /// Cancelled when the KV cache has been sent.
    sent: CancellationToken,
}

impl Rooms {
    /// Returns the room of a number. It is dropped when both sides have left.
    fn enter(&self, number: u64) -> Arc<Room> {
        let mut rooms = self.rooms.lock();
        rooms.retain(|_, room| room.strong_count() > 0);
        let known = rooms.get(&number).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let room = Arc::default();
            rooms.insert(number, Arc::downgrade(&room));
            room
        })
    }

    /// Adds a transfer that is ready at `from`, and returns when it ends. Transfers go one after the other.
    fn transfer(&self, flags: &Disaggregation, tokens: u32, from: Stamp) -> Stamp {
        let mut busy_until = self.busy_until.lock();
        let from = busy_until.map_or(from, |until| until.max(from));
        let seconds = f64::from(tokens) / flags.transfer_tokens_per_s + flags.transfer_ms / 1e3;
        *busy_until.insert(from.plus_seconds(seconds))
    }
}

/// Serves a decode server's connection to the bootstrap port.
pub(super) async fn serve_decode(mut stream: TcpStream, shared: Arc<Shared>) {
    let Ok(number) = stream.read_u64().await else {
        return;
    };
    let room = shared.rooms.enter(number);
    room.reserved.cancel();
    tokio::select! {
        () = room.sent.cancelled() => {}
        // The decode server gave up.
        _ = stream.read_u8() => return,
    }
    let _ = stream.write_u8(SENT).await;
}

/// Prefills a sequence once the decode server has reserved memory, then sends the KV cache. Passes the engine's updates on, the
/// first token when the KV cache has been sent.
pub(super) async fn prefill(shared: Arc<Shared>, mut submission: Submission, number: u64) {
    let (engine_updates, mut from_engine) = unbounded_channel();
    let updates = std::mem::replace(&mut submission.updates, engine_updates);
    let room = shared.rooms.enter(number);
    let (id, tokens) = (submission.request.id, submission.request.prompt.tokens());
    let prepared = submission.due.plus_nanos(PREPARE_NANOS);
    shared.clock.wait_until(prepared).await;
    let waiting = shared.rooms.waiting.clone();
    tokio::select! {
        () = room.reserved.cancelled() => drop(waiting),
        () = updates.closed() => return,
    }
    shared.driver.submit([submission]);
    loop {
        let update = tokio::select! {
            update = from_engine.recv() => update,
            () = updates.closed() => {
                // The client's abort may have preceded the submission above.
                shared.driver.abort(id);
                return;
            }
        };
        let Some(mut update) = update else { return };
        if let EventKind::Token { .. } = update.kind {
            let _sending = shared.rooms.sending.clone();
            let (rooms, pair) = (&shared.rooms, &shared.config.disaggregation);
            let ends = rooms.transfer(pair, tokens as u32, update.reported_at);
            shared.clock.wait_until(ends).await;
            room.sent.cancel();
            update.reported_at = ends;
        }
        if updates.send(update).is_err() {
            return;
        }
    }
}

/// Waits for the KV cache of a sequence for which memory has been reserved.
pub(super) async fn receive(
    shared: Arc<Shared>,
    bootstrap: Bootstrap,
    (id, update): (u64, Update),
    updates: UnboundedSender<Update>,
) {
    // Reports to the prefill server that memory is reserved, and waits for the KV cache.
    let transfer = async {
        let mut stream = TcpStream::connect((&*bootstrap.host, bootstrap.port)).await?;
        stream.write_u64(bootstrap.room).await?;
        stream.read_u8().await
    };
    let transferred: io::Result<u8> = tokio::select! {
        transferred = transfer => transferred,
        () = updates.closed() => return,
    };
    match transferred {
        Ok(_) => shared.driver.arrived(id),
        Err(_) => {
            let lost = Duration::from_secs_f64(shared.config.disaggregation.transfer_lost_s);
            tokio::time::sleep(lost).await;
            shared.driver.abort(id);
            let now = shared.clock.now();
            let _ = updates.send(Update {
                at: now,
                reported_at: now,
                kind: EventKind::Lost,
                ..update
            });
        }
    }
}
