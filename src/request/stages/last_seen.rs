//! Where a request was when it ended.

use crate::request::columns::Row;
use crate::request::outcome::Outcome;
use crate::request::timeline::{Moment, Period, STAGES, Side, Stage};

use super::stage_set::StageSet;

impl Row {
    /// Returns where a failed request was when it ended: after its last known moment, and before the next that the observer would
    /// have seen. `None` if none of its moments is known.
    pub fn last_seen(&self) -> Option<StageSet> {
        if self.is_ok() {
            return None;
        }
        if self.outcome == Some(Outcome::ConnectError) {
            return Some(StageSet::CONNECTING);
        }
        if self.internal.is_routers_error {
            return Some(StageSet::of(Period::QUEUE_IN_ROUTER));
        }
        let (timeline, side) = (&self.timeline, self.timeline.side());
        let lacks = |moment| timeline.raw(moment).is_none();
        let is_held = match side {
            Side::Hop => lacks(Moment::WorkerForwarded),
            Side::Front | Side::Traffic => {
                timeline.mark(Moment::Arrival).is_some() && lacks(Moment::Forwarded)
            }
        };
        if is_held {
            // A proxy without a hop behind it tried a server, which took no connection.
            let is_tried = side != Side::Hop && self.attempts > Some(0);
            return Some(match is_tried {
                true => StageSet::of(Period::NETWORK),
                false => StageSet::PROXY,
            });
        }
        // A body that had not been read whole by then was still on its way to us.
        if side == Side::Front && lacks(Moment::RequestEnd) && lacks(Moment::ResponseHead) {
            return Some(StageSet::of(Period::TO_PROXY));
        }
        // The hop had it and did not send it on: the server refused the connection, or the hop held it.
        if timeline.mark(Moment::WorkerArrival).is_some() && lacks(Moment::WorkerForwarded) {
            return Some(StageSet::of(Period::NETWORK));
        }
        let begun = |stage: &Stage| timeline.period_of(stage).is_some_and(|of| !lacks(of.from));
        let first = STAGES.iter().rposition(begun)?;
        let is_observed = |stage: &&Stage| stage.period.to.clock(side) == side.clock();
        let later = STAGES[first..]
            .iter()
            .take_while(|stage| !is_observed(stage))
            .count();
        let stages = STAGES[first..=first + later].iter();
        let own = stages.filter(|stage| timeline.period_of(stage).is_some());
        Some(own.map(|stage| StageSet::of(stage.period)).collect())
    }
}

impl StageSet {
    /// Returns where a request was last seen, by the stages' names; `server` stands for all stages between the send to the server
    /// and the first token.
    pub fn ended_in(self, name: impl Fn(&Stage) -> &'static str) -> String {
        let mut names: Vec<&str> = Vec::new();
        let mut server = None;
        for stage in self.stages() {
            if stage.period.from == Moment::RouterSend {
                server = Some(names.len());
            }
            names.push(name(stage));
            if let (Some(from), Moment::WorkerFirstToken | Moment::FirstToken) =
                (server, stage.period.to)
            {
                names.truncate(from);
                names.push("server");
            }
        }
        match names.is_empty() {
            true => self.name(),
            false => names.join("+"),
        }
    }
}

/// Returns where a request was last seen, for people: "last seen in the router".
pub fn place(last_seen: StageSet) -> String {
    match last_seen.ended_in(|stage| stage.name).as_str() {
        "server" => "in the server, before its first token".to_owned(),
        "router+server" => "in the router or the server, before the first token".to_owned(),
        _ => last_seen.place(),
    }
}
