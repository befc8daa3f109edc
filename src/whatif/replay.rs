//! Requests put to the simulator's engine in its own time: what becomes of them under other settings.

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::clock::Stamp;
use crate::sim::engine::{self, Engine, EventKind, Profile, Prompt};
use crate::upstream::policy::{Candidate, Chooser, Policy};

use super::load::{Load, Request, Times};

/// A server's engine, and the ways to it and back, which are outside of it: seconds.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The engine.
    pub profile: Profile,
    /// From a request's arrival until the server has received it.
    pub way_in: f64,
    /// From a token's step until the server has it, and from the last one's until the answer has come back.
    pub way_back: f64,
}

/// What serves the requests: servers that are alike but for how many requests each runs at once.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// Each server.
    pub model: Model,
    /// How many requests each runs at once.
    pub slots: Vec<usize>,
    /// Who gets a request; `None`: who had it.
    pub policy: Option<Policy>,
    /// Requests come so many times as fast.
    pub pace: f64,
}

impl Deployment {
    /// The servers of a load, which get what they got.
    pub fn of(model: &Model, load: &Load) -> Deployment {
        let slots = load.slots.iter();
        let mut model = model.clone();
        let pool = &mut model.profile.max_total_tokens;
        *pool = load.pool.unwrap_or(*pool);
        Deployment {
            model,
            slots: slots.map(|slots| slots.unwrap_or(usize::MAX)).collect(),
            policy: None,
            pace: 1.0,
        }
    }

    /// A load with what becomes of its requests.
    pub fn serve(&self, load: &Load) -> Load {
        let servers = match self.slots.len() == load.servers.len() {
            true => load.servers.clone(),
            false => (1..=self.slots.len())
                .map(|n| format!("server-{n}"))
                .collect(),
        };
        Load {
            name: load.name.clone(),
            requests: self.replay(&load.requests),
            servers,
            slots: load.slots.clone(),
            ..Load::default()
        }
    }

    /// Requests, by arrival, as they come here, with what becomes of each; nothing of those that are refused.
    pub fn replay(&self, requests: &[Request]) -> Vec<Request> {
        let start = Stamp::from_nanos(0);
        let count = self.slots.len();
        let first = requests.first().map_or(0.0, |first| first.at);
        let paced = |request: &Request| Request {
            at: first + (request.at - first) / self.pace,
            server: request.server % count,
            seen: None,
            ..*request
        };
        let engine = |slots: &usize| {
            let mut profile = self.model.profile.clone();
            profile.max_running_requests = *slots;
            Engine::new(profile, start).brief()
        };
        let server = |index| Candidate {
            index,
            ..Candidate::default()
        };
        let mut replay = Replay {
            model: &self.model,
            requests: requests.iter().map(paced).collect(),
            engines: self.slots.iter().map(engine).collect(),
            servers: (0..count).map(server).collect(),
        };
        let reaches = |(id, request): (usize, &Request)| {
            let tokenized = self.model.profile.tokenize_s(u64::from(request.prompt));
            let at = request.at + self.model.way_in + tokenized;
            (start.plus_seconds(at), id)
        };
        let coming = replay.requests.iter().enumerate().map(reaches);
        let mut coming: Vec<(Stamp, usize)> = coming.collect();
        coming.sort();
        let mut coming = coming.into_iter().peekable();
        if let Some(policy) = self.policy {
            let mut chooser = Chooser::new(policy, count, ChaCha8Rng::seed_from_u64(1));
            let by_load = matches!(policy, Policy::ShortestQueue | Policy::PowerOfTwo);
            for id in 0..replay.requests.len() {
                // What is sent out by now is not all there yet, and what ended lately is not all back.
                let back = replay.requests[id].at - self.model.way_back;
                let now = start.plus_seconds(back);
                if by_load {
                    while let Some(next) = coming.next_if(|next| next.0 <= now && next.1 < id) {
                        replay.submit(next);
                    }
                    (0..count).for_each(|server| replay.run(server, now));
                }
                if let Some(chosen) = chooser.choose(&replay.servers) {
                    replay.requests[id].server = chosen;
                    replay.servers[chosen].in_flight += 1;
                }
            }
        }
        coming.for_each(|next| replay.submit(next));
        for server in 0..count {
            while let Some(next) = replay.engines[server].next_event_at() {
                replay.run(server, next.plus_seconds(1.0));
            }
        }
        replay.requests
    }
}

/// Requests on their way.
struct Replay<'m> {
    model: &'m Model,
    requests: Vec<Request>,
    engines: Vec<Engine>,
    /// What a policy knows of each of them.
    servers: Vec<Candidate>,
}

impl Replay<'_> {
    /// Hands a request to its engine's scheduler.
    fn submit(&mut self, (at, id): (Stamp, usize)) {
        let server = self.requests[id].server;
        // Those that come at one moment start as one batch.
        self.run(server, at.plus_nanos(-1));
        let request = &mut self.requests[id];
        request.seen = Some(Times {
            created: request.at + self.model.way_in,
            ..Times::default()
        });
        let prompt = Prompt::Counted {
            tokens: request.prompt,
            cached: request.cached,
        };
        let submitted = engine::Request {
            id: id as u64,
            prompt,
            output_tokens: request.output,
        };
        self.engines[server].submit(submitted, at);
    }

    /// Lets all happen at a server up to a moment.
    fn run(&mut self, server: usize, until: Stamp) {
        for event in self.engines[server].advance(until) {
            let seen = &mut self.requests[event.id as usize].seen;
            let Some(times) = seen else {
                continue;
            };
            let at = event.at.seconds();
            match event.kind {
                EventKind::Queued => times.queued = at,
                EventKind::Admitted { .. } if times.admitted == 0.0 => times.admitted = at,
                EventKind::Token { .. } if times.first == 0.0 => {
                    times.prefilled = at;
                    times.first = at + self.model.way_back;
                }
                _ => {}
            }
            if event.kind.is_end() {
                let in_flight = &mut self.servers[server].in_flight;
                *in_flight = in_flight.saturating_sub(1);
                times.finish = at + self.model.way_back;
            }
            if event.kind == EventKind::Rejected {
                *seen = None;
            }
        }
    }
}
