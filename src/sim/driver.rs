//! Runs the [`Engine`] in real time.
//!
//! A caller locks the engine and acts on it at once. A thread waits for the next event in between. Tokio's timers step by a
//! millisecond, too coarse for decode steps, so this is a plain thread that waits on a futex with the kernel's high-resolution
//! timer (late by its slack of about 50 µs plus the wake-up, never early). The event's own time is exact all the same; only
//! its report is late. Each HTTP request has a channel of its own for updates.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::{Clock, Stamp};

use super::config::{Config, Mode};
use super::engine::{Engine, EventKind, Load, Request};

/// How often a manual clock is read.
const MANUAL_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The engine and its thread.
#[derive(Debug)]
pub(super) struct Driver {
    state: Mutex<State>,
    /// Wakes the thread when an event is due earlier than it waits.
    wake: Condvar,
}

/// A sequence to be submitted to the engine.
#[derive(Debug)]
pub(super) struct Submission {
    /// Its id is unique for the life of the driver.
    pub request: Request,
    /// When the scheduler gets it, after tokenizing. At once if in the past.
    pub due: Stamp,
    /// The request id that `/abort_request` matches.
    pub rid: Arc<str>,
    /// The sequence's index within its HTTP request.
    pub index: usize,
    /// Receives its updates.
    pub updates: UnboundedSender<Update>,
}

/// An engine event of one sequence, as its HTTP request receives it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    /// The sequence's index within its HTTP request.
    pub index: usize,
    /// When it happened in the model.
    pub at: Stamp,
    /// When the driver reported it; not before `at`.
    pub reported_at: Stamp,
    pub kind: EventKind,
}

#[derive(Debug)]
struct State {
    clock: Clock,
    engine: Engine,
    /// The sequences that have not ended, by the request's id.
    open: HashMap<u64, Submission>,
    /// When the thread wakes up.
    next_wake: Stamp,
    is_stopped: bool,
}

impl Driver {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub(super) fn start(config: &Config, clock: Clock) -> std::io::Result<Arc<Driver>> {
        let pair = &config.disaggregation;
        let mut engine = Engine::new(config.profile.clone(), clock.now());
        if pair.disaggregation_mode == Mode::Decode {
            engine = engine.decode_only(pair.disaggregation_decode_extra_slots);
        }
        let driver = Arc::new(Driver {
            state: Mutex::new(State {
                clock,
                engine,
                open: HashMap::new(),
                next_wake: Stamp::MAX,
                is_stopped: false,
            }),
            wake: Condvar::new(),
        });
        let thread = driver.clone();
        std::thread::Builder::new()
            .name("sim-engine".to_owned())
            .spawn(move || thread.run())?;
        Ok(driver)
    }

    /// Submits the sequences of one HTTP request.
    pub(super) fn submit(&self, submissions: impl IntoIterator<Item = Submission>) {
        self.act(|state, _| {
            for one in submissions {
                state.engine.submit(one.request.clone(), one.due);
                state.open.insert(one.request.id, one);
            }
        });
    }

    /// Ends a sequence's wait for the other server of a pair: see [`Engine::arrive`].
    pub(super) fn arrived(&self, id: u64) {
        self.act(|state, now| state.engine.arrive(id, now));
    }

    /// Aborts a sequence whose client has left, without updates.
    pub(super) fn abort(&self, id: u64) {
        self.act(|state, now| {
            state.open.remove(&id);
            state.engine.abort(id, now);
        });
    }

    /// Aborts every sequence whose request id has this prefix, with an update.
    pub(super) fn abort_prefix(&self, prefix: &str) {
        self.act(|state, now| {
            for (id, one) in &state.open {
                if one.rid.starts_with(prefix) {
                    state.engine.abort(*id, now);
                }
            }
        });
    }

    /// The current load.
    pub(super) fn load(&self) -> Load {
        self.act(|state, _| state.engine.load())
    }

    /// Empties the prefix cache, unless a request runs or waits. Returns whether it did.
    pub(super) fn flush(&self) -> bool {
        self.act(|state, now| state.engine.flush(now))
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.wake.notify_one();
    }

    /// Calls `action` when all due events have been reported, so that none is lost in between.
    fn act<T>(&self, action: impl FnOnce(&mut State, Stamp) -> T) -> T {
        let mut state = self.state.lock();
        let now = state.report_due();
        let result = action(&mut state, now);
        state.report_due();
        if state.next_event_at() < state.next_wake {
            self.wake.notify_one();
        }
        result
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.is_stopped {
            let now = state.report_due();
            state.next_wake = state.next_event_at();
            let nanos = state.next_wake.nanos_since(now).max(0).unsigned_abs();
            let timeout = match state.clock {
                Clock::System(_) => Duration::from_nanos(nanos),
                Clock::Manual(_) => MANUAL_POLL_INTERVAL,
            };
            self.wake.wait_for(&mut state, timeout);
        }
    }
}

impl State {
    /// When the next event is due; [`Stamp::MAX`] if there is none.
    fn next_event_at(&self) -> Stamp {
        self.engine.next_event_at().unwrap_or(Stamp::MAX)
    }

    /// Advances the engine to the current time, which it returns, and sends the updates.
    fn report_due(&mut self) -> Stamp {
        let now = self.clock.now();
        for event in self.engine.advance(now) {
            if let Some(one) = self.open.get(&event.id) {
                // Fails if the client has just left; its abort follows.
                let _ = one.updates.send(Update {
                    index: one.index,
                    at: event.at,
                    reported_at: now.max(event.at),
                    kind: event.kind,
                });
            }
            if event.kind.is_end() {
                self.open.remove(&event.id);
            }
        }
        now
    }
}
