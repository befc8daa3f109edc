//! Kinds of requests with their shares of the requests, tokens, and waiting that they caused and had themselves.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::request::{ColumnId, label_pairs};
use crate::table::Table;
use crate::units::{class, percent};

/// Requests of one kind, with their shares of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The property: `prompt`, `output`, `cached`, `endpoint`, `model`, or a header that labels requests.
    pub by: String,
    /// The value or range of the property: `8k to 32k`.
    pub name: String,
    /// The number of requests.
    pub requests: u64,
    /// Their share of the requests.
    pub share_of_requests: f64,
    /// Their share of all prompt and generated tokens.
    pub share_of_tokens: f64,
    /// The share of the waiting that they caused. All together may be less than 1: the rest is attributed to none.
    pub caused: f64,
    /// Their share of the waiting.
    pub bore: f64,
}

impl Group {
    /// Whether the property is a number of tokens.
    pub fn is_length(&self) -> bool {
        matches!(self.by.as_str(), "prompt" | "output")
    }
}

/// The class of rows without the property.
const UNKNOWN: &str = "unknown";
/// The bounds of classes of lengths, tokens. None is near a power of two, as requested lengths often are.
const PROMPTS: [u64; 5] = [1_000, 3_000, 8_000, 32_000, 128_000];
const OUTPUTS: [u64; 3] = [100, 500, 2_000];
/// The bounds of classes of cached shares of the prompt, percent.
const CACHED: [u64; 2] = [1, 50];
const SHARES: [&str; 3] = ["nothing", "less than half", "half or more"];
/// The most groups of a property.
const MAX_GROUPS: usize = 12;
/// A group is reported if it causes at least this share of the waiting, this many times its share of the requests, and is at most this
/// share of the requests.
const MIN_CAUSED: f64 = 0.4;
const MIN_RATIO: f64 = 3.0;
const MAX_SHARE: f64 = 0.25;

/// Sums over requests: their number, tokens, seconds caused and waited.
type Sums = [f64; 4];

/// The class of a row: its rank among the classes, and its name.
type Class<'t> = Option<(usize, &'t str)>;

/// A property, and what gives the class of a row.
type Kind<'t> = (&'t str, &'t dyn Fn(usize) -> Class<'t>);

/// The part of a sequence in the waiting.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its row.
    pub row: usize,
    /// The seconds for which it held up others.
    pub held: f64,
    /// Its wait, seconds.
    pub waited: f64,
}

impl Part {
    /// Makes the parts of stays those of rows, in their order. A sequence of a pair has a stay at each of its servers.
    pub fn by_row(mut of_stays: Vec<Part>) -> Vec<Part> {
        of_stays.sort_by_key(|part| part.row);
        of_stays.dedup_by(|next, part| {
            let is_same = next.row == part.row;
            if is_same {
                part.held += next.held;
                part.waited += next.waited;
            }
            is_same
        });
        of_stays
    }

    /// The parts of each request.
    pub fn by_request<'p>(parts: &'p [Part], table: &Table) -> impl Iterator<Item = &'p [Part]> {
        // Rows of a request are neighbors.
        parts.chunk_by(|a, b| !(a.row + 1..=b.row).any(|row| table.is_first(row)))
    }
}

/// The groups of a run's requests by each property with several classes.
pub fn of(table: &Table, parts: &[Part]) -> Vec<Group> {
    let count = |column, row| table.integer(column, row).map(i64::unsigned_abs);
    let prompt = |row| count(ColumnId::actual_prompt_tokens, row);
    let word = |column, row| Some((0, table.text(column, row))).filter(|of| !of.1.is_empty());
    // Made once, not for each row.
    let [prompts, outputs] = [&PROMPTS[..], &OUTPUTS].map(|edges| {
        let above = edges.last().map(|edge| edge + 1);
        let numbers = edges.iter().copied().chain(above);
        let names = numbers.map(|number| class(edges, number).1);
        names.collect::<Vec<String>>()
    });
    let kinds: [Kind<'_>; 5] = [
        ("prompt", &|row| between(&PROMPTS, &prompts, prompt(row)?)),
        ("output", &|row| {
            let tokens = count(ColumnId::actual_output_tokens, row)?;
            between(&OUTPUTS, &outputs, tokens)
        }),
        ("cached", &|row| {
            let cached = count(ColumnId::cached_tokens, row)?.saturating_mul(100);
            between(&CACHED, &SHARES, cached / prompt(row)?.max(1))
        }),
        ("endpoint", &|row| word(ColumnId::endpoint, row)),
        ("model", &|row| word(ColumnId::model, row)),
    ];
    let mut all = kinds.map(|kind| by_class(table, parts, kind)).concat();
    let pairs = |row| label_pairs(table.text(ColumnId::labels, row));
    let headers = parts.iter().flat_map(|part| pairs(part.row));
    let headers: BTreeSet<&str> = headers.map(|(header, _)| header).collect();
    for header in headers {
        let value = |row| pairs(row).find(|(name, _)| *name == header);
        let class = |row| value(row).map(|(_, value)| (0, value));
        all.extend(by_class(table, parts, (header, &class)));
    }
    all
}

/// The class of a number between bounds.
fn between<'t>(edges: &[u64], names: &'t [impl AsRef<str>], number: u64) -> Class<'t> {
    let at = edges.partition_point(|edge| *edge < number);
    Some((at, names.get(at)?.as_ref()))
}

fn by_class<'t>(table: &Table, parts: &[Part], (by, of): Kind<'t>) -> Vec<Group> {
    let mut groups: BTreeMap<(usize, &'t str), Sums> = BTreeMap::new();
    let mut all = Sums::default();
    for request in Part::by_request(parts, table) {
        // A request and its prompt count once, in equal parts for its sequences.
        let share = 1.0 / request.len() as f64;
        for part in request {
            let tokens = |column| table.number(column, part.row).unwrap_or(0.0);
            let prompt = tokens(ColumnId::actual_prompt_tokens) * share;
            let tokens = prompt + tokens(ColumnId::actual_output_tokens);
            let sums = [share, tokens, part.held, part.waited];
            let class = of(part.row).unwrap_or((usize::MAX, UNKNOWN));
            for sum in [&mut all, groups.entry(class).or_default()] {
                sum.iter_mut().zip(sums).for_each(|(sum, of)| *sum += of);
            }
        }
    }
    if groups.len() < 2 {
        return Vec::new();
    }
    let mut groups: Vec<((usize, &str), Sums)> = groups.into_iter().collect();
    if groups.len() > MAX_GROUPS {
        groups.sort_by(|a, b| b.1[2].total_cmp(&a.1[2]));
        groups.truncate(MAX_GROUPS);
    }
    let group = |((_, name), sums): ((usize, &str), Sums)| {
        let of_all = |sum: f64, all: f64| if all > 0.0 { sum / all } else { 0.0 };
        let [of_requests, of_tokens, _, waited] = all;
        Group {
            by: by.to_owned(),
            name: name.to_owned(),
            requests: sums[0].round() as u64,
            share_of_requests: of_all(sums[0], of_requests),
            share_of_tokens: of_all(sums[1], of_tokens),
            caused: of_all(sums[2], waited),
            bore: of_all(sums[3], waited),
        }
    };
    groups.into_iter().map(group).collect()
}

/// A sentence on the group that caused most of the waiting for its size; of lengths, all longer groups count with it.
pub fn dominant_group(groups: &[Group]) -> Option<String> {
    let known: Vec<&Group> = groups.iter().filter(|of| of.name != UNKNOWN).collect();
    let few = |at: usize| {
        let first = *known.get(at)?;
        let longer = known.iter().skip(at).take_while(|of| of.by == first.by);
        let count = if first.is_length() { known.len() } else { 1 };
        let all: Vec<&&Group> = longer.take(count).collect();
        let sum = |share: fn(&Group) -> f64| all.iter().map(|of| share(of)).sum::<f64>();
        let (requests, caused) = (sum(|of| of.share_of_requests), sum(|of| of.caused));
        let is_lopsided =
            requests <= MAX_SHARE && caused >= MIN_CAUSED && caused >= MIN_RATIO * requests;
        is_lopsided.then_some((first, requests, caused))
    };
    // Of equal ones the first: `max_by` returns the last.
    let all = (0..known.len()).rev().filter_map(few);
    let (first, requests, caused) = all.max_by(|a, b| (a.2 / a.1).total_cmp(&(b.2 / b.1)))?;
    let low = first.name.split(" to ").next().unwrap_or_default();
    let low = low.trim_start_matches("above ");
    let subject = match first.by.as_str() {
        "prompt" => format!("Prompts above {low} tokens"),
        "output" => format!("Answers above {low} tokens"),
        "cached" => format!("Requests of which the cache had {}", first.name),
        by => format!("Requests of the {by} {}", first.name),
    };
    let (few, most) = (percent(requests), percent(caused));
    Some(format!(
        "{subject} are {few} of the requests and caused {most} of the waiting."
    ))
}
