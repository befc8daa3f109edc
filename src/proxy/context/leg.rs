//! At a hop of a prefill/decode pair: what its server is, and the leg of a request that goes there.

use crate::clock::Stamp;
use crate::proxy::join::HopAttempt;
use crate::proxy::legs::{self, ServerInfo};
use crate::proxy::shared::{Role, ServerRole};
use crate::request::observer::End;
use crate::request::row::Row;

use super::Context;

impl Context {
    /// The request's body named a room, so that this is one of two legs; `None` if all of it was read and named none.
    pub(super) fn room_read(&mut self, room: Option<u64>) {
        let Some(attempt) = &self.attempt else { return };
        let mut data = attempt.data.lock();
        if data.room.is_some() {
            return;
        }
        data.room = room.filter(|_| self.shared.may_have_legs(&data.worker));
        data.role = self.shared.role(&data.worker);
        let (room, role) = (data.room, data.role);
        drop(data);
        if let Some(room) = room {
            let now = self.shared.clock.now();
            self.shared.joins.add_room(attempt, room, now);
        } else if role.is_none() {
            self.recording.take_if(|one| one.leg_bytes.is_some());
        }
    }

    /// Whether the rest of the request's body may name a room.
    pub fn may_have_room(&self) -> bool {
        let may = |worker: &str| self.recording.is_some() && self.shared.may_have_legs(worker);
        self.attempt_data()
            .is_some_and(|attempt| attempt.room.is_none() && may(&attempt.worker))
    }

    /// Ends the recording of a leg that has no row here.
    pub(super) fn end_leg(&mut self, at: Stamp) {
        let leg = self.recording.take_if(|one| one.leg_bytes.is_some());
        let (Some(leg), Some(attempt)) = (leg, &self.attempt) else {
            return;
        };
        let response = leg.observer.finish(End::Complete, at);
        self.note_leg(attempt, &response);
    }

    /// At a hop: reads the response if `path` asks the server what it is.
    pub fn expect_server_info(&mut self, path: &str) {
        if self.role != Role::Front {
            self.server_info = ServerInfo::for_path(path);
        }
    }

    pub(super) fn read_server_info(&mut self, bytes: &[u8], is_end: bool) {
        let Some(info) = &mut self.server_info else {
            return;
        };
        info.feed(bytes);
        if let (true, Role::Hop(worker)) = (is_end, &self.role)
            && let Some(role) = info.role()
        {
            self.shared.set_role(worker, role);
        }
    }

    /// Notes what the response to a hop's attempt reported, if the attempt is one of two legs, and learns the server's role from
    /// it.
    pub(super) fn note_leg(&self, attempt: &HopAttempt, response: &[Row]) {
        let mut data = attempt.data.lock();
        if data.room.is_none() && data.role.is_none() {
            return;
        }
        legs::note_response(&mut data, response);
        // A server that does both prefills too, but no other server has its request.
        let is_leg = !attempt.needs_row || data.is_joined || data.role == Some(ServerRole::Decode);
        let (role, worker) = (data.role, data.worker.clone());
        drop(data);
        if role.is_some() && (is_leg || self.shared.joins.has_decode_leg(attempt)) {
            self.shared.set_role(&worker, role);
        }
    }
}
