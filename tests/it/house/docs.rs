//! Documents that say what the code does.

use std::collections::BTreeSet;

use queuescope::report::columns::{
    columns_markdown, moments_markdown, outcomes_markdown, stages_markdown,
};
use queuescope::telemetry::metric::Metric;
use queuescope::telemetry::process;
use queuescope::telemetry::prometheus::METRICS;

use super::source::Source;

/// A file of the repository.
pub fn read(path: &str) -> String {
    let text = std::fs::read_to_string(super::root().join(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn counters_markdown() -> String {
    let mut text = "| metric | kind | labels | what it is |\n|---|---|---|---|\n".to_owned();
    for Metric {
        name,
        is_gauge,
        help,
        labels,
    } in METRICS.iter().chain(process::METRICS)
    {
        let kind = if *is_gauge { "gauge" } else { "counter" };
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        text += &format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "));
    }
    text
}

fn metrics_page() -> String {
    format!(
        "<!-- Written by `UPDATE_DOCS=1 cargo test house` from the tables in src/. Do not edit. -->

# What is recorded

One row per generated sequence, in `requests.csv` of `queuescope traffic` and in the `records` file of
`queuescope proxy`: the same columns. An empty cell means that nobody saw it; it is never 0. Times are
decimal seconds from the file's base (`--time-base`): the start of the run (`traffic`) or the Unix epoch
(`proxy`). `seconds, summarised` marks the columns of which `summary.json` has mean and quantiles.

Text that came from outside (ids, models, errors) may hold anything. Control characters are shown as `\\x00`, so that
every reader takes the file and a row is one line. A `'` stands before text that a spreadsheet would run: what begins
with `=`, `+` or `@`, or with `-` unless only letters, digits, `-`, `_` and `.` follow. So an id such as `-Xa9_b` stands as it
was sent; to join on others, take a leading `'` off. Numbers are never changed.

## Moments of a request

The clock is the process that read the time. A duration inside one clock is exact; across two it needs the
offset between them and is as good as `clock_offset_error`.

{}
## Where the time goes

The stages follow each other without gap or overlap. Where a moment between two is missing, they are shown
together, never guessed. From decoding is taken what `client_stall` says that writes to the client were held
up: a part of its own.

{}
## Outcomes

How a request ended; `success` is `True` only for `ok`. The message (HTTP) and the generation that it carries are judged
apart: a message that is cut is never `ok` unless the client left after the last event, and neither is a whole one whose stream or
JSON lacks its end. `message_whole` and `generation_whole` show both. A proxy names the outcome on the errors that it answers
itself (response header `x-queuescope-outcome`), and the generator takes its word; a 502 of anyone else is a `server_error`.

{}
## Columns

{}
### Means of durations across two clocks

A duration between two processes is off by up to the errors of their clocks' offsets: `clock_offset_error`,
`hop_clock_offset_error`, `front_clock_offset_error`. A proxy writes a row when its request ends, with what it knows
by then: the first rows after a start know less than later ones, and one `network_time` of 107 ± 107 ms spoils a mean of 9.
Leave such rows out by their clock's error, not for being small. 1.0 ± 1.0 ms is usual on one host: whoever leaves out all that
`within_clock_error` names keeps the large values only. Right is what `summary.json` does
(`left_out_clock_error` says to how many requests): out goes a row whose error is more than four times the median of its
host's rows, unless the way to that host is more than twice the error. In pandas:

    usual = rows.groupby(\"host\").clock_offset_error.transform(\"median\")
    error = rows.clock_offset_error
    good = rows[~((error > 4 * usual) & (rows.network_time <= 2 * error))]

## `/metrics` of the proxy

{}",
        moments_markdown(),
        stages_markdown(),
        outcomes_markdown(),
        columns_markdown(),
        counters_markdown()
    )
}

#[test]
fn metrics_md_is_fresh() {
    let path = super::root().join("docs/METRICS.md");
    let page = metrics_page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let mut lines = page
        .lines()
        .zip(written.lines().chain(std::iter::repeat("")));
    let differs = lines.find(|(now, then)| now != then);
    assert!(
        page == written,
        "docs/METRICS.md is stale at {differs:?}: run `UPDATE_DOCS=1 cargo test house`"
    );
}

/// What the file map of a document names: the paths that its list items begin with.
fn map(document: &str) -> BTreeSet<String> {
    let (_, map) = document.split_once("\n## File map\n").expect("a file map");
    let map = map.split_once("\n## ").map_or(map, |(map, _)| map);
    let items = map.lines().filter_map(|line| line.strip_prefix("- `"));
    let paths = items.filter_map(|item| item.split_once('`'));
    paths.map(|(path, _)| path.to_owned()).collect()
}

/// The files of these that the map misses. A file two folders deep may go with its folder.
fn unmapped<'a>(map: &BTreeSet<String>, files: &[&'a str]) -> Vec<&'a str> {
    let is_named = |file: &str| {
        let folders = file.match_indices('/').skip(2);
        let mut folders = folders.map(|(end, _)| &file[..=end]);
        map.contains(file) || folders.any(|folder| map.contains(folder))
    };
    files
        .iter()
        .copied()
        .filter(|file| !is_named(file))
        .collect()
}

#[test]
fn the_file_map_is_the_files() {
    let map = map(&read("docs/ARCHITECTURE.md"));
    let gone = map.iter().filter(|path| !super::root().join(path).exists());
    assert_eq!(gone.collect::<Vec<_>>(), [""; 0], "in the map, but gone");
    let sources = Source::all();
    let files: Vec<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    let missing = unmapped(&map, &files);
    assert_eq!(
        missing, [""; 0],
        "not in the file map of docs/ARCHITECTURE.md"
    );
}

#[test]
fn a_file_that_the_map_misses_is_found() {
    let map = map(
        "# x\n\n## File map\n\n- `src/a.rs`: one\n- `src/b/c/`: two\n\n## Else\n\n- `src/d.rs`: no\n",
    );
    let files = ["src/a.rs", "src/a/b.rs", "src/b/c/d.rs", "src/d.rs"];
    assert_eq!(unmapped(&map, &files), ["src/a/b.rs", "src/d.rs"]);
}

/// The relative links of a Markdown text.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')'));
    let targets = targets.map(|(target, _)| target.split('#').next().unwrap_or(target));
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

#[test]
fn links_between_documents_lead_somewhere() {
    let records = std::fs::read_dir(super::root().join("docs/decisions")).unwrap();
    let records = records.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let records = records.map(|name| format!("docs/decisions/{name}"));
    let pages = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/ARCHITECTURE.md",
    ];
    let mut checked = 0;
    for page in pages.into_iter().map(str::to_owned).chain(records) {
        let folder = super::root().join(&page);
        let folder = folder.parent().unwrap();
        for link in links(&read(&page)) {
            assert!(folder.join(link).exists(), "{page}: {link} is not there");
            checked += 1;
        }
    }
    assert!(checked > 5, "{checked} links were found");
    assert_eq!(
        links("[a](b.md#c) [d](https://x) [e](#f)").collect::<Vec<_>>(),
        ["b.md"]
    );
}
