//! What a reader of records can look up, as Markdown: moments, columns and stages, each from the table that the code itself walks. One word
//! for each stage in all that users read: the two queues have no other name than those in `docs/METRICS.md`.

use queuescope::request::{
    COLUMNS, ClockOf, Column, Moment, Origin, Outcome, STAGES, Side, StageSet, UNSEEN, Unit,
};

use crate::support::docs::markdown;

/// The columns of a record: name, unit, what it is.
pub fn columns_markdown() -> String {
    let row = |column: &Column| {
        let (name, unit) = (code(column.name), unit_name(column.unit));
        [name, unit, column.help.into()]
    };
    markdown(&["column", "unit", "what it is"], COLUMNS.iter().map(row))
}

/// How a request can end: the outcome's name, what it means.
pub fn outcomes_markdown() -> String {
    let row = |outcome: Outcome| [code(outcome.name()), outcome.help().into()];
    markdown(&["outcome", "what it means"], Outcome::ALL.map(row))
}

/// The moments of a request: name, whose clock, the column that shows it, what it is.
pub fn moments_markdown() -> String {
    let row = |moment: Moment| {
        let (name, help) = (code(moment.name()), moment.help().into());
        [name, clock_name(moment).into(), column_of(moment), help]
    };
    let heads = ["moment", "clock", "column", "what it is"];
    markdown(&heads, Moment::ALL.map(row))
}

/// The stages of a request's time: the word for it, what it is called elsewhere, from where to where, and how a
/// sentence says it; then what is no stage.
pub fn stages_markdown() -> String {
    let heads = [
        "stage",
        "column",
        "in `ended_in` and JSON",
        "`stage` of metrics, span",
        "from",
        "to",
        "where the time went",
    ];
    let column = |label: &str| {
        let found = COLUMNS.iter().find(|column| column.label == label);
        found.map_or(String::new(), |column| code(column.name))
    };
    let stages = STAGES.iter().map(|stage| {
        let [from, to] = [stage.period.from, stage.period.to].map(|moment| code(moment.name()));
        let (label, place) = (stage.label.to_owned(), stage.place.to_owned());
        let [name, metric] = [stage.name, stage.metric].map(code);
        [label, column(stage.label), name, metric, from, to, place]
    });
    let none = String::new;
    let others = [StageSet::PROXY, StageSet::PROMPT, StageSet::CLIENT_STALL].map(|spent| {
        let (label, name) = (spent.label().to_string(), code(&spent.name()));
        let (column, place) = (column(&label), spent.place().to_string());
        [label, column, name.clone(), name, none(), none(), place]
    });
    let joined = "`server`; their names joined by `+`".to_owned();
    let [from, to] = [Moment::RouterSend, Moment::FirstToken].map(|moment| code(moment.name()));
    let unseen = || UNSEEN.to_owned();
    let unseen = [unseen(), none(), joined, code("server"), from, to, unseen()];
    markdown(&heads, stages.chain(others).chain([unseen]))
}

pub fn code(name: &str) -> String {
    format!("`{name}`")
}

fn unit_name(unit: Unit) -> String {
    let name = match unit {
        Unit::Text => "text",
        Unit::Bool => "`True` or `False`",
        Unit::Count => "count",
        Unit::Latency => "seconds, summarised",
        Unit::Seconds => "seconds",
        Unit::Time => "time, seconds",
    };
    name.to_owned()
}

/// Whose clock a moment is read from, whoever watches.
fn clock_name(moment: Moment) -> &'static str {
    let name = |side| match moment.clock(side) {
        ClockOf::Traffic => "generator",
        ClockOf::Front => "front",
        ClockOf::Hop => "hop",
        ClockOf::Engine => "engine",
    };
    match (name(Side::Traffic), name(Side::Front)) {
        (one, other) if one == other => one,
        _ => "who watches: generator, front or hop",
    }
}

/// The column of a moment.
fn column_of(moment: Moment) -> String {
    // What the hop read is what the router sent.
    let moment = match moment {
        Moment::WorkerArrival => Moment::RouterSend,
        other => other,
    };
    let name = format!("{}_time", moment.name());
    let is_its = |column: &&Column| column.origin == Origin::Moment(moment) || column.name == name;
    let column = COLUMNS.iter().find(is_its);
    column.map_or(String::new(), |column| code(column.name))
}

/// What the two queues, and the remainder that nobody saw in a server, are not called.
const OTHERS: [&str; 13] = [
    "server's queue",
    "server's own queue",
    "server's waiting queue",
    "servers' queue",
    "servers' waiting queue",
    "scheduler's queue",
    "scheduler's waiting queue",
    "engine's queue",
    "engine's waiting queue",
    "router's queue",
    "router's own queue",
    "queue in the router",
    "somewhere between router send",
];

/// Where users read, and how such a file's name ends. The glossary says what others call the two.
const READ: [(&str, &[&str]); 9] = [
    (".", &["README.md", "config.toml"]),
    ("docs", &[".md"]),
    ("grafana/panels", &[".py"]),
    ("deploy/prometheus", &[".yml"]),
    ("src/report/page", &[".js", ".html"]),
    ("src/serve/live", &[".html"]),
    ("tests/data/golden/report", &[".txt", ".md"]),
    ("tests/data/golden", &[".txt"]),
    ("tests/data/config", &["help.txt"]),
];

/// A text in one line, as it is read: without breaks, nor between the pieces of a literal.
fn read(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace("\" \"", "").to_lowercase()
}

#[test]
fn a_stage_has_one_name_in_what_users_read() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (folder, ends) in READ {
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path().display().to_string();
            let is_read = ends.iter().any(|end| path.ends_with(end));
            if is_read && !path.ends_with("GLOSSARY.md") {
                count += 1;
                let text = read(&std::fs::read_to_string(&path).unwrap());
                let found = OTHERS.iter().filter(|name| text.contains(**name));
                wrong.extend(found.map(|name| format!("{path}: {name:?}")));
            }
        }
    }
    assert!(count > 40, "{count} files were read");
    assert!(
        wrong.is_empty(),
        "the words are \"server queue\", \"router queue\" and \"unseen in the server\" (docs/GLOSSARY.md):\n{}",
        wrong.join("\n")
    );
}
