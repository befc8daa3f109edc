//! Keeps the house plan true: who may use whom, no circle of files, and a config file and a page of
//! metrics that say what the code does.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Parser;
use queuescope::config;
use queuescope::config::args::Args;
use queuescope::config::proxy;
use queuescope::config::sections::SECTIONS;
use queuescope::telemetry::family::Metric;
use queuescope::telemetry::prometheus::METRICS;

use crate::support::docs::{assert_file, has_table, markdown};
use crate::support::files;
use crate::support::generator::flags;

mod pages;
mod source;

use pages::{code, columns_markdown, moments_markdown, outcomes_markdown, stages_markdown};
use source::{Source, sources, uses};

/// `config.toml` as the tables of keys make it: what its head says, and each key with its default, or an example.
fn config_toml(head: &str) -> String {
    let mut text = head.to_owned();
    let comment =
        |lines: &[&str]| -> String { lines.iter().map(|line| format!("#{line}\n")).collect() };
    for place in &SECTIONS {
        let is_example = place.name == "worker";
        let off = |is_off: bool| if is_off { "#" } else { "" };
        let (about, header) = (comment(place.about()), place.header());
        text += &format!("{about}{}{header}\n", off(is_example));
        for key in place.keys() {
            let default = place.default(key.name).filter(|_| !is_example);
            let value = default.clone().or_else(|| place.example(key.name)).unwrap();
            let line = format!("{}{} = {value}\n", off(default.is_none()), key.name);
            text += &format!("\n{}{line}", comment(key.help));
        }
        text += "\n";
    }
    text.trim_end().to_owned() + "\n"
}

#[test]
fn config_toml_is_the_defaults_and_names_every_key() {
    let path = Path::new("config.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let (head, _) = text.split_once("[proxy]").unwrap();
    let made = config_toml(head);
    assert_file("config.toml", &made);

    let upstream = Flags::try_parse_from(["proxy", "--upstream", "127.0.0.1:30000"])
        .unwrap()
        .args;
    let load = |path: &Path| config::load(Some(path), &upstream).unwrap().0;
    let defaults = proxy::Config {
        upstream: vec![SocketAddr::from(([127, 0, 0, 1], 30000)).into()],
        ..Default::default()
    };
    assert_eq!(load(path), defaults);
    // Its examples are right too. One or the other of a secret and its file.
    let folder = tempfile::tempdir().unwrap();
    let line = |line: &str| {
        let is_example =
            line.starts_with('#') && !line.starts_with("# ") && !line.contains("_file = ");
        let elsewhere = ["tls_", "upstream_ca", "ca = "]
            .iter()
            .any(|key| line[usize::from(is_example)..].starts_with(key));
        line[usize::from(is_example && !elsewhere)..].to_owned() + "\n"
    };
    let file = folder.path().join("whole.toml");
    std::fs::write(&file, text.lines().map(line).collect::<String>()).unwrap();
    assert_eq!(load(&file).workers.len(), 1);
}

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    args: Args,
}

/// The unit of a metric, which its name ends in; empty for a plain count.
fn unit(metric: &str) -> &'static str {
    let base = metric.strip_suffix("_total").unwrap_or(metric);
    let units = ["seconds", "bytes"];
    let unit = units.into_iter().find(|unit| base.ends_with(unit));
    unit.unwrap_or_default()
}

fn metrics_markdown() -> String {
    let help = "what it is and how to read it";
    let heads = ["metric", "kind", "unit", "labels", help];
    let row = |metric: &Metric| {
        let labels: Vec<String> = metric.labels.iter().map(|label| code(label)).collect();
        let kind = format!("{:?}", metric.kind).to_lowercase();
        let unit = unit(metric.name).to_owned();
        let (name, help) = (code(metric.name), metric.help.into());
        [name, kind, unit, labels.join(", "), help]
    };
    markdown(&heads, METRICS.iter().map(row))
}

fn buckets_markdown() -> String {
    let mut all: Vec<(&[f64], Vec<String>)> = Vec::new();
    for metric in &METRICS {
        let bounds = metric.bounds;
        if bounds.is_empty() {
            continue;
        }
        match all.iter_mut().find(|(known, _)| *known == bounds) {
            Some((_, names)) => names.push(code(metric.name)),
            None => all.push((bounds, vec![code(metric.name)])),
        }
    }
    let rows = all.into_iter().map(|(bounds, names)| {
        let bounds: Vec<String> = bounds.iter().map(ToString::to_string).collect();
        [names.join(", "), bounds.join(" ")]
    });
    markdown(
        &["histograms", "upper bounds of their buckets, seconds"],
        rows,
    )
}

/// The page's words stand in the page; each table stands between two comments.
#[test]
fn metrics_md_is_fresh() {
    for (name, table) in [
        ("moments", moments_markdown()),
        ("stages", stages_markdown()),
        ("outcomes", outcomes_markdown()),
        ("columns", columns_markdown()),
        ("metrics", metrics_markdown()),
        ("buckets", buckets_markdown()),
    ] {
        has_table("docs/METRICS.md", name, &table);
    }
}

/// Crates that have arrows of their own in docs/dev/ARCHITECTURE.md.
const CRATES: [&str; 2] = ["pingora", "tokio"];

#[test]
fn rooms_use_only_rooms_below_them() {
    let document = std::fs::read_to_string("docs/dev/ARCHITECTURE.md").unwrap();
    let (_, block) = document.split_once("```arrows\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let mut allowed = BTreeSet::new();
    let mut above = BTreeSet::new();
    for line in block.lines() {
        let (from, to) = line.split_once(" → ").expect("an arrow a line");
        assert!(above.insert(from), "{from} has two lines");
        for to in to.split(", ").filter(|to| *to != "nothing") {
            assert!(!above.contains(to), "{to} must stand below {from}");
            allowed.insert((from.to_owned(), to.to_owned()));
        }
    }

    let sources = sources();
    let uses = |source: &Source| {
        let room = source.room().to_owned();
        let others = source.rooms(&CRATES).filter(|to| *to != room);
        others.map(|to| (room.clone(), to)).collect::<Vec<_>>()
    };
    let used: BTreeSet<_> = sources.iter().flat_map(uses).collect();
    let wrong: Vec<_> = used.symmetric_difference(&allowed).collect();
    let told = "only here or only in docs/dev/ARCHITECTURE.md";
    assert!(wrong.is_empty(), "{told}: {wrong:?}");
    let rooms = sources.iter().map(Source::room);
    let missing = rooms.filter(|room| *room != "lib" && !above.contains(room));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0], "rooms without a line");
}

#[test]
fn every_file_is_on_the_map_by_itself_or_in_its_folder() {
    let document = std::fs::read_to_string("docs/dev/ARCHITECTURE.md").unwrap();
    let (_, map) = document.split_once("\n## File map\n").unwrap();
    let on_map: BTreeSet<&str> = map.split('`').skip(1).step_by(2).collect();
    let sources = sources();
    let is_missing = |path: &&str| {
        let (folder, _) = path.rsplit_once('/').unwrap();
        !on_map.contains(path) && !on_map.contains(&*format!("{folder}/"))
    };
    let missing = sources.iter().map(|source| &*source.path);
    assert_eq!(missing.filter(is_missing).collect::<Vec<_>>(), [""; 0]);
    let mut gone = on_map.iter().filter(|path| path.starts_with("src/"));
    assert_eq!(gone.find(|path| !Path::new(path).exists()), None);
}

#[test]
fn files_use_each_other_in_no_circle() {
    let sources = sources();
    let uses = uses(&sources);
    let mut reached = uses.clone();
    for middle in uses.keys() {
        let beyond = reached[middle].clone();
        for reach in reached.values_mut().filter(|reach| reach.contains(middle)) {
            reach.extend(&beyond);
        }
    }
    // Who uses itself by way of another, and that one.
    let reached = &reached;
    let circles = uses.iter().flat_map(|(file, used)| {
        let back = used
            .iter()
            .filter(move |to| *to == file || reached[*to].contains(file));
        back.map(move |to| (*file, *to))
    });
    assert_eq!(circles.collect::<Vec<_>>(), []);
}

/// Every file under these folders with one of these endings.
fn texts<'a>(folders: &'a [&str], endings: &'a [&str]) -> impl Iterator<Item = PathBuf> + 'a {
    let all = folders.iter().flat_map(|folder| files(Path::new(folder)));
    all.filter(|path| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| endings.contains(&ending))
    })
}

/// Whether it may stand in a path.
fn is_of_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-/".contains(c)
}

#[test]
fn pages_that_comments_and_scripts_name_are_there() {
    let pages: Vec<PathBuf> = texts(&["docs"], &["md"]).collect();
    let names = pages.iter().map(|page| page.file_name().unwrap());
    let mut known: BTreeSet<_> = names.map(|name| name.to_str().unwrap()).collect();
    known.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md"]);
    let mut readers = pages.clone();
    readers.extend(["README.md", "CONTRIBUTING.md", "config.toml"].map(PathBuf::from));
    let folders = "src tests/it scripts deploy grafana examples benches";
    let endings = "rs sh py js yaml yml toml service html";
    readers.extend(texts(&flags(folders), &flags(endings)));
    for reader in readers {
        let text = std::fs::read_to_string(&reader).unwrap();
        for word in text.split(|c| !is_of_path(c)) {
            let word = word.trim_end_matches('.');
            let name = word.rsplit('/').next().unwrap();
            let is_page = name.ends_with(".md") && name.len() > 3;
            assert!(!is_page || known.contains(name), "{reader:?} names {word}");
            // Of a decision its number is enough.
            let is_there = |path: &PathBuf| path.to_str().unwrap().starts_with(word);
            let is_known = Path::new(word).exists() || pages.iter().any(is_there);
            let is_right = !word.starts_with("docs/") || is_known;
            assert!(is_right, "{reader:?} names {word}");
        }
    }
}

/// The names that headings of a page have in links to them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let name = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        heading.replace(|c| !is_kept(&c), "").replace(' ', "-")
    };
    headings.map(name).collect()
}

#[test]
fn links_of_documents_lead_somewhere() {
    let more = ["README.md", "CONTRIBUTING.md"].map(PathBuf::from);
    let pages = texts(&["docs"], &["md"]).chain(more);
    let mut wrong = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let links = text.split("](").skip(1);
        let links = links.map(|link| link.split_once(')').unwrap().0);
        for link in links.filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let to = match path {
                "" => page.clone(),
                path => page.with_file_name(path),
            };
            let has = || anchors(&std::fs::read_to_string(&to).unwrap()).contains(anchor);
            if !to.exists() || !(anchor.is_empty() || has()) {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
