//! The [`Engine`]s, whose moments happen in real time.
//!
//! Whoever has something for the engines locks them and does it at once. Between that a thread waits for the next
//! event of the model. Tokio's timers step by a millisecond, too coarse for decode steps; so this is a plain thread,
//! whose wait is a futex with the kernel's high-resolution timer (late by its slack of some 50 µs plus the wake-up,
//! never early). What the model says of the moments is exact all the same; only their telling is late. Requests are
//! told through channels of their own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::{Clock, Stamp};

use super::config::Config;
use super::disaggregation::Mode;
use super::engine::{Aborted, Engine, EventKind, Load, Request};

/// How often the driver looks at a manual clock.
const MANUAL_POLL: Duration = Duration::from_millis(1);

/// When a sequence is due that waits for a decode server: not before [`Driver::arrived`].
pub(super) const HELD: Stamp = Stamp::from_nanos(i64::MAX);

/// The engine's own clock: the clock handed in, moved by a constant.
#[derive(Clone, Debug)]
pub(super) struct EngineClock {
    clock: Clock,
    skew_nanos: i64,
}

/// The engines and their thread. After [`Driver::stop`] nothing happens any more.
#[derive(Debug)]
pub(super) struct Driver {
    engines: Mutex<Engines>,
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
    /// The request id that `/abort_request` matches.
    pub rid: Arc<str>,
    /// The sequence's number within its HTTP request.
    pub index: usize,
    /// The data-parallel rank that works on it.
    pub rank: usize,
    /// Where it is told what becomes of it.
    pub updates: UnboundedSender<Update>,
}

/// What became of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    /// The sequence's number within its HTTP request.
    pub index: usize,
    /// The data-parallel rank that works on it.
    pub rank: usize,
    /// When, in the model.
    pub at: Stamp,
    /// When the driver told it; not before `at`.
    pub told: Stamp,
    /// What.
    pub kind: EventKind,
}

#[derive(Debug)]
struct Engines {
    clock: EngineClock,
    /// One for each data-parallel rank.
    ranks: Vec<Engine>,
    /// The rank that the next request goes to.
    next_rank: usize,
    /// Submissions that are not due yet, by time and id.
    tokenizing: BTreeMap<(Stamp, u64), Submission>,
    /// Of what the engines work on, by its id.
    submitted: HashMap<u64, Submission>,
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
        let engine = |_| match pair.disaggregation_mode {
            Mode::Decode => {
                Engine::decode_only(profile.clone(), pair.disaggregation_decode_extra_slots, now)
            }
            _ => Engine::new(profile.clone(), now),
        };
        let driver = Arc::new(Driver {
            engines: Mutex::new(Engines {
                clock,
                ranks: (0..config.dp_size).map(engine).collect(),
                next_rank: 0,
                tokenizing: BTreeMap::new(),
                submitted: HashMap::new(),
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
        self.act(|engines, _| {
            for submission in submissions {
                let key = (submission.due, submission.request.id);
                engines.tokenizing.insert(key, submission);
            }
        });
    }

    /// What a sequence waited for of another server is there: its place to decode, or what was prefilled of it.
    pub(super) fn arrived(&self, id: u64) {
        self.act(|engines, now| {
            if let Some(held) = engines.tokenizing.remove(&(HELD, id)) {
                engines.enqueue(Submission { due: now, ..held });
            } else if let Some(one) = engines.submitted.get(&id) {
                engines.ranks[one.rank].arrive(id, now);
            }
        });
    }

    /// Takes out sequences whose client has gone; nothing is told.
    pub(super) fn abort(&self, ids: &[u64]) {
        self.act(|engines, now| {
            engines.tokenizing.retain(|(_, id), _| !ids.contains(id));
            for id in ids {
                if let Some(one) = engines.submitted.remove(id) {
                    engines.ranks[one.rank].abort(*id, now);
                }
            }
        });
    }

    /// Takes out every sequence whose request id begins so, and tells them.
    pub(super) fn abort_prefix(&self, prefix: &str) {
        self.act(|engines, now| {
            let told = |one: &Submission, place| {
                one.tell(now, now, EventKind::Aborted(place));
                false
            };
            engines
                .tokenizing
                .retain(|_, one| !one.rid.starts_with(prefix) || told(one, Aborted::Waiting));
            let ranks = &mut engines.ranks;
            engines.submitted.retain(|id, one| {
                let matching = one.rid.starts_with(prefix);
                let aborted = matching.then(|| ranks[one.rank].abort(*id, now));
                aborted.flatten().is_none_or(|place| told(one, place))
            });
        });
    }

    /// The load of each rank now; none after [`Driver::stop`].
    pub(super) fn load(&self) -> Vec<Load> {
        self.act(|engines, _| {
            let mut loads: Vec<Load> = engines.ranks.iter().map(Engine::load).collect();
            // The next of them goes there, and most often there is but one.
            loads[engines.next_rank].waiting += engines.tokenizing.range(..(HELD, 0)).count();
            loads
        })
    }

    /// Empties the prefix caches, unless a request runs or waits; says whether it did.
    pub(super) fn flush(&self) -> bool {
        self.act(|engines, now| {
            let is_idle = engines.tokenizing.is_empty() && engines.submitted.is_empty();
            is_idle && engines.ranks.iter_mut().all(|engine| engine.flush(now))
        })
    }

    /// Ends the thread, and the channels of all requests.
    pub(super) fn stop(&self) {
        let mut engines = self.engines.lock();
        engines.is_stopped = true;
        engines.tokenizing.clear();
        engines.submitted.clear();
        self.sooner.notify_one();
    }

    /// Does something at a moment by which all that was due has happened, so that nothing can end in between untold.
    fn act<T: Default>(&self, what: impl FnOnce(&mut Engines, Stamp) -> T) -> T {
        let mut engines = self.engines.lock();
        if engines.is_stopped {
            return T::default();
        }
        let now = engines.settle();
        let done = what(&mut engines, now);
        engines.settle();
        if engines.next_event_at() < engines.wakes {
            self.sooner.notify_one();
        }
        done
    }

    fn run(&self) {
        let mut engines = self.engines.lock();
        while !engines.is_stopped {
            let now = engines.settle();
            engines.wakes = engines.next_event_at();
            let nanos = engines.wakes.nanos_since(now).max(0).unsigned_abs();
            let patience = match engines.clock.clock {
                Clock::System(_) => Duration::from_nanos(nanos),
                Clock::Manual(_) => MANUAL_POLL,
            };
            self.sooner.wait_for(&mut engines, patience);
        }
    }
}

impl Engines {
    /// When something will happen; [`HELD`] when all wait for others.
    fn next_event_at(&self) -> Stamp {
        let tokenized = self.tokenizing.keys().next().map(|(due, _)| *due);
        let events = self.ranks.iter().filter_map(Engine::next_event_at);
        events.chain(tokenized).min().unwrap_or(HELD)
    }

    /// Lets everything happen that is due by now, in order of time; returns that now.
    fn settle(&mut self) -> Stamp {
        let now = self.clock.now();
        while let Some(first) = self.tokenizing.first_entry() {
            if first.key().0 > now {
                break;
            }
            let submission = first.remove();
            self.enqueue(submission);
        }
        for engine in &mut self.ranks {
            for event in engine.advance(now) {
                if let Some(one) = self.submitted.get(&event.id) {
                    one.tell(event.at, now, event.kind);
                }
                if event.kind.is_end() {
                    self.submitted.remove(&event.id);
                }
            }
        }
        now
    }

    /// To the ranks in turn.
    fn enqueue(&mut self, mut submission: Submission) {
        let rank = self.next_rank;
        self.next_rank = (rank + 1) % self.ranks.len();
        submission.rank = rank;
        self.ranks[rank].submit(submission.request.clone(), submission.due);
        self.submitted.insert(submission.request.id, submission);
    }
}

impl Submission {
    fn tell(&self, at: Stamp, told: Stamp, kind: EventKind) {
        // The client may have gone this moment; its abort is on the way.
        let _ = self.updates.send(Update {
            index: self.index,
            rank: self.rank,
            at,
            told: told.max(at),
            kind,
        });
    }
}
