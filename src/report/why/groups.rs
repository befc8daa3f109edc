//! Kinds of requests: their shares of requests, of tokens, and of the waiting that they caused and bore.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::request::columns::ColumnId;
use crate::request::headers::label_pairs;
use crate::table::Table;
use crate::units::percent;

/// Requests that have something in common, with their shares of the same of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// What they are told apart by: `prompt`, `model`, or a header that labels them.
    pub by: String,
    /// What they have in common: `8k to 32k`.
    pub name: String,
    /// How many there are.
    pub requests: u64,
    /// Their share of the requests.
    pub share_of_requests: f64,
    /// Of all prompt and generated tokens.
    pub share_of_tokens: f64,
    /// Of the waiting, what they caused. What is missing of all none of the requests caused.
    pub caused: f64,
    /// Of the waiting, what they waited.
    pub bore: f64,
}

impl Group {
    /// Whether it is one of several lengths, in tokens.
    pub fn is_length(&self) -> bool {
        matches!(self.by.as_str(), "prompt" | "output")
    }
}

/// The class of rows that do not tell.
const UNKNOWN: &str = "unknown";
/// From these on lengths are told apart, tokens: none is near a power of two, as lengths that are asked for often are.
const PROMPTS: [u64; 5] = [1_000, 3_000, 8_000, 32_000, 128_000];
const OUTPUTS: [u64; 3] = [100, 500, 2_000];
/// Shares of the prompt that the prefix cache had, in percent.
const CACHED: [u64; 2] = [1, 50];
/// So many of a kind are told apart.
const MOST: usize = 12;
/// A group that causes so much of the waiting, and so many times its share of the requests, which are few, is worth a word.
const CAUSED: f64 = 0.4;
const TIMES: f64 = 3.0;
const FEW: f64 = 0.25;

/// What of requests is summed: how many, tokens, seconds caused and borne.
type Sums = [f64; 4];

/// What a row is told apart by: the order of its class, and the class's name.
type Class = Option<(usize, String)>;

/// A row, the seconds that its sequence held up others, and those that it waited.
pub type Part = (usize, f64, f64);

/// The groups of a run's requests, where there are several.
pub fn of(table: &Table, parts: &[Part]) -> Vec<Group> {
    let count = |column, row| table.whole(column, row).map(i64::unsigned_abs);
    let prompt = |row| count(ColumnId::actual_prompt_tokens, row);
    let word = |column, row| match table.text(column, row) {
        "" => None,
        word => Some((0, word.to_owned())),
    };
    let kinds: [(&str, &dyn Fn(usize) -> Class); 5] = [
        ("prompt", &|row| Some(class(&PROMPTS, prompt(row)?))),
        ("output", &|row| {
            Some(class(&OUTPUTS, count(ColumnId::actual_output_tokens, row)?))
        }),
        ("cached", &|row| {
            let share =
                count(ColumnId::cached_tokens, row)?.saturating_mul(100) / prompt(row)?.max(1);
            let (at, _) = class(&CACHED, share);
            let names = ["nothing", "less than half", "half or more"];
            Some((at, names.get(at)?.to_string()))
        }),
        ("endpoint", &|row| word(ColumnId::endpoint, row)),
        ("model", &|row| word(ColumnId::model, row)),
    ];
    let mut all = kinds
        .map(|(by, of)| by_class(table, parts, by, of))
        .concat();
    let pairs = |row| label_pairs(table.text(ColumnId::labels, row));
    let headers = parts.iter().flat_map(|(row, ..)| pairs(*row));
    let headers: BTreeSet<&str> = headers.map(|(header, _)| header).collect();
    for header in headers {
        let value = |row| pairs(row).find(|(name, _)| *name == header);
        let class = |row| value(row).map(|(_, value)| (0, value.to_owned()));
        all.extend(by_class(table, parts, header, &class));
    }
    all
}

fn by_class(table: &Table, parts: &[Part], by: &str, of: &dyn Fn(usize) -> Class) -> Vec<Group> {
    let mut groups: BTreeMap<(usize, String), Sums> = BTreeMap::new();
    let mut all = Sums::default();
    for (row, held, waited) in parts {
        let tokens = table.number(ColumnId::actual_total_tokens, *row);
        let sums = [1.0, tokens.unwrap_or(0.0), *held, *waited];
        let class = of(*row).unwrap_or((usize::MAX, UNKNOWN.to_owned()));
        for sum in [&mut all, groups.entry(class).or_default()] {
            sum.iter_mut().zip(sums).for_each(|(sum, of)| *sum += of);
        }
    }
    if groups.len() < 2 {
        return Vec::new();
    }
    let mut groups: Vec<((usize, String), Sums)> = groups.into_iter().collect();
    if groups.len() > MOST {
        groups.sort_by(|a, b| b.1[2].total_cmp(&a.1[2]));
        groups.truncate(MOST);
    }
    let group = |((_, name), sums): ((usize, String), Sums)| {
        let of_all = |sum: f64, all: f64| if all > 0.0 { sum / all } else { 0.0 };
        let [of_requests, of_tokens, _, waited] = all;
        Group {
            by: by.to_owned(),
            name,
            requests: sums[0] as u64,
            share_of_requests: of_all(sums[0], of_requests),
            share_of_tokens: of_all(sums[1], of_tokens),
            caused: of_all(sums[2], waited),
            bore: of_all(sums[3], waited),
        }
    };
    groups.into_iter().map(group).collect()
}

/// The class of a number between edges.
fn class(edges: &[u64], number: u64) -> (usize, String) {
    let at = edges.partition_point(|edge| *edge < number);
    let edge = |at: usize| edges.get(at).map(|edge| short(*edge));
    let name = match (at.checked_sub(1).and_then(edge), edge(at)) {
        (Some(low), Some(high)) => format!("{low} to {high}"),
        (Some(low), None) => format!("above {low}"),
        (None, Some(high)) => format!("up to {high}"),
        (None, None) => String::new(),
    };
    (at, name)
}

/// A number of tokens in few letters: `96k`.
pub fn short(tokens: u64) -> String {
    match tokens {
        ..1_000 => tokens.to_string(),
        ..10_000 if !tokens.is_multiple_of(1_000) => tokens.to_string(),
        _ => format!("{}k", (tokens + 500) / 1_000),
    }
}

/// Few requests that caused much of the waiting, in words: those of the group, or of it and all of longer ones, that caused most.
pub fn lopsided(groups: &[Group]) -> Option<(&str, String)> {
    let known: Vec<&Group> = groups.iter().filter(|of| of.name != UNKNOWN).collect();
    let few = |at: usize| {
        let first = *known.get(at)?;
        let longer = known.iter().skip(at).take_while(|of| of.by == first.by);
        let all: Vec<&&Group> = match first.is_length() {
            true => longer.collect(),
            false => longer.take(1).collect(),
        };
        let sum = |share: fn(&Group) -> f64| all.iter().map(|of| share(of)).sum::<f64>();
        let (requests, caused) = (sum(|of| of.share_of_requests), sum(|of| of.caused));
        let is_one = requests <= FEW && caused >= CAUSED && caused >= TIMES * requests;
        is_one.then_some((first, requests, caused))
    };
    // Of equals the first.
    let all = (0..known.len()).rev().filter_map(few);
    let (first, requests, caused) = all.max_by(|a, b| (a.2 / a.1).total_cmp(&(b.2 / b.1)))?;
    let low = first.name.split(" to ").next().unwrap_or_default();
    let low = low.trim_start_matches("above ");
    let who = match first.by.as_str() {
        "prompt" => format!("Prompts above {low} tokens"),
        "output" => format!("Answers above {low} tokens"),
        "cached" => format!("Requests of which the cache had {}", first.name),
        by => format!("Requests of the {by} {}", first.name),
    };
    let (few, most) = (percent(requests), percent(caused));
    let said = format!("{who} are {few} of the requests and caused {most} of the waiting.");
    Some((&first.by, said))
}
