//! Where the time of requests was spent: of those that went well, or of those that failed in one way.

use std::collections::BTreeMap;

use crate::report::duration;
use crate::report::stages::{Breakdown, Part, Spent, Unseen};
use crate::request::timeline::Span;

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
    pub unseen: Tally<Unseen>,
    /// Requests of which a router's time is known, alone or together with other stages.
    pub routed: u64,
}

impl TimeSpent {
    pub fn of(requests: &[Rows<'_>]) -> TimeSpent {
        let mut spent = TimeSpent::default();
        let mut parts: BTreeMap<Spent, (i128, u64)> = BTreeMap::new();
        for row in requests.iter().filter_map(|rows| rows.first()) {
            let Some(breakdown) = Breakdown::of(row) else {
                continue;
            };
            spent.requests += 1;
            spent.total_nanos += i128::from(breakdown.total_nanos);
            let is_router =
                |part: &Part| part.spent != Spent::Proxy && part.spent.holds(Span::QUEUE_IN_ROUTER);
            spent.routed += u64::from(breakdown.parts.iter().any(is_router));
            for part in breakdown.parts {
                let (nanos, count) = parts.entry(part.spent).or_default();
                *nanos += i128::from(part.nanos);
                *count += 1;
            }
            for what in Unseen::of(row) {
                spent.unseen.count(what);
            }
        }
        spent.set_parts(parts);
        spent
    }

    fn set_parts(&mut self, parts: BTreeMap<Spent, (i128, u64)>) {
        let parts = parts.into_iter();
        self.parts = parts.map(|(spent, (nanos, n))| (spent, nanos, n)).collect();
        self.parts
            .sort_by_key(|(_, nanos, _)| std::cmp::Reverse(*nanos));
    }

    /// Adds that of other requests.
    pub fn add(&mut self, more: TimeSpent) {
        self.requests += more.requests;
        self.total_nanos += more.total_nanos;
        self.routed += more.routed;
        let mut parts: BTreeMap<Spent, (i128, u64)> = BTreeMap::new();
        for (spent, nanos, count) in self.parts.drain(..).chain(more.parts) {
            let part = parts.entry(spent).or_default();
            *part = (part.0 + nanos, part.1 + count);
        }
        self.set_parts(parts);
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
        let Some(mean) = self.mean(self.total_nanos).filter(|_| self.total_nanos > 0) else {
            return "Nothing can be said of where the time went: no request went well.".to_owned();
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
        let router = unsaid.find(|(spent, ..)| spent.holds(Span::QUEUE_IN_ROUTER));
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
        for (unseen, count) in self.unseen.iter() {
            sentence.push_str(&format!("; {}", unseen.sentence()));
            if count < self.requests {
                sentence.push_str(&format!(" (in {count} of {} requests)", self.requests));
            }
        }
        sentence.push('.');
        sentence
    }
}
