//! Which attempt at a hop belongs to which request of the front.

use std::collections::HashMap;

use crate::request::attempt::{Failed, MAX_FAILED, sendings, shown};
use crate::request::cell::Value;
use crate::request::columns::ColumnId;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::table::Table;

/// The attempts at each request of a front, by its first row.
#[derive(Debug, Default)]
pub struct Pairs {
    of: HashMap<usize, Attempts>,
    /// By what they were found.
    by_span: usize,
    by_id: usize,
    /// First rows of attempts that belong to no request.
    alone: Vec<usize>,
}

/// The attempts at a request: first rows of the hops. The two legs of one sending are one.
#[derive(Debug, Default)]
pub struct Attempts {
    /// The one whose response the front read, as far as can be told.
    pub answered: Option<usize>,
    /// The leg of it that another server prefilled.
    pub leg: Option<usize>,
    /// The others, in their order.
    pub others: Vec<usize>,
}

impl Pairs {
    /// An attempt names the span that the front sent. A router that begins spans of its own loses that; then the request's
    /// id decides, if only one request had it.
    pub fn of(front: &Table, hops: &Table) -> Pairs {
        let mut by_span = HashMap::new();
        let mut by_id: HashMap<&str, Option<usize>> = HashMap::new();
        for row in front.firsts() {
            let span = front.text(ColumnId::span_id, row);
            if !span.is_empty() {
                by_span.insert(span, row);
            }
            let known = by_id.entry(id(front, row));
            known.and_modify(|known| *known = None).or_insert(Some(row));
        }
        let mut pairs = Pairs::default();
        let mut found: HashMap<usize, Vec<usize>> = HashMap::new();
        for hop in hops.firsts() {
            let by_span = by_span
                .get(hops.text(ColumnId::parent_span_id, hop))
                .copied();
            let by_id = || by_id.get(id(hops, hop)).copied().flatten();
            pairs.by_span += usize::from(by_span.is_some());
            match by_span.or_else(by_id) {
                Some(row) => found.entry(row).or_default().push(hop),
                None => pairs.alone.push(hop),
            }
        }
        let joined = found.values().map(Vec::len).sum::<usize>();
        pairs.by_id = joined - pairs.by_span;
        let of = found.into_iter();
        let of = of.map(|(row, hop)| (row, Attempts::of(front, row, hops, hop)));
        pairs.of = of.collect();
        pairs
    }

    /// The attempts at the request of a first row.
    pub fn of_request(&self, row: usize) -> Option<&Attempts> {
        self.of.get(&row)
    }

    /// First rows of front and hop that saw one response.
    pub fn answered(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.of.iter();
        all.filter_map(|(row, attempts)| Some((*row, attempts.answered?)))
    }

    /// Whether the attempt of a first row of a hop belongs to no request.
    pub fn is_alone(&self, hop: usize) -> bool {
        self.alone.binary_search(&hop).is_ok()
    }

    /// How many were joined, and who has no partner.
    pub fn notes(&self, front: &Table, hops: &Table) -> Vec<String> {
        let requests = front.firsts();
        let (with, without): (Vec<usize>, Vec<usize>) =
            requests.partition(|row| self.of.contains_key(row));
        let attempts = self.by_span + self.by_id;
        let mut notes = vec![format!(
            "{attempts} attempts at {} of {} requests joined: {} by the front's span, {} by the request's id",
            with.len(),
            with.len() + without.len(),
            self.by_span,
            self.by_id
        )];
        for (rows, table, whose) in [
            (
                &without,
                front,
                "requests of the front that no hop has a row of",
            ),
            (
                &self.alone,
                hops,
                "attempts at a hop that no request of the front belongs to",
            ),
        ] {
            if !rows.is_empty() {
                let kinds = kinds(table, rows);
                notes.push(format!("{} {whose}: {kinds}", rows.len()));
            }
        }
        notes
    }
}

/// A request's id without what tells its sequences apart.
fn id(table: &Table, row: usize) -> &str {
    let id = table.text(ColumnId::req_id, row);
    // Of several sequences the first is `#0`, and the row behind it is not the first of its request.
    match id.strip_suffix("#0") {
        Some(id) if row + 1 < table.len() && !table.is_first(row + 1) => id,
        _ => id,
    }
}

/// How many of each outcome.
fn kinds(table: &Table, rows: &[usize]) -> String {
    let kinds = Outcome::ALL.into_iter().filter_map(|outcome| {
        let is = |row: &&usize| table.text(ColumnId::outcome, **row) == outcome.name();
        let count = rows.iter().filter(is).count();
        (count > 0).then(|| format!("{count} {}", outcome.name()))
    });
    kinds.collect::<Vec<_>>().join(", ")
}

impl Attempts {
    fn of(front: &Table, row: usize, hops: &Table, mut all: Vec<usize>) -> Attempts {
        let began = |hop: &usize| {
            hops.number(ColumnId::router_send_time, *hop)
                .unwrap_or(f64::NAN)
        };
        all.sort_by(|a, b| began(a).total_cmp(&began(b)));
        // The router sends what one server prefills with the same room to the one that decodes.
        let room = |hop: &usize| hops.text(ColumnId::bootstrap_room, *hop);
        let is_other_leg = |a: &usize, b: &usize| !room(a).is_empty() && room(a) == room(b);
        let mut sendings = sendings(all, is_other_leg);
        // That one answers whom the front was told of, else who told that another prefilled, else who had it longer.
        let own = front.text(ColumnId::host, row);
        let answers = |hop: &usize| {
            let is_told = hops.text(ColumnId::host, *hop) == own;
            let is_decoded = hops.value(ColumnId::disaggregated, *hop) != Value::Empty;
            let elapsed = hops.whole(ColumnId::elapsed, *hop);
            (is_told, is_decoded, elapsed, *hop)
        };
        sendings
            .iter_mut()
            .for_each(|legs| legs.sort_by_key(&answers));
        // The front's own status is that of the response that it read; a router may answer itself where all failed.
        let status = front.number(ColumnId::status, row);
        let same = |legs: &Vec<usize>| {
            let hop = legs.last();
            status.is_some() && hop.map(|hop| hops.number(ColumnId::status, *hop)) == Some(status)
        };
        let place = sendings.iter().rposition(same);
        let legs = place.map_or_else(Vec::new, |place| sendings.remove(place));
        // Of another sending that leg is told which failed by itself: the router then left the other.
        let has_failed = |hop: &usize| {
            let outcome = Outcome::named(hops.text(ColumnId::outcome, *hop));
            outcome.is_some_and(|outcome| !outcome.is_left())
        };
        let others = sendings.into_iter();
        let others = others.filter_map(|legs| legs.into_iter().max_by_key(has_failed));
        Attempts {
            answered: legs.last().copied(),
            leg: legs.iter().rev().nth(1).copied(),
            others: others.collect(),
        }
    }

    /// Puts into the front's row how often the request was sent, and what became of those that did not answer.
    pub fn tell(&self, hops: &Table, record: &mut Row) {
        let count = self.others.len() + usize::from(self.answered.is_some());
        record.attempts = record.attempts.max(Some(count as u64));
        if record.failed_attempts.is_some() {
            return;
        }
        let place = |hop| match hops.text(ColumnId::host, hop) {
            "" => hops.text(ColumnId::worker, hop),
            host => host,
        };
        let failed = |hop: &usize| Failed {
            host: place(*hop).to_owned(),
            outcome: Outcome::named(hops.text(ColumnId::outcome, *hop)),
            status: hops
                .number(ColumnId::status, *hop)
                .map(|status| status as u16),
            nanos: hops.whole(ColumnId::elapsed, *hop),
        };
        let failed: Vec<Failed> = self.others.iter().take(MAX_FAILED).map(failed).collect();
        record.failed_attempts = shown(&failed);
    }
}
