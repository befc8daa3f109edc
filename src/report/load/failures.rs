//! Failed requests: their outcomes, where they were last seen, and how long they had waited.

use std::collections::BTreeMap;

use crate::clock::seconds;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::stages::{Breakdown, StageSet, place};
use crate::stats::Summary;
use crate::table::Table;
use crate::units::duration;

use super::counts::{Request, is_given_up};

/// Requests with the same outcome that were last seen at the same stage.
#[derive(Clone, Debug)]
pub struct FailureKind {
    /// The outcome.
    pub outcome: Outcome,
    /// Where they were last seen.
    pub last_seen: Option<StageSet>,
    /// The number of requests.
    pub requests: u64,
    /// How long they had waited, seconds; see [`waited`].
    pub waited: Option<Summary>,
}

/// The most kinds that a sentence names.
const MAX_NAMED: usize = 3;

impl FailureKind {
    /// The kinds of failures of requests, most frequent first.
    pub(super) fn all(table: &Table, requests: &[Request]) -> Vec<FailureKind> {
        let mut by_kind: BTreeMap<_, Vec<Row>> = BTreeMap::new();
        let is_failed = |of: &&Request| !of.is_ok && !is_given_up(table, of.row());
        for request in requests.iter().filter(is_failed) {
            let row = table.row(request.row());
            let kind = (row.outcome().name(), row.last_seen());
            by_kind.entry(kind).or_default().push(row);
        }
        let kind = |((_, last_seen), rows): ((_, Option<StageSet>), Vec<Row>)| {
            Some(FailureKind {
                outcome: rows.first()?.outcome(),
                last_seen,
                requests: rows.len() as u64,
                waited: Summary::of(rows.iter().filter_map(waited)),
            })
        };
        let mut kinds: Vec<FailureKind> = by_kind.into_iter().filter_map(kind).collect();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.requests));
        kinds
    }

    /// The most frequent of these kinds, and the number of other failed requests.
    pub fn list(kinds: &[FailureKind]) -> String {
        let (named, others) = kinds.split_at(kinds.len().min(MAX_NAMED));
        let mut shown: Vec<String> = named.iter().map(FailureKind::text).collect();
        if !others.is_empty() {
            let count: u64 = others.iter().map(|kind| kind.requests).sum();
            shown.push(format!("{count} in other ways"));
        }
        shown.join("; ")
    }

    fn text(&self) -> String {
        let mut text = format!("{} {}", self.requests, self.outcome.name());
        if let Some(last_seen) = self.last_seen {
            text.push_str(&format!(", last seen {}", place(last_seen)));
        }
        if let Some(waited) = &self.waited {
            text.push_str(&format!(", after {} on average", duration(waited.mean)));
        }
        text
    }

    /// Where they were last seen, by the names of the column `ended_in`.
    pub fn ended_in(&self) -> Option<String> {
        self.last_seen.map(|seen| seen.ended_in(|stage| stage.name))
    }
}

/// The time that [`TimeSpent`] splits into stages, seconds: from the schedule to the end; in a proxy's rows from the send or arrival.
fn waited(row: &Row) -> Option<f64> {
    Breakdown::of(row).map(|breakdown| seconds(breakdown.total_nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::load::Summary;
    use crate::report::load::tests::*;

    #[test]
    fn failed_requests_count_as_infinite() {
        let rejected = |n| {
            let sample = cut(Sample::starting(n), &AFTER_SENDING, n + 2);
            sample.ended(Outcome::Rejected, "503").open_row()
        };
        let ok = (0..6).map(|n| Sample::starting(n).open_row());
        let mut records: Vec<Row> = ok.chain((6..10).map(rejected)).collect();
        let unsent = Sample::starting(10).without(&AFTER_SENDING);
        let unsent = unsent.without(&[Moment::Sent, Moment::Arrival, Moment::Forwarded]);
        let unsent = unsent.at(Moment::Finish, 17);
        records.push(unsent.ended(Outcome::ClientAbort, "").open_row());
        let summary = Summary::of_records(&records, &run());
        let json = summary.to_json();
        let least = &json["latency_at_least"];
        assert_near(least, "/ttft_from_send/p50", 0.209);
        for figure in ["mean", "std", "p90", "p99", "max"] {
            assert!(least["ttft_from_send"][figure].is_null(), "{figure}");
        }
        let expected = [
            "of all 11, at least (-: no answer ever)\n",
            "\ntotal, from send 10 - 499.0 - -\n",
        ];
        assert_says_all(&flat(&summary.to_text()), expected);
        // No row of dashes alone.
        let text = Summary::of_records(&records[6..10], &run()).to_text();
        assert!(!text.contains("from send"), "{text}");
    }

    #[test]
    fn requests_given_up_when_the_run_was_stopped_did_not_fail() {
        let late = |n| {
            let sample = cut(Sample::starting(n), &AFTER_SENDING[2..], n + 10_001);
            sample.ended(Outcome::Timeout, "late").open_row()
        };
        let ok = (0..8).map(|n| Sample::starting(n).open_row());
        let mut records: Vec<Row> = ok.chain((8..13).map(late)).collect();
        for record in &mut records[10..] {
            record.outcome = Some(Outcome::ClientAbort);
            record.error = Some(GIVEN_UP.to_owned());
        }
        let summary = Summary::of_records(&records, &run());
        let json = summary.to_json();
        let given_up = "/hosts/127.0.0.1:30000/given_up";
        assert_figures(&json, [("/failed", 2.0), (given_up, 3.0)]);
        let expected = [
            "13 requests in 2.00 s: 8 ok (61.5 %), 2 failed\n",
            "2 of 13 requests (15.4 %) failed: 2 timeout, last seen in the server, before its first token, after 10.00 s \
            on average. 3 of 13 requests were given up when the run was stopped. Of 0.50 s the 8 of 13 requests that \
            went well took",
        ];
        assert_says_all(&flat(&summary.to_text()), expected);
        let none = time_sentences(&records[10..12]);
        let expected = "2 of 2 requests were given up when the run was stopped.";
        assert_eq!(none, expected);
        // A client that disconnected by itself counts as failed.
        records[10].error = Some("the client went away".to_owned());
        let summary = Summary::of_records(&records, &run());
        assert_eq!(summary.failed(), 3);
    }

    /// Its upstream died after the first token, 350 ms after the send, later than the last read.
    #[test]
    fn a_failed_request_waited_at_least_until_its_end() {
        let died = Sample::starting(1).at(Moment::Finish, 202);
        let died = died.at(Moment::End, 352).ended(Outcome::UpstreamDied, "");
        let mut records = vec![Sample::whole().open_row(), died.open_row()];
        let expected = [
            ("/latency_at_least/ttft_from_send/max", 0.209),
            ("/failures/0/waited/max", 0.351),
        ];
        assert_figures(&json_of(&records, &run()), expected);
        // A response that is no stream has no first token.
        records[0].timeline.clear(Moment::FirstToken);
        let json = json_of(&records, &run());
        assert!(json["latency_at_least"]["ttft_from_send"]["p50"].is_null());
    }
}
