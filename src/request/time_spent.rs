//! Time of requests by what it was spent on.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::row::Row;
use super::stages::{Breakdown, Part, Spent};
use super::timeline::{Period, Side};
use super::unseen::{Unseen, Unseens};

/// Time by what it was spent on. A request with several sequences is told by its first.
#[derive(Clone, Debug, Default)]
pub struct TimeSpent {
    /// Requests whose time is known.
    pub requests: u64,
    /// Their time, nanoseconds.
    pub total_nanos: i128,
    /// Its parts, the largest first.
    pub parts: Vec<PartSpent>,
    /// What was not seen, and in how many requests.
    pub unseen: BTreeMap<Unseen, u64>,
    /// Requests of which a router's time is known, alone or together with other stages.
    pub routed: u64,
}

/// Time that was spent on one thing, by the requests of which that is known.
#[derive(Clone, Copy, Debug)]
pub struct PartSpent {
    /// What it was spent on.
    pub spent: Spent,
    /// How long all in all, nanoseconds.
    pub nanos: i128,
    /// How many requests had such a part.
    pub requests: u64,
    /// All the time of those requests, nanoseconds.
    pub of_nanos: i128,
}

impl TimeSpent {
    /// Of one request; of none where its time is not known.
    pub fn of_row(row: &Row) -> TimeSpent {
        TimeSpent::of_breakdown(Breakdown::of(row).as_ref(), row, Unseens::of(row))
    }

    /// Of one request: all of its time, and that until its first token.
    pub fn both(row: &Row) -> [TimeSpent; 2] {
        TimeSpent::of_both(row, Breakdown::of(row).as_ref())
    }

    /// The same, where it is known what `all` of the row's time was spent on.
    pub fn of_both(row: &Row, all: Option<&Breakdown>) -> [TimeSpent; 2] {
        let (until_first, unseen) = (all.and_then(Breakdown::until_first_token), Unseens::of(row));
        [all, until_first.as_ref()].map(|of| TimeSpent::of_breakdown(of, row, unseen))
    }

    fn of_breakdown(breakdown: Option<&Breakdown>, row: &Row, unseen: Unseens) -> TimeSpent {
        let mut spent = TimeSpent::default();
        let Some(breakdown) = breakdown else {
            return spent;
        };
        let is_router =
            |part: &Part| part.spent != Spent::Proxy && part.spent.holds(Period::QUEUE_IN_ROUTER);
        // A hop stands behind a router, of whose time it sees nothing.
        let is_routed = row.side() == Side::Hop || breakdown.parts.iter().any(is_router);
        spent.requests = 1;
        spent.total_nanos = breakdown.total_nanos.into();
        spent.routed = is_routed.into();
        spent.parts.reserve(breakdown.parts.len());
        for part in &breakdown.parts {
            spent.add_part(PartSpent {
                spent: part.spent,
                nanos: part.nanos.into(),
                requests: 1,
                of_nanos: spent.total_nanos,
            });
        }
        for what in unseen.iter() {
            *spent.unseen.entry(what).or_default() += 1;
        }
        spent
    }

    fn add_part(&mut self, more: PartSpent) {
        match self.parts.iter_mut().find(|of| of.spent == more.spent) {
            Some(known) => {
                known.nanos += more.nanos;
                known.requests += more.requests;
                known.of_nanos += more.of_nanos;
            }
            None => self.parts.push(more),
        }
    }

    /// Adds what [`both`](Self::both) told of other requests.
    pub fn add_both(both: &mut [TimeSpent; 2], more: [TimeSpent; 2]) {
        both.iter_mut()
            .zip(more)
            .for_each(|(spent, more)| spent.add(more));
    }

    /// Adds that of other requests.
    pub fn add(&mut self, more: TimeSpent) {
        self.requests += more.requests;
        self.total_nanos += more.total_nanos;
        self.routed += more.routed;
        for part in more.parts {
            self.add_part(part);
        }
        self.parts
            .sort_by_key(|part| (Reverse(part.nanos), part.spent));
        for (what, count) in more.unseen {
            *self.unseen.entry(what).or_default() += count;
        }
    }
}
