//! Where the time of requests was spent: of those that went well, or of those that failed in one way.

use std::panic::resume_unwind;
use std::thread::available_parallelism;

use crate::clock::seconds;
use crate::report::timeline::{labelled, mark};
use crate::report::upper;
use crate::request::stages::Spent;
pub use crate::request::time_spent::{PartSpent, TimeSpent};
use crate::request::timeline::Period;
use crate::request::unseen::{ELSEWHERE, Unseen};
use crate::table::Table;
use crate::units::duration;

use super::request::Request;

/// The bar of all the time, columns: what the figures leave of 80.
const BAR: usize = 39;
/// Requests that are worth a thread.
const LEAST: usize = 1000;

impl TimeSpent {
    /// Of some requests, on all processors: all of their time, and that until their first tokens.
    pub(super) fn of(table: &Table, requests: &[Request]) -> [TimeSpent; 2] {
        let of_some = |requests: &[Request]| {
            let mut spent = <[TimeSpent; 2]>::default();
            for request in requests {
                TimeSpent::add_both(&mut spent, TimeSpent::both(&table.row(request.row())));
            }
            spent
        };
        let threads = available_parallelism().map_or(1, usize::from);
        let some = requests.chunks(requests.len().div_ceil(threads).max(LEAST));
        std::thread::scope(|scope| {
            let parts: Vec<_> = some
                .map(|some| scope.spawn(move || of_some(some)))
                .collect();
            let mut spent = <[TimeSpent; 2]>::default();
            for part in parts {
                let more = part.join().unwrap_or_else(|panic| resume_unwind(panic));
                TimeSpent::add_both(&mut spent, more);
            }
            spent
        })
    }

    /// The requests where a part was seen, and all their time. Where a client did not stall, that was seen too.
    fn seen(&self, part: &PartSpent) -> (u64, i128) {
        match part.spent {
            Spent::CLIENT_STALL | Spent::PROMPT => (self.requests, self.total_nanos),
            _ => (part.requests, part.of_nanos),
        }
    }

    /// A part's share of the time of the requests where it was seen; `None` of no time.
    pub fn share(&self, part: &PartSpent) -> Option<f64> {
        let (_, all) = self.seen(part);
        (all > 0).then(|| part.nanos as f64 / all as f64)
    }

    /// A part's mean over the requests where it was seen, seconds.
    pub fn mean(&self, part: &PartSpent) -> Option<f64> {
        mean(part.nanos, self.seen(part).0)
    }

    /// How long the requests took where a part was seen, on average; seconds.
    pub fn mean_where_seen(&self, part: &PartSpent) -> Option<f64> {
        let (requests, all) = self.seen(part);
        mean(all, requests)
    }

    /// How long a request took on average, seconds; `None` of no requests.
    pub fn mean_total(&self) -> Option<f64> {
        mean(self.total_nanos, self.requests)
    }

    /// `, of 49 of 1000 requests`, where a part was not seen in all.
    pub fn of_requests(&self, part: &PartSpent) -> String {
        match self.seen(part).0 {
            seen if seen < self.requests => format!(", of {seen} of {} requests", self.requests),
            _ => String::new(),
        }
    }

    /// One sentence that says where the time went; `whose` it was: "a request took".
    pub fn sentence(&self, whose: &str) -> String {
        let mut sentence = self.shares(whose);
        for note in self.unseen_notes() {
            sentence.push_str(&format!(". {note}"));
        }
        sentence.push('.');
        sentence
    }

    /// The same without its end, and without what was not seen.
    pub fn shares(&self, whose: &str) -> String {
        let Some(mean) = self.mean_total().filter(|_| self.total_nanos > 0) else {
            return "Where the time went is unknown: no row of a request that succeeded tells its arrival and its end".to_owned();
        };
        let length = |part: &PartSpent| {
            let mean = duration(self.mean(part).unwrap_or(0.0));
            mean + &self.of_requests(part)
        };
        let is_said = |part: &&PartSpent| self.share(part).is_some_and(|share| share >= 0.01);
        let mut clauses: Vec<String> = Vec::new();
        for part in self.parts.iter().filter(is_said).take(4) {
            let was = if clauses.is_empty() { " was spent" } else { "" };
            clauses.push(format!(
                "{:.0} %{was} {} ({})",
                self.share(part).unwrap_or(0.0) * 100.0,
                part.spent.place(),
                length(part)
            ));
        }
        let unsaid = self.parts.iter().filter(|part| !is_said(part));
        let unsaid = unsaid.chain(self.parts.iter().filter(is_said).skip(4));
        // Of the router one always wants to know.
        let router = unsaid
            .filter(|part| part.spent.holds(Period::QUEUE_IN_ROUTER))
            .max_by_key(|part| part.nanos);
        let mut sentence = format!(
            "Of {} {whose} on average, {}",
            duration(mean),
            clauses.join(", ")
        );
        if let Some(part) = router {
            sentence.push_str(&format!("; {} {}", part.spent.place(), length(part)));
        }
        if self.routed == 0 {
            sentence.push_str("; no router stood in between");
        }
        sentence
    }

    /// A line a part that is worth saying, the largest first, of at most 80 columns: its mean, its share, a bar, and of how many
    /// requests it is known if not of all.
    pub fn bars(&self) -> Vec<String> {
        let of = |part: &PartSpent| match self.seen(part).0 {
            seen if seen < self.requests => format!(" of {seen} of {}", self.requests),
            _ => String::new(),
        };
        let is_said = |part: &&PartSpent| self.share(part).is_some_and(|share| share >= 0.01);
        let said = || self.parts.iter().filter(is_said);
        let longest = said().map(|part| of(part).len()).max().unwrap_or(0);
        let room = BAR.saturating_sub(longest).max(10);
        let line = |part: &PartSpent| {
            let share = self.share(part)?;
            let bar = mark(part.spent)
                .repeat(((share * (room + 1) as f64).round() as usize).clamp(1, room));
            let (label, mean) = (labelled(part.spent), duration(self.mean(part)?));
            Some(format!(
                "{label}{mean:>10} {:>4.0} %  {bar}{}",
                share * 100.0,
                of(part)
            ))
        };
        said().filter_map(line).collect()
    }

    /// What was not seen, a sentence each without its end, and in how many requests if not in all. What would show several of
    /// these is said once, at the end.
    pub fn unseen_notes(&self) -> Vec<String> {
        let is_elsewhere = |what: &&Unseen| what.is_elsewhere();
        let is_shared = self.unseen.keys().filter(is_elsewhere).count() > 1;
        let note = |(what, count): (&Unseen, &u64)| {
            let sentence = match is_shared && what.is_elsewhere() {
                true => what.sentence(what.own_remedy()),
                false => what.sentence(&what.remedy()),
            };
            match *count < self.requests {
                true => format!("{sentence} (in {count} of {} requests)", self.requests),
                false => sentence,
            }
        };
        let together =
            is_shared.then(|| format!("to measure them in all these requests: {ELSEWHERE}"));
        let notes = self.unseen.iter().map(note).chain(together);
        notes.map(|note| upper(&note)).collect()
    }
}

/// Of the time of so many requests, seconds; `None` of none.
fn mean(nanos: i128, requests: u64) -> Option<f64> {
    let mean = nanos.checked_div(i128::from(requests))?;
    i64::try_from(mean).ok().map(seconds)
}

#[cfg(test)]
mod tests {
    use crate::report::load::Summary;
    use crate::report::load::tests::{AFTER_SENDING, assert_near, run};
    use crate::report::sample::{Sample, ms};
    use crate::request::row::Row;

    #[test]
    fn a_stage_is_told_of_the_requests_where_it_was_seen() {
        let engine = &AFTER_SENDING[2..8];
        let stall = |record: &mut Row| record.client_stall_until_finish = Some(ms(50));
        let one = |n: i64| match n % 2 {
            0 => Sample::starting(n * 50).with(stall).open_row(),
            _ => Sample::starting(n * 50).without(engine).open_row(),
        };
        let records: Vec<Row> = (0..10).map(one).collect();
        let summary = Summary::of_records(&records, &run());
        assert_eq!(
            summary.all.spent.shares("a request took"),
            "Of 0.50 s a request took on average, 53 % was spent in decoding (0.27 s), 41 % unseen in the server \
             (0.20 s, of 5 of 10 requests), 20 % in prefill (0.10 s, of 5 of 10 requests), 16 % in the server queue \
             (80.0 ms, of 5 of 10 requests); in the router queue 3.0 ms"
        );
        let bars = summary.all.spent.bars();
        let unseen = "unseen in the server      0.20 s   41 %  ░░░░░░░░░░░░ of 5 of 10";
        assert_eq!(bars[1], unseen);
        let is_short = |line: &String| line.chars().count() <= 80;
        assert!(bars.iter().all(is_short), "{bars:?}");
        let json = summary.to_json();
        let parts = json["time_spent"]["parts"].as_array().unwrap();
        // Where the client did not stall that was seen.
        let stall = parts.iter().find(|part| part["stage"] == "client_stall");
        assert_near(stall.unwrap(), "/share", 0.05);
        assert_near(stall.unwrap(), "/mean", 0.025);
    }
}
