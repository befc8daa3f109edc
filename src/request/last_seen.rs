//! Where a request was when it ended.

use std::borrow::Cow;

use super::cell::{Cell, Value};
use super::timeline::{Moment, STAGES, Stage};

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

impl Cell for LastSeen {
    fn value(&self) -> Value<'_> {
        Value::Text(self.name())
    }

    fn of(value: Value<'_>) -> Option<LastSeen> {
        let Value::Text(name) = value else {
            return None;
        };
        let places = || 0..STAGES.len();
        let stages = places().flat_map(|first| places().map(move |last| (first, last)));
        let stages = stages.filter(|(first, last)| first <= last);
        let alone = [LastSeen::Done, LastSeen::Connecting, LastSeen::Proxy].into_iter();
        let mut all = alone.chain(stages.map(|(first, last)| LastSeen::Stages(first, last)));
        all.find(|seen| seen.name() == name)
    }
}
