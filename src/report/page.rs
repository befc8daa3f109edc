//! `report.html`: runs as one page that opens without a network. The page's own text is in [`FRAME`]; all that comes from
//! data goes in as JSON, and from there into the page as text only.

mod curves;
mod data;
mod lives;
mod over_time;

use ring::digest;

pub use lives::stages;

use super::runs::Report;
use crate::terminal::shown_in_json;

const FRAME: &str = include_str!("page/frame.html");
/// How this page and the live page look alike.
pub const BASE: &str = include_str!("page/base.css");
const STYLE: &str = include_str!("page/style.css");
const CHARTS: &str = include_str!("page/echarts.common.min.js");
/// What this page and the live page have in common: how text comes into them, the colours of stages.
pub const DOM: &str = include_str!("page/dom.js");
/// The page's own scripts, in the order in which they use each other.
const SCRIPTS: [&str; 6] = [
    DOM,
    include_str!("page/words.js"),
    include_str!("page/charts.js"),
    include_str!("page/pictures.js"),
    include_str!("page/run.js"),
    include_str!("page/page.js"),
];

/// The page of a report.
pub fn render(report: &Report<'_>) -> String {
    // Nothing in it can end the element that it stands in, nor turn the order of what is read.
    let data = shown_in_json(&data::data(report).to_string()).replace('<', "\\u003c");
    // Who makes the data cannot know it, as it is made of them.
    let nonce: String = digest::digest(&digest::SHA256, data.as_bytes())
        .as_ref()
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let parts = [
        ("base", BASE),
        ("style", STYLE),
        ("charts", CHARTS),
        ("script", &SCRIPTS.concat()),
        ("nonce", &nonce),
        ("data", &data),
    ];
    filled(FRAME, &parts)
}

/// A page of its frame and the parts that its marks (`{{data}}`) name; what looks like a mark in a part is none.
pub fn filled(frame: &str, parts: &[(&str, &str)]) -> String {
    let mut pieces = frame.split("{{");
    let mut page = pieces.next().unwrap_or_default().to_owned();
    for (mark, rest) in pieces.filter_map(|piece| piece.split_once("}}")) {
        let part = parts.iter().find(|(known, _)| *known == mark);
        page.push_str(part.map_or("", |(_, part)| part));
        page.push_str(rest);
    }
    page
}

#[cfg(test)]
mod tests;
