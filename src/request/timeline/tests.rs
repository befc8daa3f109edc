use super::*;
use crate::request::sample::at;
use crate::request::timeline::Moment::*;

/// The two servers' clocks are a day apart, and neither compares with ours.
#[test]
fn each_wait_of_a_pair_is_measured_on_one_clock() {
    const DAY: i64 = 86_400_000;
    let mut prefill = Timeline::new(Side::Hop);
    for (moment, ms) in [(QueueStart, 30), (QueueEnd, 37), (PrefillEnd, 57)] {
        prefill.set(moment, at(ms - DAY));
    }
    let mut decode = Timeline::new(Side::Front);
    for (moment, ms) in [(Arrival, 0), (WorkerArrival, 5), (FirstToken, 200)] {
        decode.set(moment, at(ms));
    }
    let queued = [(ServerCreated, 6), (QueueStart, 10), (KvReserved, 30)];
    for (moment, ms) in queued
        .into_iter()
        .chain([(KvArrived, 90), (DecodeStart, 100)])
    {
        decode.set(moment, at(DAY + ms));
    }
    decode.relate(ClockOf::Engine, Relation::Unknown);
    // A decode server's trace gives the moments of a pair directly.
    decode.prefill = Some(prefill.as_prefill());
    let ms = |period| decode.nanos(period).map(|nanos| nanos / 1_000_000);
    for (period, expected) in [
        (Period::DECODE_MEMORY, Some(20)),
        (Period::PREFILL_QUEUE, Some(7)),
        (Period::PREFILL, Some(20)),
        (Period::KV_TRANSFER, Some(60 - 7 - 20)),
        (Period::DECODE_SLOT, Some(10)),
        (Period::PURE_QUEUE, Some(20 + 7 + 10)),
        (Period::NETWORK, None),
        (Period::RETURN, None),
        (Period::TTFT_ENGINE, None),
    ] {
        assert_eq!(ms(period), expected, "{period:?}");
    }
    // A server may say anything.
    let prefill = decode.prefill.insert(PrefillTimes::default());
    prefill.forward = Some(-2);
    for (queue, period) in [
        (i64::MAX, Period::PURE_QUEUE),
        (i64::MIN, Period::KV_TRANSFER),
    ] {
        decode.prefill.get_or_insert_default().queue = Some(queue);
        assert_eq!(decode.nanos(period), None, "{period:?}");
    }
}
