//! What has been received and is not read yet: bounded by bytes, and read in turns, so that what one connection brought
//! never holds up another's.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parking_lot::{Condvar, Mutex};

use crate::telemetry::prometheus::engine_traces::{Batch, EngineTraceMetrics};

/// Where one connection puts its messages. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Intake {
    /// Bytes that all connections hold, and those of this one.
    held: [Arc<AtomicUsize>; 2],
    number: u64,
    /// What has been read of this connection, by its cost.
    spent: Arc<AtomicU64>,
    waiting: Arc<Waiting>,
    metrics: EngineTraceMetrics,
}

/// The messages that wait to be read, by connection.
#[derive(Debug, Default)]
pub struct Waiting {
    lines: Mutex<Lines>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    /// Of connections that have any, or of which one is being read.
    messages: HashMap<u64, VecDeque<(Message, Arc<AtomicU64>)>>,
    /// Whose turn it is: of whom least has been read.
    turns: BTreeSet<(u64, u64)>,
    /// The place of the last turn: who comes anew is not before it.
    floor: u64,
    is_closed: bool,
}

/// A connection's turn: one message of it is read.
#[derive(Debug)]
pub struct Turn {
    place: u64,
    number: u64,
    spent: Arc<AtomicU64>,
}

/// A message as it came.
#[derive(Debug)]
pub struct Message {
    /// Protobuf, maybe compressed.
    pub body: Bytes,
    /// By gzip.
    pub is_gzip: bool,
    /// What it takes of the bytes that may be held.
    pub held: Held,
}

/// A share of the bytes that may be held; given back when dropped.
#[derive(Debug)]
pub struct Held {
    bytes: usize,
    of: [Arc<AtomicUsize>; 2],
}

/// Why a message tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is none.
    Malformed,
    /// It is longer than [`LONGEST`], or than it may be for what came of it.
    TooLarge,
}

/// Bytes of a message, as it comes and inflated. Servers send 64 spans at once, which are some 20 kB.
pub const LONGEST: usize = 16 << 20;
/// Bytes of messages that are held together, and of one connection: others have room beside it.
const MOST_HELD: [usize; 2] = [64 << 20, 32 << 20];
/// How many times as long as it came a message may be when it is inflated, beyond [`SMALL`]: spans, which hold random ids,
/// are some ten times as long. More is no message but a bomb.
const INFLATED: usize = 64;
/// Bytes that any message may be inflated to.
const SMALL: usize = 1 << 20;

impl Intake {
    /// An intake for no connection, and where its messages wait.
    pub fn new(metrics: EngineTraceMetrics) -> (Intake, Arc<Waiting>) {
        let waiting: Arc<Waiting> = Arc::default();
        let intake = Intake {
            held: Default::default(),
            number: 0,
            spent: Arc::default(),
            waiting: waiting.clone(),
            metrics,
        };
        (intake, waiting)
    }

    /// That of a connection with this number.
    pub fn of_connection(&self, number: u64) -> Intake {
        let [all, _] = self.held.clone();
        Intake {
            held: [all, Arc::default()],
            number,
            spent: Arc::default(),
            ..self.clone()
        }
    }

    /// A share to let grow.
    pub fn hold(&self) -> Held {
        Held {
            bytes: 0,
            of: self.held.clone(),
        }
    }

    /// A whole message has come.
    pub fn put(&self, message: Message) {
        let mut lines = self.waiting.lines.lock();
        let Lines {
            messages,
            turns,
            floor,
            ..
        } = &mut *lines;
        let line = messages.entry(self.number).or_insert_with(|| {
            let place = self.spent.load(Ordering::Relaxed).max(*floor);
            turns.insert((place, self.number));
            VecDeque::new()
        });
        line.push_back((message, self.spent.clone()));
        drop(lines);
        self.waiting.came.notify_one();
    }

    /// A connection was turned away.
    pub fn refused(&self) {
        self.metrics.refused();
    }

    /// A batch was turned away.
    pub fn turned_away(&self, why: Batch) {
        self.metrics.batch(why);
    }
}

impl Waiting {
    /// Who is next; waits for it. `None`: nothing more comes, and all was read.
    pub fn next(&self) -> Option<(Turn, Message)> {
        let mut lines = self.lines.lock();
        loop {
            if let Some((place, number)) = lines.turns.pop_first() {
                lines.floor = place;
                let (message, spent) = lines.messages.get_mut(&number)?.pop_front()?;
                let turn = Turn {
                    place,
                    number,
                    spent,
                };
                return Some((turn, message));
            }
            if lines.is_closed {
                return None;
            }
            self.came.wait(&mut lines);
        }
    }

    /// A turn is over, in which so many bytes were read: the connection's next one comes when others had as much.
    pub fn over(&self, turn: Turn, bytes: usize) {
        let Turn {
            place,
            number,
            spent,
        } = turn;
        let mut lines = self.lines.lock();
        let place = place + bytes as u64;
        spent.store(place, Ordering::Relaxed);
        match lines.messages.get(&number) {
            Some(line) if !line.is_empty() => drop(lines.turns.insert((place, number))),
            _ => drop(lines.messages.remove(&number)),
        }
    }

    /// Nothing more comes.
    pub fn close(&self) {
        self.lines.lock().is_closed = true;
        self.came.notify_one();
    }
}

impl Held {
    /// Takes so many more; `false` where that is too many.
    pub fn grow(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        let mut has_room = true;
        for (of, most) in self.of.iter().zip(MOST_HELD) {
            has_room &= of.fetch_add(bytes, Ordering::Relaxed) + bytes <= most;
        }
        has_room
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for of in &self.of {
            of.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Message {
    /// The protobuf, and how many bytes were read for it.
    pub fn plain(self) -> (Result<Bytes, Unread>, usize) {
        let Message {
            body,
            is_gzip,
            held: _until_here,
        } = self;
        let length = body.len();
        if !is_gzip {
            return (Ok(body), length);
        }
        let most = LONGEST.min(SMALL + INFLATED * length);
        let mut plain = Vec::new();
        let read = MultiGzDecoder::new(&body[..])
            .take(most as u64 + 1)
            .read_to_end(&mut plain);
        let bytes = length + plain.len();
        let plain = match read {
            Err(_) => Err(Unread::Malformed),
            Ok(_) if plain.len() > most => Err(Unread::TooLarge),
            Ok(_) => Ok(plain.into()),
        };
        (plain, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::telemetry::prometheus::Metrics;

    fn intake() -> (Intake, Arc<Waiting>) {
        Intake::new(Metrics::new().unwrap().engine_traces().clone())
    }

    fn message(intake: &Intake, body: Vec<u8>, is_gzip: bool) -> Message {
        Message {
            body: body.into(),
            is_gzip,
            held: intake.hold(),
        }
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn connections_take_turns_by_what_was_read_of_each() {
        let (intake, waiting) = intake();
        let [greedy, modest, late] = [1, 2, 3].map(|number| intake.of_connection(number));
        for _ in 0..4 {
            greedy.put(message(&greedy, vec![1; 100], false));
        }
        for _ in 0..4 {
            modest.put(message(&modest, vec![2; 30], false));
        }
        let mut order = Vec::new();
        let mut next = || {
            let (turn, message) = waiting.next().unwrap();
            order.push(message.body[0]);
            let (_, bytes) = message.plain();
            waiting.over(turn, bytes);
        };
        for _ in 0..4 {
            next();
        }
        // It begins where the others are, and its first message is not behind theirs.
        late.put(message(&late, vec![3; 30], false));
        for _ in 0..5 {
            next();
        }
        assert_eq!(order, [1, 2, 2, 2, 3, 2, 1, 1, 1]);
        // What was read of a connection counts though nothing of it waits.
        greedy.put(message(&greedy, vec![1; 1], false));
        intake.put(message(&intake, vec![4; 1], false));
        assert_eq!(waiting.next().unwrap().1.body[0], 4);
        assert_eq!(waiting.next().unwrap().1.body[0], 1);
        waiting.close();
        assert!(waiting.next().is_none());
    }

    #[test]
    fn what_is_inflated_is_in_proportion_to_what_came() {
        let (intake, _) = intake();
        let inflated = |length: usize| {
            let body = packed(&vec![0; length]);
            assert!(length > INFLATED * body.len());
            let (plain, bytes) = message(&intake, body, true).plain();
            (plain.map(|plain| plain.len()), bytes)
        };
        assert_eq!(inflated(SMALL).0, Ok(SMALL));
        let (plain, bytes) = inflated(LONGEST);
        assert_eq!(plain, Err(Unread::TooLarge));
        // The rest was not inflated.
        assert!(bytes < 3 * SMALL, "{bytes}");
        // Numbers that begin alike, as ids and times do.
        let numbers: Vec<u8> = (0..500_000_u64)
            .flat_map(|n| (1_795_000_000_000_000_000 + n * n).to_le_bytes())
            .collect();
        let (plain, _) = message(&intake, packed(&numbers), true).plain();
        assert_eq!(plain.unwrap(), numbers);
    }

    #[test]
    fn one_connection_leaves_others_room() {
        let (intake, _) = intake();
        let [greedy, other] = [1, 2].map(|number| intake.of_connection(number));
        let mut held = [greedy.hold(), greedy.hold(), greedy.hold()];
        let had: Vec<bool> = held.iter_mut().map(|held| held.grow(LONGEST)).collect();
        assert_eq!(had, [true, true, false]);
        // Who is refused gives back what it had.
        drop(held);
        let mut rest = [greedy.hold(), greedy.hold()];
        assert!(rest.iter_mut().all(|held| held.grow(LONGEST)));
        let mut all = [other.hold(), other.hold()];
        assert!(all.iter_mut().all(|held| held.grow(LONGEST)));
        assert!(!intake.of_connection(3).hold().grow(1));
    }
}
