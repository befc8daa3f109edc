//! Where a request was when it ended.

use std::borrow::Cow;

use super::columns::Row;
use super::outcome::Outcome;
use super::timeline::{Moment, STAGES, Side, Stage};

/// Where a request was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LastSeen {
    /// The generator got no connection.
    Connecting,
    /// In a proxy of ours, which had not sent it on.
    Proxy,
    /// In one of the stages from one place in [`STAGES`] to another.
    Stages(usize, usize),
    /// It went well: its response came whole.
    Done,
}

impl LastSeen {
    /// As the column shows it: a stage's name, or several joined by `+`.
    pub fn name(self) -> Cow<'static, str> {
        self.named(|stage| stage.name)
    }

    /// The same in the words of metrics.
    pub fn metric_name(self) -> Cow<'static, str> {
        self.named(Stage::metric_name)
    }

    fn named(self, name: impl Fn(&Stage) -> &'static str) -> Cow<'static, str> {
        let (first, last) = match self {
            LastSeen::Connecting => return "connecting".into(),
            LastSeen::Proxy => return "proxy".into(),
            LastSeen::Done => return "done".into(),
            LastSeen::Stages(first, last) => (first, last),
        };
        let mut names: Vec<&str> = Vec::new();
        let mut server = None;
        for stage in STAGES.iter().take(last + 1).skip(first) {
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
        match names.as_slice() {
            [name] => Cow::Borrowed(*name),
            names => Cow::Owned(names.join("+")),
        }
    }
}

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
