//! Where a request was when it ended.

use crate::request::columns::Row;
use crate::request::outcome::Outcome;
use crate::request::timeline::{Moment, Period, STAGES, Side, Stage};

use super::spent::Spent;

impl Row {
    /// Where one that did not go well was when it ended: after the last moment of it that anybody saw, and before the next that
    /// whoever watched would have seen. `None` when nothing of it was seen.
    pub fn last_seen(&self) -> Option<Spent> {
        if self.is_ok() {
            return None;
        }
        if self.outcome == Some(Outcome::ConnectError) {
            return Some(Spent::CONNECTING);
        }
        if self.more.is_routers_error {
            return Some(Spent::of(Period::QUEUE_IN_ROUTER));
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
                true => Spent::of(Period::NETWORK),
                false => Spent::PROXY,
            });
        }
        // A body that had not come whole by then was still on its way to us.
        if side == Side::Front && lacks(Moment::RequestEnd) && lacks(Moment::ResponseHead) {
            return Some(Spent::of(Period::TO_PROXY));
        }
        // Its hop had it, and never sent it on: the server refused the connection, or the hop held it.
        if timeline.mark(Moment::WorkerArrival).is_some() && lacks(Moment::WorkerForwarded) {
            return Some(Spent::of(Period::NETWORK));
        }
        let begun = |stage: &Stage| Some(!lacks(timeline.period_of(stage)?.from));
        let first = STAGES
            .iter()
            .rposition(|stage| begun(stage) == Some(true))?;
        let own = |moment: Moment| moment.clock(side) == side.clock();
        let more = STAGES.iter().skip(first);
        let more = more.take_while(|stage| !own(stage.period.to)).count();
        let row = Spent::row(first, first + more + 1);
        Some(row.in_life_of(timeline))
    }
}

impl Spent {
    /// The name of where a request was last seen, by that of each stage; `server` stands for all between the sending to it and the
    /// first token.
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

/// Where a request was last seen, as a person reads it: "last seen in the router".
pub fn place(last_seen: Spent) -> String {
    match last_seen.ended_in(|stage| stage.name).as_str() {
        "server" => "in the server, before its first token".to_owned(),
        "router+server" => "in the router or the server, before the first token".to_owned(),
        _ => last_seen.place(),
    }
}
