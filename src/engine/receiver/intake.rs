//! What has been received and is not read yet: bounded by bytes, and read in turns, so that what one connection brought
//! never holds up another's.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Reader;

/// What the connections share.
pub struct Intakes {
    /// Bytes that all of them may hold.
    room: Arc<Semaphore>,
    /// Whose turn it is to be read, in the order in which they ask.
    turn: Arc<Semaphore>,
    pub(super) reader: Arc<Reader>,
}

/// Where one connection puts its messages. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Intake {
    /// Bytes that this connection may hold, and all of them.
    room: [Arc<Semaphore>; 2],
    messages: UnboundedSender<Message>,
}

/// A message as it came.
#[derive(Debug)]
pub struct Message {
    /// Protobuf, maybe compressed.
    pub body: Bytes,
    /// By gzip.
    pub is_gzip: bool,
    /// What it takes of the bytes that may be held.
    pub _held: Held,
}

/// A share of the bytes that may be held, of each of an intake's rooms; given back when dropped.
pub type Held = Vec<OwnedSemaphorePermit>;

/// Why a message tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is none.
    Malformed,
    /// It is longer than [`LONGEST`], or than it may be for what came of it.
    TooLarge,
}

/// Bytes of a message, as it comes and inflated: what gRPC takes by default. Servers send 64 spans at once, which are some 20 kB; one of
/// nothing but empty spans takes 16 times its length while it is read.
pub const LONGEST: usize = 4 << 20;
/// Bytes of messages that one connection may hold, and all together: others have room beside it.
const MOST_HELD: [usize; 2] = [32 << 20, 64 << 20];
/// How many times as long as it came a message may be when it is inflated, beyond [`SMALL`]: spans, which hold random ids,
/// are some ten times as long. More is no message but a bomb.
const INFLATED: usize = 64;
/// Bytes that any message may be inflated to.
const SMALL: usize = 1 << 20;

impl Intakes {
    pub(super) fn new(reader: Reader) -> Intakes {
        Intakes {
            room: Arc::new(Semaphore::new(MOST_HELD[1])),
            turn: Arc::new(Semaphore::new(1)),
            reader: Arc::new(reader),
        }
    }

    /// That of another connection, and what reads its messages until there are no more.
    pub fn of_connection(&self) -> (Intake, impl Future<Output = ()> + Send + use<>) {
        let (messages, mut waiting) = unbounded_channel::<Message>();
        let intake = Intake {
            room: [Arc::new(Semaphore::new(MOST_HELD[0])), self.room.clone()],
            messages,
        };
        let (turn, reader) = (self.turn.clone(), self.reader.clone());
        let read = async move {
            while let Some(message) = waiting.recv().await {
                let _turn = turn.acquire().await;
                let reader = reader.clone();
                let read = tokio::task::spawn_blocking(move || reader.read(message));
                if read.await.is_err() {
                    log::error!("engine traces: what reads them failed");
                }
            }
        };
        (intake, read)
    }
}

impl Intake {
    /// Takes room for so many more bytes; `false` where there is none.
    pub fn grow(&self, held: &mut Held, bytes: usize) -> bool {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.room.iter().enumerate().all(|(place, room)| {
            let Ok(taken) = room.clone().try_acquire_many_owned(bytes) else {
                return false;
            };
            // A body may come byte by byte.
            match held.get_mut(place) {
                Some(before) => before.merge(taken),
                None => held.push(taken),
            }
            true
        })
    }

    /// A whole message has come.
    pub fn put(&self, message: Message) {
        // It is read for as long as this is there.
        let _ = self.messages.send(message);
    }
}

impl Message {
    /// The protobuf.
    pub fn plain(&self) -> Result<Bytes, Unread> {
        if !self.is_gzip {
            return Ok(self.body.clone());
        }
        let most = LONGEST.min(SMALL + INFLATED * self.body.len());
        let mut plain = Vec::new();
        let read = MultiGzDecoder::new(&self.body[..])
            .take(most as u64 + 1)
            .read_to_end(&mut plain);
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

    use parking_lot::Mutex;

    use super::*;
    use crate::engine::span::EngineSpan;
    use crate::telemetry::prometheus::Metrics;

    /// And the traces in the order in which they were read.
    fn intakes() -> (Intakes, Arc<Mutex<Vec<u128>>>) {
        let order = Arc::new(Mutex::new(Vec::new()));
        let to = order.clone();
        let sink = Arc::new(move |spans: Vec<EngineSpan>| {
            to.lock().extend(spans.iter().map(|span| span.trace));
            true
        });
        let reader = Reader::new(sink, None, Metrics::new().unwrap());
        (Intakes::new(reader), order)
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    fn message(body: Vec<u8>, is_gzip: bool) -> Message {
        Message {
            body: body.into(),
            is_gzip,
            _held: Held::new(),
        }
    }

    /// A message of one span of this trace.
    fn of_trace(trace: u8) -> Vec<u8> {
        let field =
            |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
        let fixed = |number: u8| [&[number << 3 | 1][..], &[1; 8]].concat();
        let id = |length: usize| [vec![0; length - 1], vec![trace]].concat();
        let parts = [
            field(1, &id(16)),
            field(2, &id(8)),
            field(5, b"prefill_waiting"),
        ];
        let span = [parts.concat(), fixed(7), fixed(8)].concat();
        field(1, &field(2, &field(2, &span)))
    }

    #[tokio::test]
    async fn connections_take_turns() {
        let (intakes, order) = intakes();
        let (greedy, reads_greedy) = intakes.of_connection();
        let (modest, reads_modest) = intakes.of_connection();
        for _ in 0..4 {
            greedy.put(message(of_trace(1), false));
        }
        for _ in 0..2 {
            modest.put(message(packed(&of_trace(2)), true));
        }
        drop((greedy, modest));
        // Both ask before it is anybody's turn.
        let first = intakes.turn.clone().acquire_owned().await;
        let begin = async { drop(first) };
        tokio::join!(reads_greedy, reads_modest, begin);
        assert_eq!(*order.lock(), [1, 2, 1, 2, 1, 1]);
    }

    #[test]
    fn what_is_inflated_is_in_proportion_to_what_came() {
        let inflated = |length: usize| {
            let body = packed(&vec![0; length]);
            assert!(length > INFLATED * body.len());
            message(body, true).plain().map(|plain| plain.len())
        };
        assert_eq!(inflated(SMALL), Ok(SMALL));
        assert_eq!(inflated(LONGEST), Err(Unread::TooLarge));
        let broken = message(b"no gzip".to_vec(), true);
        assert_eq!(broken.plain(), Err(Unread::Malformed));
        // Numbers that begin alike, as ids and times do.
        let numbers: Vec<u8> = (0..500_000_u64)
            .flat_map(|n| (1_795_000_000_000_000_000 + n * n).to_le_bytes())
            .collect();
        let packed = message(packed(&numbers), true);
        assert_eq!(packed.plain().unwrap(), numbers);
    }

    #[tokio::test]
    async fn one_connection_leaves_others_room() {
        let (intakes, _) = intakes();
        let [greedy, other] = [(); 2].map(|()| intakes.of_connection().0);
        let full = |intake: &Intake| {
            let mut held = Held::new();
            intake.grow(&mut held, LONGEST).then_some(held)
        };
        let held = [(); 9].map(|()| full(&greedy));
        let is_held = held.each_ref().map(Option::is_some);
        assert_eq!(is_held, [1, 1, 1, 1, 1, 1, 1, 1, 0].map(|held| held == 1));
        // Who is refused gives back what it had.
        drop(held);
        let all: Vec<_> = (0..16).map(|n| full([&greedy, &other][n % 2])).collect();
        assert!(all.iter().all(Option::is_some));
        let (another, _) = intakes.of_connection();
        assert!(!another.grow(&mut Held::new(), 1));
    }

    #[tokio::test]
    async fn a_message_that_comes_byte_by_byte_takes_its_bytes_and_no_more() {
        let (intakes, _) = intakes();
        let (intake, _) = intakes.of_connection();
        let mut held = Held::new();
        assert!((0..10_000).all(|_| intake.grow(&mut held, 1)));
        assert_eq!(held.len(), 2);
        assert_eq!(intakes.room.available_permits(), MOST_HELD[1] - 10_000);
        drop(held);
        assert_eq!(intakes.room.available_permits(), MOST_HELD[1]);
    }
}
