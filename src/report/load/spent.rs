//! The time of requests by stage.

use crate::clock::seconds;
use crate::report::capitalized;
use crate::report::timeline::{labelled, mark};
use crate::request::{Breakdown, PartSpent, Period, StageSet, TimeSpent, Unseen};
use crate::table::Table;
use crate::threads::in_parallel;
use crate::units::duration;

use super::counts::Request;

/// The width of the bar of all the time, columns: what the figures leave of 80.
const BAR_WIDTH: usize = 39;
/// The smallest share of the time that is worth a line.
const MIN_SHARE: f64 = 0.01;

impl TimeSpent {
    /// Computes the time of requests, and their time until the first token, on all processors.
    pub(super) fn of(table: &Table, requests: &[Request]) -> [TimeSpent; 2] {
        let of_some = |requests: &[Request]| {
            let mut spent = <[TimeSpent; 2]>::default();
            for request in requests {
                let row = table.row(request.row());
                TimeSpent::count_both(&mut spent, &row, Breakdown::of(&row).as_ref());
            }
            spent
        };
        let mut spent = <[TimeSpent; 2]>::default();
        for more in in_parallel(requests, of_some) {
            TimeSpent::add_both(&mut spent, more);
        }
        spent
    }

    /// The number of requests in which a part was measured, and all their time. A client's stalls are always measured.
    pub fn measured(&self, part: &PartSpent) -> (u64, i128) {
        match part.spent {
            StageSet::CLIENT_STALL | StageSet::PROMPT => (self.requests, self.total_nanos),
            _ => (part.requests, part.of_nanos),
        }
    }

    /// A part's share of the time of the requests in which it was measured; `None` if that is 0.
    pub fn share(&self, part: &PartSpent) -> Option<f64> {
        let (_, all) = self.measured(part);
        (all > 0).then(|| part.nanos as f64 / all as f64)
    }

    /// A part's mean over the requests in which it was measured, seconds.
    pub fn mean(&self, part: &PartSpent) -> Option<f64> {
        mean(part.nanos, self.measured(part).0)
    }

    /// The mean time of a request, seconds; `None` if there are none.
    pub fn mean_total(&self) -> Option<f64> {
        mean(self.total_nanos, self.requests)
    }

    /// `, of 49 of 1000 requests`, if a part was not measured in all.
    pub fn of_requests(&self, part: &PartSpent) -> String {
        match self.measured(part).0 {
            count if count < self.requests => format!(", of {count} of {} requests", self.requests),
            _ => String::new(),
        }
    }

    /// Where the time went, in a sentence without its full stop; `subject`: such as "a request took".
    pub fn shares(&self, subject: &str) -> String {
        let Some(mean) = self.mean_total().filter(|_| self.total_nanos > 0) else {
            return "Where the time went is unknown: no row of a request that succeeded tells its arrival and its end".to_owned();
        };
        let length = |part: &PartSpent| {
            let mean = duration(self.mean(part).unwrap_or(0.0));
            mean + &self.of_requests(part)
        };
        let large = self.parts.iter().filter(|part| self.is_large(part));
        let large: Vec<&PartSpent> = large.take(4).collect();
        let clause = |part: &&PartSpent| {
            let percent = self.share(part).unwrap_or(0.0) * 100.0;
            format!("{percent:.0} % {} ({})", part.spent.place(), length(part))
        };
        let clauses: Vec<String> = large.iter().map(clause).collect();
        let clauses = clauses.join(", ").replacen(" %", " % was spent", 1);
        // The router is always named.
        let is_named = |part: &PartSpent| large.iter().any(|of| of.spent == part.spent);
        let others = self.parts.iter().filter(|part| !is_named(part));
        let routers = others.filter(|part| part.spent.holds(Period::QUEUE_IN_ROUTER));
        let router = routers.max_by_key(|part| part.nanos);
        let mut sentence = format!("Of {} {subject} on average, {clauses}", duration(mean));
        if let Some(part) = router {
            sentence.push_str(&format!("; {} {}", part.spent.place(), length(part)));
        }
        if self.routed == 0 {
            sentence.push_str("; no router stood in between");
        }
        sentence
    }

    fn is_large(&self, part: &PartSpent) -> bool {
        self.share(part).is_some_and(|share| share >= MIN_SHARE)
    }

    /// Returns a line per large part, the largest first, of at most 80 columns: its mean, its share, a bar, and in how many requests it
    /// was measured, if not in all.
    pub fn bars(&self) -> Vec<String> {
        let large = || self.parts.iter().filter(|part| self.is_large(part));
        let longest = large().map(|part| self.of_requests(part).len()).max();
        let room = BAR_WIDTH.saturating_sub(longest.unwrap_or(0)).max(10);
        let line = |part: &PartSpent| {
            let share = self.share(part)?;
            let bar = mark(part.spent)
                .repeat(((share * (room + 1) as f64).round() as usize).clamp(1, room));
            let (label, mean) = (labelled(part.spent), duration(self.mean(part)?));
            Some(format!(
                "{label}{mean:>10} {:>4.0} %  {bar}{}",
                share * 100.0,
                self.of_requests(part)
            ))
        };
        large().filter_map(line).collect()
    }

    /// What was not measured, a sentence each without its full stop, and in how many requests, if not in all.
    pub fn unseen_notes(&self) -> Vec<String> {
        let note = |(what, count): (&Unseen, &u64)| {
            let sentence = capitalized(&what.sentence());
            match *count < self.requests {
                true => format!("{sentence} (in {count} of {} requests)", self.requests),
                false => sentence,
            }
        };
        self.unseen.iter().map(note).collect()
    }
}

/// The mean of so many requests, seconds; `None` if there are none.
fn mean(nanos: i128, requests: u64) -> Option<f64> {
    let mean = nanos.checked_div(i128::from(requests))?;
    i64::try_from(mean).ok().map(seconds)
}
