//! The output of `queuescope whatif`: text and JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{LoadResult, Prediction, Results};
use crate::experiment::plan::grid;
use crate::report::grid::Grid;
use crate::report::render;
use crate::whatif::figures::{COMPARED, by_name};

/// Bounds of which the upper is more than this many times the lower are not shown.
const MAX_RATIO: f64 = 100.0;

impl Results<'_> {
    /// The output of `--json`.
    pub fn to_json(&self) -> Value {
        let fit = &self.fit;
        let parameters = fit.estimates.iter().map(|estimate| {
            let [low, high] = estimate.bounds;
            let value = json!({ "value": estimate.value, "low": low, "high": high });
            (estimate.name, value)
        });
        let validation = fit.validation.iter().map(|run| {
            json!({
                "file": run.name,
                "measured": run.measured,
                "predicted": run.predicted,
                "error": by_name(run.errors()),
            })
        });
        let loads = self.loads.iter().map(|LoadResult { load, measured, mark, notes, .. }| {
            json!({ "name": load.name, "mark": mark, "requests": load.counts()[0], "servers": load.servers, "max_running_requests": load.slots,
                "measured": measured, "notes": notes })
        });
        let predicted = |of: &LoadResult<'_>, prediction: &Prediction| {
            let mut shown = json!(prediction.figures);
            shown["load"] = of.load.name.as_str().into();
            shown["settings"] = grid::json(&prediction.settings).into();
            shown["error"] = json!(by_name(prediction.errors));
            shown["refused"] = prediction.refused.into();
            shown["note"] = prediction.note.clone().into();
            shown
        };
        let all = self.loads.iter();
        let predictions =
            all.flat_map(|of| of.predictions.iter().map(move |one| predicted(of, one)));
        let not_found = self.loads.iter().flat_map(|of| {
            let (of_load, reason) = (&of.load.name, self.not_found_reason(of.load));
            let settings = of.not_found.iter();
            settings.map(
                move |of| json!({ "load": of_load, "settings": grid::json(of), "reason": reason }),
            )
        });
        json!({
            "fit": {
                "requests": fit.requests,
                "most_running": fit.running.0,
                "parameters": parameters.collect::<BTreeMap<_, _>>(),
                "gpu_share": fit.gpu_shares,
                "error": fit.error(),
            },
            "validation": validation.collect::<Value>(),
            "loads": loads.collect::<Value>(),
            "predictions": predictions.collect::<Value>(),
            "not_found": not_found.collect::<Value>(),
            "no_prediction": self.no_prediction,
        })
    }

    /// The output for the terminal.
    pub fn to_text(&self) -> String {
        let fit = &self.fit;
        let parameters = fit.estimates.iter().map(|estimate| {
            let [low, high] = estimate.bounds;
            let bounds = match high / low {
                ..=MAX_RATIO => format!("{} – {}", short(low), short(high)),
                _ => "not told".to_owned(),
            };
            vec![estimate.name.to_owned(), short(estimate.value), bounds]
        });
        let shares = fit.gpu_shares.iter().map(|(servers, share)| {
            let name = format!("gpu_share, {servers} servers");
            vec![name, format!("{share:.2}"), String::new()]
        });
        let learnt = Grid {
            heads: ["learnt", "value", "95 %"].map(str::to_owned).into(),
            rows: parameters.chain(shares).collect(),
        };
        let validation = fit.validation.iter();
        let signed = |error| format!("{:+.1} %", error * 100.0);
        let replayed = validation.map(|run| cells(&run.name, run.errors(), signed));
        let names = COMPARED.map(|(name, _)| name);
        let error = cells("error (root mean square)", fit.errors(), percent);
        let replayed = Grid {
            heads: cells("replays off by", names, str::to_owned),
            rows: replayed.chain([error]).collect(),
        };
        let (mut lines, mut notes) = (Vec::new(), String::new());
        for of in &self.loads {
            self.add_load(of, &mut lines, &mut notes);
        }
        let mut predicted = render::table("run", lines);
        if !self.args.goodput.is_empty() {
            predicted.heads.push("kept the goal".to_owned());
        }
        for row in &mut predicted.rows {
            row.resize(predicted.heads.len(), String::new());
        }
        let is_empty = |of: &LoadResult<'_>| of.predictions.is_empty();
        let head = match self.loads.iter().all(is_empty) {
            true => "Measured; nothing is predicted",
            false => {
                "Predicted (±: the error of the replays, and what servers 5 % slower would change)"
            }
        };
        format!(
            "Learnt from {} requests:\n{}\n{}\n{head}:\n{}{notes}",
            fit.requests,
            learnt.to_text(None),
            replayed.to_text(None),
            predicted.to_text(None),
        )
    }

    /// Adds a load and its predictions to the table of runs, and their notes.
    fn add_load(&self, of: &LoadResult<'_>, lines: &mut Vec<Vec<String>>, notes: &mut String) {
        let row = |line: &Vec<String>, share: Option<f64>| {
            let share = share.map(percent);
            line.iter().cloned().chain(share).collect()
        };
        lines.push(row(&of.line, of.measured.goodput_share));
        let mut note = |text: &str| *notes += &format!("note: {text}\n");
        of.notes.iter().for_each(|text| note(text));
        // With a single combination of settings, the reason is the command's error.
        let has_others = self.are_several || !of.predictions.is_empty();
        for settings in of.not_found.iter().filter(|_| has_others) {
            let label = self.label(settings, of.load);
            note(&format!("{label}: {}", self.not_found_reason(of.load)));
        }
        for prediction in &of.predictions {
            let label = self.label(&prediction.settings, of.load);
            let refused = prediction.refused;
            lines.push(row(&prediction.line, prediction.figures.goodput_share));
            let [ttft_p50, ttft_p99, _, total_p99, _, throughput] = prediction.errors.map(percent);
            let off = ["  ±", "", "", &throughput, &ttft_p50, &ttft_p99, &total_p99];
            lines.push(off.map(str::to_owned).into());
            if refused > 0 {
                let [all, _] = of.load.counts();
                note(&format!(
                    "{label}: {refused} of {all} requests are refused, as they are longer than the KV cache"
                ));
            }
            if let Some(text) = &prediction.note {
                note(&format!("{label}: {text}"));
            }
        }
    }
}

fn cells<T>(name: &str, all: [T; COMPARED.len()], shown: impl Fn(T) -> String) -> Vec<String> {
    let first = std::iter::once(name.to_owned());
    first.chain(all.map(shown)).collect()
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
        _ => format!("{value:.4}"),
    }
}
