//! What a reader of records can look up, as Markdown: moments, columns and stages, each from the table
//! that the code itself walks.

use std::fmt::Write as _;

use queuescope::clock::Stamp;
use queuescope::request::column::{Unit, Value};
use queuescope::request::columns::COLUMNS;
use queuescope::request::columns::Column;
use queuescope::request::endpoint::Endpoint;
use queuescope::request::observer::{End, Observer};
use queuescope::request::outcome::Outcome;
use queuescope::request::row::Row;
use queuescope::request::stages::{Spent, UNSEEN};
use queuescope::request::timeline::{ClockOf, Moment, STAGES, Side};

/// The columns of a record, a line each: name, unit, what it is.
pub fn columns_markdown() -> String {
    let mut text = String::from("| column | unit | what it is |\n|---|---|---|\n");
    for column in COLUMNS.iter() {
        let unit = unit_name(column.unit);
        line(&mut text, &[&code(column.name), unit, column.help]);
    }
    text
}

/// How a request can end, a line each: the outcome's name, what it means.
pub fn outcomes_markdown() -> String {
    let mut text = String::from("| outcome | what it means |\n|---|---|\n");
    for outcome in Outcome::ALL {
        line(&mut text, &[&code(outcome.name()), outcome.help()]);
    }
    text
}

/// The moments of a request, a line each: name, whose clock, the column that shows it, what it is.
pub fn moments_markdown() -> String {
    let mut text = String::from("| moment | clock | column | what it is |\n|---|---|---|---|\n");
    for moment in Moment::ALL {
        let name = code(moment.name());
        line(
            &mut text,
            &[&name, clock_name(moment), &column_of(moment), moment.help()],
        );
    }
    text
}

/// The stages of a request's time, a line each: the word for it, what it is called elsewhere, from where to where, and how a
/// sentence says it; then what is no stage.
pub fn stages_markdown() -> String {
    let mut text = String::from(
        "| stage | column | in `ended_in` and JSON | `stage` of metrics, span | from | to | where the time went |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let column = |label: &str| {
        let found = COLUMNS.iter().find(|column| column.label == label);
        found.map_or(String::new(), |column| code(column.name))
    };
    for stage in &STAGES {
        let (from, to) = (code(stage.period.from.name()), code(stage.period.to.name()));
        let (label, name, metric) = (stage.label, code(stage.name), code(stage.metric));
        line(
            &mut text,
            &[
                label,
                &column(label),
                &name,
                &metric,
                &from,
                &to,
                stage.place,
            ],
        );
    }
    for spent in [Spent::PROXY, Spent::PROMPT, Spent::CLIENT_STALL] {
        let (label, name) = (spent.label(), code(&spent.name()));
        line(
            &mut text,
            &[
                &label,
                &column(&label),
                &name,
                &name,
                "",
                "",
                &spent.place(),
            ],
        );
    }
    let (joined, server) = ("`server`; their names joined by `+`", code("server"));
    let ends = [Moment::RouterSend, Moment::FirstToken].map(|moment| code(moment.name()));
    line(
        &mut text,
        &[UNSEEN, "", joined, &server, &ends[0], &ends[1], UNSEEN],
    );
    text
}

fn line(text: &mut String, cells: &[&str]) {
    for cell in cells {
        // Writing to a String cannot fail.
        let _ = write!(text, "| {} ", cell.replace('|', "\\|"));
    }
    text.push_str("|\n");
}

fn code(name: &str) -> String {
    format!("`{name}`")
}

fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Text => "text",
        Unit::Bool => "`True` or `False`",
        Unit::Count => "count",
        Unit::Latency => "seconds, summarised",
        Unit::Seconds => "seconds",
        Unit::Time => "time, seconds",
    }
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

/// The time columns that a record shows when it has this moment and no other.
fn column_of(moment: Moment) -> String {
    let observer = Observer::new(Side::Traffic, Endpoint::Generate, String::new());
    let at = Stamp::from_nanos(0);
    // Nobody stamps the router's send itself.
    let marked = match moment {
        Moment::RouterSend => Moment::WorkerArrival,
        other => other,
    };
    let mut records = observer.finish(End::ClientGone, at);
    for record in &mut records {
        record.timeline.clear(Moment::End);
        record.timeline.set(marked, at);
    }
    let rows = Row::ended(records);
    let is_shown = |column: &&Column| {
        let shows = |row: &Row| (column.get)(row) != Value::Empty;
        column.unit == Unit::Time && rows.iter().any(shows)
    };
    let names = COLUMNS.iter().filter(is_shown).map(|c| code(c.name));
    names.collect::<Vec<String>>().join(", ")
}

#[test]
fn all_moments_are_listed_in_order() {
    for (index, moment) in Moment::ALL.into_iter().enumerate() {
        assert_eq!(moment as usize, index);
    }
}
