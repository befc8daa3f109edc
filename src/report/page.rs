//! `report.html`: a report as a single page that loads nothing. The static text is in [`FRAME`]; all data is inserted as JSON, and
//! from there put into the page only as text.

mod data;

use serde_json::Value;

pub use data::{stage, stages};

use super::Report;
use crate::request::STAGES;
use crate::terminal::escaped_in_json;

const FRAME: &str = include_str!("page/frame.html");
/// The style that this page and the live page share.
pub const BASE: &str = include_str!("page/base.css");
const STYLE: &str = include_str!("page/style.css");
const CHARTS: &str = include_str!("page/echarts.common.min.js");
const DOM: &str = include_str!("page/dom.js");
/// The page's scripts; each uses only those before it, and [`dom`].
const SCRIPTS: [&str; 5] = [
    include_str!("page/widgets.js"),
    include_str!("page/charts.js"),
    include_str!("page/chart_options.js"),
    include_str!("page/run.js"),
    include_str!("page/page.js"),
];

/// Renders the page of a report.
pub fn render(report: &Report<'_>) -> String {
    // Without `<`, which could end its element, and without characters that change the direction of text.
    let data = escaped_in_json(&data::data(report).to_string()).replace('<', "\\u003c");
    let parts = [
        ("base", BASE),
        ("style", STYLE),
        ("charts", CHARTS),
        ("script", &(dom() + &SCRIPTS.concat())),
        ("nonce", &nonce()),
        ("data", &data),
    ];
    fill(FRAME, &parts)
}

/// A value that no text of a page can contain by intent.
pub fn nonce() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Returns the script that this page and the live page share: how text is put into them, the colours of stages.
pub fn dom() -> String {
    let colors = STAGES.map(|stage| (stage.name, stage.color));
    let colors: Value = colors.into_iter().collect();
    fill(DOM, &[("colors", &colors.to_string())])
}

/// Fills the placeholders of a frame (`{{data}}`) with the named parts, which are not searched for placeholders themselves.
pub fn fill(frame: &str, parts: &[(&str, &str)]) -> String {
    let mut pieces = frame.split("{{");
    let mut page = pieces.next().unwrap_or_default().to_owned();
    for (placeholder, rest) in pieces.filter_map(|piece| piece.split_once("}}")) {
        let part = parts.iter().find(|(name, _)| *name == placeholder);
        page.push_str(part.map_or("", |(_, part)| part));
        page.push_str(rest);
    }
    page
}

#[cfg(test)]
mod tests;
