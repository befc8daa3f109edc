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
        let room = room.filter(|_| self.shared.may_have_legs(&told.worker));
        if let (Some(room), None) = (room, told.room) {
            told.room = Some(room);
            told.role = self.shared.role(&told.worker);
            drop(told);
            let now = self.shared.clock.now();
            self.shared.joins.in_room(attempt, room, now);
        } else if told.room.is_none() {
            told.role = self.shared.role(&told.worker);
            let is_leg = told.role.is_some();
            drop(told);
            self.watch.take_if(|watch| watch.leg.is_some() && !is_leg);
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
        let mut told = attempt.told.lock();
        if told.room.is_some() || told.role.is_some() {
            let reply = leg.observer.finish(End::Complete, at);
            legs::note(&mut told, &reply);
            if let Some(role) = told.role {
                self.shared.learn(&told.worker, Some(role));
            }
        }
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

    /// The rows of a hop's own attempt; of one of two legs those of the one that answered, once the other has told.
    pub(super) fn own_leg(
        &self,
        attempt: &HopAttempt,
        rows: Vec<Row>,
        now: Stamp,
    ) -> Option<Vec<Row>> {
        let mut told = attempt.told.lock();
        if told.room.is_none() {
            return Some(rows);
        }
        legs::note(&mut told, &rows);
        let (role, is_joined) = (told.role, told.is_joined);
        drop(told);
        let joins = &self.shared.joins;
        // A server that does both tells of a prefill too: its row is nobody else's.
        let is_leg = is_joined || joins.has_decoding_leg(attempt);
        let is_sure = is_leg || role == Some(ServerRole::Decode);
        if let (Some(role), Role::Hop(worker), true) = (role, &self.role, is_sure) {
            self.shared.learn(worker, Some(role));
        }
        match role {
            Some(ServerRole::Prefill) if is_leg => None,
            Some(ServerRole::Decode) => match joins.other_leg(attempt) {
                Some(leg) => joins.with_leg(leg, rows, now),
                None => Some(rows),
            },
            _ => Some(rows),
        }
    }
}
