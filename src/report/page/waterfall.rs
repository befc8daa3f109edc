//! The stages of a run's requests: the means over time, and single requests one by one.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::clock::seconds;
use crate::report::load::TimeSpent;
use crate::report::why::WaitReport;
use crate::request::{Breakdown, ColumnId, StageSet};
use crate::stats::waits::Cause;
use crate::table::Table;

use super::downsample::{short, slot_of};

/// The most slots of time that a run is divided into.
const SLOTS: usize = 48;

/// The requests of a run, by their stages.
pub struct Requests {
    /// The length of a slot, seconds.
    slot: f64,
    /// The stages of successful requests by the slot of their arrival: all stages, and those until the first token.
    slots: Vec<[TimeSpent; 2]>,
    all: Vec<Request>,
}

/// A request: its row, and its time in nanoseconds: in all, and until its first token (0 if unknown).
type Request = (usize, [i128; 2]);

/// Stages without duplicates, in the order in which a request passes them.
fn in_order(sets: impl Iterator<Item = StageSet>) -> Value {
    let all: BTreeSet<(u32, StageSet)> = sets.map(|set| (set.order(), set)).collect();
    all.into_iter().map(|(_, set)| stage(set)).collect()
}

impl Requests {
    /// Reads the requests of a table.
    pub fn of(table: &Table) -> Requests {
        let began = |row| table.began(row).map_or(0.0, seconds).max(0.0);
        let last = table.first_rows().map(began).fold(0.0, f64::max);
        let slot = slot_of(last, SLOTS as f64 - 1.0);
        let mut slots = vec![<[TimeSpent; 2]>::default(); (last / slot) as usize + 1];
        let mut all = Vec::new();
        for row in table.first_rows() {
            let record = table.row(row);
            let mut spent = <[TimeSpent; 2]>::default();
            TimeSpent::count_both(&mut spent, &record, Breakdown::of(&record).as_ref());
            if spent[0].requests == 0 {
                continue;
            }
            all.push((row, spent.each_ref().map(|spent| spent.total_nanos)));
            let slot = slots.get_mut((began(row) / slot) as usize);
            if let Some(slot) = slot.filter(|_| record.is_ok()) {
                TimeSpent::add_both(slot, spent);
            }
        }
        Requests { slot, slots, all }
    }

    /// The mean seconds of each stage by the time of arrival; null if a stage was not measured.
    pub fn over_time(&self, of: fn(&[TimeSpent; 2]) -> &TimeSpent) -> Value {
        let slots = || self.slots.iter().map(of);
        let means = slots().map(|slot| {
            let mean = |part| slot.mean(part).map(|mean| short(mean.max(0.0)));
            let parts = slot.parts.iter();
            let parts = parts.map(|part| (part.spent.name(), json!(mean(part))));
            json!({
                "requests": slot.requests,
                "mean": slot.mean_total().map(short),
                "seconds": parts.collect::<Value>(),
            })
        });
        let parts = slots().flat_map(|slot| &slot.parts);
        json!({
            "slot": short(self.slot),
            "slots": means.collect::<Value>(),
            "stages": in_order(parts.map(|part| part.spent)),
        })
    }

    /// The seconds of waiting by the time at which it began, for each cause of any importance.
    pub fn waiting(&self, table: &Table, why: &WaitReport) -> Value {
        let mut sums = why.over_time(table, self.slot, SLOTS);
        while sums.pop_if(|last| last.total() == 0).is_some() {}
        let causes = Cause::ALL.into_iter().filter_map(|cause| {
            let of = || sums.iter().map(|sums| seconds(sums.of(cause)));
            let is_visible = of().sum::<f64>() >= 0.0005 * seconds(why.causes.total());
            is_visible.then(
                || json!({ "cause": cause.heading(), "seconds": of().map(short).collect::<Value>() }),
            )
        });
        json!({ "slot": short(self.slot), "causes": causes.collect::<Value>() })
    }

    /// Single requests: the `each` slowest by their whole time, and by that until the first token.
    pub fn waterfall(&self, table: &Table, each: usize) -> Value {
        let mut slowest: Vec<&Request> = self.all.iter().collect();
        let mut rows = BTreeSet::new();
        for which in 0..2 {
            slowest.sort_by_key(|(_, total)| Reverse(total.get(which)));
            rows.extend(slowest.iter().take(each).map(|(row, _)| row));
        }
        let breakdown = |row: &usize| Some((*row, Breakdown::of(&table.row(*row))?));
        let shown: Vec<(usize, Breakdown)> = rows.iter().filter_map(breakdown).collect();
        let requests = shown.iter().map(|(row, breakdown)| {
            let parts = breakdown.parts.iter();
            let parts = parts.map(|part| (part.spent.name(), short(seconds(part.nanos))));
            json!({
                "id": table.text(ColumnId::req_id, *row),
                "start": table.began(*row).map(|at| short(seconds(at))),
                "total": short(seconds(breakdown.total_nanos)),
                "until_first_token": breakdown.until_first_token().map(|until| short(seconds(until.total_nanos))),
                "host": table.text(ColumnId::host, *row),
                "outcome": table.text(ColumnId::outcome, *row),
                "ttft": table.number(ColumnId::ttft, *row).map(short),
                "seconds": parts.collect::<Value>(),
            })
        });
        let parts = shown.iter().flat_map(|(_, breakdown)| &breakdown.parts);
        json!({
            "stages": in_order(parts.map(|part| part.spent)),
            "of": self.all.len(),
            "each": each,
            "requests": requests.collect::<Value>(),
        })
    }
}

/// The stages of requests with their means and shares, the largest first.
pub fn stages(all: &TimeSpent) -> Value {
    let parts = all.parts.iter().map(|part| {
        let mut json = stage(part.spent);
        json["mean"] = json!(all.mean(part).map(short));
        json["share"] = json!(all.share(part).map(short));
        json["seconds"] = json!(short(part.nanos.max(0) as f64 / 1e9));
        json["of"] = json!(all.of_requests(part));
        json
    });
    parts.collect()
}

/// What pages say of a stage, or of several.
pub fn stage(set: StageSet) -> Value {
    json!({ "name": set.name(), "label": set.label(), "place": set.place(), "order": set.order(), "is_after": set.is_after_first_token() })
}
