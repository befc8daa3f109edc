//! The rows of a table, one by one: whatever is said of rows is said of those of a file by the same functions.

use crate::request::column::{Origin, Unit};
use crate::request::columns::COLUMNS;
use crate::request::columns::Column;
use crate::request::row::Row;
use crate::request::timeline::Moment;

use super::table::Table;

/// Reads rows of a table. Stamps count from where the table's times do.
#[derive(Clone, Copy, Debug)]
pub struct Recall<'a> {
    table: &'a Table,
}

impl<'a> Recall<'a> {
    /// Of the rows of this table.
    pub fn new(table: &'a Table) -> Recall<'a> {
        Recall { table }
    }

    /// A row by itself, as if its request had no other.
    pub fn row(self, at: usize) -> Row {
        let mut rows = [self.read(at, |_| true)];
        Row::settle(&mut rows);
        let [mut row] = rows;
        row.index = u32::from(!self.table.is_first(at));
        row
    }

    /// The rows of each request, in the file's order.
    pub fn requests(self) -> impl Iterator<Item = Vec<Row>> + use<'a> {
        self.firsts().map(move |first| self.request(first))
    }

    /// The same in order of arrival: a proxy and a run that was killed leave them in that of their ends.
    pub fn by_arrival(self) -> impl Iterator<Item = Vec<Row>> + use<'a> {
        let columns = [
            "sent_time",
            "arrival_time",
            "router_send_time",
            "scheduled_time",
        ];
        let arrival = |row: usize| {
            let mut times = columns.iter().filter_map(|of| self.table.number(of, row));
            times.next().unwrap_or(f64::INFINITY)
        };
        let mut firsts: Vec<(f64, usize)> = self.firsts().map(|row| (arrival(row), row)).collect();
        firsts.sort_by(|a, b| a.0.total_cmp(&b.0));
        firsts
            .into_iter()
            .map(move |(_, first)| self.request(first))
    }

    fn firsts(&self) -> impl Iterator<Item = usize> + use<'a> {
        let table = self.table;
        (0..table.len()).filter(|row| table.is_first(*row))
    }

    fn request(&self, first: usize) -> Vec<Row> {
        let more = (first + 1..self.table.len()).take_while(|row| !self.table.is_first(*row));
        let end = first + 1 + more.count();
        let mut rows: Vec<Row> = (first..end).map(|at| self.read(at, |_| true)).collect();
        Row::settle(&mut rows);
        rows
    }

    /// Each row with the times of its moments, how well their clocks are known, and whose those are, and nothing else.
    pub fn clocks(self) -> impl Iterator<Item = Row> + use<'a> {
        let is_of_clocks = |column: &Column| {
            let is_named = matches!(column.name, "host" | "worker" | "seen_by" | "clock_state");
            is_named
                || matches!(column.unit, Unit::Time)
                || column.name.contains("clock_offset")
                || is_between(column)
        };
        (0..self.table.len()).map(move |at| {
            let mut rows = [self.read(at, is_of_clocks)];
            Row::settle(&mut rows);
            let [row] = rows;
            row
        })
    }

    fn read(self, at: usize, is_wanted: impl Fn(&Column) -> bool) -> Row {
        let mut row = Row::default();
        let columns = COLUMNS.iter().enumerate();
        for (place, column) in columns.filter(|(_, column)| is_wanted(column)) {
            if let Some(value) = self.table.value(place, at) {
                (column.put)(&mut row, value);
            }
        }
        row
    }
}

/// Whether it tells that clocks compare.
fn is_between(column: &Column) -> bool {
    matches!(column.origin, Origin::Period(period) if period.from == Moment::Arrival)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::rows;
    use crate::report::sample::Sample;
    use crate::request::record::Outcome;
    use crate::request::stages::Breakdown;
    use crate::telemetry::csv;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let no_hop = [Moment::WorkerArrival, Moment::WorkerForwarded];
        let no_proxy = [Moment::Arrival, Moment::Forwarded];
        let engine = crate::request::timeline::ENGINE;
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
        let written: Vec<Row> = samples.into_iter().map(Sample::row).collect();
        let mut lines = Vec::new();
        csv::header(&mut lines);
        for row in &written {
            let base = csv::TimeBase::Since(crate::report::sample::at(0));
            csv::row(row, base, &mut lines);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("requests.csv");
        std::fs::write(&path, lines).unwrap();
        let table = rows::read(&[path], None).unwrap().0;
        let recall = Recall::new(&table);
        for (at, row) in written.iter().enumerate() {
            let read = recall.row(at);
            let told = Breakdown::of(&read);
            assert_eq!(told, Breakdown::of(row), "row {at}: {:?}", row.timeline);
            assert_eq!(read.last_seen(), row.last_seen(), "row {at}");
            assert_eq!(read.unseen, row.unseen, "row {at}");
        }
    }
}
