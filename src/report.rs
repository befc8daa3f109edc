//! A report: runs with their figures, findings and faults, and their comparison; as JSON and CSV. All output formats are made of it. Reading
//! and writing files is in `reader`, `merge` and `command`; the rest is pure.

pub mod command;
pub mod compare;
pub mod files;
pub mod findings;
pub mod grid;
pub mod load;
pub mod merge;
pub mod outputs;
pub mod page;
pub mod phases;
pub mod reader;
pub mod render;
mod sanitize;
pub mod timeline;
pub mod why;

use serde_json::{Value, json};

use crate::request::shown_text;
use compare::{Comparison, Difference, comparison};
use files::{Grade, RunState, plain};
use findings::RunReport;
use load::Summary;
use reader::{Loaded, Run};

#[cfg(test)]
pub(crate) use crate::request::sample;

/// The first columns of the CSV output.
pub const FIRST_COLUMNS: [&str; 4] = ["run", "dir", "state", "verdict"];

/// A report on runs.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// What was loaded.
    pub loaded: &'a Loaded,
    /// The runs, in order.
    pub runs: Vec<RunReport<'a>>,
    /// The comparison of their settings.
    pub comparison: Comparison,
}

impl<'a> Report<'a> {
    /// Makes the report on what was loaded.
    pub fn of(loaded: &'a Loaded) -> Report<'a> {
        Report {
            loaded,
            runs: loaded.runs.iter().map(RunReport::of).collect(),
            comparison: comparison(loaded),
        }
    }

    /// The output of `--format json`.
    pub fn to_json(&self) -> Value {
        let differences = self.comparison.differences.iter();
        json!({
            "experiment": self.loaded.experiment,
            "comparison": differences.map(Difference::to_json).collect::<Value>(),
            "answers": self.comparison.answers(),
            "not_compared": self.comparison.notes,
            "runs": self.runs.iter().map(RunReport::to_json).collect::<Value>(),
        })
    }

    /// The output of `--format csv`: a row for each run.
    pub fn to_csv(&self) -> String {
        let rows: Vec<Vec<(String, String)>> = self.runs.iter().map(RunReport::cells).collect();
        // Also without any run: the file is recognized by these (`outputs`).
        let mut heads: Vec<&str> = FIRST_COLUMNS.to_vec();
        for (name, _) in rows.iter().flatten() {
            if !heads.contains(&name.as_str()) {
                heads.push(name);
            }
        }
        let mut out = csv::Writer::from_writer(Vec::new());
        // Writing to a Vec cannot fail.
        let _ = out.write_record(&heads);
        for row in &rows {
            let cell = |head: &&str| {
                let found = row.iter().find(|(name, _)| name == head);
                found.map_or("", |(_, value)| value.as_str())
            };
            // A folder may be named like a formula of a spreadsheet. Numbers may begin with a minus.
            let shown = |cell: &str| match cell.parse::<f64>() {
                Ok(_) => cell.to_owned(),
                Err(_) => shown_text(cell.into()).into_owned(),
            };
            let _ = out.write_record(heads.iter().map(cell).map(shown));
        }
        String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
    }
}

impl RunReport<'_> {
    fn state(&self) -> Value {
        match &self.run.file {
            _ if self.run.is_partial => "unfinished".into(),
            Some(file) => json!(file.state),
            None => json!(RunState::Done),
        }
    }

    /// The run in the output of `--format json`: the members of `summary.json`, and the description of the run.
    pub fn to_json(&self) -> Value {
        let file = self.run.file.as_ref();
        let warnings = self.run.warnings().map(str::to_owned);
        let warnings = warnings.chain(self.summary.warnings());
        let notes = self.run.failure_note().into_iter();
        let notes = notes.chain(self.run.notes.iter().cloned());
        let notes = notes.chain(self.summary.of_window());
        json!({
            "run": self.run.name,
            "dir": self.run.dir,
            "state": self.state(),
            "mark": self.run.mark(),
            "settings": file.map(|file| &file.settings),
            "repeat": file.map(|file| file.repeat),
            "router": file.and_then(|file| file.router.as_ref()),
            "workload_sha256": file.and_then(|file| file.workload_sha256.as_ref()),
            "notes": notes.chain(self.fault_note()).collect::<Value>(),
            "warnings": warnings.collect::<Value>(),
            "findings": self.findings,
            "faults": self.episodes,
            "waiting": self.why.to_json(&self.run.table),
            "summary": summary_of(self.run, &self.summary),
        })
    }

    /// Names and values of the CSV output: [`FIRST_COLUMNS`], settings, then every number of the summary by its path.
    fn cells(&self) -> Vec<(String, String)> {
        let verdict = self.run.verdict().map(|verdict| verdict.grade);
        let known = [
            self.run.name.clone(),
            self.run.dir.display().to_string(),
            plain(&self.state()),
            verdict.map_or("", Grade::name).to_owned(),
        ];
        let names = FIRST_COLUMNS.map(str::to_owned).into_iter();
        let mut cells: Vec<(String, String)> = names.zip(known).collect();
        if let Some(file) = &self.run.file {
            cells.push(("repeat".to_owned(), file.repeat.to_string()));
            let settings = file.settings.iter();
            cells.extend(settings.map(|(key, value)| (format!("settings.{key}"), plain(value))));
        }
        if !self.run.lacks_rows() {
            flatten("", &self.summary.to_json(), &mut cells);
        }
        cells
    }
}

/// The summary of a run as its `summary.json` has it: these figures, and what the file has that is not computed from rows.
pub fn summary_of(run: &Run, figures: &Summary) -> Value {
    let mut summary = figures.to_json();
    if run.lacks_rows() {
        let members = summary.as_object_mut().into_iter().flatten();
        let of_rows = |name: &str| !OF_FILE.contains(&name);
        let numbers = members.filter(|(name, value)| value.is_number() && of_rows(name));
        numbers.for_each(|(_, value)| *value = Value::Null);
    }
    for (name, value) in run.summary.as_object().into_iter().flatten() {
        if name == "versions" || summary.get(name).is_none() {
            summary[name] = value.clone();
        }
    }
    summary
}

/// Members of the summary that are known without rows.
const OF_FILE: [&str; 6] = [
    "started_at",
    "started_at_ns",
    "duration",
    "scheduled",
    "request_rate",
    "offered_rate",
];
/// Members of the summary that are not in the CSV output.
const NO_FIGURES: [&str; 5] = ["series", "config", "machine", "versions", "hosts"];

/// Adds every number in a JSON value, by its path; null is an empty cell.
fn flatten(path: &str, value: &Value, cells: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                if path.is_empty() && NO_FIGURES.contains(&name.as_str()) {
                    continue;
                }
                let inner = match path {
                    "" => name.clone(),
                    path => format!("{path}.{name}"),
                };
                flatten(&inner, value, cells);
            }
        }
        Value::Number(_) | Value::Null => cells.push((path.to_owned(), plain(value))),
        Value::Array(_) | Value::String(_) | Value::Bool(_) => {}
    }
}

/// A text that begins with a capital.
pub fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}
