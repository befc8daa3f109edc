//! The tables of a run's waiting.

use super::super::grid::Grid;
use super::WaitReport;
use super::groups::Part;
use crate::clock::seconds;
use crate::stats::waits::{ByCause, Cause};
use crate::units::duration;

/// With a smaller mean wait there are no tables, seconds.
const MIN_MEAN_S: f64 = 0.001;

/// The causes of waiting at each server, and the kinds of requests that waited and that held others up. None if the requests hardly
/// waited.
pub fn tables(why: &WaitReport) -> Vec<Grid> {
    let whole = why.causes.total();
    if why.mean().is_none_or(|mean| mean < MIN_MEAN_S)
        && seconds(why.direct.total()) <= MIN_MEAN_S * why.sequences as f64
    {
        return Vec::new();
    }
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let causes = why.causes.all().filter(|(_, nanos)| nanos * 2000 >= whole);
    let causes: Vec<Cause> = causes.map(|(cause, _)| cause).collect();
    let line = |name: &str, slots: Option<(u32, &str)>, of: &ByCause| {
        let slots = slots.map(|(slots, source)| format!("{slots}, {source}"));
        let slots = slots.unwrap_or_else(|| "-".to_owned());
        let waited = of.total();
        let share = |cause: &Cause| percent(of.of(*cause) as f64 / waited.max(1) as f64);
        let shares = causes.iter().map(share);
        let first = [name.to_owned(), slots, duration(seconds(waited))];
        first.into_iter().chain(shares).collect::<Vec<String>>()
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    if why.servers.len() != 1 || why.direct.total() > 0 {
        rows.push(line("all", None, &why.causes));
    }
    let servers = why.servers.iter().take(super::MAX_LISTED);
    rows.extend(servers.map(|of| line(&of.name, of.slots(), &of.causes)));
    let heads = ["why they waited", "slots", "waited"].map(str::to_owned);
    let names = causes.iter().map(|cause| cause.heading().to_owned());
    let causes = Grid {
        heads: heads.into_iter().chain(names).collect(),
        rows,
    };
    let parts = &why.parts;
    let sum = |of: fn(&Part) -> f64| duration(parts.iter().map(of).sum());
    let (caused, waited) = (sum(|part| part.1), sum(|part| part.2));
    let all = ["all", &parts.len().to_string(), "", &caused, &waited].map(str::to_owned);
    let all = (!why.groups.is_empty()).then(|| all.to_vec());
    let groups = why.groups.iter().map(|of| {
        let shares = [of.share_of_requests, of.share_of_tokens, of.caused, of.bore];
        let unit = if of.is_length() { " tokens" } else { "" };
        let name = format!("{} {}{unit}", of.by, of.name);
        let shares = shares.into_iter().map(percent);
        std::iter::once(name).chain(shares).collect::<Vec<String>>()
    });
    let heads = [
        "who held others up",
        "requests",
        "tokens",
        "caused",
        "waited",
    ];
    let groups = Grid {
        heads: heads.map(str::to_owned).to_vec(),
        rows: all.into_iter().chain(groups).collect(),
    };
    let tables = [causes, groups].into_iter();
    tables.filter(|grid| !grid.rows.is_empty()).collect()
}
