//! A report: the runs with all that is said of each, and what is said of them together. Whatever form it is shown in, it is
//! made of this.

use serde_json::{Value, json};

use crate::request::cell::shown_text;

use super::compare::{Comparison, comparison};
use super::figures::figures;
use super::files::{RunFile, RunState, plain};
use super::findings::{Finding, findings};
use super::load::Summary;
use super::phases::{Episode, episodes};
use super::reader::{Loaded, Run};
use super::verdict::{Grade, Verdict};
use super::why::Why;

/// The first columns of the sheet with a row a run.
pub const SHEET: [&str; 4] = ["run", "dir", "state", "verdict"];

/// All that is said of what was loaded.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// What it is of.
    pub loaded: &'a Loaded,
    /// The runs, in order.
    pub runs: Vec<RunReport<'a>>,
    /// Which of them is better.
    pub comparison: Comparison,
}

/// What is said of a run.
#[derive(Clone, Debug)]
pub struct RunReport<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its figures, taken of its rows.
    pub summary: Summary,
    /// How its generator judged it, where it did.
    pub verdict: Option<Verdict>,
    /// What was done to its servers, and what that did.
    pub episodes: Vec<Episode>,
    /// Why its requests waited.
    pub why: Why,
    /// What the figures say, what matters most first.
    pub findings: Vec<Finding>,
}

impl<'a> Report<'a> {
    /// Of what was loaded.
    pub fn of(loaded: &'a Loaded) -> Report<'a> {
        Report {
            loaded,
            runs: loaded.runs.iter().map(RunReport::of).collect(),
            comparison: comparison(loaded),
        }
    }

    /// All of it for programs.
    pub fn to_json(&self) -> Value {
        let differences = self.comparison.differences.iter().map(|difference| {
            let mut shown = json!(difference);
            shown["sentence"] = difference.sentence().into();
            shown
        });
        let Comparison { notes, too_few, .. } = &self.comparison;
        let not_compared: Vec<&String> = notes.iter().chain(too_few).collect();
        json!({
            "experiment": self.loaded.experiment,
            "comparison": differences.collect::<Value>(),
            "answers": self.comparison.answers(),
            "not_compared": not_compared,
            "runs": self.runs.iter().map(RunReport::to_json).collect::<Value>(),
        })
    }

    /// A row a run, as CSV.
    pub fn to_csv(&self) -> String {
        let sheets: Vec<Vec<(String, String)>> = self.runs.iter().map(RunReport::sheet).collect();
        // The first are there without a run too: a sheet is known by them.
        let mut heads: Vec<&str> = SHEET.to_vec();
        for (name, _) in sheets.iter().flatten() {
            if !heads.contains(&name.as_str()) {
                heads.push(name);
            }
        }
        let mut out = csv::Writer::from_writer(Vec::new());
        // Writing to a Vec cannot fail.
        let _ = out.write_record(&heads);
        for sheet in &sheets {
            let cell = |head: &&str| {
                let found = sheet.iter().find(|(name, _)| name == head);
                found.map_or("", |(_, value)| value.as_str())
            };
            // A folder may be called as a formula is. Figures are none, whatever their sign.
            let shown = |cell: &str| match cell.parse::<f64>() {
                Ok(_) => cell.to_owned(),
                Err(_) => shown_text(cell.into()).into_owned(),
            };
            let _ = out.write_record(heads.iter().map(cell).map(shown));
        }
        String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
    }
}

impl<'a> RunReport<'a> {
    /// Of a run.
    pub fn of(run: &'a Run) -> RunReport<'a> {
        let summary = figures(run);
        let episodes = episodes(&run.table, &run.faults, run.servers());
        let why = Why::of(run);
        RunReport {
            findings: findings(run, &summary, &episodes, &why),
            why,
            verdict: run.verdict(),
            run,
            summary,
            episodes,
        }
    }

    /// What is to be known of its figures beside its verdict, from the run itself and from its reader.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let notes = self.run.notes.iter().map(String::as_str);
        notes.chain(self.run.warnings())
    }

    fn state(&self) -> Value {
        match &self.run.file {
            _ if self.run.is_partial => "unfinished".into(),
            Some(file) => json!(file.state),
            None => json!(RunState::Done),
        }
    }

    /// What programs read: the members of `summary.json`, and what is known of the run.
    pub fn to_json(&self) -> Value {
        let file = self.run.file.as_ref();
        let mut summary = self.summary.to_json();
        // Of the run itself, not of its rows.
        let told = self.run.summary.as_object();
        for (name, value) in told.into_iter().flatten() {
            if OF_THE_RUN.contains(&name.as_str()) || summary.get(name).is_none() {
                summary[name] = value.clone();
            }
        }
        let warnings = self.run.warnings().map(str::to_owned);
        let warnings = warnings.chain(self.summary.warnings());
        json!({
            "run": self.run.name,
            "dir": self.run.dir,
            "state": self.state(),
            "mark": self.run.mark(),
            "settings": file.map(|file| &file.settings),
            "repeat": file.map(|file| file.repeat),
            "router": file.and_then(|file| file.router.as_ref()),
            "workload_sha256": file.and_then(|file| file.workload_sha256.as_ref()),
            "notes": self.run.notes,
            "warnings": warnings.collect::<Value>(),
            "findings": self.findings,
            "faults": self.episodes,
            "waiting": self.why.to_json(&self.run.table),
            "summary": summary,
        })
    }

    /// Names and values for a sheet: what tells the run from others, then every number of its summary, named by its path
    /// there.
    fn sheet(&self) -> Vec<(String, String)> {
        let verdict = self.verdict.as_ref().map(|verdict| verdict.grade);
        let known = [
            self.run.name.clone(),
            self.run.dir.display().to_string(),
            plain(&self.state()),
            verdict.map_or("", Grade::name).to_owned(),
        ];
        let mut cells: Vec<(String, String)> =
            SHEET.map(str::to_owned).into_iter().zip(known).collect();
        if let Some(RunFile {
            settings, repeat, ..
        }) = &self.run.file
        {
            cells.push(("repeat".to_owned(), repeat.to_string()));
            let settings = settings.iter();
            cells.extend(settings.map(|(key, value)| (format!("settings.{key}"), plain(value))));
        }
        flatten("", &self.summary.to_json(), &mut cells);
        cells
    }
}

/// Members of the summary that rows do not tell.
const OF_THE_RUN: [&str; 5] = [
    "config",
    "machine",
    "versions",
    "started_at",
    "started_at_ns",
];

/// Members of the summary that are no figures of the run as a whole.
const NO_FIGURES: [&str; 5] = ["series", "config", "machine", "versions", "hosts"];

/// Every number below a value, by its path. What is unknown has an empty cell.
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
