//! Front, hop and engine with a clock each: the moments of hop and engine in the front's rows are right within the stated errors.

use proptest::prelude::*;

use crate::clock::NANOS;
use crate::proxy::context::tests::{ok, shared};
use crate::request::{ClockOf, Moment, Period, Relation};

use super::*;

const START: i64 = 1_795_000_000 * NANOS;

/// Another clock, relative to ours.
#[derive(Clone, Copy, Debug)]
struct Other {
    offset: i64,
    ppm: i64,
}

impl Other {
    fn reads(self, at: i64) -> Stamp {
        Stamp::from_nanos(at + self.offset + (at - START) * self.ppm / 1_000_000)
    }
}

fn others() -> impl Strategy<Value = [Other; 2]> {
    let other = (-3600 * NANOS..=3600 * NANOS, -50_i64..=50);
    prop::array::uniform2(other.prop_map(|(offset, ppm)| Other { offset, ppm }))
}

/// How long each part of a request takes, in nanoseconds: the pause before it; router, engine, decoding; hop, to the engine, to the
/// hop, to the front.
fn delays() -> impl Strategy<Value = (i64, [i64; 3], [i64; 4])> {
    let longs = prop::array::uniform3(prop_oneof![0..NANOS, 0..100 * NANOS]);
    let shorts = prop::array::uniform4(prop_oneof![0..20_000_i64, 0..20_000_000_i64]);
    (0..20 * NANOS, longs, shorts)
}

proptest! {
    #[test]
    fn the_moments_of_hop_and_engine_are_right_within_their_errors(
        others in others(),
        requests in prop::collection::vec(delays(), 1..8),
    ) {
        let [hop, engine] = others;
        let (shared, manual) = shared();
        let mut now = START;
        for (pause, [in_router, in_engine, decode], shorts) in requests {
            let [in_hop, to_engine, to_hop, to_front] = shorts;
            now += pause;
            manual.set(Stamp::from_nanos(now));
            let mut context = Context::new(shared.clone(), Role::Front, shared.clock.now());
            context.start_recording(Endpoint::Generate, Some("id"), &http::HeaderMap::new());
            let _ = context.begin_sending();
            let at_hop = now + in_router;
            let sent = at_hop + in_hop;
            let created = sent + to_engine;
            let first_token = created + in_engine;
            let hop_head = first_token + to_hop;
            let read = hop_head + to_front;
            manual.set(Stamp::from_nanos(read));
            let stamps = Stamps {
                clock: "hop".into(),
                now: Some(hop.reads(hop_head)),
                arrival: Some(hop.reads(at_hop)),
                forwarded: Some(hop.reads(sent)),
                host: Some("engine:1".into()),
                ..Stamps::default()
            };
            context.response_head(&ok(), Some(stamps), shared.clock.now());
            let seconds = |at| {
                let nanos = engine.reads(at).nanos();
                format!("{}.{:09}", nanos / NANOS, nanos % NANOS)
            };
            let body = format!(
                "data: {{\"text\":\"a\",\"meta_info\":{{\"id\":\"e\",\"completion_tokens\":1,\
                 \"prefill_finished_time\":{},\"request_received_ts\":{},\
                 \"response_sent_to_client_ts\":{}}}}}\n\n",
                seconds(first_token), seconds(created), seconds(first_token),
            );
            context.response_body(body.as_bytes(), false, shared.clock.now());
            now = read + decode;
            manual.set(Stamp::from_nanos(now));
            let observer = *context.observer.take().unwrap();
            let at = shared.clock.now();
            let record = context.rows(Box::new(observer), None, &End::Complete, at).remove(0);
            let timeline = &record.timeline;
            let error = |clock| match timeline.relation(clock) {
                Relation::Apart(offset) => offset.error_nanos + 500,
                other => panic!("{other:?}"),
            };
            let (by_hop, by_engine) = (error(ClockOf::Hop), error(ClockOf::Engine));
            for (moment, at, error) in [
                (Moment::WorkerArrival, at_hop, by_hop),
                (Moment::WorkerForwarded, sent, by_hop),
                (Moment::ServerCreated, created, by_engine),
                (Moment::ServerFirstToken, first_token, by_engine),
            ] {
                let stated = timeline.on_own_clock(moment).unwrap();
                let off_by = stated.nanos_since(Stamp::from_nanos(at)).abs();
                prop_assert!(off_by <= error, "{:?} is off by {} > {}", moment, off_by, error);
            }
            // The errors of both clocks add up.
            let network = Period::NETWORK;
            let off_by = (timeline.nanos(network).unwrap() - (created - at_hop)).abs();
            prop_assert!(off_by <= by_hop + by_engine, "{} > {}", off_by, by_hop + by_engine);
        }
    }
}
