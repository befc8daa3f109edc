use super::*;
use crate::clock::{NANOS, Stamp};
use crate::request::sample::rows;
use crate::request::{Endpoint, Moment, Outcome, Row, Side};

/// A request that went well, with its first token after 3 s and its end after 9 s.
fn request() -> Row {
    let mut row = Row::new(Side::Front, Endpoint::Generate, "r".into());
    let moments = [Moment::Arrival, Moment::FirstToken, Moment::End];
    for (moment, seconds) in moments.into_iter().zip([0, 3, 9]) {
        row.timeline.set(moment, Stamp::from_nanos(seconds * NANOS));
    }
    row.outcome = Some(Outcome::Ok);
    row
}

type Change<T> = fn(&mut T);
const WELL: Change<Row> = |_| ();
const LEFT: Change<Row> = |row| row.outcome = Some(Outcome::ClientAbort);
const CLIENT_SAMPLED: Change<Row> = |row| row.internal.trace.received_sampled = Some(true);
const SENT: Change<Row> = |row| row.internal.trace.sent_sampled = true;
const CLIENT_UNSAMPLED: Change<Row> = |row| row.internal.trace.received_sampled = Some(false);
const NOTHING: Change<Otlp> = |_| ();
const FOLLOW_NONE: Change<Otlp> = |o| (o.ratio, o.follow_client) = (1.0, false);

#[test]
fn a_trace_is_kept_for_its_outcome_its_latency_its_flag_or_by_its_share() {
    let cases: [(Change<Row>, Change<Otlp>, &str); 13] = [
        (WELL, NOTHING, ""),
        (LEFT, NOTHING, ""),
        (LEFT, |o| o.keep_errors = true, "error"),
        (WELL, |o| o.keep_errors = true, ""),
        (WELL, |o| o.keep_ttft_over_s = Seconds::of::<3>(), ""),
        (WELL, |o| o.keep_ttft_over_s = Seconds::of::<2>(), "slow"),
        (WELL, |o| o.keep_total_over_s = Seconds::of::<9>(), ""),
        (WELL, |o| o.keep_total_over_s = Seconds::of::<8>(), "slow"),
        (CLIENT_SAMPLED, NOTHING, "flagged"),
        (SENT, NOTHING, "flagged"),
        (WELL, |o| o.ratio = 1.0, "ratio"),
        (CLIENT_UNSAMPLED, |o| o.ratio = 1.0, ""),
        (CLIENT_UNSAMPLED, FOLLOW_NONE, "ratio"),
    ];
    for (number, (change, keys, expected)) in cases.into_iter().enumerate() {
        let mut given = Otlp {
            keep_errors: false,
            ratio: 0.0,
            ..Otlp::default()
        };
        let mut row = request();
        change(&mut row);
        keys(&mut given);
        let kept = given.keep_reason(&rows(&[row]), 7);
        let kept = kept.map_or("", KeepReason::name);
        assert_eq!(kept, expected, "case {number}");
    }
}

#[test]
fn the_share_of_traces_is_decided_by_their_ids() {
    // Evenly spread over the half of the id that decides.
    let step = u64::MAX / 1000;
    let ids = (0..1000).map(|n| u128::from(n * step + step / 2) | 1 << 100);
    let of = |ratio| ids.clone().filter(|id| is_in_share(*id, ratio)).count();
    assert_eq!([0.0, 0.25, 1.0].map(of), [0, 250, 1000]);
}

#[test]
fn the_flag_is_sent_upstream_as_configured() {
    let is_sent = |flag: UpstreamFlag| {
        [Some(true), Some(false), None].map(|received| flag.is_sent(received, 7, 1.0))
    };
    assert_eq!(is_sent(UpstreamFlag::Client), [true, false, false]);
    assert_eq!(is_sent(UpstreamFlag::Ratio), [true, false, true]);
    assert_eq!(is_sent(UpstreamFlag::Always), [true; 3]);
    assert_eq!(is_sent(UpstreamFlag::Never), [false; 3]);
    assert!(!UpstreamFlag::Ratio.is_sent(None, 7, 0.0));
}
