//! Where the time of requests was spent: of those that went well, or of those that failed in one way.

use crate::report::duration;
use crate::report::stages::{Breakdown, Part, Spent, Unseen};
use crate::request::record::Record;
use crate::request::timeline::{Period, Side};

use super::latency::seconds;
use super::rows::Rows;
use super::tally::Tally;

/// Time by what it was spent on. A request with several sequences is told by its first.
#[derive(Clone, Debug, Default)]
pub struct TimeSpent {
    /// Requests whose time is known.
    pub requests: u64,
    /// Their time, nanoseconds.
    pub total_nanos: i128,
    /// Its parts, the largest first: nanoseconds, and how many requests had such a part.
    pub parts: Vec<(Spent, i128, u64)>,
    /// What was not seen, and in how many requests.
    pub(super) unseen: Tally<Unseen>,
    /// Requests of which a router's time is known, alone or together with other stages.
    pub routed: u64,
}

impl TimeSpent {
    pub(super) fn of(requests: &[Rows<'_>]) -> TimeSpent {
        let mut spent = TimeSpent::default();
        for row in requests.iter().filter_map(|rows| rows.first()) {
            spent.add(TimeSpent::of_row(row));
        }
        spent
    }

    /// Of one request; of none where its time is not known.
    pub fn of_row(row: &Record) -> TimeSpent {
        let mut spent = TimeSpent::default();
        let Some(breakdown) = Breakdown::of(row) else {
            return spent;
        };
        let is_router =
            |part: &Part| part.spent != Spent::Proxy && part.spent.holds(Period::QUEUE_IN_ROUTER);
        // A hop stands behind a router, of whose time it sees nothing.
        let is_routed = row.timeline.side() == Side::Hop || breakdown.parts.iter().any(is_router);
        spent.requests = 1;
        spent.total_nanos = breakdown.total_nanos.into();
        spent.routed = is_routed.into();
        for part in breakdown.parts {
            spent.add_part(part.spent, part.nanos.into(), 1);
        }
        for what in Unseen::of(row) {
            spent.unseen.count(what);
        }
        spent
    }

    fn add_part(&mut self, spent: Spent, nanos: i128, requests: u64) {
        match self.parts.iter_mut().find(|(known, ..)| *known == spent) {
            Some((_, sum, count)) => {
                *sum += nanos;
                *count += requests;
            }
            None => self.parts.push((spent, nanos, requests)),
        }
    }

    /// Adds that of other requests.
    pub fn add(&mut self, more: TimeSpent) {
        self.requests += more.requests;
        self.total_nanos += more.total_nanos;
        self.routed += more.routed;
        for (spent, nanos, count) in more.parts {
            self.add_part(spent, nanos, count);
        }
        self.parts
            .sort_by_key(|(spent, nanos, _)| (std::cmp::Reverse(*nanos), *spent));
        self.unseen.add(more.unseen);
    }

    /// Share of all time; `None` of no time.
    pub fn share(&self, nanos: i128) -> Option<f64> {
        (self.total_nanos > 0).then(|| nanos as f64 / self.total_nanos as f64)
    }

    /// Mean over all requests, seconds; `None` of no requests.
    pub fn mean(&self, nanos: i128) -> Option<f64> {
        let mean = nanos.checked_div(i128::from(self.requests))?;
        i64::try_from(mean).ok().map(seconds)
    }

    /// One sentence that says where the time went; `whose` it was: "a request took".
    pub fn sentence(&self, whose: &str) -> String {
        let mut sentence = self.shares(whose);
        for note in self.unseen_notes() {
            sentence.push_str(&format!("; {note}"));
        }
        sentence.push('.');
        sentence
    }

    /// The same without its end, and without what was not seen.
    pub fn shares(&self, whose: &str) -> String {
        let Some(mean) = self.mean(self.total_nanos).filter(|_| self.total_nanos > 0) else {
            return "Nothing can be said of where the time went: no request went well".to_owned();
        };
        let mut clauses: Vec<String> = Vec::new();
        for (spent, nanos, _) in &self.parts {
            let share = self.share(*nanos).unwrap_or(0.0);
            if clauses.len() == 4 || share < 0.01 {
                break;
            }
            let was = if clauses.is_empty() { " was spent" } else { "" };
            let length = duration(self.mean(*nanos).unwrap_or(0.0));
            clauses.push(format!(
                "{:.0} %{was} {} ({length})",
                share * 100.0,
                spent.place()
            ));
        }
        let said = clauses.len();
        let mut unsaid = self.parts.iter().skip(said);
        // Of the router one always wants to know.
        let router = unsaid.find(|(spent, ..)| spent.holds(Period::QUEUE_IN_ROUTER));
        let mut sentence = format!(
            "Of {} {whose} on average, {}",
            duration(mean),
            clauses.join(", ")
        );
        if let Some((spent, nanos, _)) = router {
            let length = duration(self.mean(*nanos).unwrap_or(0.0));
            sentence.push_str(&format!("; {} {length}", spent.place()));
        }
        if self.routed == 0 {
            sentence.push_str("; no router stood in between");
        }
        sentence
    }

    /// What was not seen, and in how many requests if not in all.
    pub fn unseen_notes(&self) -> Vec<String> {
        let note = |(unseen, count): (&Unseen, u64)| match unseen.sentence() {
            sentence if count < self.requests => {
                format!("{sentence} (in {count} of {} requests)", self.requests)
            }
            sentence => sentence,
        };
        self.unseen.iter().map(note).collect()
    }
}
