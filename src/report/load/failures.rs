//! The requests that failed: how, where they were by then and how long they had waited, and what that says of all.

use std::collections::BTreeMap;

use crate::report::duration;
use crate::report::stages::{Spent, place};
use crate::request::record::{LastSeen, Outcome, Record};
use crate::request::timeline::{Moment, Span};
use crate::stats::Summary;

use super::Rows;
use super::latency::seconds;
use super::spent::TimeSpent;

/// Failed requests, by what became of them.
#[derive(Clone, Debug)]
pub struct Failures {
    /// How many there are.
    pub requests: u64,
    /// Most frequent first.
    pub kinds: Vec<Kind>,
    /// Latencies of all requests, each at least as long as said: those of a failed one went on when it was given up.
    /// Seconds; `None` where one that went well lacks the latency.
    pub at_least: Vec<(&'static str, Option<Summary>)>,
}

/// Requests that failed in the same way at the same place.
#[derive(Clone, Debug)]
pub struct Kind {
    pub outcome: Outcome,
    /// Where they were last seen.
    pub last_seen: Option<LastSeen>,
    pub requests: u64,
    /// How long they had waited, seconds; see [`waited`].
    pub waited: Option<Summary>,
    /// What their time was spent on, as far as it is known.
    pub spent: TimeSpent,
}

/// Latencies that are told of all requests.
const OF_ALL: [(&str, Moment, Moment); 4] = [
    ("total_latency_from_send", Moment::Sent, Moment::Finish),
    (
        "total_latency_from_schedule",
        Moment::Scheduled,
        Moment::Finish,
    ),
    ("ttft_from_send", Moment::Sent, Moment::FirstToken),
    ("ttft_from_schedule", Moment::Scheduled, Moment::FirstToken),
];

/// Above this share of requests the failed are spoken of first.
const FEW: f64 = 0.03;

/// So many kinds are named in a sentence.
const NAMED: usize = 3;

impl Failures {
    pub fn of(requests: &[Rows<'_>]) -> Failures {
        let mut kinds: BTreeMap<_, Vec<Rows<'_>>> = BTreeMap::new();
        for rows in requests {
            if let Some(row) = rows.first().filter(|row| !row.is_ok()) {
                let kind = (row.facts.outcome.name(), row.last_seen());
                kinds.entry(kind).or_default().push(rows);
            }
        }
        let kinds = kinds.into_values();
        let mut kinds: Vec<Kind> = kinds.filter_map(|of| Kind::of(&of)).collect();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.requests));
        let at_least = OF_ALL.map(|(name, from, to)| (name, at_least(requests, Span { from, to })));
        Failures {
            requests: kinds.iter().map(|kind| kind.requests).sum(),
            kinds,
            at_least: at_least.into(),
        }
    }

    /// The bounds of this name.
    pub fn at_least(&self, name: &str) -> Option<&Summary> {
        let found = self.at_least.iter().find(|(known, _)| *known == name);
        found?.1.as_ref()
    }

    /// One sentence for each thing that there is to say of where the time went: first of the failed where they are more
    /// than a few of `all`, then of those that went well.
    pub fn verdict(&self, spent: &TimeSpent, all: u64) -> String {
        let failed = self.requests;
        if failed == 0 {
            return spent.sentence("a request took");
        }
        if failed == all {
            return self.sentence(all);
        }
        let whose = format!("the {} of {all} requests that went well took", all - failed);
        let of_ok = spent.sentence(&whose);
        match failed as f64 > FEW * all as f64 {
            true => format!("{} {of_ok}", self.sentence(all)),
            false => of_ok,
        }
    }

    fn sentence(&self, all: u64) -> String {
        let mut kinds: Vec<String> = self.kinds.iter().take(NAMED).map(Kind::words).collect();
        if let Some(others) = self.kinds.get(NAMED..).filter(|others| !others.is_empty()) {
            let count: u64 = others.iter().map(|kind| kind.requests).sum();
            kinds.push(format!("{count} in other ways"));
        }
        let share = 100.0 * self.requests as f64 / all as f64;
        format!(
            "{} of {all} requests ({share:.0} %) failed: {}.",
            self.requests,
            kinds.join("; ")
        )
    }
}

impl Kind {
    fn of(requests: &[Rows<'_>]) -> Option<Kind> {
        let firsts = || requests.iter().filter_map(|rows| rows.first());
        let first = firsts().next()?;
        Some(Kind {
            outcome: first.facts.outcome,
            last_seen: first.last_seen(),
            requests: requests.len() as u64,
            waited: Summary::of(firsts().filter_map(waited)),
            spent: TimeSpent::of(requests),
        })
    }

    fn words(&self) -> String {
        let mut words = format!("{} {}", self.requests, self.outcome.name());
        if let Some(last_seen) = self.last_seen {
            words.push_str(&format!(", last seen {}", place(last_seen)));
        }
        if let Some(waited) = &self.waited {
            words.push_str(&format!(", after {} on average", duration(waited.mean)));
        }
        if let Some((spent, share)) = self.elsewhere() {
            words.push_str(&format!(", {share:.0} % of that {}", spent.place()));
        }
        words
    }

    /// What most of their time was spent on and how many per cent of it, unless it is where they were last seen: who
    /// waits long and then is given up at his first token did not lose his time in decoding.
    pub fn elsewhere(&self) -> Option<(Spent, f64)> {
        let (spent, nanos, _) = self.spent.parts.first()?;
        let is_here = self.last_seen.and_then(Spent::of) == Some(*spent);
        let share = self
            .spent
            .share(*nanos)
            .filter(|share| *share > 0.5 && !is_here)?;
        Some((*spent, share * 100.0))
    }
}

/// From the send to the end, seconds; of a proxy's own rows from arrival, of requests never sent from their schedule.
fn waited(row: &Record) -> Option<f64> {
    let to_end = |from| {
        row.timeline.nanos(Span {
            from,
            to: Moment::End,
        })
    };
    let starts = [Moment::Sent, Moment::Arrival, Moment::Scheduled];
    starts.into_iter().find_map(to_end).map(seconds)
}

/// A latency of all requests, that of a failed one as long as it was seen to go on.
fn at_least(requests: &[Rows<'_>], span: Span) -> Option<Summary> {
    let mut values = Vec::new();
    for row in requests.iter().copied().flatten() {
        let is_ok = row.is_ok();
        if span.to == Moment::Finish && !row.is_first_of_request() {
            continue;
        }
        let is_over = is_ok || span.to == Moment::FirstToken;
        match row.timeline.nanos(span).filter(|_| is_over) {
            Some(nanos) => values.push(seconds(nanos)),
            None if is_ok => return None,
            None => {
                let to = Moment::End;
                values.extend(row.timeline.nanos(Span { to, ..span }).map(seconds));
            }
        }
    }
    Summary::of(values)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::report::load;
    use crate::report::load::tests::{AFTER_SENDING, assert_near, json_of, run};
    use crate::report::sample::Sample;

    /// As in a run beyond what the server can do: 8 went well, 112 waited 10 s in the server and got no token.
    fn overload() -> Vec<Record> {
        let ok = (0..8).map(|n| Sample::starting(n).record());
        let failed = (8..120).map(|n| {
            let sample = Sample::starting(n).without(&AFTER_SENDING[2..]);
            let sample = sample
                .without(&[Moment::Finish])
                .at(Moment::End, n + 10_001);
            sample.ended(Outcome::Timeout, "no end after 10 s").record()
        });
        ok.chain(failed).collect()
    }

    #[test]
    fn who_was_given_up_after_long_waiting_did_not_wait_where_he_was_last_seen() {
        // The first token came at 210 ms, and 10 ms later it was over.
        let cut = Sample::whole()
            .at(Moment::QueueEnd, 180)
            .at(Moment::Finish, 220);
        let cut = cut.ended(Outcome::Timeout, "").record();
        let summary = load::Summary::of(&[cut], &run());
        assert_eq!(
            summary.all.verdict(),
            "1 of 1 requests (100 %) failed: 1 timeout, last seen in decoding, after 0.22 s on average, 73 % of that \
            in the server's queue."
        );
        let line = "failed        1 timeout, last seen in decode, after 0.22 s (longest 0.22 s), 73 % of it in queue\n";
        let text = summary.to_text();
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn under_overload_the_failed_are_spoken_of_first() {
        let summary = load::Summary::of(&overload(), &run());
        let text = summary.to_text();
        let verdict = "112 of 120 requests (93 %) failed: 112 timeout, last seen in the server, before its first token, \
            after 10.00 s on average. Of 0.50 s the 8 of 120 requests that went well took on average, 58 % was spent in \
            decoding";
        for said in [
            verdict,
            "failed        112 timeout, last seen in server, after 10.00 s (longest 10.00 s)\n",
            "ms, 8 of 120 requests   count ",
            "of all 120, at least\n",
            "total, from send          120     9366.6    10000.0    10000.0    10000.0\n",
            // Half of all had no token after 10 s, whatever those say that went well.
            "TTFT, from send           120     9347.3    10000.0    10000.0    10000.0\n",
        ] {
            assert!(text.contains(said), "{said:?} is not in\n{text}");
        }
        let json = summary.to_json();
        for (pointer, expected) in [
            ("/failures/0/requests", 112.0),
            ("/failures/0/waited/p50", 10.0),
            ("/failures/0/parts/0/mean", 9.996),
            ("/latency_at_least/ttft_from_send/p50", 10.0),
            ("/latency_at_least/ttft_from_schedule/p50", 10.001),
            ("/latency_at_least/total_latency_from_send/count", 120.0),
            ("/latency/ttft_from_send/p50", 0.209),
        ] {
            assert_near(&json, pointer, expected);
        }
        let first = &json["failures"][0];
        assert_eq!(first["outcome"], "timeout");
        assert_eq!(first["ended_in"], "server");
        assert_eq!(json["time_spent"]["sentence"], summary.all.verdict());
    }

    #[test]
    fn a_few_failed_ones_are_counted_and_not_spoken_of_first() {
        let mut records: Vec<Record> = (0..99).map(|n| Sample::starting(n).record()).collect();
        let died = Sample::starting(99).at(Moment::Finish, 300);
        records.push(
            died.at(Moment::End, 450)
                .ended(Outcome::UpstreamDied, "")
                .record(),
        );
        let summary = load::Summary::of(&records, &run());
        let verdict = summary.all.verdict();
        let start = "Of 0.50 s the 99 of 100 requests that went well took on average, ";
        assert!(verdict.starts_with(start), "{verdict}");
        let text = summary.to_text();
        let line =
            "failed        1 upstream_died, last seen in decode, after 0.35 s (longest 0.35 s)\n";
        assert!(text.contains(line), "{text}");
        let json = summary.to_json();
        // The one that died had its first token, and 350 ms from its send when it was over: not its last read.
        assert_near(&json, "/latency_at_least/ttft_from_send/max", 0.209);
        assert_near(&json, "/failures/0/waited/max", 0.35);
        // Of replies that are no streams nobody knows a first token.
        records[0].timeline.clear(Moment::FirstToken);
        let json = json_of(&records, &run());
        assert_eq!(
            json["latency_at_least"]["ttft_from_send"]["p50"],
            Value::Null
        );
        assert_near(
            &json,
            "/latency_at_least/total_latency_from_send/count",
            100.0,
        );
    }
}
