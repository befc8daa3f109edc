//! The [`Engine`], whose moments happen in real time.
//!
//! Whoever has something for the engine locks it and does it at once. Between that a thread waits for the next
//! event of the model. Tokio's timers step by a millisecond, too coarse for decode steps; so this is a plain thread,
//! whose wait is a futex with the kernel's high-resolution timer (late by its slack of some 50 µs plus the wake-up,
//! never early). What the model says of the moments is exact all the same; only their telling is late. Requests are
//! told through channels of their own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::{Clock, Stamp};

use super::config::Config;
use super::disaggregation::Mode;
use super::engine::{Engine, EventKind, HELD, Load, Request};

/// How often the driver looks at a manual clock.
const MANUAL_POLL: Duration = Duration::from_millis(1);

/// The engine's own clock: the clock handed in, moved by a constant.
#[derive(Clone, Debug)]
pub(super) struct EngineClock {
    clock: Clock,
    skew_nanos: i64,
}

/// The engine and its thread. After [`Driver::stop`] nothing happens any more.
#[derive(Debug)]
pub(super) struct Driver {
    state: Mutex<State>,
    /// Something is due before the thread wakes up.
    sooner: Condvar,
}

/// One sequence on its way to the engine.
#[derive(Debug)]
pub(super) struct Submission {
    /// What the engine is to do; its id is unique for the life of the driver.
    pub request: Request,
    /// When it reaches the queue: tokenized and handed over. At once if in the past.
    pub due: Stamp,
    /// Who asked for it.
    pub listener: Listener,
}

/// Who is told what becomes of a sequence.
#[derive(Debug)]
pub(super) struct Listener {
    /// The request id that `/abort_request` matches.
    pub rid: Arc<str>,
    /// The sequence's number within its HTTP request.
    pub index: usize,
    /// Where it is told.
    pub updates: UnboundedSender<Update>,
}

/// What became of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    /// The sequence's number within its HTTP request.
    pub index: usize,
    /// When, in the model.
    pub at: Stamp,
    /// When the driver told it; not before `at`.
    pub told: Stamp,
    /// What.
    pub kind: EventKind,
}

#[derive(Debug)]
struct State {
    clock: EngineClock,
    engine: Engine,
    /// By the request's id.
    listeners: HashMap<u64, Listener>,
    /// When the thread wakes up.
    wakes: Stamp,
    is_stopped: bool,
}

impl EngineClock {
    pub(super) fn new(clock: Clock, skew_nanos: i64) -> EngineClock {
        EngineClock { clock, skew_nanos }
    }

    /// The present moment as the engine tells it.
    pub(super) fn now(&self) -> Stamp {
        self.clock.now().plus_nanos(self.skew_nanos)
    }
}

impl Driver {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(config: &Config, clock: EngineClock) -> std::io::Result<Arc<Driver>> {
        let (profile, pair) = (config.engine_profile(), &config.disaggregation);
        let now = clock.now();
        let engine = match pair.disaggregation_mode {
            Mode::Decode => {
                Engine::decode_only(profile.clone(), pair.disaggregation_decode_extra_slots, now)
            }
            _ => Engine::new(profile.clone(), now),
        };
        let driver = Arc::new(Driver {
            state: Mutex::new(State {
                clock,
                engine,
                listeners: HashMap::new(),
                wakes: HELD,
                is_stopped: false,
            }),
            sooner: Condvar::new(),
        });
        let thread = driver.clone();
        std::thread::Builder::new()
            .name("sim-engine".to_owned())
            .spawn(move || thread.run())?;
        Ok(driver)
    }

    /// Takes over the sequences of one HTTP request.
    pub(super) fn submit(&self, submissions: impl IntoIterator<Item = Submission>) {
        self.act(|state, _| {
            for one in submissions {
                state.listeners.insert(one.request.id, one.listener);
                state.engine.submit(one.request, one.due);
            }
        });
    }

    /// What a sequence waited for of another server is there: its place to decode, or what was prefilled of it.
    pub(super) fn arrived(&self, id: u64) {
        self.act(|state, now| state.engine.arrive(id, now));
    }

    /// Takes out sequences whose client has gone; nothing is told.
    pub(super) fn abort(&self, ids: &[u64]) {
        self.act(|state, now| {
            for id in ids {
                state.listeners.remove(id);
                state.engine.abort(*id, now);
            }
        });
    }

    /// Takes out every sequence whose request id begins so, and tells them.
    pub(super) fn abort_prefix(&self, prefix: &str) {
        self.act(|state, now| {
            for (id, listener) in &state.listeners {
                if listener.rid.starts_with(prefix) {
                    state.engine.abort(*id, now);
                }
            }
        });
    }

    /// The load now; none after [`Driver::stop`].
    pub(super) fn load(&self) -> Load {
        self.act(|state, _| state.engine.load())
    }

    /// Empties the prefix cache, unless a request runs or waits; says whether it did.
    pub(super) fn flush(&self) -> bool {
        self.act(|state, now| state.engine.flush(now))
    }

    /// Ends the thread, and the channels of all requests.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        state.listeners.clear();
        self.sooner.notify_one();
    }

    /// Does something at a moment by which all that was due has happened, so that nothing can end in between untold.
    fn act<T: Default>(&self, what: impl FnOnce(&mut State, Stamp) -> T) -> T {
        let mut state = self.state.lock();
        if state.is_stopped {
            return T::default();
        }
        let now = state.settle();
        let done = what(&mut state, now);
        state.settle();
        if state.next_event_at() < state.wakes {
            self.sooner.notify_one();
        }
        done
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.is_stopped {
            let now = state.settle();
            state.wakes = state.next_event_at();
            let nanos = state.wakes.nanos_since(now).max(0).unsigned_abs();
            let patience = match state.clock.clock {
                Clock::System(_) => Duration::from_nanos(nanos),
                Clock::Manual(_) => MANUAL_POLL,
            };
            self.sooner.wait_for(&mut state, patience);
        }
    }
}

impl State {
    /// When something will happen; [`HELD`] when all wait for others.
    fn next_event_at(&self) -> Stamp {
        self.engine.next_event_at().unwrap_or(HELD)
    }

    /// Lets everything happen that is due by now, in order of time; returns that now.
    fn settle(&mut self) -> Stamp {
        let now = self.clock.now();
        for event in self.engine.advance(now) {
            if let Some(listener) = self.listeners.get(&event.id) {
                // The client may have gone this moment; its abort is on the way.
                let _ = listener.updates.send(Update {
                    index: listener.index,
                    at: event.at,
                    told: now.max(event.at),
                    kind: event.kind,
                });
            }
            if event.kind.is_end() {
                self.listeners.remove(&event.id);
            }
        }
        now
    }
}
