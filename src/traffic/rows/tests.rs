//! Simulates runs through generator → front → router → hop → engine, each with its own clock whose offset the test
//! knows. The time of every moment in a row must be right within the error that the row states; durations on one clock must be exact;
//! and errors must add up along the chain.

use proptest::prelude::*;

use super::*;
use crate::request::{End, Endpoint, Moment, Observer, Outcome, Period, Relation, Side, Stamps};

/// The offset of a clock from the true time at [`START`] in nanoseconds, and its drift from then on in ppm.
type Skew = (i64, i64);

/// The clocks of generator, front, hop and engine, and whether front and hop are one process.
type Machines = ([Skew; 4], bool);

/// How long each part of a request takes, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Delays {
    /// From the previous request's sending to this one's.
    pause: i64,
    /// To the front, in it, in the router, in the hop, to the engine, in its queue, and to its first token.
    path: [i64; 7],
    /// From the request's receipt by the engine to the response's head, which `/generate` sends before the first token.
    head: i64,
    /// The way of the head, and that of the first token, to the hop, to the front and to the generator.
    head_back: [i64; 3],
    back: [i64; 3],
    decode: i64,
}

/// The true times of a request.
#[derive(Clone, Copy, Debug)]
struct Life {
    sent: i64,
    /// Those of [`PATH`].
    path: [i64; 7],
    /// The response's head at the hop, at the front and at the generator.
    heads: [i64; 3],
    read: i64,
    finish: i64,
}

/// The moments on other clocks than the generator's.
const PATH: [Moment; 7] = [
    Moment::Arrival,
    Moment::Forwarded,
    Moment::WorkerArrival,
    Moment::WorkerForwarded,
    Moment::ServerCreated,
    Moment::QueueEnd,
    Moment::ServerFirstToken,
];

const START: i64 = 1_795_000_000 * NANOS;
/// The rounding error of the engine's timestamps, which are floats; nanoseconds.
const FLOAT: i64 = 500;

/// What a clock shows at a true time.
fn reads((offset, ppm): Skew, at: i64) -> Stamp {
    Stamp::from_nanos(at + offset + (at - START) * ppm / 1_000_000)
}

/// The times after `from`, each later than the one before by its delay.
fn after<const N: usize>(mut from: i64, delays: [i64; N]) -> [i64; N] {
    delays.map(|delay| {
        from += delay;
        from
    })
}

impl Life {
    fn new(sent: i64, delays: &Delays) -> Life {
        let path @ [.., created, _, first_token] = after(sent, delays.path);
        let head = created + delays.head.min(first_token - created);
        let heads = after(head, delays.head_back);
        let [.., back] = after(first_token, delays.back);
        let read = back.max(heads[2]);
        Life {
            sent,
            path,
            heads,
            read,
            finish: read + delays.decode,
        }
    }

    /// The exchange as the generator sees it.
    fn exchange(&self, &([generator, front, hop, engine], is_one): &Machines) -> Exchange {
        let (hop_name, hop_clock) = [("hop", hop), ("front", front)][usize::from(is_one)];
        let generator = |at| reads(generator, at);
        let [hop_head, front_head, head] = self.heads;
        let stamps = |name: &str, clock, head, path: &[i64]| Stamps {
            clock: name.into(),
            now: Some(reads(clock, head)),
            arrival: Some(reads(clock, path[0])),
            forwarded: Some(reads(clock, path[1])),
            ..Stamps::default()
        };
        let mut hop = stamps(hop_name, hop_clock, hop_head, &self.path[2..]);
        (hop.host, hop.is_direct) = (Some("engine:1".into()), true);
        let mut stamps = stamps("front", front, front_head, &self.path);
        stamps.hop = Some(Box::new(hop));
        let mut observer = Observer::new(Side::Traffic, Endpoint::Generate, "r".into());
        let sent = generator(self.sent);
        observer.row_mut().timeline.set(Moment::Sent, sent);
        observer.stamps(&stamps, "generator");
        let kind = Some("text/event-stream");
        observer.response_head(200, kind, false, generator(head));
        let [created, queue_end, first_token] = [4, 5, 6].map(|place| {
            let nanos = reads(engine, self.path[place]).nanos();
            format!("{}.{:09}", nanos / NANOS, nanos % NANOS)
        });
        let body = format!(
            "data: {{\"text\":\"a\",\"meta_info\":{{\"id\":\"e\",\"finish_reason\":{{\"type\":\"stop\"}},\
             \"completion_tokens\":1,\"forward_entry_time\":{queue_end},\"queue_time\":0.0,\"prefill_finished_time\":{first_token},\
             \"request_received_ts\":{created},\"response_sent_to_client_ts\":{first_token}}}}}\n\n"
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

fn error_of(row: &Row, clock: ClockOf) -> i64 {
    match row.timeline.relation(clock) {
        Relation::Apart(offset) => offset.error_nanos,
        other => panic!("{other:?}"),
    }
}

prop_compose! {
    fn delays()(
        pause in 0..20 * NANOS, near in prop::array::uniform10(prop_oneof![0..20_000_i64, 0..20_000_000_i64]),
        far in prop::array::uniform5(prop_oneof![0..NANOS, 0..120 * NANOS]),
    ) -> Delays {
        let [to_front, in_front, in_hop, to_engine, a, b, c, back @ ..] = near;
        let [router, queue, prefill, head, decode] = far;
        let path = [to_front, in_front, router, in_hop, to_engine, queue, prefill];
        Delays { pause, path, head, head_back: [a, b, c], back, decode }
    }
}

/// Requests that overlap, in the order of their ends.
fn lives(all: &[Delays]) -> Vec<Life> {
    let mut sent = START;
    let next = |delays: &Delays| {
        sent += delays.pause;
        Life::new(sent, delays)
    };
    let mut lives: Vec<Life> = all.iter().map(next).collect();
    lives.sort_by_key(|life| life.finish);
    lives
}

/// The rows of requests that ended in this order.
fn related(lives: &[Life], machines: &Machines) -> Vec<Row> {
    let mut clocks = OffsetTable::default();
    let rows = |life: &Life| relate(life.exchange(machines), &mut clocks);
    lives.iter().flat_map(rows).collect()
}

proptest! {
    #[test]
    fn every_moment_is_right_within_the_stated_error(
        // Any two clocks drift apart by at most 100 ppm.
        machines in (prop::array::uniform4((-3600 * NANOS..=3600 * NANOS, -50..=50_i64)), any::<bool>()),
        delays in prop::collection::vec(delays(), 1..12),
    ) {
        let lives = lives(&delays);
        let rows = related(&lives, &machines);
        prop_assert_eq!(rows.len(), lives.len());
        for (row, life) in rows.iter().zip(&lives) {
            for (moment, at) in PATH.into_iter().zip(life.path) {
                // A single request is enough to bound every clock from both sides.
                let stated = row.timeline.on_own_clock(moment).unwrap();
                let error = error_of(row, moment.clock(Side::Traffic)) + FLOAT;
                let off_by = stated.nanos_since(reads(machines.0[0], at)).abs();
                prop_assert!(off_by <= error, "{moment:?} is off by {off_by} > {error}: {row:?}");
            }
            for (moments, at) in PATH.windows(2).zip(life.path.windows(2)) {
                let [from, to] = [moments[0], moments[1]];
                // Within one clock the error is 0: exact up to drift.
                let (stated, error) = row.timeline.measured(Period { from, to }).unwrap();
                let is_one = machines.1 && (from, to) == (Moment::Forwarded, Moment::WorkerArrival);
                prop_assert_eq!(error == 0, is_one || from.clock(Side::Traffic) == to.clock(Side::Traffic));
                let truth = at[1] - at[0];
                let off_by = (stated - truth).abs();
                prop_assert!(off_by <= error + 2 * FLOAT + truth / 10_000, "{from:?} to {to:?}: {off_by} > {error}");
            }
        }
    }
}

/// Clocks that are far apart and do not drift.
const FRONT: Skew = (100 * NANOS, 0);
const HOP: Skew = (-1000 * NANOS, 0);
const APART: Machines = ([(0, 0), FRONT, HOP, (3600 * NANOS, 0)], false);

#[test]
fn a_row_has_the_tightest_offsets_that_were_known_when_its_request_ended() {
    let far = |pause| Delays {
        pause,
        head_back: [NANOS; 3],
        back: [NANOS; 3],
        ..Delays::default()
    };
    let near = Delays {
        pause: 9 * NANOS,
        ..Delays::default()
    };
    let lives = lives(&[far(0), far(9 * NANOS), near, far(9 * NANOS)]);
    let rows = related(&lives, &APART);
    for clock in [ClockOf::Front, ClockOf::Hop, ClockOf::Engine] {
        let errors = rows.iter().map(|row| error_of(row, clock));
        let are_small = errors.map(|error| error < NANOS / 100).collect::<Vec<_>>();
        assert_eq!(are_small, [false, false, true, true], "{clock:?}");
    }
}

#[test]
fn errors_add_up_along_a_chain_of_clocks() {
    // Nothing takes time but the router, 2 s: the hop's clock is known to ± 1 s, and the engine's no better, as only the generator's
    // own timestamps bound it.
    let delays = Delays {
        path: [0, 0, 2 * NANOS, 0, 0, 0, 0],
        ..Delays::default()
    };
    let row = related(&[Life::new(START, &delays)], &APART).remove(0);
    let [hop, engine] = [ClockOf::Hop, ClockOf::Engine].map(|clock| error_of(&row, clock));
    assert!((NANOS..NANOS + NANOS / 1000).contains(&hop), "{hop}");
    assert!((NANOS..NANOS + NANOS / 500).contains(&engine), "{engine}");
    let row = Row::ended(vec![row]).remove(0);
    assert_eq!(row.clock_offset_error, Some(engine));
}

/// The response's head takes 2 s from the hop, the first token no time: the engine's clock is known well, the hop's to ± 1 s.
#[test]
fn a_network_time_is_as_uncertain_as_the_clocks_of_hop_and_engine_together() {
    let delays = Delays {
        path: [0, 0, 0, 0, 0, 0, 2 * NANOS],
        head_back: [0, 2 * NANOS, 0],
        ..Delays::default()
    };
    let row = related(&[Life::new(START, &delays)], &APART).remove(0);
    let row = Row::ended(vec![row]).remove(0);
    let [hop, engine] = [ClockOf::Hop, ClockOf::Engine].map(|clock| error_of(&row, clock));
    let (network, error) = row.timeline.measured(Period::NETWORK).unwrap();
    assert_eq!(error, hop + engine);
    // In truth it is 0.
    assert!(
        (engine + 1..=error).contains(&-network),
        "{network} ± {engine} ± {hop}"
    );
    assert_eq!(row.inconsistency, None);
    let within = row.within_clock_error.unwrap_or_default();
    assert!(
        within.split(';').any(|name| name == "network_time"),
        "{within}"
    );
}

#[test]
fn a_wait_for_logs_that_is_cut_short_still_takes_the_lines_that_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let file = File::create(dir.path().join(PARTIAL)).unwrap();
    let outputs = Outputs {
        file: Some(RowFile {
            dir: dir.path().to_owned(),
            out: RowWriter::new(file, Stamp::EPOCH),
        }),
        logs: Some(EngineLogs::begin(dir.path())),
        ..Outputs::default()
    };
    let (ended, exchanges) = std::sync::mpsc::channel();
    drop(ended);
    let mut recorder = Recorder::record_all(clock.clone(), outputs, &exchanges);
    let logs = recorder.outputs.logs.as_mut().unwrap();
    let row = Row {
        engine_id: Some("a".into()),
        outcome: Some(Outcome::Ok),
        ..Row::new(Side::Traffic, Endpoint::Chat, "r".into())
    };
    logs.wait(vec![row], clock.now());
    let line = "{\"id\": \"a\", \"request_received_ts\": 1795170105.0, \"queue_time\": 0.0625, \"completion_tokens\": 8, \
        \"forward_entry_time\": 1795170105.125, \"request_finished_ts\": 1795170106.0}\n";
    std::fs::write(dir.path().join("sglang-request-metrics-1.log"), line).unwrap();
    let stop = Stop::default();
    stop.stop();
    let (path, written, _) = recorder.finish(&stop);
    written.unwrap();
    let rows = std::fs::read_to_string(path).unwrap();
    assert!(rows.contains(",log,"), "{rows}");
}
