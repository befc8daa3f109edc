//! What a run's figures say in plain sentences, and what to do about it. Nothing is found in what nobody saw.

mod client;
mod ends;
mod failing;
mod kinds;
mod pair;
mod servers;
mod waiting;

use serde::Serialize;

pub use servers::queue_grew;

use super::load::{Summary, TimeSpent};
use super::phases::Episode;
use super::reader::Run;
use super::upper;
use super::why::Why;
use crate::request::stages::Spent;
use crate::request::time_spent::PartSpent;
use crate::request::timeline::Period;
use crate::units::duration;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The figures must not be used, or requests failed.
    Problem,
    /// Something limits what was measured, and can be changed.
    Limit,
    /// Good to know.
    Note,
    /// Nothing is wrong.
    Fine,
}

/// Something that the figures say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of finding: `server_queue`.
    pub kind: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What it is, in a few words.
    pub title: String,
    /// The figures that say so, in sentences.
    pub what: String,
    /// What to do; empty where there is nothing to do.
    pub advice: String,
}

/// A stage that takes less is not worth a word, whatever its share: seconds.
const LEAST: f64 = 0.010;
/// Requests that a mean is told of, at least.
const ENOUGH: u64 = 20;

/// What findings are made of.
struct Seen<'a> {
    run: &'a Run,
    figures: &'a Summary,
    spent: &'a TimeSpent,
    episodes: &'a [Episode],
    why: &'a Why,
    /// What has been found so far.
    found: Vec<Finding>,
}

/// What the figures say, what matters most first; never nothing.
pub fn findings(run: &Run, figures: &Summary, episodes: &[Episode], why: &Why) -> Vec<Finding> {
    let mut seen = Seen {
        run,
        figures,
        spent: &figures.all.spent,
        episodes,
        why,
        found: Vec::new(),
    };
    for (kind, level, title, advice, rule) in kinds::KINDS {
        // Where a fault made a stage long no setting would have helped.
        let is_advised = !(kind.ends_with("_bound") && seen.has("fault"));
        let found = Finding {
            kind,
            level,
            title: title.to_owned(),
            what: String::new(),
            advice: advice.repeat(is_advised.into()),
        };
        let found = rule(&seen, found);
        seen.found.extend(found);
    }
    seen.found.sort_by_key(|finding| finding.level);
    seen.found
}

impl Finding {
    /// The same with the figures that say so.
    fn saying(self, what: String) -> Finding {
        Finding { what, ..self }
    }
}

impl Seen<'_> {
    /// How long a stage took, of which part of the time (`0.61 s of 0.89 s on average (69 %)`), where that is `share` or more
    /// and it is known by itself of at least a tenth of the requests.
    fn stage(&self, period: Period, share: f64) -> Option<String> {
        let spent = self.spent;
        let part = self.alone(period)?;
        let (mean, of_all) = (spent.mean(part)?, spent.share(part)?);
        let is_enough = part.requests >= ENOUGH && part.requests * 10 >= spent.requests;
        (is_enough && mean >= LEAST && of_all >= share).then(|| {
            let total = spent.mean_where_seen(part).unwrap_or(0.0);
            format!(
                "{} of {} on average ({:.0} %{})",
                duration(mean),
                duration(total),
                of_all * 100.0,
                spent.of_requests(part)
            )
        })
    }

    /// The time of a stage where it is known by itself.
    fn alone(&self, period: Period) -> Option<&PartSpent> {
        let mut parts = self.spent.parts.iter();
        parts.find(|part| part.spent == Spent::of(period))
    }

    /// Whether a finding of this kind stands before this one.
    fn has(&self, kind: &str) -> bool {
        self.found.iter().any(|finding| finding.kind == kind)
    }

    /// Whether nothing of the run is known to be missing from its figures: it came to its end, and neither its reader nor
    /// the run itself (or what merged its shards), nor they themselves have anything to say against them.
    fn is_whole(&self) -> bool {
        let run = self.run;
        let is_quiet = run.warnings().next().is_none() && run.notes.is_empty();
        is_quiet && !run.is_partial && self.figures.warnings().is_empty()
    }

    /// Where the time went, in a run of which nothing else is found.
    fn shares(&self) -> Option<String> {
        let is_quiet = self.found.iter().all(|finding| finding.kind == "unseen");
        let is_enough = self.spent.requests >= ENOUGH;
        (is_quiet && is_enough).then(|| self.spent.shares("a request took"))
    }
}

#[cfg(test)]
mod tests;
