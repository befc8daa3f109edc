//! A row of a table as the record that it was written of, as far as its columns tell: whatever is said of records is said of
//! rows by the same functions.

use crate::clock::Stamp;
use crate::offset::Offset;
use crate::request::attempt::Failed;
use crate::request::endpoint::Endpoint;
use crate::request::gaps::GapFigures;
use crate::request::record::{Facts, Outcome, Record};
use crate::request::response::Unread;
use crate::request::sequence::{Sequence, TimingSource};
use crate::request::timeline::{ClockOf, Moment, Period, Relation, Side, Timeline};
use crate::request::token_count::TokenCountSource;

use super::table::Table;

/// A row of a table.
#[derive(Clone, Copy)]
struct Row<'a> {
    table: &'a Table,
    at: usize,
}

/// The moments that a row shows as they were marked. The others are told by a duration, or stand for another where that
/// was not seen.
const MARKED: [(&str, Moment); 14] = [
    ("scheduled_time", Moment::Scheduled),
    ("sent_time", Moment::Sent),
    ("request_end_time", Moment::RequestEnd),
    ("forwarded_time", Moment::Forwarded),
    ("worker_forwarded_time", Moment::WorkerForwarded),
    ("server_created_time", Moment::ServerCreated),
    ("queue_time_start", Moment::QueueStart),
    ("queue_time_end", Moment::QueueEnd),
    ("prefill_end_time", Moment::PrefillEnd),
    ("server_first_token_time", Moment::ServerFirstToken),
    ("response_head_time", Moment::ResponseHead),
    ("first_token_time", Moment::FirstToken),
    ("finish_time", Moment::Finish),
    ("end_time", Moment::End),
];

/// Reads rows of a table as records.
///
/// What no column tells is unknown: when the engine was done, how many tokens the first event brought (one is taken), the
/// generation of SGLang, how much of a client's stall came before the last byte (all is taken).
#[derive(Clone, Copy, Debug)]
pub struct Recall<'a> {
    table: &'a Table,
}

impl<'a> Recall<'a> {
    /// Of the rows of this table.
    pub fn new(table: &'a Table) -> Recall<'a> {
        Recall { table }
    }

    /// A row by itself, as if its request had no other. Stamps count from where the table's times do.
    pub fn record(self, row: usize) -> Record {
        let index = u32::from(!self.table.is_first(row));
        self.of(row, index, 1)
    }

    /// The records of each request, in the file's order.
    pub fn requests(self) -> impl Iterator<Item = Vec<Record>> + use<'a> {
        self.firsts().map(move |first| self.request(first))
    }

    fn firsts(&self) -> impl Iterator<Item = usize> + use<'a> {
        let table = self.table;
        table.firsts()
    }

    /// The records of the request of a first row.
    pub fn request(&self, first: usize) -> Vec<Record> {
        let more = (first + 1..self.table.len()).take_while(|row| !self.table.is_first(*row));
        let count = 1 + more.count();
        let rows = (first..first + count).zip(0..);
        let mut records: Vec<Record> = rows
            .map(|(row, index)| self.of(row, index, count as u32))
            .collect();
        tell_prompts(&mut records);
        records
    }

    fn of(self, at: usize, index: u32, sequences: u32) -> Record {
        let row = Row {
            table: self.table,
            at,
        };
        Record {
            facts: row.facts(sequences),
            sequence: row.sequence(index),
            sequences,
            timeline: row.timeline(),
        }
    }
}

/// Samples of one prompt have as many prompt tokens, which the prompts of a batch seldom do.
fn tell_prompts(records: &mut [Record]) {
    let first = records.first().and_then(|row| row.sequence.prompt_tokens);
    let is_one = records
        .iter()
        .all(|row| row.sequence.prompt_tokens == first);
    let samples = if is_one { records.len() as u64 } else { 1 };
    for record in records {
        record.facts.n = samples;
    }
}

impl<'a> Row<'a> {
    fn count(self, column: &str) -> Option<u64> {
        self.table.whole(column, self.at).map(i64::unsigned_abs)
    }

    fn nanos(self, column: &str) -> Option<i64> {
        self.table.whole(column, self.at)
    }

    fn stamp(self, column: &str) -> Option<Stamp> {
        self.nanos(column).map(Stamp::from_nanos)
    }

    fn text(self, column: &str) -> Option<&'a str> {
        Some(self.table.text(column, self.at)).filter(|text| !text.is_empty())
    }

    fn owned(self, column: &str) -> Option<String> {
        self.text(column).map(str::to_owned)
    }

    fn yes_no(self, column: &str) -> Option<bool> {
        self.text(column).map(|word| word == "True")
    }

    fn facts(self, sequences: u32) -> Facts {
        let endpoint = self.text("endpoint").and_then(Endpoint::from_path);
        let id = self.text("req_id").unwrap_or_default();
        let id = match sequences {
            0 | 1 => id,
            _ => id.rsplit_once('#').map_or(id, |(id, _)| id),
        };
        let outcome = match self.text("outcome") {
            Some(name) => Outcome::named(name),
            None => self.table.is_ok(self.at).then_some(Outcome::Ok),
        };
        let first = self.stamp("worker_first_byte_time");
        let last = self.stamp("worker_last_byte_time");
        let mut facts = Facts::new(endpoint.unwrap_or(Endpoint::Generate), id.to_owned());
        // Of an outcome that this version does not know one can say that it was none of the known.
        facts.outcome = outcome.unwrap_or(Outcome::ProxyError);
        facts.error = self.owned("error").unwrap_or_default();
        facts.host = self.owned("host");
        facts.model = self.owned("model");
        facts.stream = self.yes_no("stream");
        facts.input_length = self.count("input_length");
        facts.expected_output_length = self.count("expected_output_length");
        facts.status = self
            .count("status")
            .and_then(|status| status.try_into().ok());
        facts.attempts = self.count("attempts").unwrap_or(0) as u32;
        facts.failed = self.failed();
        facts.worker = self.owned("worker");
        let unread = self.text("unread");
        facts.unread = Unread::ALL.into_iter().find(|u| Some(u.name()) == unread);
        facts.client_stall_nanos = self.nanos("client_stall");
        facts.stall_until_read_nanos = facts.client_stall_nanos;
        facts.prompt_wait_nanos = self.nanos("prompt_wait");
        facts.worker_passage.first = first;
        facts.worker_passage.last = last;
        facts.passage.first = plus(first, self.nanos("router_return"));
        facts.passage.last = plus(last, self.nanos("router_return_last"));
        if self.text("token_count_source") == Some(TokenCountSource::Usage.name()) {
            facts.usage_completion_tokens = self.count("actual_output_tokens");
        }
        facts
    }

    /// Attempts that did not answer: `127.0.0.1:30001 server_error 500 after 0.010000 s; …`.
    fn failed(self) -> Vec<Failed> {
        let attempts = self.text("failed_attempts").into_iter();
        let attempts = attempts.flat_map(|all| all.split("; "));
        let attempt = |words: &str| {
            let mut words = words.split(' ');
            let host = words.next()?.to_owned();
            let outcome = words.next().and_then(Outcome::named);
            let status = words.next().and_then(|status| status.parse().ok());
            Some(Failed {
                worker: String::new(),
                host,
                outcome,
                status,
                nanos: None,
            })
        };
        attempts.filter_map(attempt).collect()
    }

    fn sequence(self, index: u32) -> Sequence {
        let sources = [
            TokenCountSource::MetaInfo,
            TokenCountSource::Usage,
            TokenCountSource::Trace,
            TokenCountSource::Log,
        ];
        let token_source = self.text("token_count_source");
        let token_source = sources.into_iter().find(|s| Some(s.name()) == token_source);
        let sources = [
            TimingSource::MetaInfo,
            TimingSource::Trace,
            TimingSource::Log,
        ];
        let timing_source = self.text("timing_source");
        let is_by_usage = token_source == Some(TokenCountSource::Usage);
        let gaps = |mean, p99, max| GapFigures {
            mean_nanos: self.nanos(mean),
            p99_nanos: self.nanos(p99),
            max_nanos: self.nanos(max),
        };
        Sequence {
            index,
            has_text: self.yes_no("has_generated_text").unwrap_or(false),
            prompt_tokens: self.count("actual_prompt_tokens"),
            output_tokens: self.count("actual_output_tokens").filter(|_| !is_by_usage),
            token_source: token_source.filter(|_| !is_by_usage),
            token_events: self.count("token_chunks").unwrap_or(0),
            cached_tokens: self.count("cached_tokens"),
            num_retractions: self.count("num_retractions"),
            dp_rank: self.count("dp_rank"),
            queue_nanos: self.nanos("pure_queue_time"),
            timing_source: sources
                .into_iter()
                .find(|s| Some(s.name()) == timing_source),
            token_gaps: gaps("itl_mean", "itl_p99", "itl_max"),
            chunk_gaps: gaps("chunk_gap_mean", "chunk_gap_p99", "chunk_gap_max"),
            ..Sequence::default()
        }
    }

    fn timeline(self) -> Timeline {
        // Rows of before there was such a column are told by what only the generator knows.
        let told = self
            .text("seen_by")
            .or(self.stamp("sent_time").map(|_| Side::Traffic.name()));
        let sides = [Side::Traffic, Side::Front, Side::Hop];
        let side = sides.into_iter().find(|side| Some(side.name()) == told);
        let side = side.unwrap_or(Side::Front);
        let mut timeline = Timeline::new(side);
        self.relate(&mut timeline);
        let engine = self.ahead(&timeline, ClockOf::Engine);
        for (column, moment) in MARKED {
            let ahead = match moment.clock(side) {
                ClockOf::Engine => engine,
                clock => self.ahead(&timeline, clock),
            };
            if let Some(at) = self.stamp(column) {
                timeline.set(moment, at.plus_nanos(ahead));
            }
        }
        self.set_arrival(&mut timeline);
        self.set_router_send(&mut timeline);
        self.set_first_pass(&mut timeline);
        if let (Some(first), Some(tpot), Some(tokens)) = (
            timeline.raw(Moment::FirstToken),
            self.nanos("tpot"),
            self.count("actual_output_tokens"),
        ) {
            let later = i64::try_from(tokens).unwrap_or(0) - 1;
            timeline.set(
                Moment::LastToken,
                first.plus_nanos(tpot.saturating_mul(later)),
            );
        } else if let (Some(first), Some(1)) =
            (timeline.raw(Moment::FirstToken), self.count("token_chunks"))
        {
            timeline.set(Moment::LastToken, first);
        }
        timeline
    }

    /// How the other clocks stand to that of the row.
    fn relate(self, timeline: &mut Timeline) {
        let apart = |offset: &str, error: &str| {
            let (nanos, error_nanos) = (self.nanos(offset)?, self.nanos(error)?);
            Some(Relation::Apart(Offset { nanos, error_nanos }))
        };
        // Where times of two clocks are there and what lies between is not, nobody knew how far they are apart.
        let has = |column: &str| self.table.whole(column, self.at).is_some();
        let known = |from: &str, to: &str, between: &str| {
            if has(from) && has(to) && !has(between) {
                Relation::Unknown
            } else {
                Relation::Same
            }
        };
        let engine = match self.text("clock_state") {
            Some("raw") => Relation::Unknown,
            Some(_) => apart("clock_offset", "clock_offset_error").unwrap_or(Relation::Same),
            None => Relation::Unknown,
        };
        timeline.relate(ClockOf::Engine, engine);
        let front = apart("front_clock_offset", "front_clock_offset_error");
        let front = front.unwrap_or_else(|| known("arrival_time", "finish_time", "total_latency"));
        timeline.relate(ClockOf::Front, front);
        let hop = apart("hop_clock_offset", "hop_clock_offset_error");
        let one = known("arrival_time", "router_send_time", "queue_time_in_router");
        match (hop, one) {
            (Some(hop), _) => timeline.relate(ClockOf::Hop, hop),
            // Without a hop's moment there may yet be a hop, in a process of its own.
            (None, Relation::Same) if timeline.side() != Side::Hop && has("router_send_time") => {
                timeline.hop_shares_front();
            }
            _ => timeline.relate(ClockOf::Hop, Relation::Unknown),
        }
    }

    /// What is to be added to a time of a row, which is on its own clock, to have it on the one that it was read from.
    fn ahead(self, timeline: &Timeline, clock: ClockOf) -> i64 {
        let clock = match clock {
            ClockOf::Hop if self.nanos("hop_clock_offset").is_none() => ClockOf::Front,
            clock => clock,
        };
        match timeline.relation(clock) {
            Relation::Apart(offset) => offset.nanos,
            Relation::Same | Relation::Unknown => 0,
        }
    }

    /// A generator's row has an arrival of its own only where a front told it; else the send stands there.
    fn set_arrival(self, timeline: &mut Timeline) {
        let Some(at) = self.stamp("arrival_time") else {
            return;
        };
        let has_front = match timeline.side() {
            Side::Traffic => {
                timeline.raw(Moment::Forwarded).is_some()
                    || timeline.raw(Moment::RequestEnd).is_some()
                    || self.stamp("sent_time") != Some(at)
            }
            Side::Front | Side::Hop => true,
        };
        if has_front {
            let ahead = self.ahead(timeline, ClockOf::Front);
            timeline.set(Moment::Arrival, at.plus_nanos(ahead));
        }
    }

    /// Where no hop stands the router's send is our own, if what we send to is the server.
    fn set_router_send(self, timeline: &mut Timeline) {
        let Some(at) = self.stamp("router_send_time") else {
            return;
        };
        if self.text("worker").is_none() && timeline.raw(Moment::WorkerForwarded).is_none() {
            timeline.upstream_is_server(true);
            return;
        }
        let ahead = self.ahead(timeline, ClockOf::Hop);
        timeline.set(Moment::WorkerArrival, at.plus_nanos(ahead));
    }

    /// Where a hop saw the first token pass, `return_time` ends there and not where it was read.
    fn set_first_pass(self, timeline: &mut Timeline) {
        let first = timeline.on_own_clock(Moment::ServerFirstToken);
        let (Some(first), Some(way)) = (first, self.nanos("return_time")) else {
            return;
        };
        let passed = first.plus_nanos(way);
        let whole = timeline.nanos(Period::RETURN);
        if whole.is_some_and(|whole| whole != way) {
            let ahead = self.ahead(timeline, ClockOf::Hop);
            timeline.set(Moment::WorkerFirstToken, passed.plus_nanos(ahead));
        }
    }
}

fn plus(at: Option<Stamp>, nanos: Option<i64>) -> Option<Stamp> {
    Some(at?.plus_nanos(nanos?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::rows;
    use crate::report::sample::Sample;
    use crate::report::stages::Breakdown;
    use crate::telemetry::csv;

    #[test]
    fn a_row_is_told_as_its_record_is() {
        let no_hop = [Moment::WorkerArrival, Moment::WorkerForwarded];
        let no_proxy = [Moment::Arrival, Moment::Forwarded];
        let engine = [
            Moment::ServerCreated,
            Moment::QueueStart,
            Moment::QueueEnd,
            Moment::PrefillEnd,
            Moment::ServerFirstToken,
            Moment::ServerFinish,
        ];
        let tokens = [Moment::FirstEvent, Moment::FirstToken, Moment::LastToken];
        let whole = Sample::whole;
        let straight = |sample: Sample| sample.with(|r| r.timeline.upstream_is_server(true));
        let samples = [
            whole(),
            whole().at(Moment::WorkerFirstToken, 203),
            whole().without(&no_hop),
            straight(whole().without(&no_hop)),
            straight(whole().without(&no_hop).without(&no_proxy)),
            whole().without(&engine),
            whole().engine_unknown(),
            whole()
                .without(&tokens[1..])
                .with(|r| r.facts.stream = Some(false)),
            whole().ended(Outcome::UpstreamDied, "cut"),
            whole()
                .without(&engine)
                .without(&tokens)
                .without(&[Moment::Finish, Moment::ResponseHead])
                .at(Moment::End, 905)
                .ended(Outcome::Timeout, "late"),
        ];
        let records: Vec<Record> = samples.into_iter().map(Sample::record).collect();
        let mut rows = Vec::new();
        csv::header(&mut rows);
        for record in &records {
            csv::row(
                record,
                csv::TimeBase::Since(crate::report::sample::at(0)),
                &mut rows,
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("requests.csv");
        std::fs::write(&path, rows).unwrap();
        let table = rows::read(&[path], None).unwrap().0;
        let recall = Recall::new(&table);
        for (row, record) in records.iter().enumerate() {
            let recalled = recall.record(row);
            assert_eq!(
                Breakdown::of(&recalled),
                Breakdown::of(record),
                "row {row}: {:?}",
                record.timeline
            );
            assert_eq!(recalled.last_seen(), record.last_seen(), "row {row}");
        }
    }
}
