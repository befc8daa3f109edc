//! Where a request was when it ended.

use crate::request::columns::Row;
use crate::request::last_seen::LastSeen;
use crate::request::outcome::Outcome;
use crate::request::timeline::{Moment, STAGES, Side};

impl Row {
    /// Where it was when it ended: after the last moment of it that anybody saw, and before the next that whoever
    /// watched would have seen. `None` when nothing of it was seen.
    pub fn last_seen(&self) -> Option<LastSeen> {
        if self.is_ok() {
            return Some(LastSeen::Done);
        }
        if self.outcome == Some(Outcome::ConnectError) {
            return Some(LastSeen::Connecting);
        }
        let (timeline, side) = (&self.timeline, self.timeline.side());
        let lacks = |moment| timeline.raw(moment).is_none();
        let is_held = match side {
            Side::Hop => lacks(Moment::WorkerForwarded),
            Side::Front | Side::Traffic => {
                timeline.own_arrival().is_some() && lacks(Moment::Forwarded)
            }
        };
        if is_held {
            return Some(LastSeen::Proxy);
        }
        // A body that had not come whole by then was still on its way to us.
        if side == Side::Front && lacks(Moment::RequestEnd) && lacks(Moment::ResponseHead) {
            return one_from(Moment::Sent);
        }
        let first = STAGES.iter().rposition(|stage| !lacks(stage.period.from))?;
        let own = |moment: Moment| moment.clock(side) == side.clock();
        let more = STAGES.iter().skip(first);
        let more = more.take_while(|stage| !own(stage.period.to)).count();
        Some(LastSeen::Stages(first, first + more))
    }
}

fn one_from(moment: Moment) -> Option<LastSeen> {
    let stage = STAGES
        .iter()
        .position(|stage| stage.period.from == moment)?;
    Some(LastSeen::Stages(stage, stage))
}
