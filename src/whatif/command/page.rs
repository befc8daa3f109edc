//! Predictions as a page: that of an experiment whose runs are the load as it was measured, and each prediction's rows.

use crate::clock::{NANOS, Stamp};
use crate::experiment::plan::grid::{self, Sweep};
use crate::report::compare::Comparison;
use crate::report::files::{ExperimentFile, RunFile, RunState};
use crate::report::load::goals_ms;
use crate::report::page;
use crate::report::reader::{Loaded, Run};
use crate::report::runs::{Report, RunReport};
use crate::request::endpoint::Endpoint;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::sequence::TimingSource;
use crate::request::timeline::{ClockOf, Moment, Relation, Side, Timeline};
use crate::whatif::figures::{TPOT, named};
use crate::whatif::load::{Load, Request, Times};

use super::{Made, Prediction};

impl Made<'_> {
    /// The runs of the load and the predictions, as a report of an experiment shows them.
    pub fn page(&self, mut runs: Vec<Run>, sweeps: &[Sweep]) -> String {
        runs.extend(self.predictions.iter().filter_map(|of| self.run(of)));
        if !self.args.goodput.is_empty() {
            let goals = goals_ms(&self.args.goodput);
            for run in &mut runs {
                run.summary["goodput_goals_ms"] = goals.clone();
            }
        }
        let mut keys: Vec<String> = sweeps.iter().map(|sweep| sweep.key.clone()).collect();
        keys.extend(self.args.find.map(|what| what.key().to_owned()));
        let experiment = ExperimentFile {
            kind: "what-if".to_owned(),
            keys,
            ..ExperimentFile::default()
        };
        let loaded = Loaded {
            experiment: Some(experiment),
            runs,
        };
        // What differs is not tested: chance is not what predictions are off by.
        page::render(&Report {
            runs: loaded.runs.iter().map(RunReport::of).collect(),
            comparison: Comparison::default(),
            loaded: &loaded,
        })
    }

    fn run(&self, prediction: &Prediction) -> Option<Run> {
        let made = prediction.made.as_ref()?;
        let name = format!("predicted: {}", grid::label(&prediction.settings));
        let mut run = Run {
            file: Some(RunFile {
                label: name.clone(),
                settings: grid::json(&prediction.settings),
                state: RunState::Done,
                ..RunFile::default()
            }),
            name,
            off: named(prediction.errors),
            notes: std::iter::once("predicted, not measured".to_owned())
                .chain(prediction.note.clone())
                .collect(),
            ..Run::default()
        };
        for (n, (request, times)) in made.seen().enumerate() {
            run.table.push_row(&row(n, request, times, made));
        }
        Some(run)
    }
}

fn row(n: usize, request: &Request, times: Times, load: &Load) -> Row {
    let mut timeline = Timeline::new(Side::Traffic);
    // Nothing stands between who sends and the server.
    timeline.upstream_is_server(true);
    timeline.relate(ClockOf::Engine, Relation::Same);
    for (moment, at) in [
        (Moment::Sent, request.at),
        (Moment::ServerCreated, times.created),
        (Moment::QueueStart, times.queued),
        (Moment::QueueEnd, times.admitted),
        (Moment::PrefillEnd, times.prefilled),
        (Moment::ServerFirstToken, times.first),
        (Moment::FirstEvent, times.first),
        (Moment::FirstToken, times.first),
        (Moment::LastToken, times.finish),
        (Moment::Finish, times.finish),
        (Moment::End, times.finish),
    ] {
        timeline.set(moment, Stamp::from_nanos(0).plus_seconds(at));
    }
    let [prompt, output] = [request.prompt, request.output].map(u64::from);
    let mut row = Row {
        req_id: Some(n.to_string()),
        success: Some(true),
        host: load.servers.get(request.server).cloned(),
        actual_prompt_tokens: Some(prompt),
        actual_output_tokens: Some(output),
        actual_total_tokens: Some(prompt + output),
        cached_tokens: Some(request.cached.into()),
        tpot: (output > 1).then(|| (TPOT(request, times) * NANOS as f64) as i64),
        endpoint: Some(Endpoint::Generate),
        stream: Some(true),
        status: Some(200),
        outcome: Some(Outcome::Ok),
        seen_by: Some(Side::Traffic),
        timing_source: Some(TimingSource::MetaInfo),
        timeline,
        ..Row::default()
    };
    row.derive_anew();
    row
}
