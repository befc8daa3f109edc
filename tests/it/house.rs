//! Keeps the house plan true: who may use whom, no circle of files, and a config file and a page of
//! metrics that say what the code does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use queuescope::config;
use queuescope::config::args::Args;
use queuescope::config::engine::{Engine, Logs, Traces};
use queuescope::config::otlp::Otlp;
use queuescope::config::proxy;
use queuescope::report::columns::{
    columns_markdown, moments_markdown, outcomes_markdown, stages_markdown,
};
use queuescope::telemetry::metric::Kind;
use queuescope::telemetry::prometheus::TABLES;

mod source;

use source::{Source, sources, uses};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every key that a section may have, from serde's own complaint about one that it may not.
fn keys_of<T: serde::de::DeserializeOwned>() -> Vec<String> {
    let Err(error) = toml::from_str::<T>("no-such-key = 1") else {
        panic!("the section takes any key");
    };
    let quoted: Vec<&str> = error.message().split('`').skip(1).step_by(2).collect();
    assert_eq!(quoted[0], "no-such-key");
    quoted[1..].iter().map(ToString::to_string).collect()
}

#[test]
fn config_toml_is_the_defaults_and_names_every_key() {
    let path = root().join("config.toml");
    let loaded = config::load(Some(&path), &Args::default()).unwrap();
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    assert_eq!(loaded.config, proxy::Config::default());

    // Its examples are right too.
    let text = std::fs::read_to_string(&path).unwrap();
    let example = |line: &str| {
        let is_example = line.starts_with('#') && !line.starts_with("# ");
        line[usize::from(is_example)..].to_owned() + "\n"
    };
    let whole: String = text.lines().map(example).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("whole.toml");
    std::fs::write(&file, &whole).unwrap();
    let loaded = config::load(Some(&file), &Args::default()).unwrap();
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    let mut config = loaded.config;
    config.upstream = vec![std::net::SocketAddr::from(([127, 0, 0, 1], 30000)).into()];
    // One or the other.
    config.admin_token_file = None;
    config.hop_secret_file = None;
    config.otlp.headers_file = None;
    config.check().unwrap();
    assert_eq!(config.workers.len(), 1);

    let (proxy, rest) = whole.split_once("[[worker]]").unwrap();
    let (worker, rest) = rest.split_once("[telemetry.otlp]").unwrap();
    let (otlp, rest) = rest.split_once("\n[engine]").unwrap();
    let (engine, rest) = rest.split_once("\n[engine.traces]").unwrap();
    let (traces, logs) = rest.split_once("\n[engine.logs]").unwrap();
    let sections = [proxy, worker, otlp, engine, traces, logs];
    let keys = [
        keys_of::<proxy::Config>(),
        keys_of::<proxy::Worker>(),
        keys_of::<Otlp>(),
        keys_of::<Engine>(),
        keys_of::<Traces>(),
        keys_of::<Logs>(),
    ];
    for (section, keys) in sections.iter().zip(&keys) {
        assert!(!keys.is_empty());
        for key in keys {
            let line = format!("\n{key} = ");
            assert_eq!(section.matches(&line).count(), 1, "{key} in config.toml");
        }
    }
}

fn metrics_markdown() -> String {
    let mut text = "| metric | kind | unit | labels | what it is and how to read it |\n|---|---|---|---|---|\n".to_owned();
    for metric in TABLES.iter().copied().flatten() {
        let (name, kind, unit) = (metric.name, metric.kind.name(), metric.unit());
        let labels: Vec<String> = metric
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let help = metric.help;
        text += &format!(
            "| `{name}` | {kind} | {unit} | {} | {help} |\n",
            labels.join(", ")
        );
    }
    text
}

fn buckets_markdown() -> String {
    let mut all: Vec<(&[f64], Vec<String>)> = Vec::new();
    for metric in TABLES.iter().copied().flatten() {
        let Kind::Histogram(bounds) = metric.kind else {
            continue;
        };
        let name = format!("`{}`", metric.name);
        match all.iter_mut().find(|(known, _)| *known == bounds) {
            Some((_, names)) => names.push(name),
            None => all.push((bounds, vec![name])),
        }
    }
    let mut text =
        "| histograms | upper bounds of their buckets, seconds |\n|---|---|\n".to_owned();
    for (bounds, names) in all {
        let bounds: Vec<String> = bounds.iter().map(ToString::to_string).collect();
        text += &format!("| {} | {} |\n", names.join(", "), bounds.join(" "));
    }
    text
}

/// The page's words stand in the page; each table stands between two comments.
#[test]
fn metrics_md_is_fresh() {
    let path = root().join("docs/METRICS.md");
    let written = std::fs::read_to_string(&path).unwrap();
    let mut page = written.clone();
    for (name, table) in [
        ("moments", moments_markdown()),
        ("stages", stages_markdown()),
        ("outcomes", outcomes_markdown()),
        ("columns", columns_markdown()),
        ("metrics", metrics_markdown()),
        ("buckets", buckets_markdown()),
    ] {
        let begin = format!("<!-- table: {name} -->\n");
        let (before, rest) = page.split_once(&begin).expect(name);
        let (_, after) = rest.split_once("<!-- end -->\n").expect(name);
        page = format!("{before}{begin}{}\n<!-- end -->\n{after}", table.trim_end());
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let differs = page
        .lines()
        .zip(written.lines())
        .find(|(now, then)| now != then);
    assert!(
        page == written,
        "docs/METRICS.md is stale at {differs:?}: run `UPDATE_DOCS=1 cargo test house`"
    );
}

/// Crates that have arrows of their own in docs/ARCHITECTURE.md.
const CRATES: [&str; 2] = ["pingora", "tokio"];

#[test]
fn rooms_use_only_rooms_below_them() {
    let document = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let (_, block) = document
        .split_once("```arrows\n")
        .expect("a block of arrows");
    let (block, _) = block.split_once("```").expect("the block's end");
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

    let sources = sources(root());
    let mut used = BTreeMap::new();
    for source in &sources {
        let room = source.room();
        for to in source.rooms(&CRATES).filter(|to| to != room) {
            used.entry((room.to_owned(), to)).or_insert(&source.path);
        }
    }
    let wrong = used.iter().filter(|(arrow, _)| !allowed.contains(arrow));
    assert_eq!(wrong.collect::<Vec<_>>(), [], "not in docs/ARCHITECTURE.md");
    let unused = allowed.iter().filter(|arrow| !used.contains_key(arrow));
    let unused: Vec<_> = unused.collect();
    assert!(unused.is_empty(), "nobody uses these any more: {unused:?}");
    let rooms = sources
        .iter()
        .map(Source::room)
        .filter(|room| *room != "lib");
    let missing = rooms.filter(|room| !above.contains(room));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0], "rooms without a line");
}

#[test]
fn files_use_each_other_in_no_circle() {
    let sources = sources(root());
    let uses = uses(&sources);
    let mut reached = uses.clone();
    for middle in uses.keys() {
        let beyond = reached[middle].clone();
        for reach in reached.values_mut().filter(|reach| reach.contains(middle)) {
            reach.extend(&beyond);
        }
    }
    let circle_of = |file| -> Vec<&str> {
        let others = reached[file].iter().copied();
        others
            .filter(|other| reached[other].contains(file))
            .collect()
    };
    let circles: BTreeSet<Vec<&str>> = uses
        .keys()
        .map(circle_of)
        .filter(|c| !c.is_empty())
        .collect();
    let drawn = circles.iter().map(|circle| {
        let arrows = circle.iter().map(|file| {
            let inside = uses[file].iter().filter(|to| circle.contains(to));
            format!(
                "  {file} uses {}\n",
                inside.copied().collect::<Vec<_>>().join(", ")
            )
        });
        format!(
            "a circle of {} files:\n{}",
            circle.len(),
            arrows.collect::<String>()
        )
    });
    assert!(circles.is_empty(), "\n{}", drawn.collect::<String>());
}

/// Every file under `folder` with one of these endings.
fn texts(folder: &Path, endings: &[&str], found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() {
            texts(&path, endings, found);
        } else if ending.is_some_and(|ending| endings.contains(&ending)) {
            found.push(path);
        }
    }
}

#[test]
fn pages_that_comments_and_documents_name_are_there() {
    let mut pages = vec![root().join("README.md")];
    texts(&root().join("docs"), &["md"], &mut pages);
    let mut readers = pages.clone();
    texts(&root().join("src"), &["rs"], &mut readers);
    let mut known: BTreeSet<String> = ["CHANGELOG.md", "CONTRIBUTING.md"].map(String::from).into();
    let names = pages.iter().map(|page| page.file_name().unwrap());
    known.extend(names.map(|name| name.to_string_lossy().into_owned()));
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    for reader in readers {
        let text = std::fs::read_to_string(&reader).unwrap();
        for word in text.split(|c| !is_of_name(c)) {
            let word = word.trim_end_matches('.');
            let is_page = word.ends_with(".md") && word.len() > 3;
            assert!(!is_page || known.contains(word), "{reader:?} names {word}");
        }
    }
}
