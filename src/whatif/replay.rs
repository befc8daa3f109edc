//! Replays requests through the simulator's engine, in simulated time, under given settings.

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::clock::Stamp;
use crate::sim::engine::{self, Engine, EventKind, Profile, Prompt};
use crate::upstream::policy::{Candidate, Policy};

use super::load::{Load, Request, Times};

/// A server's engine, and the delays to it and back, seconds.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The engine.
    pub profile: Profile,
    /// From a request's arrival to its receipt by the server.
    pub inbound_s: f64,
    /// From the end of a token's step until the server has the token; after the last, until the response has ended.
    pub return_s: f64,
}

/// The servers of a replay. They differ only in their slots.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// Each server.
    pub model: Model,
    /// The most requests that each runs at once.
    pub slots: Vec<usize>,
    /// Chooses the server of a request; `None`: each goes to the server that it was measured at.
    pub policy: Option<Policy>,
    /// The factor on the rate of arrivals.
    pub pace: f64,
}

impl Deployment {
    /// The servers of a load as they were.
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

    /// Replays a load: the same requests with their predicted times and servers. Refused ones have no times.
    pub fn serve(&self, load: &Load) -> Load {
        let count = self.slots.len();
        let first = load.requests.first().map_or(0.0, |first| first.arrival);
        let paced = |request: &Request| Request {
            arrival: first + (request.arrival - first) / self.pace,
            server: request.server % count,
            ..*request
        };
        let engine = |slots: &usize| {
            let mut profile = self.model.profile.clone();
            profile.max_running_requests = *slots;
            Engine::new(profile, Stamp::EPOCH).brief()
        };
        let server = |index| Candidate {
            index,
            ..Candidate::default()
        };
        let mut replay = Replay {
            model: &self.model,
            requests: load.requests.iter().map(paced).collect(),
            engines: self.slots.iter().map(engine).collect(),
            servers: (0..count).map(server).collect(),
        };
        let (mut turn, mut rng) = (0, ChaCha8Rng::seed_from_u64(1));
        for id in 0..replay.requests.len() {
            // A router knows of an end only after the return path.
            let known_at = replay.requests[id].arrival - self.model.return_s;
            let now = Stamp::EPOCH.plus_seconds(known_at);
            if self.policy.is_some_and(Policy::is_by_load) {
                (0..count).for_each(|server| replay.run(server, now));
            }
            let choose = |policy: Policy| policy.choose(&replay.servers, &mut turn, &mut rng);
            let chosen = self.policy.and_then(choose);
            if let Some(chosen) = chosen {
                replay.requests[id].server = chosen;
                replay.servers[chosen].in_flight += 1;
            }
            replay.submit(id);
            // Nothing that follows reaches it earlier: what has ended need not be held.
            replay.run(replay.requests[id].server, now);
        }
        for server in 0..count {
            while let Some(next) = replay.engines[server].next_event_at() {
                replay.run(server, next.plus_seconds(1.0));
            }
        }
        let servers = match count == load.servers.len() {
            true => load.servers.clone(),
            false => (1..=count).map(|n| format!("server-{n}")).collect(),
        };
        Load {
            name: load.name.clone(),
            requests: replay.requests,
            servers,
            slots: load.slots.clone(),
            ..Load::default()
        }
    }
}

/// A replay under way.
struct Replay<'m> {
    model: &'m Model,
    requests: Vec<Request>,
    engines: Vec<Engine>,
    /// The servers as a policy sees them.
    servers: Vec<Candidate>,
}

impl Replay<'_> {
    /// Sends a request to its server, whose scheduler gets it later.
    fn submit(&mut self, id: usize) {
        let request = &mut self.requests[id];
        let created = request.arrival + self.model.inbound_s;
        let unknown = f64::INFINITY;
        request.times = Some(Times {
            created,
            queued: unknown,
            admitted: unknown,
            prefilled: unknown,
            first: unknown,
            finish: unknown,
        });
        let submitted = engine::Request {
            id: id as u64,
            prompt: Prompt::Counted {
                tokens: request.prompt,
                cached: request.cached,
            },
            output_tokens: request.output,
        };
        let queued = created + self.model.profile.tokenize_s(request.prompt.into());
        let queued = Stamp::EPOCH.plus_seconds(queued);
        self.engines[request.server].submit(submitted, queued);
    }

    /// Advances a server to a time.
    fn run(&mut self, server: usize, until: Stamp) {
        for event in self.engines[server].advance(until) {
            let of_request = &mut self.requests[event.id as usize].times;
            let Some(times) = of_request else {
                continue;
            };
            let at = event.at.seconds();
            let returned = at + self.model.return_s;
            match event.kind {
                EventKind::Queued => times.queued = at,
                // The first time: a retracted request is admitted again.
                EventKind::Admitted { .. } => times.admitted = times.admitted.min(at),
                EventKind::Token { .. } => {
                    times.prefilled = times.prefilled.min(at);
                    times.first = times.first.min(returned);
                }
                _ => {}
            }
            if event.kind.is_end() {
                let in_flight = &mut self.servers[server].in_flight;
                *in_flight = in_flight.saturating_sub(1);
                times.finish = returned;
            }
            if event.kind == EventKind::Rejected {
                *of_request = None;
            }
        }
    }
}
