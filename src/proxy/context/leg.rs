//! At a hop of a prefill/decode pair: what its server is, and the leg of a request that goes there.

use serde_json::Value;

use crate::clock::Stamp;
use crate::proxy::legs;
use crate::proxy::shared::{Role, ServerRole};
use crate::request::observer::End;

use super::Context;

/// How much of a `/server_info` is read, in bytes; a real server's has about 20,000.
const MAX_INFO_BYTES: usize = 1 << 20;

impl Context {
    /// The request's body named a room, so that this is one of two legs; `None` if all of it was read and named none.
    pub(super) fn room_read(&mut self, room: Option<u64>) {
        let Some(attempt) = &self.attempt else { return };
        let mut data = attempt.data.lock();
        if data.room.is_some() {
            return;
        }
        let role = self.shared.role(&data.worker);
        data.room = room.filter(|_| role != Some(None));
        data.role = role.flatten();
        let (room, prefills) = (data.room, !data.may_answer());
        drop(data);
        if let Some(room) = room {
            let now = self.shared.clock.now();
            self.shared.joins.add_room(attempt, room, now);
        }
        if self.is_leg && !prefills {
            self.observer = None;
        }
    }

    /// Whether the rest of the request's body may name a room.
    pub fn may_have_room(&self) -> bool {
        let may = |worker: &str| self.observer.is_some() && self.shared.role(worker) != Some(None);
        self.attempt_data()
            .is_some_and(|attempt| attempt.room.is_none() && may(&attempt.worker))
    }

    /// Ends the recording of a leg that has no row here.
    pub(super) fn end_leg(&mut self, at: Stamp) {
        if let Some(attempt) = &self.attempt
            && let Some(leg) = self.observer.take_if(|_| self.is_leg)
        {
            let response = leg.finish(End::Complete, at);
            legs::note_response(&mut attempt.data.lock(), &response);
        }
    }

    /// At a hop: reads the response if `path` asks the server what it is.
    pub fn expect_server_info(&mut self, path: &str) {
        let asks = matches!(path, "/server_info" | "/get_server_info");
        self.server_info = (asks && self.role != Role::Front).then(Vec::new);
    }

    pub(super) fn read_server_info(&mut self, bytes: &[u8], is_end: bool) {
        let (Some(info), Role::Hop(worker)) = (&mut self.server_info, &self.role) else {
            return;
        };
        let room = MAX_INFO_BYTES - info.len();
        info.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if is_end && let Some(role) = stated_role(info) {
            self.shared.roles.lock().learn(worker, role);
        }
    }
}

/// Returns the role that a server states in its `/server_info`: `Some(None)` if it is no server of a pair.
fn stated_role(info: &[u8]) -> Option<Option<ServerRole>> {
    let info: Value = serde_json::from_slice(info).ok()?;
    let mode = info.get("disaggregation_mode")?.as_str()?;
    Some(ServerRole::named(mode))
}
