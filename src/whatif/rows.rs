//! What was seen, or is predicted, of a load's requests, as rows: figures are taken of both by the same functions, and pages are made.

use serde_json::json;

use crate::clock::Stamp;
use crate::report::figures::figures;
use crate::report::load::{Goal, Summary, goals_ms};
use crate::report::reader::Run;
use crate::request::endpoint::Endpoint;
use crate::request::record::{Facts, Outcome, Record};
use crate::request::row::Row;
use crate::request::sequence::{Sequence, TimingSource};
use crate::request::timeline::{ClockOf, Moment, Relation, Side, Timeline};
use crate::request::token_count::TokenCountSource;

use super::load::{Load, Request, Times};

/// What is said of a load: seconds, and requests a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Mean, p50 and p99 from arrival to the first token.
    pub ttft: [f64; 3],
    /// The same to the end of the answer.
    pub total: [f64; 3],
    /// The same in the server's queue.
    pub queue: [f64; 3],
    /// Requests that ended, in the time from the first arrival to the last end.
    pub throughput: f64,
    /// The share of the requests that kept all goals, where there are any.
    pub kept: f64,
}

impl Figures {
    /// Of a run.
    pub fn of(run: &Run) -> Figures {
        let Summary {
            all, run: facts, ..
        } = figures(run);
        let three = |name| {
            let found = all.latencies.get(name);
            found.map_or([0.0; 3], |found| [found.mean, found.p50, found.p99])
        };
        let good = all.goodput.as_ref().map_or(0, |goodput| goodput.good);
        Figures {
            ttft: three("ttft"),
            total: three("total_latency"),
            queue: three("pure_queue_time"),
            throughput: facts.a_second(all.completed as f64).unwrap_or(0.0),
            kept: good as f64 / all.counts.requests.max(1) as f64,
        }
    }
}

impl Load {
    /// The requests of which it is known what became of them, as a run.
    pub fn to_run(&self, goals: &[Goal]) -> Run {
        let mut run = Run {
            name: self.name.clone(),
            summary: (!goals.is_empty()).then(|| json!({ "goodput_goals_ms": goals_ms(goals) })),
            ..Run::default()
        };
        for (n, (request, times)) in self.seen().enumerate() {
            let host = self.servers.get(times.server).cloned();
            row(n, request, times, host)
                .iter()
                .for_each(|row| run.table.push_row(row));
        }
        run
    }
}

fn row(n: usize, request: &Request, times: Times, host: Option<String>) -> Vec<Row> {
    let mut facts = Facts::new(Endpoint::Generate, n.to_string());
    facts.outcome = Outcome::Ok;
    (facts.stream, facts.status, facts.host) = (Some(true), Some(200), host);
    let mut timeline = Timeline::new(Side::Traffic);
    for clock in [ClockOf::Front, ClockOf::Hop, ClockOf::Engine] {
        timeline.relate(clock, Relation::Same);
    }
    for (moment, at) in [
        (Moment::Arrival, request.at),
        (Moment::WorkerArrival, request.at),
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
    let sequence = Sequence {
        has_text: true,
        prompt_tokens: Some(request.prompt.into()),
        output_tokens: Some(request.output.into()),
        cached_tokens: Some(request.cached.into()),
        token_source: Some(TokenCountSource::MetaInfo),
        timing_source: Some(TimingSource::MetaInfo),
        first_event_tokens: Some(1),
        token_events: request.output.into(),
        ..Sequence::default()
    };
    Row::all(vec![Record {
        facts,
        sequence,
        sequences: 1,
        timeline,
    }])
}
