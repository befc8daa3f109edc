//! Rows of a table as records again, so that what is told of a request is made in one place, wherever it was read from.

use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;
use crate::request::record::{Facts, Outcome, Record};
use crate::request::response::Unread;
use crate::request::sequence::{Sequence, TimingSource};
use crate::request::timeline::{ClockOf, Moment, Relation, Side, Timeline};

use super::table::Table;

/// Two columns that were written of one stamp differ by no more than this, seconds.
const SAME: f64 = 1e-6;

/// Moments that have a column of their own, whoever watched.
const MOMENTS: [(Moment, &str); 13] = [
    (Moment::Scheduled, "scheduled_time"),
    (Moment::Sent, "sent_time"),
    (Moment::RequestEnd, "request_end_time"),
    (Moment::Forwarded, "forwarded_time"),
    (Moment::WorkerForwarded, "worker_forwarded_time"),
    (Moment::ServerCreated, "server_created_time"),
    (Moment::QueueStart, "queue_time_start"),
    (Moment::QueueEnd, "queue_time_end"),
    (Moment::PrefillEnd, "prefill_end_time"),
    (Moment::ServerFirstToken, "server_first_token_time"),
    (Moment::ResponseHead, "response_head_time"),
    (Moment::FirstToken, "first_token_time"),
    (Moment::Finish, "finish_time"),
];

/// Reads rows of a table as records.
#[derive(Debug)]
pub struct Recall<'a> {
    table: &'a Table,
    moments: [(Moment, &'a [f64]); MOMENTS.len()],
    arrival: &'a [f64],
    router_send: &'a [f64],
    end: &'a [f64],
    way_back: &'a [f64],
    stall: &'a [f64],
}

impl<'a> Recall<'a> {
    /// Of the rows of this table.
    pub fn new(table: &'a Table) -> Recall<'a> {
        Recall {
            table,
            moments: MOMENTS.map(|(moment, column)| (moment, table.numbers(column))),
            arrival: table.numbers("arrival_time"),
            router_send: table.numbers("router_send_time"),
            end: table.numbers("end_time"),
            way_back: table.numbers("return_time"),
            stall: table.numbers("client_stall"),
        }
    }

    /// A row as a record that has its moments, its outcome and what explains a moment that is missing; nothing else.
    pub fn record(&self, row: usize) -> Record {
        let table = self.table;
        let id = table.text("req_id", row);
        let endpoint = Endpoint::from_path(table.text("endpoint", row));
        let index = id.split_once('#').and_then(|(_, index)| index.parse().ok());
        let mut facts = Facts::new(endpoint.unwrap_or(Endpoint::Generate), String::new());
        facts.outcome = Outcome::named(table.text("outcome", row)).unwrap_or(
            match table.text("success", row) {
                "True" => Outcome::Ok,
                _ => Outcome::ServerError,
            },
        );
        facts.stream = match table.text("stream", row) {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        };
        facts.unread = Unread::ALL
            .into_iter()
            .find(|unread| unread.name() == table.text("unread", row));
        facts.stall_until_read_nanos = stamp(cell(self.stall, row)).map(Stamp::nanos);
        let timing_source = [
            TimingSource::MetaInfo,
            TimingSource::Trace,
            TimingSource::Log,
        ]
        .into_iter()
        .find(|source| source.name() == table.text("timing_source", row));
        Record {
            facts,
            sequence: Sequence {
                index: index.unwrap_or(0),
                timing_source,
                ..Sequence::default()
            },
            sequences: 1,
            timeline: self.timeline(row),
        }
    }

    fn timeline(&self, row: usize) -> Timeline {
        let side = [Side::Front, Side::Hop]
            .into_iter()
            .find(|side| side.name() == self.table.text("seen_by", row))
            .unwrap_or(Side::Traffic);
        let mut timeline = Timeline::new(side);
        let engine = match self.table.text("clock_state", row) {
            "raw" => Relation::Unknown,
            _ => Relation::Same,
        };
        timeline.relate(ClockOf::Engine, engine);
        for clock in [ClockOf::Traffic, ClockOf::Front, ClockOf::Hop] {
            timeline.relate(clock, Relation::Same);
        }
        let mut set = |moment, seconds| {
            if let Some(at) = stamp(seconds) {
                timeline.set(moment, at);
            }
        };
        for (moment, column) in self.moments {
            set(moment, cell(column, row));
        }
        let at = |moment| {
            let column = self.moments.iter().find(|(known, _)| *known == moment);
            column.map_or(f64::NAN, |(_, column)| cell(column, row))
        };
        let arrival = cell(self.arrival, row);
        let is_same = |a: f64, b: f64| (a - b).abs() <= SAME;
        // Without a front the column shows the generator's send.
        if !is_same(arrival, at(Moment::Sent)) {
            set(Moment::Arrival, arrival);
        }
        let end = cell(self.end, row);
        set(
            Moment::End,
            if end.is_nan() {
                at(Moment::Finish)
            } else {
                end
            },
        );
        // Where no hop saw the first token, the column reaches to the one that was read.
        let passed = at(Moment::ServerFirstToken) + cell(self.way_back, row);
        if !is_same(passed, at(Moment::FirstToken)) {
            set(Moment::WorkerFirstToken, passed);
        }
        let router_send = cell(self.router_send, row);
        let ours = [at(Moment::Forwarded), at(Moment::Sent)];
        if ours.into_iter().any(|sent| is_same(sent, router_send)) {
            timeline.upstream_is_server(true);
        } else if let Some(at) = stamp(router_send) {
            timeline.set(Moment::WorkerArrival, at);
        }
        timeline
    }
}

fn cell(column: &[f64], row: usize) -> f64 {
    column.get(row).copied().unwrap_or(f64::NAN)
}

fn stamp(seconds: f64) -> Option<Stamp> {
    Stamp::from_seconds(seconds)
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
        let table = rows::read(&[path], None).unwrap().table;
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
