//! What was learnt, replayed and predicted, for people and for programs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Made;
use crate::experiment::plan::grid;
use crate::report::grid::Grid;
use crate::whatif::figures::{Figures, named};

/// Bounds that are further apart, as a factor, say nothing.
const MOST_APART: f64 = 100.0;

impl Made<'_> {
    /// For programs.
    pub fn to_json(&self) -> Value {
        let (fit, load) = (&self.fit, self.load);
        let learnt = fit.learnt.iter().map(|learnt| {
            let [low, high] = learnt.bounds;
            let told = json!({ "value": learnt.value, "low": low, "high": high });
            (learnt.name, told)
        });
        let validation = fit.validation.iter().map(|run| {
            json!({
                "file": run.name,
                "measured": run.measured,
                "predicted": run.predicted,
                "error": named(run.errors()),
            })
        });
        let predicted = self.predictions.iter().map(|prediction| {
            let mut shown = json!(prediction.figures);
            shown["settings"] = grid::json(&prediction.settings).into();
            shown["error"] = json!(named(prediction.errors));
            shown["refused"] = prediction.refused.into();
            shown["note"] = prediction.note.clone().into();
            shown
        });
        let not_found = self.not_found.iter().map(
            |settings| json!({ "settings": grid::json(settings), "reason": self.none_keeps() }),
        );
        json!({
            "fit": {
                "requests": fit.requests,
                "most_running": fit.most_running,
                "parameters": learnt.collect::<BTreeMap<_, _>>(),
                "gpu_share": fit.shares,
                "error": fit.error(),
            },
            "validation": validation.collect::<Value>(),
            "load": { "requests": load.requests.len(), "servers": load.servers, "max_running_requests": load.slots, "measured": self.measured, "notes": self.notes },
            "predictions": predicted.collect::<Value>(),
            "not_found": not_found.collect::<Value>(),
            "no_prediction": self.no_prediction,
        })
    }

    /// For the terminal.
    pub fn to_text(&self) -> String {
        let (fit, load) = (&self.fit, self.load);
        let learnt = fit.learnt.iter().map(|learnt| {
            let [low, high] = learnt.bounds;
            let bounds = match high / low {
                ..=MOST_APART => format!("{} – {}", short(low), short(high)),
                _ => "not told".to_owned(),
            };
            vec![learnt.name.to_owned(), short(learnt.value), bounds]
        });
        let shared = fit.shares.iter().map(|(servers, share)| {
            let name = format!("gpu_share, {servers} servers");
            vec![name, format!("{share:.2}"), String::new()]
        });
        let learnt = Grid {
            heads: ["learnt", "value", "95 %"].map(str::to_owned).into(),
            rows: learnt.chain(shared).collect(),
        };
        let mut replayed = Vec::new();
        for run in &fit.validation {
            replayed.push(line(&run.name, &run.measured));
            replayed.push(line("  replayed", &run.predicted));
            replayed.push(cells(
                "  off by",
                run.errors().map(|off| format!("{:+.1} %", off * 100.0)),
            ));
        }
        replayed.push(cells("error (root mean square)", fit.errors().map(percent)));
        let mut predicted = vec![line(&format!("measured: {}", load.name), &self.measured)];
        let mut notes: String = self
            .notes
            .iter()
            .map(|note| format!("note: {note}\n"))
            .collect();
        for settings in &self.not_found {
            notes += &format!("note: {}: {}\n", grid::label(settings), self.none_keeps());
        }
        for prediction in &self.predictions {
            let (label, refused) = (grid::label(&prediction.settings), prediction.refused);
            predicted.push(line(&format!("predicted: {label}"), &prediction.figures));
            predicted.push(cells("  ±", prediction.errors.map(percent)));
            let refused = (refused > 0).then(|| {
                let all = load.requests.len();
                format!(
                    "{refused} of {all} requests are refused, as they are longer than the KV cache"
                )
            });
            for note in refused.iter().chain(&prediction.note) {
                notes += &format!("note: {label}: {note}\n");
            }
        }
        format!(
            "Learnt of {} requests:\n{}\nReplayed (milliseconds):\n{}\n\
             Predicted (milliseconds; ±: replays were off by so much, and servers 5 % slower would change so much):\n\
             {}{notes}",
            fit.requests,
            learnt.to_text(None),
            grid_of(replayed).to_text(None),
            grid_of(predicted).to_text(None),
        )
    }
}

/// Figures under their heads; the last column is there where there are goals.
fn grid_of(rows: Vec<Vec<String>>) -> Grid {
    let heads = [
        "",
        "TTFT p50",
        "TTFT p99",
        "total p50",
        "total p99",
        "queue mean",
        "done a second",
        "kept the goal",
    ];
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    Grid {
        heads: heads.into_iter().take(columns).map(str::to_owned).collect(),
        rows,
    }
}

fn line(name: &str, figures: &Figures) -> Vec<String> {
    let [times @ .., throughput] = figures.compared();
    let more = [
        Some(format!("{throughput:.2}")),
        figures.goodput_share.map(percent),
    ];
    cells(
        name,
        times
            .map(short)
            .into_iter()
            .chain(more.into_iter().flatten()),
    )
}

fn cells(name: &str, cells: impl IntoIterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).collect()
}

fn percent(share: f64) -> String {
    match share.is_nan() {
        true => "unknown".to_owned(),
        false => format!("{:.1} %", share * 100.0),
    }
}

fn short(value: f64) -> String {
    match value {
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ if value.is_nan() => "–".to_owned(),
        _ => format!("{value:.4}"),
    }
}
