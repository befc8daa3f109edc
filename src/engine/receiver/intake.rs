//! What has been received and is not read yet: bounded by bytes, and read in turns, so that what one connection brought
//! never holds up another's.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::telemetry::prometheus::Metrics;

/// Where one connection puts its messages. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Intake {
    /// What is counted.
    pub metrics: Metrics,
    /// Bytes that this connection may hold, and all of them.
    room: [Arc<Semaphore>; 2],
    /// The place of its next message: what reading those before it costs.
    place: Arc<AtomicU64>,
    waiting: Arc<Waiting>,
}

/// The messages that wait to be read.
#[derive(Debug, Default)]
pub struct Waiting {
    line: Mutex<Line>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    /// By their place in their own connection's line: of whom least was read is next. Then as they came.
    messages: BTreeMap<(u64, u64), Message>,
    /// The place of the last that was read: who comes anew is not before it.
    floor: u64,
    came: u64,
    is_closed: bool,
}

/// A message as it came.
#[derive(Debug)]
pub struct Message {
    /// Protobuf, maybe compressed.
    pub body: Bytes,
    /// By gzip.
    pub is_gzip: bool,
    /// What it takes of the bytes that may be held.
    held: Held,
    /// The place of its connection's next one.
    of: Arc<AtomicU64>,
}

/// A share of the bytes that may be held; given back when dropped.
pub type Held = Vec<OwnedSemaphorePermit>;

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
/// Bytes of messages that one connection may hold, and all together: others have room beside it.
const MOST_HELD: [usize; 2] = [32 << 20, 64 << 20];
/// How many times as long as it came a message may be when it is inflated, beyond [`SMALL`]: spans, which hold random ids,
/// are some ten times as long. More is no message but a bomb.
const INFLATED: usize = 64;
/// Bytes that any message may be inflated to.
const SMALL: usize = 1 << 20;

impl Intake {
    /// An intake for a connection, and where its messages wait.
    pub fn new(metrics: Metrics) -> (Intake, Arc<Waiting>) {
        let waiting: Arc<Waiting> = Arc::default();
        let intake = Intake {
            metrics,
            room: MOST_HELD.map(|most| Arc::new(Semaphore::new(most))),
            place: Arc::default(),
            waiting: waiting.clone(),
        };
        (intake, waiting)
    }

    /// That of another connection.
    pub fn of_connection(&self) -> Intake {
        let ([most, _], [_, all]) = (MOST_HELD, self.room.clone());
        Intake {
            room: [Arc::new(Semaphore::new(most)), all],
            place: Arc::default(),
            ..self.clone()
        }
    }

    /// Takes room for so many more bytes; `false` where there is none.
    pub fn grow(&self, held: &mut Held, bytes: usize) -> bool {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.room.iter().all(|room| {
            let taken = room.clone().try_acquire_many_owned(bytes);
            taken.map(|taken| held.push(taken)).is_ok()
        })
    }

    /// A whole message has come.
    pub fn put(&self, body: Bytes, is_gzip: bool, held: Held) {
        let of = self.place.clone();
        let message = Message {
            body,
            is_gzip,
            held,
            of,
        };
        let mut line = self.waiting.line.lock();
        let place = self.place.load(Ordering::Relaxed).max(line.floor);
        self.place.store(place + message.cost(), Ordering::Relaxed);
        line.came += 1;
        let key = (place, line.came);
        line.messages.insert(key, message);
        drop(line);
        self.waiting.came.notify_one();
    }
}

impl Waiting {
    /// Who is next; waits for it. `None`: nothing more comes, and all was read.
    pub fn next(&self) -> Option<Message> {
        let mut line = self.line.lock();
        loop {
            if let Some(((place, _), message)) = line.messages.pop_first() {
                line.floor = place;
                return Some(message);
            }
            if line.is_closed {
                return None;
            }
            self.came.wait(&mut line);
        }
    }

    /// Nothing more comes.
    pub fn close(&self) {
        self.line.lock().is_closed = true;
        self.came.notify_one();
    }
}

impl Message {
    /// What reading it will cost: its bytes, and those that it says it is inflated to.
    fn cost(&self) -> u64 {
        let told = self.body.last_chunk().filter(|_| self.is_gzip);
        let inflated = told.map_or(0, |told| u32::from_le_bytes(*told) as usize);
        (self.body.len() + inflated.min(LONGEST)) as u64
    }

    /// The protobuf. What it costs more than it said, its connection pays.
    pub fn plain(self) -> Result<Bytes, Unread> {
        let cost = self.cost();
        let Message {
            body,
            is_gzip,
            of,
            held: _until_here,
        } = self;
        let length = body.len();
        if !is_gzip {
            return Ok(body);
        }
        let most = LONGEST.min(SMALL + INFLATED * length);
        let mut plain = Vec::new();
        let read = MultiGzDecoder::new(&body[..])
            .take(most as u64 + 1)
            .read_to_end(&mut plain);
        let more = ((length + plain.len()) as u64).saturating_sub(cost);
        of.fetch_add(more, Ordering::Relaxed);
        match read {
            Err(_) => Err(Unread::Malformed),
            Ok(_) if plain.len() > most => Err(Unread::TooLarge),
            Ok(_) => Ok(plain.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::telemetry::prometheus::Metrics;

    fn intake() -> (Intake, Arc<Waiting>) {
        Intake::new(Metrics::new().unwrap().clone())
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn connections_take_turns_by_what_was_read_of_each() {
        let (intake, waiting) = intake();
        let [greedy, modest, late] = [(); 3].map(|()| intake.of_connection());
        let put = |intake: &Intake, byte, length| {
            intake.put(vec![byte; length].into(), false, Vec::new())
        };
        for _ in 0..4 {
            put(&greedy, 1, 100);
        }
        for _ in 0..4 {
            put(&modest, 2, 30);
        }
        let mut order = Vec::new();
        let mut next = || {
            order.push(waiting.next().unwrap().plain().unwrap()[0]);
        };
        for _ in 0..4 {
            next();
        }
        // It begins where the others are, and its first message is not behind theirs.
        put(&late, 3, 30);
        for _ in 0..5 {
            next();
        }
        assert_eq!(order, [1, 2, 2, 2, 3, 2, 1, 1, 1]);
        // What was read of a connection counts though nothing of it waits.
        put(&greedy, 1, 1);
        put(&intake, 4, 1);
        assert_eq!(waiting.next().unwrap().body[0], 4);
        assert_eq!(waiting.next().unwrap().body[0], 1);
        waiting.close();
        assert!(waiting.next().is_none());
    }

    #[test]
    fn what_is_inflated_is_in_proportion_to_what_came() {
        let (intake, waiting) = intake();
        let read = |body: &[u8]| {
            intake.put(Bytes::copy_from_slice(body), true, Vec::new());
            waiting.next().unwrap().plain()
        };
        let inflated = |length: usize| {
            let body = packed(&vec![0; length]);
            assert!(length > INFLATED * body.len());
            read(&body).map(|plain| plain.len())
        };
        assert_eq!(inflated(SMALL), Ok(SMALL));
        assert_eq!(inflated(LONGEST), Err(Unread::TooLarge));
        // Who says that it is short pays for what it was.
        let mut lies = packed(&vec![0; SMALL]);
        let told = lies.len() - 4;
        lies[told..].fill(0);
        let before = intake.place.load(Ordering::Relaxed);
        assert_eq!(read(&lies), Err(Unread::Malformed));
        assert!(intake.place.load(Ordering::Relaxed) - before > SMALL as u64);
        // Numbers that begin alike, as ids and times do.
        let numbers: Vec<u8> = (0..500_000_u64)
            .flat_map(|n| (1_795_000_000_000_000_000 + n * n).to_le_bytes())
            .collect();
        assert_eq!(read(&packed(&numbers)).unwrap(), numbers);
    }

    #[test]
    fn one_connection_leaves_others_room() {
        let (intake, _) = intake();
        let [greedy, other] = [(); 2].map(|()| intake.of_connection());
        let full = |intake: &Intake| {
            let mut held = Held::new();
            intake.grow(&mut held, LONGEST).then_some(held)
        };
        let held = [(); 3].map(|()| full(&greedy));
        assert_eq!(
            [0, 1, 2].map(|n: usize| held[n].is_some()),
            [true, true, false]
        );
        // Who is refused gives back what it had.
        drop(held);
        let all = [&greedy, &greedy, &other, &other].map(full);
        assert!(all.iter().all(Option::is_some));
        assert!(!intake.of_connection().grow(&mut Held::new(), 1));
    }
}
