//! What was learnt, replayed and predicted, for people and for programs.

use serde_json::{Value, json};

use crate::experiment::plan::grid;
use crate::report::grid::Grid;

use super::Made;
use crate::whatif::figures::Figures;
use crate::whatif::fit::{COMPARED, Errors, compared};

/// Bounds that are further apart, as a factor, say nothing.
const MOST_APART: f64 = 100.0;

impl Made<'_> {
    /// For programs.
    pub fn to_json(&self) -> Value {
        let (fit, load) = (&self.fit, self.load);
        let learnt = fit.learnt.iter().map(|learnt| {
            (
                learnt.name.to_owned(),
                json!({ "value": learnt.value, "low": learnt.bounds[0], "high": learnt.bounds[1] }),
            )
        });
        let shares: serde_json::Map<String, Value> = fit
            .shares
            .iter()
            .map(|(servers, share)| (servers.to_string(), json!(share)))
            .collect();
        let validation = fit.validation.iter().map(|run| {
            json!({
                "file": run.name,
                "max_running_requests": run.slots,
                "measured": figures(&run.measured),
                "predicted": figures(&run.predicted),
                "error": errors(run.errors()),
            })
        });
        let predicted = self.predictions.iter().map(|prediction| {
            let mut shown = figures(&prediction.figures);
            shown["settings"] = grid::json(&prediction.settings).into();
            shown["error"] = errors(self.errors);
            shown["refused"] = prediction.refused.into();
            if let Some(kept) = prediction.figures.kept {
                shown["goodput_share"] = kept.into();
            }
            shown
        });
        json!({
            "fit": {
                "requests": fit.requests,
                "parameters": learnt.collect::<serde_json::Map<_, _>>(),
                "gpu_share": shares,
                "error": fit.error(),
                "error_of_second_halves": errors(self.errors),
            },
            "validation": validation.collect::<Value>(),
            "load": { "requests": load.requests.len(), "servers": load.servers, "max_running_requests": load.slots, "notes": self.notes },
            "predictions": predicted.collect::<Value>(),
            "no_prediction": self.no_prediction,
        })
    }
}

fn figures(figures: &Figures) -> Value {
    let three =
        |of: [f64; 3]| json!({ "mean": of[0] * 1e3, "p50": of[1] * 1e3, "p99": of[2] * 1e3 });
    json!({
        "ttft_ms": three(figures.ttft),
        "total_latency_ms": three(figures.total),
        "pure_queue_time_ms": three(figures.queue),
        "request_throughput": figures.throughput,
    })
}

fn errors(errors: Errors) -> Value {
    let named = COMPARED.iter().zip(errors);
    named
        .map(|(name, error)| ((*name).to_owned(), json!(error)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

impl Made<'_> {
    /// Of how many requests no server would take.
    fn too_long(&self) -> impl Iterator<Item = String> + '_ {
        let all = self.load.requests.len();
        let some = self.predictions.iter().filter(|of| of.refused > 0);
        some.map(move |of| {
            let (label, refused) = (grid::label(&of.settings), of.refused);
            format!("{label}: {refused} of {all} requests are refused, as they are longer than the KV cache")
        })
    }

    fn learnt(&self) -> Grid {
        let learnt = self.fit.learnt.iter().map(|learnt| {
            let [low, high] = learnt.bounds;
            vec![
                learnt.name.to_owned(),
                short(learnt.value),
                match high / low {
                    ..=MOST_APART => format!("{} – {}", short(low), short(high)),
                    _ => "not told".to_owned(),
                },
            ]
        });
        Grid {
            heads: ["learnt", "value", "95 %"].map(str::to_owned).into(),
            rows: learnt.collect(),
        }
    }

    /// For the terminal.
    pub fn to_text(&self) -> String {
        let (fit, load) = (&self.fit, self.load);
        let mut replayed = Vec::new();
        for run in &fit.validation {
            replayed.push(line(&run.name, &run.measured));
            replayed.push(line("  replayed", &run.predicted));
            replayed.push(shares("  off by", run.errors(), "+"));
        }
        replayed.push(shares("error (root mean square)", fit.errors(), ""));
        let measured = Figures::of(load, &self.goals);
        let mut predicted = vec![line(&format!("measured: {}", load.name), &measured)];
        for prediction in &self.predictions {
            let label = grid::label(&prediction.settings);
            predicted.push(line(&format!("predicted: {label}"), &prediction.figures));
            predicted.push(shares("  ±", self.errors, ""));
        }
        let notes = self.notes.iter().cloned().chain(self.too_long());
        let notes: String = notes.map(|note| format!("note: {note}\n")).collect();
        let shared: String = fit
            .shares
            .iter()
            .map(|(servers, share)| {
                format!("{servers} servers: each as fast as with {share:.2} of a GPU\n")
            })
            .collect();
        format!(
            "Learnt of {} requests:\n{}{shared}\nReplayed (milliseconds):\n{}\n\
             Predicted (milliseconds; ±: what the first halves of the rows of --fit taught was off by so much in the second halves):\n\
             {}{notes}",
            fit.requests,
            self.learnt().to_text(None),
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
    let [times @ .., throughput] = compared(figures);
    let cells = times.map(|time| match throughput > 0.0 {
        true => short(time * 1e3),
        false => "–".to_owned(),
    });
    std::iter::once(name.to_owned())
        .chain(cells)
        .chain([format!("{throughput:.2}")])
        .chain(figures.kept.map(|kept| format!("{:.1} %", kept * 100.0)))
        .collect()
}

fn shares(name: &str, errors: Errors, sign: &str) -> Vec<String> {
    let cell = |error: f64| match sign {
        "" => format!("{:.1} %", error * 100.0),
        _ => format!("{:+.1} %", error * 100.0),
    };
    std::iter::once(name.to_owned())
        .chain(errors.map(cell))
        .collect()
}

fn short(value: f64) -> String {
    match value {
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
