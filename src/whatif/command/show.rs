//! The output of `queuescope whatif`: text, JSON, and the page of `--html`, which is that of an experiment whose runs are each load as it
//! was measured and its predictions.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Find, Prediction, Results};
use crate::clock::{NANOS, Stamp};
use crate::experiment::plan::grid::{self, Entry, Sweep};
use crate::report::compare::Comparison;
use crate::report::files::{ExperimentFile, RunFile, RunState};
use crate::report::findings::RunReport;
use crate::report::grid::Grid;
use crate::report::load::{Summary, goals_ms};
use crate::report::reader::{Loaded, Run};
use crate::report::{Report, page, render};
use crate::request::{
    ClockOf, Endpoint, Moment, Outcome, Relation, Row, Side, Timeline, TimingSource,
};
use crate::units::{one_decimal, round_to_four_digits};
use crate::whatif::figures::{COMPARED, Compared, Figures, TPOT, by_name};
use crate::whatif::load::{Load, Request};

impl Results {
    /// The output of `--json`.
    pub fn to_json(&self) -> Value {
        let fit = &self.fit;
        let parameters = fit.estimates.iter().map(|of| (of.name, of));
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
        let parameters = fit.estimates.iter().map(|of| {
            let [value, low, high] = [of.value, of.low, of.high].map(round_to_four_digits);
            vec![
                of.name.to_owned(),
                value.to_string(),
                format!("{low} – {high}"),
            ]
        });
        let shares = fit.gpu_shares.iter().map(|(servers, share)| {
            let name = format!("gpu_share, {servers} servers");
            vec![name, format!("{share:.2}"), String::new()]
        });
        let rows = parameters.chain(shares).collect();
        let learnt = Grid::new(["learnt", "value", "95 %"], rows);
        let validation = fit.validation.iter();
        let signed = |error| format!("{:+.1} %", error * 100.0);
        let replayed = validation.map(|run| cells(&run.name, run.errors(), signed));
        let names = COMPARED.iter().map(|(name, ..)| *name);
        let error = cells("error (root mean square)", fit.errors(), one_decimal);
        let heads = std::iter::once("replays off by").chain(names);
        let replayed = Grid::new(heads, replayed.chain([error]).collect());
        let predicted = render::table("run", self.has_goals(), self.lines.clone());
        // The one that ends the command is its error.
        let notes = self.notes.iter();
        let notes = notes.filter(|note| self.nothing_found.as_ref() != Some(note));
        let notes: String = notes.map(|note| format!("note: {note}\n")).collect();
        format!(
            "Learnt from {} requests:\n{}\n{}\nMeasured and predicted (±: the error of the replays, and what servers 5 % slower \
             would change):\n{}{notes}",
            fit.requests,
            learnt.to_text(None),
            replayed.to_text(None),
            predicted.to_text(None),
        )
    }

    fn has_goals(&self) -> bool {
        !self.args.goodput.is_empty()
    }

    /// Adds the row of a run to the table. Returns its figures.
    fn add_line(&mut self, name: String, of_run: &Summary) -> Figures {
        let line = render::line_of(name, &of_run.all, &of_run.run, self.has_goals());
        self.lines.push(line);
        Figures::of_run(of_run)
    }

    /// Adds a load as it was measured.
    pub fn add_measured(&mut self, run: Run, load: &Load, notes: Vec<String>) {
        let measured = self.add_line(
            format!("measured: {}", run.marked_name()),
            &Summary::of_run(&run),
        );
        self.loads.push(json!({
            "name": load.name,
            "mark": run.mark(),
            "requests": load.requests.len(),
            "servers": load.servers,
            "max_running_requests": load.slots,
            "measured": measured,
            "notes": notes,
        }));
        self.notes.extend(notes);
        self.runs.extend(self.args.html.is_some().then_some(run));
    }

    /// Adds a prediction.
    pub fn add(&mut self, load: &Load, prediction: Prediction) {
        let label = self.label(&prediction.settings, load);
        let figures = self.add_line(prediction.run.name.clone(), &prediction.summary);
        // Its rows take much memory, and another replay follows.
        let run = self.args.html.is_some().then_some(prediction.run);
        let (servers, predicted) = (&prediction.servers, &prediction.load);
        let errors = by_name(self.fit.expected_errors(servers, load, &figures));
        let (all, served) = (predicted.requests.len(), predicted.timed().count());
        let off = (served > 0).then(|| render::error_line(&errors));
        self.lines.extend(off);
        let refused = all - served;
        if refused > 0 {
            self.notes.push(format!(
                "{label}: {refused} of {all} requests are refused, as they are longer than the KV cache"
            ));
        }
        let note = self.extrapolation_note(servers, predicted);
        let labelled = note.iter().map(|note| format!("{label}: {note}"));
        self.notes.extend(labelled);
        let mut shown = json!(figures);
        shown["load"] = json!(load.name);
        shown["settings"] = json!(grid::json(&prediction.settings));
        shown["error"] = json!(errors);
        shown["note"] = json!(note);
        shown["refused"] = json!(refused);
        self.predictions.push(shown);
        if let Some(mut run) = run {
            run.prediction_errors = if served > 0 { errors } else { BTreeMap::new() };
            run.notes.extend(note);
            self.runs.push(run);
        }
    }

    /// Renders the page.
    pub fn page(&mut self, sweeps: &[Sweep]) -> String {
        let load = self.are_several.then_some("load");
        let keys = load.into_iter();
        let keys = keys.chain(sweeps.iter().map(|(key, _)| key.as_str()));
        let keys = keys.chain(self.args.find.map(Find::key));
        let experiment = ExperimentFile {
            kind: "what-if".to_owned(),
            keys: keys.map(str::to_owned).collect(),
            ..ExperimentFile::default()
        };
        let loaded = Loaded {
            experiment: Some(experiment),
            runs: std::mem::take(&mut self.runs),
        };
        // Differences are not tested: predictions have systematic errors, not random ones.
        page::render(&Report {
            runs: loaded.runs.iter().map(RunReport::of).collect(),
            comparison: Comparison::default(),
            loaded: &loaded,
        })
    }

    /// A prediction's requests as a run; refused ones failed.
    pub fn run_of(&self, settings: &[Entry], made: &Load) -> Run {
        let name = format!("predicted: {}", self.label(settings, made));
        let mut settings = grid::json(settings);
        if self.are_several {
            settings.insert("load".to_owned(), made.name.as_str().into());
        }
        let mut run = Run {
            file: Some(RunFile {
                label: name.clone(),
                settings,
                state: RunState::Done,
                ..RunFile::default()
            }),
            name,
            notes: vec!["predicted, not measured".to_owned()],
            ..Run::default()
        };
        for (number, request) in made.requests.iter().enumerate() {
            run.table.push_row(&row(number.to_string(), request, made));
        }
        run.summary["goodput_goals_ms"] = goals_ms(&self.args.goodput);
        run
    }
}

fn cells(name: &str, all: Compared, shown: impl Fn(f64) -> String) -> Vec<String> {
    let first = std::iter::once(name.to_owned());
    first.chain(all.map(shown)).collect()
}

fn row(id: String, request: &Request, load: &Load) -> Row {
    let mut timeline = Timeline::new(Side::Traffic);
    // The generator sends straight to the server.
    timeline.upstream_is_server(true);
    timeline.relate(ClockOf::Engine, Relation::Same);
    let at = |seconds| Stamp::EPOCH.plus_seconds(seconds);
    timeline.set(Moment::Sent, at(request.arrival));
    let ended = request.times.map_or(request.arrival, |times| times.finish);
    timeline.set(Moment::End, at(ended));
    let mut row = Row {
        req_id: Some(id),
        success: Some(false),
        host: load.servers.get(request.server).cloned(),
        actual_prompt_tokens: Some(request.prompt.into()),
        endpoint: Some(Endpoint::Generate),
        stream: Some(true),
        status: Some(400),
        outcome: Some(Outcome::ClientError),
        seen_by: Some(Side::Traffic),
        ..Row::default()
    };
    if let Some(times) = request.times {
        for (moment, seconds) in [
            (Moment::ServerCreated, times.created),
            (Moment::QueueStart, times.queued),
            (Moment::QueueEnd, times.admitted),
            (Moment::PrefillEnd, times.prefilled),
            (Moment::ServerFirstToken, times.first),
            (Moment::FirstEvent, times.first),
            (Moment::FirstToken, times.first),
            (Moment::LastToken, times.finish),
            (Moment::Finish, times.finish),
        ] {
            timeline.set(moment, at(seconds));
        }
        let [prompt, output] = [request.prompt, request.output].map(u64::from);
        row.success = Some(true);
        (row.status, row.outcome) = (Some(200), Some(Outcome::Ok));
        row.actual_output_tokens = Some(output);
        row.actual_total_tokens = Some(prompt + output);
        row.cached_tokens = Some(request.cached.into());
        row.tpot = (output > 1).then(|| (TPOT(request, times) * NANOS as f64) as i64);
        row.timing_source = Some(TimingSource::MetaInfo);
    }
    row.timeline = timeline;
    row.derive_anew();
    row
}
