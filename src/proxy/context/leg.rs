//! What a hop learns of its server where prefill and decode are servers of their own, and of the leg that goes there.

use crate::clock::Stamp;
use crate::proxy::join::HopAttempt;
use crate::proxy::legs::{self, ServerInfo};
use crate::proxy::shared::{Role, ServerRole};
use crate::request::observer::End;
use crate::request::row::Row;

use super::Context;

impl Context {
    /// A hop has read in its request's body that it is one of two legs, or all of it and that it is none.
    pub(super) fn room_read(&mut self, room: Option<u64>) {
        let Some(attempt) = &self.attempt else { return };
        let mut told = attempt.told.lock();
        if told.room.is_some() {
            return;
        }
        told.room = room.filter(|_| self.shared.may_have_legs(&told.worker));
        told.role = self.shared.role(&told.worker);
        let (room, role) = (told.room, told.role);
        drop(told);
        match room {
            Some(room) => (self.shared.joins).in_room(attempt, room, self.shared.clock.now()),
            None => drop((self.watch).take_if(|watch| watch.leg.is_some() && role.is_none())),
        }
    }

    /// Whether the rest of its body may say that it is one of two legs.
    pub fn may_have_room(&self) -> bool {
        let may = |worker: &str| self.watch.is_some() && self.shared.may_have_legs(worker);
        self.told()
            .is_some_and(|told| told.room.is_none() && may(&told.worker))
    }

    /// The rest of its body was waited for since `began`, when its server had failed: that wait is not of the attempt.
    pub fn room_waited(&mut self, began: Stamp) {
        self.time.back(began);
        self.waited(began);
        if let Some(mut told) = self.told() {
            told.ended.get_or_insert(began);
        }
        if let Some(watch) = &mut self.watch {
            watch.response_end.get_or_insert(began);
        }
    }

    /// What a reply has told of a leg that has no row here, once all of it has come.
    pub(super) fn leg_ended(&mut self, at: Stamp) {
        let leg = self.watch.take_if(|watch| watch.leg.is_some());
        let (Some(leg), Some(attempt)) = (leg, &self.attempt) else {
            return;
        };
        let reply = leg.observer.finish(End::Complete, at);
        self.note_leg(attempt, &reply);
    }

    /// A hop's server is asked what it is.
    pub fn asks_server_info(&mut self, path: &str) {
        if self.role != Role::Front {
            self.info = ServerInfo::asked_by(path);
        }
    }

    pub(super) fn server_info(&mut self, bytes: &[u8], is_end: bool) {
        let Some(info) = &mut self.info else { return };
        info.feed(bytes);
        if let (true, Role::Hop(worker)) = (is_end, &self.role)
            && let Some(role) = info.role()
        {
            self.shared.learn(worker, role);
        }
    }

    /// Notes what the reply to a hop's attempt told, if it is one of two legs, and learns of it what the server does.
    pub(super) fn note_leg(&self, attempt: &HopAttempt, reply: &[Row]) {
        let mut told = attempt.told.lock();
        if told.room.is_none() && told.role.is_none() {
            return;
        }
        legs::note(&mut told, reply);
        // A server that does both tells of a prefill too: its row is nobody else's.
        let is_leg = !attempt.needs_row || told.is_joined || told.role == Some(ServerRole::Decode);
        let (role, worker) = (told.role, told.worker.clone());
        drop(told);
        if role.is_some() && (is_leg || self.shared.joins.has_decoding_leg(attempt)) {
            self.shared.learn(&worker, role);
        }
    }
}
