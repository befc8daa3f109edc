//! Who may use whom. The arrows that are allowed stand in docs/ARCHITECTURE.md and nowhere else.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, Token};

/// One use of another room.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: String,
    to: String,
    /// `path:line`.
    place: String,
}

/// The rooms in the order of the document, and what each may use.
struct Plan(Vec<(String, Vec<String>)>);

/// Arrows that no document may allow.
const NEVER: [(&str, &str); 4] = [
    ("proxy", "traffic"),
    ("traffic", "proxy"),
    ("telemetry", "proxy"),
    ("request", "telemetry"),
];

/// Crates that only some rooms may use: files or folders under `src/`.
const CRATES: [(&str, &[&str]); 6] = [
    ("pingora", &["edge", "upstream", "proxy/", "serve"]),
    ("hyper", &["serve/admin.rs", "sim/", "traffic/client"]),
    ("hyper_util", &["serve/admin.rs", "sim/", "traffic/client"]),
    (
        "tokio",
        &[
            "cli",
            "edge",
            "experiment/",
            "fault",
            "proxy/",
            "serve",
            "sim/",
            "traffic",
            "upstream",
        ],
    ),
    ("anyhow", &["cli.rs", "experiment/"]),
    ("toml", &["config/"]),
];

/// Rooms that compute from what they are handed, and words that would mean otherwise.
const PURE: [&str; 3] = ["offset", "request", "stats"];
const IMPURE: [&str; 11] = [
    "Clock",
    "SystemClock",
    "ManualClock",
    "Instant",
    "SystemTime",
    "async",
    "fs",
    "net",
    "thread",
    "env",
    "process",
];

impl Plan {
    fn of_the_document() -> Plan {
        Plan::read(&super::docs::read("docs/ARCHITECTURE.md"))
    }

    /// The lines `room → room, room` of the block that is fenced as `arrows`.
    fn read(document: &str) -> Plan {
        let (_, block) = document
            .split_once("```arrows\n")
            .expect("a block of arrows");
        let (block, _) = block.split_once("```").expect("the block's end");
        let line = |line: &str| {
            let (from, to) = line.split_once('→').expect("an arrow a line");
            let to = to.split(',').map(|room| room.trim().to_owned());
            let to = to.filter(|room| room != "nothing").collect();
            (from.trim().to_owned(), to)
        };
        Plan(block.lines().map(line).collect())
    }

    /// What is wrong with the plan itself: a circle, a room twice, an arrow that must never be.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (place, (from, all)) in self.0.iter().enumerate() {
            for to in all {
                if !self.0[place + 1..].iter().any(|(room, _)| room == to) {
                    faults.push(format!("{from} → {to}: {to} must stand below {from}"));
                }
                if NEVER.contains(&(from, to)) {
                    faults.push(format!("{from} → {to} must never be"));
                }
            }
        }
        faults
    }

    /// The arrows that are not allowed, and the allowed ones that nobody uses.
    fn complaints(&self, arrows: &[Arrow]) -> Vec<String> {
        let allowed = |arrow: &Arrow| {
            let mut lines = self.0.iter();
            lines.any(|(from, to)| *from == arrow.from && to.contains(&arrow.to))
        };
        let wrong = arrows.iter().filter(|arrow| !allowed(arrow));
        let mut complaints: Vec<String> = wrong
            .map(|arrow| format!("{}: {} uses {}", arrow.place, arrow.from, arrow.to))
            .collect();
        let used: BTreeSet<(&str, &str)> = arrows
            .iter()
            .map(|arrow| (arrow.from.as_str(), arrow.to.as_str()))
            .collect();
        for (from, all) in &self.0 {
            let unused = all.iter().filter(|to| !used.contains(&(from, to)));
            complaints.extend(unused.map(|to| format!("nobody uses {from} → {to}")));
        }
        complaints
    }
}

/// The other rooms that a file uses.
fn arrows(source: &Source) -> Vec<Arrow> {
    let tokens = source.tokens();
    let mut modules = source.modules().iter().map(ToString::to_string).collect();
    let mut inline: Vec<usize> = Vec::new();
    let mut depth = 0;
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => {
                if let Some(name) = inline_module(&tokens[..at]) {
                    inline.push(depth);
                    Vec::push(&mut modules, name.to_owned());
                }
                depth += 1;
            }
            "}" => {
                depth -= 1;
                if inline.last() == Some(&depth) {
                    inline.pop();
                    modules.pop();
                }
            }
            "crate" | "super" | "queuescope" if at == 0 || tokens[at - 1].text != "::" => {
                for room in rooms(&tokens[at..], &modules) {
                    found.push(Arrow {
                        from: source.room().to_owned(),
                        to: room.to_owned(),
                        place: format!("{}:{}", source.path, token.line),
                    });
                }
            }
            _ => {}
        }
    }
    assert_eq!(depth, 0, "{}: braces do not match", source.path);
    found.retain(|arrow| arrow.from != arrow.to);
    found
}

/// The name of the module that a brace behind these tokens opens.
fn inline_module<'a>(before: &[Token<'a>]) -> Option<&'a str> {
    match before {
        [.., word, name] if word.text == "mod" => Some(name.text),
        _ => None,
    }
}

/// The top-level rooms that a path (or a tree of them) leads to, seen from `modules`.
fn rooms<'a>(path: &[Token<'a>], modules: &'a [String]) -> Vec<&'a str> {
    let text = |at: usize| path.get(at).map_or("", |token| token.text);
    if text(1) != "::" {
        return Vec::new();
    }
    let mut left = modules.len();
    let mut at = 0;
    if text(0) == "super" {
        while text(at) == "super" && text(at + 1) == "::" {
            left = left.checked_sub(1).expect("`super` above the crate");
            at += 2;
        }
    } else {
        left = 0;
        at = 2;
    }
    if let Some(room) = modules[..left].first() {
        return vec![room];
    }
    if text(at) != "{" {
        return vec![text(at)];
    }
    let mut found = Vec::new();
    let mut depth = 0;
    for (index, token) in path.iter().enumerate().skip(at) {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        let begins = matches!(token.text, "{" | ",") && depth == 1;
        if begins && !matches!(text(index + 1), "}" | "") {
            found.push(text(index + 1));
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn fixture(path: &str, text: &str) -> Source {
    Source {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

#[test]
fn uses_go_one_way() {
    let plan = Plan::of_the_document();
    assert_eq!(plan.faults(), [""; 0]);
    let sources = Source::all();
    let found: Vec<Arrow> = sources.iter().flat_map(arrows).collect();
    let complaints = plan.complaints(&found);
    assert!(
        complaints.is_empty(),
        "against the arrows of docs/ARCHITECTURE.md:\n{}",
        complaints.join("\n")
    );
    let rooms: BTreeSet<&str> = sources.iter().map(Source::room).collect();
    let planned: BTreeSet<&str> = plan.0.iter().map(|(room, _)| room.as_str()).collect();
    let rooms: BTreeSet<&str> = rooms.into_iter().filter(|room| *room != "lib").collect();
    assert_eq!(rooms, planned, "every room has its line of arrows");
}

#[test]
fn every_way_to_use_another_room_is_seen() {
    let text = "
        use crate::{clock::{Clock, Stamp}, proxy::Config, report};
        use super::csv;
        fn f(x: super::super::traffic::Plan) -> crate::sim::Sim { queuescope::offset::g() }
        // crate::engine
        pub(crate) mod inner {
            use super::super::csv;
            use super::super::super::experiment::demo;
            pub(in crate::stats) fn g() -> super::Own {}
        }
        const S: &str = \"crate::cli\";
        use super::super::config;
    ";
    let found = arrows(&fixture("src/telemetry/csv.rs", text));
    let found: Vec<(&str, &str)> = found
        .iter()
        .map(|arrow| (arrow.to.as_str(), arrow.place.as_str()))
        .collect();
    let place = |line| format!("src/telemetry/csv.rs:{line}");
    let expected = [
        ("clock", 2),
        ("proxy", 2),
        ("report", 2),
        ("traffic", 4),
        ("sim", 4),
        ("offset", 4),
        ("experiment", 8),
        ("stats", 9),
        ("config", 12),
    ]
    .map(|(room, line)| (room, place(line)));
    let expected: Vec<(&str, &str)> = expected.iter().map(|(r, p)| (*r, p.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_wrong_arrow_is_complained_of() {
    let plan = Plan::read("```arrows\nproxy → request\nrequest → clock\nclock → nothing\n```");
    assert_eq!(plan.faults(), [""; 0]);
    let right = fixture("src/proxy.rs", "use crate::request::X;");
    let wrong = fixture(
        "src/request/sse.rs",
        "use crate::clock::C;\nuse crate::proxy;",
    );
    let found: Vec<Arrow> = [right, wrong].iter().flat_map(arrows).collect();
    assert_eq!(
        plan.complaints(&found),
        ["src/request/sse.rs:2: request uses proxy"]
    );
    assert_eq!(
        plan.complaints(&found[1..2]),
        ["nobody uses proxy → request"]
    );

    let circle = Plan::read("```arrows\nrequest → clock\nclock → request\n```");
    assert_eq!(circle.faults().len(), 1);
    let never = Plan::read("```arrows\nproxy → traffic\ntraffic → nothing\n```");
    assert_eq!(never.faults(), ["proxy → traffic must never be"]);
}

/// The files that use a crate outside its rooms.
fn strays(sources: &[Source], name: &str, rooms: &[&str]) -> Vec<String> {
    let outside = sources.iter().filter(|source| {
        let path = source.path.strip_prefix("src/").unwrap();
        !rooms.iter().any(|room| path.starts_with(room))
    });
    let places = outside.flat_map(|source| {
        let lines = source.lines_with(name).into_iter();
        lines.map(|line| format!("{}:{line}: {name}", source.path))
    });
    places.collect()
}

#[test]
fn crates_stay_in_their_rooms() {
    let sources = Source::all();
    for (name, rooms) in CRATES {
        assert_eq!(strays(&sources, name, rooms), [""; 0], "only in {rooms:?}");
        for room in rooms {
            let path = format!("src/{room}");
            let mut inside = sources.iter().filter(|s| s.path.starts_with(&path));
            assert!(
                inside.any(|source| !source.lines_with(name).is_empty()),
                "{path} does not use {name} any more"
            );
        }
    }
    let stray = fixture("src/telemetry/csv.rs", "fn f() { pingora::server() }");
    let found = strays(&[stray], "pingora", &["proxy/"]);
    assert_eq!(found, ["src/telemetry/csv.rs:1: pingora"]);
}

/// Where a pure room does what only others may.
fn impurities(sources: &[Source]) -> BTreeMap<String, &'static str> {
    // Tests of a pure room may hold a clock: somebody must hand the stamps in.
    let code = sources.iter().filter(|s| !s.path.ends_with("/tests.rs"));
    let pure = code.filter(|s| PURE.contains(&s.room()));
    let found = pure.flat_map(|source| {
        IMPURE.into_iter().flat_map(move |word| {
            let lines = source.lines_with(word).into_iter();
            lines.map(move |line| (format!("{}:{line}", source.path), word))
        })
    });
    found.collect()
}

#[test]
fn pure_rooms_read_no_clock_and_do_no_io() {
    assert_eq!(impurities(&Source::all()), BTreeMap::new());
    let reads = fixture("src/request/sse.rs", "use crate::clock::{\nClock, Stamp};");
    let found = impurities(&[reads]);
    assert_eq!(found.get("src/request/sse.rs:2"), Some(&"Clock"));
}
