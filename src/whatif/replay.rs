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
    /// Servers that get what they got.
    pub fn of(model: &Model, slots: &[Option<usize>]) -> Deployment {
        let slots = slots.iter().map(|slots| slots.unwrap_or(usize::MAX));
        Deployment {
            model: model.clone(),
            slots: slots.collect(),
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

    /// Requests as they come here, with what becomes of each; nothing of those that are refused.
    pub fn replay(&self, requests: &[Request]) -> Vec<Request> {
        let start = Stamp::from_nanos(0);
        let random = ChaCha8Rng::seed_from_u64(1);
        let chooser = |policy| Chooser::new(policy, self.slots.len(), random);
        let mut chooser = self.policy.map(chooser);
        let profile = &self.model.profile;
        let engine = |slots: &usize| {
            let mut profile = profile.clone();
            profile.max_running_requests = *slots;
            Engine::new(profile, start).brief()
        };
        let mut engines: Vec<Engine> = self.slots.iter().map(engine).collect();
        let server = |index| Candidate {
            index,
            is_out: false,
            in_flight: 0,
            shared: 0,
            cached: 0,
        };
        let mut servers: Vec<Candidate> = (0..self.slots.len()).map(server).collect();
        let first = requests.first().map_or(0.0, |first| first.at);
        let paced = |request: &Request| Request {
            at: first + (request.at - first) / self.pace,
            seen: None,
            ..*request
        };
        let mut all: Vec<Request> = requests.iter().map(paced).collect();
        let mut coming: Vec<(Stamp, usize)> = Vec::with_capacity(all.len());
        for (id, request) in all.iter().enumerate() {
            let tokenized = profile.tokenize_s(u64::from(request.prompt));
            coming.push((
                start.plus_seconds(request.at + self.model.way_in + tokenized),
                id,
            ));
        }
        coming.sort();
        for (comes, id) in coming {
            // Those that come at one moment start as one batch.
            let before = comes.plus_nanos(-1);
            for (engine, server) in engines.iter_mut().zip(&mut servers) {
                server.in_flight -= self.run(engine, before, &mut all);
            }
            let request = &mut all[id];
            let chosen = chooser
                .as_mut()
                .and_then(|chooser| chooser.choose(&servers));
            request.server = chosen.unwrap_or(request.server % servers.len());
            request.seen = Some(Times {
                created: request.at + self.model.way_in,
                ..Times::default()
            });
            servers[request.server].in_flight += 1;
            let prompt = Prompt::Counted {
                tokens: request.prompt,
                cached: request.cached,
            };
            let submitted = engine::Request {
                id: id as u64,
                prompt,
                output_tokens: request.output,
            };
            engines[request.server].submit(submitted, comes);
        }
        for mut engine in engines {
            while let Some(next) = engine.next_event_at() {
                self.run(&mut engine, next.plus_seconds(1.0), &mut all);
            }
        }
        all
    }

    /// Lets all happen at a server up to a moment; says how many requests ended.
    fn run(&self, engine: &mut Engine, until: Stamp, all: &mut [Request]) -> usize {
        let mut ended = 0;
        for event in engine.advance(until) {
            let seen = &mut all[event.id as usize].seen;
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
                ended += 1;
                times.finish = at + self.model.way_back;
            }
            if event.kind == EventKind::Rejected {
                *seen = None;
            }
        }
        ended
    }
}
