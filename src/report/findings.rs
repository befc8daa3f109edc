//! What a run's figures say in plain sentences, and what to do about it. Nothing is found in what nobody saw.

mod client;
mod ends;
mod kinds;
mod servers;

use serde::Serialize;
use serde_json::Value;

use super::duration;
use super::load::{PartSpent, Summary, TimeSpent};
use super::phases::Episode;
use super::reader::Run;
use crate::request::stages::Spent;
use crate::request::timeline::Period;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The figures must not be used, or requests failed.
    Problem,
    /// Something limits what was measured, and can be changed.
    Limit,
    /// Good to know.
    Note,
    /// Nothing is wrong.
    Fine,
}

/// Something that the figures say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of finding: `server_queue`.
    pub kind: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What it is, in a few words.
    pub title: String,
    /// The figures that say so, in sentences.
    pub what: String,
    /// What to do; empty where there is nothing to do.
    pub advice: String,
}

/// A stage that takes less is not worth a word, whatever its share: seconds.
const LEAST: f64 = 0.010;
/// From this share of the time on a request mostly waited: a third.
const QUEUE_SHARE: f64 = 1.0 / 3.0;
/// A router only passes on: a tenth of the time is more than that.
const ROUTER_SHARE: f64 = 0.1;
/// Prefill is normally a small part: from here on it is what a request's time goes to.
const PREFILL_SHARE: f64 = 0.4;
/// Decoding is normally the largest part: from here on it is nearly all.
const DECODE_SHARE: f64 = 0.7;
/// Requests that a mean is told of, at least.
const ENOUGH: u64 = 20;

/// What a run's figures say, what matters most first; never nothing.
pub fn findings(run: &Run, figures: &Summary, episodes: &[Episode]) -> Vec<Finding> {
    let spent = &figures.all.spent;
    let mut found: Vec<Finding> = [
        client::verdict(run),
        client::late(run, figures),
        ends::failures(run, figures),
        server_queue(run, figures),
        servers::growth(run),
        router_queue(spent),
        prefill(spent),
        servers::imbalance(run),
        servers::not_served(run, episodes),
        decode(figures),
        client::stall(spent),
        ends::retractions(run),
        ends::unseen(run, spent),
        ends::inconsistent(figures),
    ]
    .into_iter()
    .flatten()
    .collect();
    let is_quiet = found.iter().all(|finding| finding.kind == "unseen");
    if is_quiet && spent.requests >= ENOUGH {
        let shares = spent.shares("a request took");
        // Of a run of which a part is missing, or was not seen: what is wrong there nobody knows.
        found.push(match is_whole(run) && found.is_empty() {
            true => Finding::new("fine", format!("{shares}.")),
            false => Finding::new(
                "nothing_found",
                format!("{shares}. What is missing (see the notes) may hide something."),
            ),
        });
    } else if found.is_empty() {
        found.push(too_few(figures));
    }
    found.sort_by_key(|finding| finding.level);
    found
}

/// Whether nothing of the run is known to be missing from its figures: it came to its end, and neither its reader nor the
/// run itself (or what merged its shards) had anything to say against them.
fn is_whole(run: &Run) -> bool {
    let warnings = told(run, "/warnings").and_then(Value::as_array);
    !run.is_partial && warnings.is_none_or(Vec::is_empty) && run.notes.is_empty()
}

/// A stage that is known by itself, of at least a tenth of the requests, and takes so many seconds and such a share of the
/// time where it was seen.
fn stage(spent: &TimeSpent, period: Period, (least, share): (f64, f64)) -> Option<&PartSpent> {
    let alone = |what: &Spent| matches!(what, Spent::Stages(set) if set.stages().count() == 1 && what.holds(period));
    let part = spent.parts.iter().find(|part| alone(&part.spent))?;
    let is_enough = part.requests >= ENOUGH && part.requests * 10 >= spent.requests;
    let is_long = spent.mean(part)? >= least && spent.share(part)? >= share;
    (is_enough && is_long).then_some(part)
}

/// The stage's part of the time in words: `0.61 s of 0.89 s on average (69 %)`.
fn of_total(spent: &TimeSpent, part: &PartSpent) -> String {
    let [mean, total] = [spent.mean(part), spent.mean_where_seen(part)];
    let [mean, total] = [mean, total].map(|seconds| duration(seconds.unwrap_or(0.0)));
    let share = spent.share(part).unwrap_or(0.0) * 100.0;
    let of = spent.of_requests(part);
    format!("{mean} of {total} on average ({share:.0} %{of})")
}

fn server_queue(run: &Run, figures: &Summary) -> Option<Finding> {
    let spent = &figures.all.spent;
    let queue = stage(spent, Period::PURE_QUEUE, (LEAST, QUEUE_SHARE))?;
    let (limit, advice) = servers::limit(run, figures);
    let what = format!(
        "A request waited {} for a place in a batch.{limit}",
        of_total(spent, queue)
    );
    Some(Finding {
        advice,
        ..Finding::new("server_queue", what)
    })
}

fn router_queue(spent: &TimeSpent) -> Option<Finding> {
    let queue = stage(spent, Period::QUEUE_IN_ROUTER, (LEAST, ROUTER_SHARE))?;
    let what = format!(
        "The router held a request {} before it sent it on.",
        of_total(spent, queue)
    );
    Some(Finding::new("router_queue", what))
}

fn prefill(spent: &TimeSpent) -> Option<Finding> {
    let prefill = stage(spent, Period::PREFILL, (LEAST, PREFILL_SHARE))?;
    let what = format!("Reading the prompts took {}.", of_total(spent, prefill));
    Some(Finding::new("prefill_bound", what))
}

fn decode(figures: &Summary) -> Option<Finding> {
    let spent = &figures.all.spent;
    let decode = stage(spent, Period::DECODE, (LEAST, DECODE_SHARE))?;
    let each = figures.all.latencies.get("tpot");
    let each = each.map_or(String::new(), |each| {
        format!(" An output token took {} (median).", duration(each.p50))
    });
    let what = format!("Making the answers took {}.{each}", of_total(spent, decode));
    Some(Finding::new("decode_bound", what))
}

fn too_few(figures: &Summary) -> Finding {
    let well = figures.all.spent.requests;
    let what = format!("{well} requests went well; findings need at least {ENOUGH}.");
    let mut finding = Finding::new("too_few", what);
    if figures.all.flow.is_scheduled {
        finding.advice = "Send more (`--num-prompts`).".to_owned();
    }
    finding
}

/// A text that begins with a capital.
fn upper(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// A member of `summary.json`, or of a member of it.
fn told<'a>(run: &'a Run, pointer: &str) -> Option<&'a Value> {
    run.summary.as_ref()?.pointer(pointer)
}

#[cfg(test)]
mod tests;
