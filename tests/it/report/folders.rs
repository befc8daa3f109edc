//! What `queuescope report` says of folders and files as people have them, and what it makes of shards and of a front's hops: word for word,
//! in `tests/data/golden/report/folders.txt` (`UPDATE_GOLDEN=1` writes it anew).

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Args as _, Command, FromArgMatches as _};
use queuescope::report::command::{Args, Format, run};
use serde::Deserialize;
use serde_json::Value;

use super::command::folder;
use crate::golden::assert_golden;
use crate::support::files;
use crate::support::generator::flags;

#[derive(Deserialize)]
struct Cases {
    texts: BTreeMap<String, String>,
    case: Vec<Case>,
}

/// A promise, the files of a folder, and what is asked of them. Of `--json` these figures are shown, by their pointers in the first run.
#[derive(Deserialize)]
struct Case {
    name: String,
    asked: Vec<String>,
    #[serde(default)]
    figures: Vec<String>,
    files: BTreeMap<String, String>,
}

/// What is shown of the summary of a merged run.
const FIGURES: &str = "requests completed scheduled duration offered_rate started_at_ns mean_concurrency verdict warnings window config merged_from";

/// What is said to these arguments in a folder, and what is made there.
fn said(folder: &Path, asked: &str, figures: &[String]) -> String {
    let command = Args::augment_args(Command::new("report"));
    let asked = format!("report --no-html {asked}");
    let matches = match command.try_get_matches_from(flags(&asked)) {
        Ok(matches) => matches,
        Err(error) => return error.to_string(),
    };
    let mut args = Args::from_arg_matches(&matches).unwrap();
    for path in args.dirs.iter_mut().chain(&mut args.output_dir) {
        *path = folder.join(&path);
    }
    let said = match run(&args, None) {
        Ok(sheet) if args.format == Format::Csv => cells(&sheet),
        Ok(json) if args.format == Format::Json => excerpt(&json, figures),
        Ok(said) => said,
        Err(error) => format!("error: {error}\n"),
    };
    let made = args.output_dir.filter(|dir| dir.is_dir());
    let made = made.map(|dir| contents(&dir)).unwrap_or_default();
    let folder = folder.to_str().unwrap();
    let said = (said + &made).replace(&format!("{folder}/"), "");
    said.replace(folder, ".")
}

/// The files of a folder that was made: their names, all cells of their rows, and figures.
fn contents(dir: &Path) -> String {
    let mut text = String::new();
    for file in files(dir) {
        let read = std::fs::read_to_string(&file).unwrap();
        text += &format!("{}:\n", file.display());
        if file.ends_with("summary.json") {
            let summary: Value = serde_json::from_str(&read).unwrap();
            let figures = FIGURES.split(' ').map(|name| (name, &summary[name]));
            text.extend(figures.map(|(name, figure)| format!("  {name} {figure}\n")));
        } else {
            text += &cells(&read);
        }
    }
    text
}

/// These figures of the first run.
fn excerpt(json: &str, figures: &[String]) -> String {
    let report: Value = serde_json::from_str(json).unwrap();
    let run = &report["runs"][0];
    let figures = figures.iter().map(|pointer| {
        let figure = run.pointer(pointer);
        let figure = figure.unwrap_or_else(|| panic!("{pointer} is not in {run:#}"));
        format!("  {pointer} {figure}\n")
    });
    figures.collect()
}

/// The cells of each row that are not empty.
fn cells(sheet: &str) -> String {
    let mut rows = csv::Reader::from_reader(sheet.as_bytes());
    let rows = rows.deserialize().map(|row| {
        let row: BTreeMap<String, String> = row.unwrap();
        let cells = row.iter().filter(|(_, cell)| !cell.is_empty());
        let cells: Vec<String> = cells.map(|(name, cell)| format!("{name}={cell}")).collect();
        format!("  {}\n", cells.join(", "))
    });
    rows.collect()
}

#[test]
fn folders_are_reported_as_ever() {
    let Cases { texts, case } = toml::from_str(include_str!("../../data/folders.toml")).unwrap();
    let mut text = String::new();
    for case in case {
        let files = case.files.iter();
        let files = files.map(|(name, text)| (&**name, &**texts.get(text).unwrap_or(text)));
        let folder = folder(&Vec::from_iter(files));
        text += &format!("\n## {}\n", case.name);
        for asked in case.asked {
            let said = said(folder.path(), &asked, &case.figures);
            text += &format!("\nqueuescope report {asked}\n\n{said}");
        }
    }
    assert_golden("report/folders.txt", text.trim_start());
}
