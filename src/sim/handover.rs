//! How a request goes from the prefill to the decode server of a pair, as with SGLang's `--disaggregation-mode`.
//!
//! Both get each request; a number in its body, its room, says what belongs together. The real ones shake hands and send the KV
//! cache in protocols of their own. Here the decode server opens a connection to the prefill server's bootstrap port once it has
//! room for a request, says the room, and reads a byte when its KV cache has come; a connection that ends without is a prefill
//! server that is lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::clock::Stamp;

use super::call::{Call, Refusal, RefusalKind};
use super::disaggregation::Bootstrap;
use super::driver::{Submission, Update};
use super::engine::{EventKind, HELD};
use super::shared::Shared;

/// The answer to a room's number.
const SENT: u8 = 1;
/// From the hand-over to the scheduler until it looks for the other server.
pub(super) const PREPARE_NANOS: i64 = 200_000;

/// What is said of a body that does not name them.
const NO_ROOM: &str = "A server with --disaggregation-mode needs bootstrap_host, bootstrap_port and bootstrap_room in the body, \
                       one a sequence: send it through a router of prefill and decode servers";

/// Reads from the body of a call where its sequences meet.
///
/// # Errors
/// The body does not say.
pub(super) fn read(call: &mut Call, body: &[u8]) -> Result<(), Refusal> {
    let wrong = |stream| Refusal {
        stream,
        kind: RefusalKind::Unfit,
        message: NO_ROOM.to_owned(),
    };
    let body: Value = serde_json::from_slice(body).map_err(|_| wrong(call.stream))?;
    // One room for several sequences would be one KV cache for all.
    let has_rooms = call.sequences.len() == 1 || body["bootstrap_room"].is_array();
    for sequence in &mut call.sequences {
        // One for all, or one a sequence.
        let at = |name: &str| match &body[name] {
            Value::Array(all) => all.get(sequence.index),
            one => Some(one),
        };
        let bootstrap = || {
            Some(Bootstrap {
                host: at("bootstrap_host")?.as_str()?.to_owned(),
                port: at("bootstrap_port")?.as_u64()?.try_into().ok()?,
                room: at("bootstrap_room")?.as_u64()?,
            })
        };
        let found = bootstrap().filter(|_| has_rooms);
        sequence.bootstrap = Some(found.ok_or_else(|| wrong(call.stream))?);
    }
    Ok(())
}

/// A decode server has a place for a request: says when its KV cache is there.
pub(super) async fn answer(mut stream: TcpStream, shared: Arc<Shared>) {
    let Ok(number) = stream.read_u64().await else {
        return;
    };
    let room = shared.rooms.enter(number);
    room.reserved.cancel();
    tokio::select! {
        () = room.sent.cancelled() => {}
        // It gave the request up.
        _ = stream.read_u8() => return,
    }
    let _ = stream.write_u8(SENT).await;
}

/// Lets a server prefill a sequence: when the decode server has a place for it, and then sends the KV cache there. What becomes
/// of it is told as by the engine, with the first token told when the KV cache has come.
pub(super) async fn prefill(shared: Arc<Shared>, mut submission: Submission, number: u64) {
    let (tap, mut told) = unbounded_channel();
    let updates = std::mem::replace(&mut submission.listener.updates, tap);
    let room = shared.rooms.enter(number);
    let (id, tokens) = (submission.request.id, submission.request.prompt.tokens());
    let prepared = std::mem::replace(&mut submission.due, HELD).plus_nanos(PREPARE_NANOS);
    shared.driver.submit([submission]);
    until(&shared, prepared).await;
    let mut waiting = Some(shared.rooms.waiting.clone());
    loop {
        let update = tokio::select! {
            () = room.reserved.cancelled(), if waiting.is_some() => {
                waiting = None;
                shared.driver.arrived(id);
                continue;
            }
            update = told.recv() => update,
            () = updates.closed() => {
                // Its own abort may have come before it was submitted here.
                shared.driver.abort(&[id]);
                return;
            }
        };
        let Some(mut update) = update else { return };
        waiting = None;
        if let EventKind::Token { .. } = update.kind {
            let _sending = shared.rooms.sending.clone();
            let (rooms, pair) = (&shared.rooms, &shared.config.disaggregation);
            let ends = rooms.transfer(pair, tokens as u32, update.told);
            until(&shared, ends).await;
            room.sent.cancel();
            update.told = ends;
        }
        if updates.send(update).is_err() {
            return;
        }
    }
}

/// Waits for the KV cache of a sequence for which this server has a place.
pub(super) async fn receive(
    shared: Arc<Shared>,
    bootstrap: Bootstrap,
    (id, update): (u64, Update),
    updates: UnboundedSender<Update>,
) {
    let come = tokio::select! {
        come = come(&bootstrap) => come,
        () = updates.closed() => return,
    };
    match come {
        Ok(()) => shared.driver.arrived(id),
        Err(_) => {
            let lost = Duration::from_secs_f64(shared.config.disaggregation.transfer_lost_s);
            tokio::time::sleep(lost).await;
            shared.driver.abort(&[id]);
            let now = shared.clock.now();
            let kind = EventKind::Lost;
            let _ = updates.send(Update {
                at: now,
                told: now,
                kind,
                ..update
            });
        }
    }
}

/// Says that there is room, and waits.
async fn come(bootstrap: &Bootstrap) -> io::Result<()> {
    let mut stream = TcpStream::connect((bootstrap.host.as_str(), bootstrap.port)).await?;
    stream.write_u64(bootstrap.room).await?;
    stream.read_u8().await.map(drop)
}

/// Waits until a moment of the engine's clock, if it is to come.
async fn until(shared: &Shared, at: Stamp) {
    if let Ok(nanos @ 1..) = u64::try_from(at.nanos_since(shared.clock.now())) {
        tokio::time::sleep(Duration::from_nanos(nanos)).await;
    }
}
