//! Requests put to the simulator's engine in its own time: what becomes of them under other settings.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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

/// What serves the requests.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// Each server.
    pub servers: Vec<Model>,
    /// Who gets a request; `None`: who had it.
    pub policy: Option<Policy>,
    /// Requests come so many times as fast.
    pub pace: f64,
}

/// A server under way.
struct Server<'a> {
    model: &'a Model,
    engine: Engine,
    /// Requests on their way to the engine: when they come there.
    coming: BinaryHeap<Reverse<(Stamp, usize)>>,
    /// Requests that have not ended.
    under_way: usize,
}

impl Deployment {
    /// Servers that are alike but for how many requests each runs at once, and that get what they got.
    pub fn of(model: &Model, slots: &[Option<usize>]) -> Deployment {
        let server = |slots: &Option<usize>| {
            let mut model = model.clone();
            model.profile.max_running_requests = slots.unwrap_or(usize::MAX);
            model
        };
        Deployment {
            servers: slots.iter().map(server).collect(),
            policy: None,
            pace: 1.0,
        }
    }

    /// When a request arrives, seconds.
    fn arrives(&self, requests: &[Request], request: &Request) -> f64 {
        let first = requests.first().map_or(0.0, |first| first.at);
        first + (request.at - first) / self.pace
    }

    /// A load with what becomes of its requests.
    pub fn serve(&self, load: &Load) -> Load {
        let made = self.replay(&load.requests);
        let served = |(request, seen): (&Request, Option<Times>)| Request {
            at: self.arrives(&load.requests, request),
            seen,
            ..*request
        };
        let servers = match self.servers.len() == load.servers.len() {
            true => load.servers.clone(),
            false => (1..=self.servers.len())
                .map(|n| format!("server-{n}"))
                .collect(),
        };
        Load {
            requests: load.requests.iter().zip(made).map(served).collect(),
            servers,
            ..load.clone()
        }
    }

    /// What becomes of each request; `None` of those that are refused.
    pub fn replay(&self, requests: &[Request]) -> Vec<Option<Times>> {
        let start = Stamp::from_nanos(0);
        let random = ChaCha8Rng::seed_from_u64(1);
        let chooser = |policy| Chooser::new(policy, self.servers.len(), random);
        let mut chooser = self.policy.map(chooser);
        let servers = self.servers.iter();
        let mut servers: Vec<Server<'_>> = servers
            .map(|model| Server {
                engine: Engine::new(model.profile.clone(), start).brief(),
                model,
                coming: BinaryHeap::new(),
                under_way: 0,
            })
            .collect();
        let mut all = vec![None; requests.len()];
        for (id, request) in requests.iter().enumerate() {
            let at = self.arrives(requests, request);
            let arrived = start.plus_seconds(at);
            if let Some(Policy::ShortestQueue | Policy::PowerOfTwo) = self.policy {
                for server in &mut servers {
                    server.run(arrived, requests, &mut all);
                }
            }
            let place = match &mut chooser {
                None => request.server % servers.len(),
                Some(chooser) => {
                    let all = servers.iter().enumerate();
                    let all = all.map(|(index, server)| Candidate {
                        index,
                        is_out: false,
                        in_flight: server.under_way,
                        shared: 0,
                        cached: 0,
                    });
                    chooser.choose(&all.collect::<Vec<_>>()).unwrap_or(0)
                }
            };
            let server = &mut servers[place];
            let profile = &server.model.profile;
            let received = at + server.model.way_in;
            let tokenized = received + profile.tokenize_s(u64::from(request.prompt));
            all[id] = Some(Times {
                created: received,
                server: place,
                ..Times::default()
            });
            let comes = start.plus_seconds(tokenized);
            server.coming.push(Reverse((comes, id)));
            server.under_way += 1;
            server.run(arrived, requests, &mut all);
        }
        for mut server in servers {
            // Little by little: what the engine tells of is kept until it is asked.
            while let Some(Reverse((next, _))) = server.coming.peek().copied() {
                server.run(next, requests, &mut all);
            }
            while let Some(next) = server.engine.next_event_at() {
                server.run(next.plus_seconds(1.0), requests, &mut all);
            }
        }
        all
    }
}

impl Server<'_> {
    /// Lets all happen up to a moment.
    fn run(&mut self, until: Stamp, requests: &[Request], all: &mut [Option<Times>]) {
        while let Some(Reverse((comes, id))) = self.coming.peek().copied()
            && comes <= until
        {
            self.coming.pop();
            let Request {
                prompt,
                cached,
                output,
                ..
            } = requests[id];
            let request = engine::Request {
                id: id as u64,
                prompt: Prompt::Counted {
                    tokens: prompt,
                    cached,
                },
                output_tokens: output,
            };
            self.engine.submit(request, comes);
        }
        for event in self.engine.advance(until) {
            let place = event.id as usize;
            let Some(times) = &mut all[place] else {
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
                self.under_way -= 1;
                times.finish = at + self.model.way_back;
            }
            if event.kind == EventKind::Rejected {
                all[place] = None;
            }
        }
    }
}
