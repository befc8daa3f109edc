//! Runs side by side: what a report says of each, for people and for programs.

use serde_json::{Map, Value, json};

use super::compare::Comparison;
use super::figures::figures;
use super::files::{RunFile, RunState};
use super::grid::Grid;
use super::load::{Group, Summary};
use super::phases::{Episode, episodes};
use super::reader::{Loaded, Run};
use super::series::gaps;
use crate::request::cell::shown_text;

/// A run and its figures.
#[derive(Clone, Debug)]
pub struct Told<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its figures, taken of its rows.
    pub summary: Summary,
}

type Figure = fn(&crate::stats::Summary) -> f64;

/// Latencies in the table of runs, and how they are called there.
const SHOWN: [(&str, &str, Figure); 5] = [
    ("TTFT p50", "ttft", |s| s.p50),
    ("TTFT p99", "ttft", |s| s.p99),
    ("total p99", "total_latency", |s| s.p99),
    ("queue p50", "pure_queue_time", |s| s.p50),
    ("per token p50", "tpot", |s| s.p50),
];

/// All runs with their figures.
pub fn told(loaded: &Loaded) -> Vec<Told<'_>> {
    let told = |run| Told {
        run,
        summary: figures(run),
    };
    loaded.runs.iter().map(told).collect()
}

impl Told<'_> {
    /// `INVALID` or `DEGRADED`, as the generator judged the run; `UNFINISHED` of one that did not come to its end and was
    /// not judged. `None`: nothing is to be said against its figures.
    pub fn mark(&self) -> Option<&str> {
        match self.grade() {
            Some("VALID") => None,
            None if self.run.is_partial => Some("UNFINISHED"),
            grade => grade,
        }
    }

    fn grade(&self) -> Option<&str> {
        self.run
            .summary
            .as_ref()?
            .get("verdict")?
            .get("grade")?
            .as_str()
    }

    /// Why it was judged so.
    pub fn reasons(&self) -> Vec<&str> {
        let reasons = || {
            let verdict = self.run.summary.as_ref()?.get("verdict")?;
            verdict.get("reasons")?.as_array()
        };
        let reasons = reasons().into_iter().flatten();
        reasons.filter_map(Value::as_str).collect()
    }

    /// What was done to its servers, and what that did.
    pub fn episodes(&self) -> Vec<Episode> {
        let servers = self.run.file.as_ref().map_or(&[][..], |file| &file.servers);
        episodes(&self.run.table, &self.run.faults, servers)
    }

    fn state(&self) -> &'static str {
        match self.run.file.as_ref().map(|file| file.state) {
            _ if self.run.is_partial => "unfinished",
            Some(RunState::Planned) => "planned",
            Some(RunState::Running) => "running",
            Some(RunState::Failed) => "failed",
            Some(RunState::Stopped) => "stopped",
            Some(RunState::Done) | None => "done",
        }
    }

    /// What programs read: the members of `summary.json`, and what is known of the run.
    pub fn to_json(&self) -> Value {
        let file = self.run.file.as_ref();
        let mut summary = self.summary.to_json();
        // Of the run itself, not of its rows.
        let told = self.run.summary.as_ref().and_then(Value::as_object);
        for (name, value) in told.into_iter().flatten() {
            if OF_THE_RUN.contains(&name.as_str()) || summary.get(name).is_none() {
                summary[name] = value.clone();
            }
        }
        json!({
            "run": self.run.name,
            "dir": self.run.dir,
            "state": self.state(),
            "settings": file.map(|file| &file.settings),
            "repeat": file.map(|file| file.repeat),
            "router": file.and_then(|file| file.router.as_ref()),
            "workload_sha256": file.and_then(|file| file.workload_sha256.as_ref()),
            "notes": self.run.notes,
            "faults": self.episodes(),
            "counted_and_scraped": gaps(&self.run.series),
            "summary": summary,
        })
    }

    /// Names and values for a sheet: what tells the run from others, then every number of its summary, named by its path
    /// there.
    fn sheet(&self) -> Vec<(String, String)> {
        let mut cells = vec![
            ("run".to_owned(), self.run.name.clone()),
            ("dir".to_owned(), self.run.dir.display().to_string()),
            ("state".to_owned(), self.state().to_owned()),
            (
                "verdict".to_owned(),
                self.grade().unwrap_or_default().to_owned(),
            ),
        ];
        if let Some(RunFile {
            settings, repeat, ..
        }) = &self.run.file
        {
            cells.push(("repeat".to_owned(), repeat.to_string()));
            let settings = settings.iter();
            cells.extend(settings.map(|(key, value)| (format!("settings.{key}"), plain(value))));
        }
        let summary = self.summary.to_json();
        flatten("", &summary, &mut cells);
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
const NO_FIGURES: [&str; 6] = [
    "series",
    "config",
    "machine",
    "versions",
    "hosts",
    "other_hosts",
];

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

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A row a run, as CSV.
pub fn to_csv(told: &[Told<'_>]) -> String {
    let sheets: Vec<Vec<(String, String)>> = told.iter().map(Told::sheet).collect();
    let mut heads: Vec<&str> = Vec::new();
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

/// All of it for programs.
pub fn to_json(loaded: &Loaded, told: &[Told<'_>], made: &Comparison) -> Value {
    let mut all = Map::new();
    let experiment = loaded.experiment.as_ref();
    let experiment = experiment.and_then(|known| serde_json::to_value(known).ok());
    all.insert("experiment".to_owned(), experiment.unwrap_or(Value::Null));
    let differences = made.differences.iter().filter_map(|difference| {
        let mut shown = serde_json::to_value(difference).ok()?;
        shown["sentence"] = difference.sentence().into();
        Some(shown)
    });
    all.insert("comparison".to_owned(), differences.collect());
    let sweeps = made.sweeps.iter().filter_map(|sweep| {
        let mut shown = serde_json::to_value(sweep).ok()?;
        shown["sentence"] = sweep.sentence().into();
        Some(shown)
    });
    all.insert("sweeps".to_owned(), sweeps.collect());
    all.insert("not_compared".to_owned(), made.notes.clone().into());
    let runs = told.iter().map(Told::to_json);
    all.insert("runs".to_owned(), runs.collect());
    Value::Object(all)
}

/// A line a run.
pub fn of_runs(told: &[Told<'_>]) -> Grid {
    let mut heads: Vec<String> = ["run", "ok", "failed", "req/s"].map(str::to_owned).into();
    heads.extend(SHOWN.map(|(head, ..)| head.to_owned()));
    heads.push("tokens/s".to_owned());
    let row = |told: &Told<'_>| {
        let (run, all) = (&told.summary.run, &told.summary.all);
        let mark = told
            .mark()
            .map(|mark| format!(" {mark}"))
            .unwrap_or_default();
        let rate = run.a_second(all.completed as f64);
        let tokens = all
            .tokens
            .output
            .and_then(|tokens| run.a_second(tokens as f64));
        let mut cells = vec![
            format!("{}{mark}", told.run.name),
            all.counts.ok().to_string(),
            all.counts.failed().to_string(),
            figure(rate, |rate| format!("{rate:.2}")),
        ];
        cells.extend(latencies(all));
        cells.push(figure(tokens, |tokens| format!("{tokens:.0}")));
        cells
    };
    Grid {
        heads,
        rows: told.iter().map(row).collect(),
    }
}

/// A line a server of a run.
pub fn of_servers(told: &Told<'_>) -> Grid {
    let mut heads: Vec<String> = ["server", "ok", "failed", "share"]
        .map(str::to_owned)
        .into();
    heads.extend(SHOWN.map(|(head, ..)| head.to_owned()));
    let named = told.summary.hosts.iter();
    let named = named.map(|(host, group)| (server(told.run, host), group));
    let others = told.summary.other_hosts.iter();
    let others = others.map(|(servers, group)| (format!("{servers} others"), group));
    let hosts: Vec<(String, &Group)> = named.chain(others).collect();
    let all: u64 = hosts.iter().map(|(_, group)| group.counts.requests).sum();
    let row = |(host, group): (String, &Group)| {
        let share = group.counts.requests as f64 / all as f64;
        let mut cells = vec![
            host,
            group.counts.ok().to_string(),
            group.counts.failed().to_string(),
            format!("{:.0} %", share * 100.0),
        ];
        cells.extend(latencies(group));
        cells
    };
    Grid {
        heads,
        rows: hosts.into_iter().map(row).collect(),
    }
}

/// A server by its name in the run, where it has one.
fn server(run: &Run, host: &str) -> String {
    let servers = run.file.iter().flat_map(|file| &file.servers);
    let mut named = servers.filter(|server| server.host == host);
    named.next().map_or_else(
        || host.to_owned(),
        |server| format!("{} ({host})", server.name),
    )
}

fn latencies(group: &Group) -> impl Iterator<Item = String> {
    SHOWN.iter().map(|(_, name, get)| {
        let summary = group.latencies.get(name);
        figure(summary.map(get), super::duration)
    })
}

fn figure(value: Option<f64>, shown: impl Fn(f64) -> String) -> String {
    value
        .filter(|value| value.is_finite())
        .map_or("-".to_owned(), shown)
}
