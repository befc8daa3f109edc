//! The time of many requests, by what it was spent on.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::row::Row;
use super::stages::{Breakdown, Part, StageSet};
use super::timeline::{Period, Side};
use super::unseen::{Unseen, Unseens};

/// The time of requests, by what it was spent on. A request with several sequences counts by its first.
#[derive(Clone, Debug, Default)]
pub struct TimeSpent {
    /// The number of requests whose time is known.
    pub requests: u64,
    /// Their time, nanoseconds.
    pub total_nanos: i128,
    /// Its parts; after [`add`](Self::add) the largest first.
    pub parts: Vec<PartSpent>,
    /// What was not measured, and in how many requests.
    pub unseen: BTreeMap<Unseen, u64>,
    /// The number of requests of which a router's time is known, alone or together with other stages.
    pub routed: u64,
}

/// The time that requests spent on one thing.
#[derive(Clone, Copy, Debug)]
pub struct PartSpent {
    /// What it was spent on.
    pub spent: StageSet,
    /// Its sum, nanoseconds.
    pub nanos: i128,
    /// The number of requests with such a part.
    pub requests: u64,
    /// The whole time of those requests, nanoseconds.
    pub of_nanos: i128,
}

impl TimeSpent {
    /// Adds a request to the times of some and to those until their first token; `all` is its breakdown, if known.
    pub fn count_both([spent, first]: &mut [TimeSpent; 2], row: &Row, all: Option<&Breakdown>) {
        let (until_first, unseen) = (all.and_then(Breakdown::until_first_token), Unseens::of(row));
        spent.count(all, row, unseen);
        first.count(until_first.as_ref(), row, unseen);
    }

    fn count(&mut self, breakdown: Option<&Breakdown>, row: &Row, unseen: Unseens) {
        let Some(breakdown) = breakdown else { return };
        let is_router = |part: &Part| {
            part.spent != StageSet::PROXY && part.spent.holds(Period::QUEUE_IN_ROUTER)
        };
        // A hop is behind a router, of whose time it sees nothing.
        let is_routed = row.timeline.side() == Side::Hop || breakdown.parts.iter().any(is_router);
        let total_nanos = i128::from(breakdown.total_nanos);
        self.requests += 1;
        self.total_nanos += total_nanos;
        self.routed += u64::from(is_routed);
        for part in &breakdown.parts {
            self.add_part(PartSpent {
                spent: part.spent,
                nanos: part.nanos.into(),
                requests: 1,
                of_nanos: total_nanos,
            });
        }
        for one in unseen.iter() {
            *self.unseen.entry(one).or_default() += 1;
        }
    }

    fn add_part(&mut self, part: PartSpent) {
        let mut parts = self.parts.iter_mut();
        match parts.find(|known| known.spent == part.spent) {
            Some(known) => {
                known.nanos += part.nanos;
                known.requests += part.requests;
                known.of_nanos += part.of_nanos;
            }
            None => self.parts.push(part),
        }
    }

    /// Adds the results of [`count_both`](Self::count_both) for other requests.
    pub fn add_both(both: &mut [TimeSpent; 2], more: [TimeSpent; 2]) {
        both.iter_mut()
            .zip(more)
            .for_each(|(spent, more)| spent.add(more));
    }

    /// Adds the time of other requests.
    pub fn add(&mut self, more: TimeSpent) {
        self.requests += more.requests;
        self.total_nanos += more.total_nanos;
        self.routed += more.routed;
        for part in more.parts {
            self.add_part(part);
        }
        self.parts
            .sort_by_key(|part| (Reverse(part.nanos), part.spent));
        for (one, count) in more.unseen {
            *self.unseen.entry(one).or_default() += count;
        }
    }
}
