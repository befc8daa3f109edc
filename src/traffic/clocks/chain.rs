//! A run through all processes, each with a clock of its own that the test knows the truth about: generator →
//! front → router → hop → engine. What a record says of any moment must be right within the errors that it
//! states, and errors add along a chain.

use proptest::prelude::*;

use super::*;
use crate::clock::NANOS;
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::stamps::Stamps;
use crate::request::timeline::{Period, Side};

/// Another clock against the true time.
#[derive(Clone, Copy, Debug)]
struct Other {
    offset: i64,
    ppm: i64,
}

/// The clocks, in the order of the way.
#[derive(Clone, Copy, Debug)]
struct Machines {
    generator: Other,
    front: Other,
    hop: Other,
    engine: Other,
    /// Front and hop are one process.
    is_one: bool,
}

/// How long each part of a request takes, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Delays {
    pause: i64,
    to_front: i64,
    in_front: i64,
    in_router: i64,
    in_hop: i64,
    to_engine: i64,
    /// To its first token.
    in_engine: i64,
    /// The head comes before the first token, as `/generate` sends it.
    head: i64,
    back: [i64; 3],
    decode: i64,
    overlap: i64,
}

/// True moments of a request.
#[derive(Clone, Copy, Debug)]
struct Life {
    sent: i64,
    arrival: i64,
    forwarded: i64,
    worker_arrival: i64,
    worker_forwarded: i64,
    created: i64,
    queue_end: i64,
    first_token: i64,
    hop_head: i64,
    front_head: i64,
    head: i64,
    read: i64,
    finish: i64,
}

const START: i64 = 1_795_000_000 * NANOS;
/// Stamps that the engine tells as floats.
const FLOAT: i64 = 500;

impl Other {
    fn reads(self, at: i64) -> Stamp {
        let drifted = i128::from(at - START) * i128::from(self.ppm) / 1_000_000;
        Stamp::from_nanos(at + self.offset + i64::try_from(drifted).unwrap())
    }
}

impl Life {
    fn new(begin: i64, delays: &Delays) -> Life {
        let sent = begin;
        let arrival = sent + delays.to_front;
        let forwarded = arrival + delays.in_front;
        let worker_arrival = forwarded + delays.in_router;
        let worker_forwarded = worker_arrival + delays.in_hop;
        let created = worker_forwarded + delays.to_engine;
        let first_token = created + delays.in_engine;
        let left = created + delays.head.min(delays.in_engine);
        let hop_head = left + delays.back[0];
        let front_head = hop_head + delays.back[1];
        let head = front_head + delays.back[2];
        let read = (first_token + delays.back.iter().sum::<i64>()).max(head);
        Life {
            sent,
            arrival,
            forwarded,
            worker_arrival,
            worker_forwarded,
            created,
            queue_end: created + delays.in_engine / 2,
            first_token,
            hop_head,
            front_head,
            head,
            read,
            finish: read + delays.decode,
        }
    }

    /// The exchange as the generator sees it.
    fn exchange(&self, machines: &Machines) -> Exchange {
        let hop_clock = if machines.is_one {
            machines.front
        } else {
            machines.hop
        };
        let generator = |at| machines.generator.reads(at);
        let stamps = Stamps {
            clock: "front".into(),
            now: Some(machines.front.reads(self.front_head)),
            arrival: Some(machines.front.reads(self.arrival)),
            forwarded: Some(machines.front.reads(self.forwarded)),
            hop: Some(Box::new(Stamps {
                clock: if machines.is_one { "front" } else { "hop" }.into(),
                now: Some(hop_clock.reads(self.hop_head)),
                arrival: Some(hop_clock.reads(self.worker_arrival)),
                forwarded: Some(hop_clock.reads(self.worker_forwarded)),
                host: Some("engine:1".into()),
                is_direct: true,
                ..Stamps::default()
            })),
            ..Stamps::default()
        };
        let mut observer = Observer::new(Side::Traffic, Endpoint::Generate, "r".into());
        observer
            .timeline_mut()
            .set(Moment::Sent, generator(self.sent));
        observer.stamps(&stamps, "generator");
        let kind = Some("text/event-stream");
        observer.response_head(200, kind, false, generator(self.head));
        let seconds = |at| {
            let nanos = machines.engine.reads(at).nanos();
            format!("{}.{:09}", nanos / NANOS, nanos % NANOS)
        };
        let body = format!(
            "data: {{\"text\":\"a\",\"meta_info\":{{\"id\":\"e\",\"finish_reason\":{{\"type\":\"stop\"}},\
             \"completion_tokens\":1,\"forward_entry_time\":{},\"queue_time\":0.0,\"prefill_finished_time\":{},\
             \"request_received_ts\":{},\"response_sent_to_client_ts\":{}}}}}\n\n",
            seconds(self.queue_end),
            seconds(self.first_token),
            seconds(self.created),
            seconds(self.first_token),
        );
        observer.response_body(body.as_bytes(), generator(self.read), 0);
        let end = generator(self.finish);
        observer.response_body(b"data: [DONE]\n\n", end, 0);
        Exchange {
            rows: observer.finish(End::Complete, end),
            stamps: Some(stamps),
            connect_nanos: 0,
            slot_nanos: 0,
        }
    }

    /// The moments of other clocks, when they truly were.
    fn moments(&self) -> [(Moment, i64); 7] {
        [
            (Moment::Arrival, self.arrival),
            (Moment::Forwarded, self.forwarded),
            (Moment::WorkerArrival, self.worker_arrival),
            (Moment::WorkerForwarded, self.worker_forwarded),
            (Moment::ServerCreated, self.created),
            (Moment::QueueEnd, self.queue_end),
            (Moment::ServerFirstToken, self.first_token),
        ]
    }
}

fn error_of(record: &Row, clock: ClockOf) -> Option<i64> {
    match record.timeline.relation(clock) {
        Relation::Same => Some(0),
        Relation::Apart(offset) => Some(offset.error_nanos),
        Relation::Unknown => None,
    }
}

/// Fails unless every moment that was put on the generator's clock is right within its clock's error, and every
/// span within both ends' together. How many moments were.
fn check(record: &Row, life: &Life, machines: &Machines) -> Result<usize, TestCaseError> {
    let clock_of = |moment: Moment| match moment.clock(Side::Traffic) {
        ClockOf::Hop if machines.is_one => ClockOf::Front,
        clock => clock,
    };
    let mut placed = Vec::new();
    for (moment, at) in life.moments() {
        let Some(stated) = record.timeline.on_own_clock(moment) else {
            continue;
        };
        let error = error_of(record, clock_of(moment)).unwrap() + FLOAT;
        let truth = machines.generator.reads(at);
        let off_by = stated.nanos_since(truth).abs();
        prop_assert!(
            off_by <= error,
            "{moment:?} is off by {off_by} > {error}: {record:?}"
        );
        placed.push((moment, truth, clock_of(moment), error));
    }
    for (from, began, from_clock, from_error) in &placed {
        for (to, ended, to_clock, to_error) in &placed {
            let stated = record
                .timeline
                .nanos(Period {
                    from: *from,
                    to: *to,
                })
                .unwrap();
            let truth = ended.nanos_since(*began);
            // Within one clock nothing is lost but drift (100 ppm) against the generator's.
            let error = if from_clock == to_clock {
                2 * FLOAT + truth.abs() / 10_000 + 1
            } else {
                from_error + to_error
            };
            let off_by = (stated - truth).abs();
            prop_assert!(
                off_by <= error,
                "{from:?} to {to:?} is off by {off_by} > {error}"
            );
        }
    }
    Ok(placed.len())
}

prop_compose! {
    // Any two drift apart by at most 100 ppm.
    fn other()(offset in -3600 * NANOS..=3600 * NANOS, ppm in -50_i64..=50) -> Other {
        Other { offset, ppm }
    }
}

prop_compose! {
    fn clocks()(
        generator in other(), front in other(), hop in other(), engine in other(), is_one in any::<bool>(),
    ) -> Machines {
        Machines { generator, front, hop, engine, is_one }
    }
}

fn short() -> impl Strategy<Value = i64> {
    prop_oneof![0..20_000_i64, 0..20_000_000_i64]
}

fn long() -> impl Strategy<Value = i64> {
    prop_oneof![0..NANOS, 0..120 * NANOS]
}

prop_compose! {
    fn delays()(
        pause in 0..20 * NANOS, to_front in short(), in_front in short(), in_router in long(), in_hop in short(),
        to_engine in short(), in_engine in long(), head in long(), back in [short(), short(), short()],
        decode in long(), overlap in 0..150 * NANOS,
    ) -> Delays {
        Delays {
            pause, to_front, in_front, in_router, in_hop, to_engine, in_engine, head, back, decode, overlap,
        }
    }
}

/// Requests one after another, some beginning long before others end.
fn lives(all: &[Delays]) -> Vec<Life> {
    let mut begin = START;
    let next = |delays: &Delays| {
        let life = Life::new(begin, delays);
        begin = (life.finish - delays.overlap).max(begin) + delays.pause;
        life
    };
    all.iter().map(next).collect()
}

/// The records of exchanges that ended in this order.
fn relate(exchanges: Vec<Exchange>, own: &str) -> Vec<Row> {
    let mut clocks = Clocks::new(own.to_owned());
    let all = exchanges.into_iter();
    all.flat_map(|exchange| clocks.relate(exchange)).collect()
}

proptest! {
    #[test]
    fn every_moment_and_span_is_right_within_the_stated_errors(
        machines in clocks(),
        delays in prop::collection::vec(delays(), 1..12),
    ) {
        let lives = lives(&delays);
        let exchanges = lives.iter().map(|life| life.exchange(&machines)).collect();
        let records = relate(exchanges, "generator");
        prop_assert_eq!(records.len(), lives.len());
        for (record, life) in records.iter().zip(&lives) {
            let placed = check(record, life, &machines)?;
            // Each request alone bounds every clock from both sides.
            prop_assert_eq!(placed, life.moments().len(), "{:?}", record.timeline);
        }
    }
}

/// The clocks of [`a_chain_of_clocks_is_no_surer_than_its_links`].
fn apart() -> Machines {
    let other = |offset| Other { offset, ppm: 0 };
    Machines {
        generator: other(0),
        front: other(100 * NANOS),
        hop: other(-1000 * NANOS),
        engine: other(3600 * NANOS),
        is_one: false,
    }
}

#[test]
fn a_row_has_the_tightest_offsets_that_were_known_when_its_request_ended() {
    let far = Delays {
        back: [NANOS; 3],
        ..Delays::default()
    };
    let lives = lives(&[far, far, Delays::default(), far]);
    let exchanges = lives.iter().map(|life| life.exchange(&apart()));
    let records = relate(exchanges.collect(), "generator");
    for clock in [ClockOf::Front, ClockOf::Hop, ClockOf::Engine] {
        let errors = records
            .iter()
            .map(|record| error_of(record, clock).unwrap());
        let are_small = errors.map(|error| error < NANOS / 100).collect::<Vec<_>>();
        assert_eq!(are_small, [false, false, true, true], "{clock:?}");
    }
}

#[test]
fn a_chain_of_clocks_is_no_surer_than_its_links() {
    // The way to the hop is known to ± 1 s, the way from it to the engine is none: what the engine's clock
    // is known by is the generator's own sight, and the hop's error stays in it.
    let delays = Delays {
        in_router: 2 * NANOS,
        ..Delays::default()
    };
    let life = Life::new(START, &delays);
    let record = relate(vec![life.exchange(&apart())], "generator").remove(0);
    let hop = error_of(&record, ClockOf::Hop).unwrap();
    let engine = error_of(&record, ClockOf::Engine).unwrap();
    assert!((NANOS..NANOS + NANOS / 1000).contains(&hop), "{hop}");
    assert!((NANOS..NANOS + NANOS / 500).contains(&engine), "{engine}");
    let row = crate::request::row::Row::ended(vec![record]).remove(0);
    assert_eq!(row.clock_offset_error, Some(engine));
}
