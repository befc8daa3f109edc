//! The page of `--html`: that of an experiment whose runs are each load as it was measured and its predictions.

use crate::clock::{NANOS, Stamp};
use crate::experiment::plan::grid::{self, Entry, Sweep};
use crate::report::Report;
use crate::report::compare::Comparison;
use crate::report::files::{ExperimentFile, RunFile, RunState};
use crate::report::findings::RunReport;
use crate::report::page;
use crate::report::reader::{Loaded, Run};
use crate::request::{
    ClockOf, Endpoint, Moment, Outcome, Relation, Row, Side, Timeline, TimingSource,
};
use crate::whatif::figures::TPOT;
use crate::whatif::load::{Load, Request};

use super::{Find, Results};

impl Results<'_> {
    /// Renders the page.
    pub fn page(self, sweeps: &[Sweep]) -> String {
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
            runs: self.runs,
        };
        // Differences are not tested: predictions have systematic errors, not random ones.
        page::render(&Report {
            runs: loaded.runs.iter().map(RunReport::of).collect(),
            comparison: Comparison::default(),
            loaded: &loaded,
        })
    }

    /// A prediction's requests as a run; refused ones failed.
    pub fn run_of(&self, label: &str, settings: &[Entry], made: &Load) -> Run {
        let name = format!("predicted: {label}");
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
        run
    }
}

fn row(id: String, request: &Request, load: &Load) -> Row {
    let mut timeline = Timeline::new(Side::Traffic);
    // The generator sends straight to the server.
    timeline.upstream_is_server(true);
    timeline.relate(ClockOf::Engine, Relation::Same);
    let at = |seconds| Stamp::from_nanos(0).plus_seconds(seconds);
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
