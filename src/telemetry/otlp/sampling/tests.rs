use super::*;
use crate::clock::{NANOS, Stamp};
use crate::request::endpoint::Endpoint;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::sample::rows;
use crate::request::timeline::{Moment, Side};

const NONE: Sampling = Sampling {
    errors: false,
    ttft_over: None,
    total_over: None,
    slowest: 0.0,
    ratio: 0.0,
    follow_client: true,
};

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

fn kept(sampling: Sampling, row: Row) -> Option<Kept> {
    sampling.keeps(&rows(&[row]), 7, &Slowest::default())
}

#[test]
fn errors_and_the_slow_are_kept_whatever_the_ratio() {
    assert_eq!(kept(NONE, row(1, 2)), None);
    let mut failed = row(1, 2);
    failed.outcome = Some(Outcome::ClientAbort);
    assert_eq!(kept(NONE, failed.clone()), None);
    let errors = Sampling {
        errors: true,
        ..NONE
    };
    assert_eq!(kept(errors, failed), Some(Kept::Error));
    let ttft = Sampling {
        ttft_over: Some(3 * NANOS),
        ..NONE
    };
    assert_eq!(
        [3, 4].map(|s| kept(ttft, row(s, 9))),
        [None, Some(Kept::Slow)]
    );
    let total = Sampling {
        total_over: Some(3 * NANOS),
        ..NONE
    };
    assert_eq!(
        [3, 4].map(|s| kept(total, row(1, s))),
        [None, Some(Kept::Slow)]
    );
}

#[test]
fn what_is_flagged_is_kept_and_a_client_that_did_not_sample_is_followed() {
    let came = |came_sampled, sent_sampled| {
        let mut row = row(1, 2);
        row.more.trace.came_sampled = came_sampled;
        row.more.trace.sent_sampled = sent_sampled;
        row
    };
    assert_eq!(kept(NONE, came(Some(true), false)), Some(Kept::Flagged));
    assert_eq!(kept(NONE, came(None, true)), Some(Kept::Flagged));
    let all = Sampling { ratio: 1.0, ..NONE };
    assert_eq!(kept(all, came(None, false)), Some(Kept::Ratio));
    assert_eq!(kept(all, came(Some(false), false)), None);
    let own = Sampling {
        follow_client: false,
        ..all
    };
    assert_eq!(kept(own, came(Some(false), false)), Some(Kept::Ratio));
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
fn the_slowest_share_is_kept_once_it_is_known_what_is_slow() {
    let sampling = Sampling {
        slowest: 0.01,
        ..NONE
    };
    let recent = Slowest::default();
    let mut keeps = |total| sampling.keeps(&rows(&[row(1, total)]), 7, &recent);
    for total in (1..=100).rev() {
        assert_eq!(keeps(total), None, "nobody knows yet what is slow");
    }
    assert_eq!([100, 101].map(&mut keeps), [None, Some(Kept::Slowest)]);
    // A new time in which all are slower: after a while that is usual.
    let later = (0..2000)
        .filter(|n| keeps(1000 + n % 100).is_some())
        .count();
    assert!((1..=300).contains(&later), "{later}");
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
