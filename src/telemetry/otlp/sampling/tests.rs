use super::*;
use crate::clock::{NANOS, Stamp};
use crate::request::endpoint::Endpoint;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::sample::rows;
use crate::request::timeline::{Moment, Side};

/// Nothing is kept but what is flagged.
fn none() -> Otlp {
    Otlp {
        keep_errors: false,
        ratio: 0.0,
        ..Otlp::default()
    }
}

/// A request that went well, with its first token after `ttft` and its end after `total` seconds.
fn row(ttft: i64, total: i64) -> Row {
    let mut row = Row::new(Side::Front, Endpoint::Generate, "r".into());
    let timeline = &mut row.timeline;
    timeline.set(Moment::Arrival, Stamp::from_nanos(0));
    timeline.set(Moment::FirstToken, Stamp::from_nanos(ttft * NANOS));
    timeline.set(Moment::End, Stamp::from_nanos(total * NANOS));
    row.outcome = Some(Outcome::Ok);
    row
}

fn kept(given: &Otlp, row: Row) -> Option<Kept> {
    given.keeps(&rows(&[row]), 7)
}

#[test]
fn errors_and_the_slow_are_kept_whatever_the_ratio() {
    assert_eq!(kept(&none(), row(1, 2)), None);
    let mut failed = row(1, 2);
    failed.outcome = Some(Outcome::ClientAbort);
    assert_eq!(kept(&none(), failed.clone()), None);
    let errors = Otlp {
        keep_errors: true,
        ..none()
    };
    assert_eq!(kept(&errors, failed), Some(Kept::Error));
    let [mut ttft, mut total] = [none(), none()];
    ttft.keep_ttft_over_s = Seconds::of::<3>();
    total.keep_total_over_s = Seconds::of::<3>();
    for (seconds, expected) in [(3, None), (4, Some(Kept::Slow))] {
        assert_eq!(kept(&ttft, row(seconds, 9)), expected);
        assert_eq!(kept(&total, row(1, seconds)), expected);
    }
}

#[test]
fn what_is_flagged_is_kept_and_a_client_that_did_not_sample_is_followed() {
    let came = |came_sampled, sent_sampled| {
        let mut row = row(1, 2);
        row.more.trace.came_sampled = came_sampled;
        row.more.trace.sent_sampled = sent_sampled;
        row
    };
    assert_eq!(kept(&none(), came(Some(true), false)), Some(Kept::Flagged));
    assert_eq!(kept(&none(), came(None, true)), Some(Kept::Flagged));
    let mut all = none();
    all.ratio = 1.0;
    assert_eq!(kept(&all, came(None, false)), Some(Kept::Ratio));
    assert_eq!(kept(&all, came(Some(false), false)), None);
    all.follow_client = false;
    assert_eq!(kept(&all, came(Some(false), false)), Some(Kept::Ratio));
}

#[test]
fn a_share_of_traces_is_told_by_their_ids() {
    // Evenly spread over the half of the id that decides.
    let step = u64::MAX / 1000;
    let of = |ratio| {
        (0..1000)
            .filter(|n| is_of_share(u128::from(n * step + step / 2) | 1 << 100, ratio))
            .count()
    };
    assert_eq!([0.0, 0.25, 1.0].map(of), [0, 250, 1000]);
}

#[test]
fn the_flag_goes_upstream_as_it_was_asked_for() {
    let sends =
        |flag: UpstreamFlag| [Some(true), Some(false), None].map(|came| flag.sends(came, 7, 1.0));
    assert_eq!(sends(UpstreamFlag::Client), [true, false, false]);
    assert_eq!(sends(UpstreamFlag::Ratio), [true, false, true]);
    assert_eq!(sends(UpstreamFlag::Always), [true; 3]);
    assert_eq!(sends(UpstreamFlag::Never), [false; 3]);
    assert!(!UpstreamFlag::Ratio.sends(None, 7, 0.0));
}
