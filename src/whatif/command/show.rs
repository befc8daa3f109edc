//! The output of `queuescope whatif`: text and JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Measured, Results};
use crate::report::grid::Grid;
use crate::report::render;
use crate::units::round_to_four_digits;
use crate::whatif::figures::{COMPARED, by_name};

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
        json!({
            "fit": {
                "requests": fit.requests,
                "most_running": fit.running.0,
                "parameters": parameters.collect::<BTreeMap<_, _>>(),
                "gpu_share": fit.gpu_shares,
                "error": fit.error(),
            },
            "validation": validation.collect::<Value>(),
            "loads": self.loads,
            "predictions": self.predictions,
            "not_found": self.not_found,
            "no_prediction": self.no_prediction,
        })
    }

    /// The output for the terminal.
    pub fn to_text(&self) -> String {
        let fit = &self.fit;
        let parameters = fit.estimates.iter().map(|estimate| {
            let [low, high] = estimate.bounds.map(round_to_four_digits);
            let value = round_to_four_digits(estimate.value).to_string();
            vec![estimate.name.to_owned(), value, format!("{low} – {high}")]
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
        format!(
            "Learnt from {} requests:\n{}\n{}\nMeasured and predicted (±: the error of the replays, and what servers 5 % slower \
             would change):\n{}{notes}",
            fit.requests,
            learnt.to_text(None),
            replayed.to_text(None),
            predicted.to_text(None),
        )
    }

    /// Adds a load and its predictions to the table of runs, and their notes.
    fn add_load(&self, load: &Measured, lines: &mut Vec<Vec<String>>, notes: &mut String) {
        let row = |line: &Vec<String>, share: Option<f64>| {
            let share = share.map(percent);
            line.iter().cloned().chain(share).collect()
        };
        let mut note = |text: &str| *notes += &format!("note: {text}\n");
        lines.push(row(&load.line, load.measured.goodput_share));
        load.notes.iter().for_each(|text| note(text));
        let not_found = self.not_found.iter().filter(|of| of.load == load.name);
        not_found.for_each(|of| note(&of.reason));
        for of in self.predictions.iter().filter(|of| of.load == load.name) {
            let (label, refused, all) = (&of.label, of.refused, load.requests);
            lines.push(row(&of.line, of.figures.goodput_share));
            let error = |figure| percent(of.error[figure]);
            let [ttft_p50, ttft_p99] = ["ttft_ms.p50", "ttft_ms.p99"].map(error);
            let [total, rate] = ["total_latency_ms.p99", "request_throughput"].map(error);
            let off = ["  ±", "", "", &rate, &ttft_p50, &ttft_p99, &total];
            lines.push(off.map(str::to_owned).into());
            if refused > 0 {
                note(&format!(
                    "{label}: {refused} of {all} requests are refused, as they are longer than the KV cache"
                ));
            }
            if let Some(text) = &of.note {
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
    format!("{:.1} %", share * 100.0)
}
