//! The thread that owns the [`Engine`]s and lets their moments happen in real time.
//!
//! Tokio's timers step by a millisecond, too coarse for decode steps; so this is a plain thread that
//! waits for the next command or the next event of the model, whichever comes first, in one wait on a
//! channel with a timeout (a futex with the kernel's high-resolution timer: late by its slack of some
//! 50 µs plus the wake-up, never early). What the model says of the moments is exact all the same; only
//! their telling is late. Requests are told through channels of their own: no lock is shared by them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::clock::{Clock, Stamp};

use super::engine::{Aborted, Engine, EventKind, Load, Profile, Request};

/// How often the driver looks at a manual clock.
const MANUAL_POLL: Duration = Duration::from_millis(1);

/// When a sequence is due that waits for a decode server: not before [`Command::Arrived`].
pub(super) const HELD: Stamp = Stamp::from_nanos(i64::MAX);

/// The engine's own clock: the clock handed in, moved by a constant.
#[derive(Clone, Debug)]
pub(super) struct EngineClock {
    clock: Clock,
    skew_nanos: i64,
}

/// A handle on the engine's thread, which ends when the last handle is dropped or on
/// [`Command::Stop`]; the channels of unfinished requests close then.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    commands: Sender<Command>,
}

/// One sequence on its way to the engine.
#[derive(Debug)]
pub(super) struct Submission {
    /// What the engine is to do; its id is unique for the life of the driver.
    pub request: Request,
    /// When it reaches the queue: tokenized and handed over. At once if in the past.
    pub due: Stamp,
    /// Whom to tell what becomes of it.
    pub listener: Listener,
}

/// Who is told what becomes of a sequence.
#[derive(Debug)]
pub(super) struct Listener {
    /// The request id that `/abort_request` matches.
    pub rid: Arc<str>,
    /// The sequence's number within its HTTP request.
    pub index: usize,
    /// The data-parallel rank that works on it.
    pub rank: usize,
    pub updates: mpsc::UnboundedSender<Update>,
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

/// What the thread is to do.
#[derive(Debug)]
pub(super) enum Command {
    /// Take over the sequences of one HTTP request.
    Submit(Vec<Submission>),
    /// What a sequence waited for of another server is there: its place to decode, or what was prefilled of it.
    Arrived(u64),
    /// Take out sequences whose client has gone; nothing is told.
    Abort(Vec<u64>),
    /// Take out every sequence whose request id begins so, and tell them.
    AbortPrefix(String),
    Load(oneshot::Sender<Vec<Load>>),
    Flush(oneshot::Sender<bool>),
    /// End.
    Stop,
}

#[derive(Debug)]
struct Thread {
    clock: EngineClock,
    /// One for each data-parallel rank.
    engines: Vec<Engine>,
    /// The rank that the next request goes to.
    next_rank: usize,
    commands: Receiver<Command>,
    /// Submissions that are not due yet, by time and order of coming.
    tokenizing: BTreeMap<(Stamp, u64), Submission>,
    order: u64,
    /// Of what the engines work on, by its id.
    listeners: HashMap<u64, Listener>,
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
    /// Starts the thread of `ranks` engines; `decode_only`: see [`Engine::decode_only`].
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(
        profile: &Profile,
        decode_only: Option<usize>,
        ranks: usize,
        clock: EngineClock,
    ) -> std::io::Result<Driver> {
        let (commands, receiver) = channel();
        let now = clock.now();
        let engine = |_| match decode_only {
            Some(extra) => Engine::decode_only(profile.clone(), extra, now),
            None => Engine::new(profile.clone(), now),
        };
        let thread = Thread {
            engines: (0..ranks).map(engine).collect(),
            next_rank: 0,
            clock,
            commands: receiver,
            tokenizing: BTreeMap::new(),
            order: 0,
            listeners: HashMap::new(),
        };
        std::thread::Builder::new()
            .name("sim-engine".to_owned())
            .spawn(move || thread.run())?;
        Ok(Driver { commands })
    }

    /// The load of each rank now; none after [`Command::Stop`].
    pub(super) async fn load(&self) -> Vec<Load> {
        let (answer, load) = oneshot::channel();
        self.send(Command::Load(answer));
        load.await.unwrap_or_default()
    }

    /// Empties the prefix caches, unless a request runs or waits; says whether it did.
    pub(super) async fn flush(&self) -> bool {
        let (answer, flushed) = oneshot::channel();
        self.send(Command::Flush(answer));
        flushed.await.unwrap_or_default()
    }

    /// Tells the thread what to do.
    pub(super) fn send(&self, command: Command) {
        // A stopped driver has closed the requests' channels: they learn it there.
        let _ = self.commands.send(command);
    }
}

impl Thread {
    fn run(mut self) {
        loop {
            self.settle();
            let Some(command) = self.wait() else { continue };
            let mut next = Ok(command);
            while let Ok(command) = next {
                if matches!(command, Command::Stop) {
                    return;
                }
                self.handle(command);
                next = self.commands.try_recv();
            }
        }
    }

    /// Waits for a command; `None` when the time of an event came first.
    fn wait(&self) -> Option<Command> {
        let tokenized = self.tokenizing.keys().next().map(|(due, _)| *due);
        let events = self.engines.iter().filter_map(Engine::next_event_at);
        let Some(next) = events.chain(tokenized).min() else {
            return Some(self.commands.recv().unwrap_or(Command::Stop));
        };
        let nanos = next.nanos_since(self.clock.now()).max(0).unsigned_abs();
        let timeout = match self.clock.clock {
            Clock::System(_) => Duration::from_nanos(nanos),
            Clock::Manual(_) => MANUAL_POLL,
        };
        match self.commands.recv_timeout(timeout) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Command::Stop),
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit(submissions) => {
                for submission in submissions {
                    self.order += 1;
                    let key = (submission.due, self.order);
                    self.tokenizing.insert(key, submission);
                }
            }
            Command::Arrived(id) => {
                let now = self.settle();
                if let Some(listener) = self.listeners.get(&id) {
                    self.engines[listener.rank].arrive(id, now);
                }
                let mut waiting = self.tokenizing.iter();
                let held = waiting.find(|(_, held)| held.request.id == id);
                let held = held.map(|(key, _)| *key);
                if let Some(held) = held.and_then(|key| self.tokenizing.remove(&key)) {
                    self.enqueue(Submission { due: now, ..held });
                }
            }
            Command::Abort(ids) => {
                let now = self.settle();
                self.tokenizing
                    .retain(|_, waiting| !ids.contains(&waiting.request.id));
                for id in ids {
                    if let Some(listener) = self.listeners.remove(&id) {
                        self.engines[listener.rank].abort(id, now);
                    }
                }
            }
            Command::AbortPrefix(prefix) => self.abort_prefix(&prefix),
            Command::Load(answer) => {
                self.settle();
                let mut loads: Vec<Load> = self.engines.iter().map(Engine::load).collect();
                // The next of them goes there, and most often there is but one.
                loads[self.next_rank].waiting += self.tokenizing.range(..(HELD, 0)).count();
                let _ = answer.send(loads);
            }
            Command::Flush(answer) => {
                let now = self.settle();
                let is_idle = self.tokenizing.is_empty() && self.listeners.is_empty();
                let flushed = is_idle && self.engines.iter_mut().all(|e| e.flush(now));
                let _ = answer.send(flushed);
            }
            Command::Stop => {}
        }
    }

    fn abort_prefix(&mut self, prefix: &str) {
        let now = self.settle();
        let told = |listener: &Listener, place| {
            listener.tell(now, now, EventKind::Aborted(place));
            false
        };
        self.tokenizing.retain(|_, waiting| {
            !waiting.listener.rid.starts_with(prefix) || told(&waiting.listener, Aborted::Waiting)
        });
        let engines = &mut self.engines;
        self.listeners.retain(|id, listener| {
            let matching = listener.rid.starts_with(prefix);
            let aborted = matching.then(|| engines[listener.rank].abort(*id, now));
            aborted.flatten().is_none_or(|place| told(listener, place))
        });
    }

    /// Lets everything happen that is due by now, in order of time; returns that now. Whoever aborts does
    /// it at this very moment, so that nothing can end in between untold.
    fn settle(&mut self) -> Stamp {
        let now = self.clock.now();
        while let Some(first) = self.tokenizing.first_entry() {
            if first.key().0 > now {
                break;
            }
            let submission = first.remove();
            self.enqueue(submission);
        }
        for engine in &mut self.engines {
            for event in engine.advance(now) {
                if let Some(listener) = self.listeners.get(&event.id) {
                    listener.tell(event.at, now, event.kind);
                }
                if event.kind.is_end() {
                    self.listeners.remove(&event.id);
                }
            }
        }
        now
    }

    /// To the ranks in turn.
    fn enqueue(&mut self, submission: Submission) {
        let Submission {
            request,
            due,
            mut listener,
        } = submission;
        let rank = self.next_rank;
        self.next_rank = (rank + 1) % self.engines.len();
        listener.rank = rank;
        self.listeners.insert(request.id, listener);
        self.engines[rank].submit(request, due);
    }
}

impl Listener {
    pub(super) fn tell(&self, at: Stamp, told: Stamp, kind: EventKind) {
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
