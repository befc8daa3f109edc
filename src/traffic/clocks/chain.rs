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
    /// To the front, in it, in the router, in the hop, to the engine, and there to its first token.
    way: [i64; 6],
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
    /// Those of [`WAY`].
    way: [i64; 7],
    /// The head at the hop, at the front and at the generator.
    heads: [i64; 3],
    read: i64,
    finish: i64,
}

/// The moments of other clocks.
const WAY: [Moment; 7] = [
    Moment::Arrival,
    Moment::Forwarded,
    Moment::WorkerArrival,
    Moment::WorkerForwarded,
    Moment::ServerCreated,
    Moment::QueueEnd,
    Moment::ServerFirstToken,
];

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
    fn new(sent: i64, delays: &Delays) -> Life {
        let after = |from: i64, delays: &[i64]| {
            let moments = delays.iter().scan(from, |at, delay| {
                *at += delay;
                Some(*at)
            });
            moments.collect::<Vec<_>>()
        };
        let way = after(sent, &delays.way);
        let [.., created, first_token] = way[..] else {
            panic!("{way:?}");
        };
        let in_engine = first_token - created;
        let heads = after(created + delays.head.min(in_engine), &delays.back);
        let read = (first_token + delays.back.iter().sum::<i64>()).max(heads[2]);
        Life {
            sent,
            way: std::array::from_fn(|at| match at {
                5 => created + in_engine / 2,
                6 => first_token,
                at => way[at],
            }),
            heads: heads.try_into().unwrap(),
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
        let [
            arrival,
            forwarded,
            worker_arrival,
            worker_forwarded,
            created,
            queue_end,
            first_token,
        ] = self.way;
        let [hop_head, front_head, head] = self.heads;
        let stamps = Stamps {
            clock: "front".into(),
            now: Some(machines.front.reads(front_head)),
            arrival: Some(machines.front.reads(arrival)),
            forwarded: Some(machines.front.reads(forwarded)),
            hop: Some(Box::new(Stamps {
                clock: if machines.is_one { "front" } else { "hop" }.into(),
                now: Some(hop_clock.reads(hop_head)),
                arrival: Some(hop_clock.reads(worker_arrival)),
                forwarded: Some(hop_clock.reads(worker_forwarded)),
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
        observer.response_head(200, kind, false, generator(head));
        let seconds = |at| {
            let nanos = machines.engine.reads(at).nanos();
            format!("{}.{:09}", nanos / NANOS, nanos % NANOS)
        };
        let body = format!(
            "data: {{\"text\":\"a\",\"meta_info\":{{\"id\":\"e\",\"finish_reason\":{{\"type\":\"stop\"}},\
             \"completion_tokens\":1,\"forward_entry_time\":{},\"queue_time\":0.0,\"prefill_finished_time\":{},\
             \"request_received_ts\":{},\"response_sent_to_client_ts\":{}}}}}\n\n",
            seconds(queue_end),
            seconds(first_token),
            seconds(created),
            seconds(first_token),
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
    for (moment, at) in WAY.into_iter().zip(life.way) {
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

fn short() -> BoxedStrategy<i64> {
    prop_oneof![0..20_000_i64, 0..20_000_000_i64].boxed()
}

fn long() -> BoxedStrategy<i64> {
    prop_oneof![0..NANOS, 0..120 * NANOS].boxed()
}

prop_compose! {
    fn delays()(
        pause in 0..20 * NANOS, way in [short(), short(), long(), short(), short(), long()], head in long(),
        back in [short(), short(), short()], decode in long(), overlap in 0..150 * NANOS,
    ) -> Delays {
        Delays { pause, way, head, back, decode, overlap }
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
            prop_assert_eq!(placed, WAY.len(), "{:?}", record.timeline);
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
        way: [0, 0, 2 * NANOS, 0, 0, 0],
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
