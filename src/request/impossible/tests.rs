use super::*;
use crate::clock::Stamp;
use crate::offset::Offset;
use crate::request::endpoint::Endpoint;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::sample::rows;
use crate::request::timeline::ENGINE;
use crate::request::token_count::TokenCountSource;

const MS: i64 = 1_000_000;
/// The engine's clock is ahead of ours by this, within 1 ms.
const AHEAD: i64 = 7_000 * MS;

/// A streamed answer of 50 ms through a proxy, milliseconds: arrival 0, sent to the server 1, in it from 2, in its queue from 5
/// to 15, first token 25 and read at 27, end 50. Eight tokens of a prompt of ten.
fn record() -> Row {
    let mut row = Row::new(Side::Front, Endpoint::Generate, "r".into());
    row.outcome = Some(Outcome::Ok);
    let timeline = &mut row.timeline;
    timeline.upstream_is_server(true);
    timeline.relate(
        ClockOf::Engine,
        Relation::Apart(Offset {
            nanos: AHEAD,
            error_nanos: MS,
        }),
    );
    let own = [
        (Moment::Arrival, 0),
        (Moment::Forwarded, 1),
        (Moment::FirstToken, 27),
        (Moment::LastToken, 48),
        (Moment::Finish, 50),
        (Moment::End, 50),
    ];
    for (moment, ms) in own {
        timeline.set(moment, Stamp::from_nanos(ms * MS));
    }
    for (moment, ms) in ENGINE.into_iter().zip([2, 5, 15, 24, 25, 49]) {
        timeline.set(moment, Stamp::from_nanos(ms * MS + AHEAD));
    }
    row.actual_prompt_tokens = Some(10);
    row.actual_output_tokens = Some(8);
    row.token_count_source = Some(TokenCountSource::MetaInfo);
    row.token_chunks = Some(8);
    row.cached_tokens = Some(4);
    row.timing_source = Some(TimingSource::MetaInfo);
    row
}

fn without_engine(row: &mut Row) {
    for moment in ENGINE {
        row.timeline.clear(moment);
    }
}

fn changed(change: impl FnOnce(&mut Row)) -> Row {
    let mut record = record();
    change(&mut record);
    rows(&[record]).remove(0)
}

fn engine_at(row: &mut Row, moment: Moment, ms: i64) {
    row.timeline.set(moment, Stamp::from_nanos(ms * MS + AHEAD));
}

/// What is named, and what is left out.
fn found(row: &Row) -> (String, Vec<&'static str>) {
    let found = Impossible::of(row);
    let named = found.named(row, Vec::new()).unwrap_or_default();
    (named, found.kinds().collect())
}

fn nothing() -> (String, Vec<&'static str>) {
    (String::new(), Vec::new())
}

#[test]
fn a_stage_longer_than_its_request_is_named_and_left_out_with_the_servers_times() {
    assert_eq!(found(&changed(|_| ())), nothing());
    let row = changed(|row| engine_at(row, Moment::QueueStart, -60_000));
    let (named, kinds) = found(&row);
    assert!(
        named.split(';').any(|one| one == "pure_queue_time>elapsed"),
        "{named}"
    );
    assert_eq!(kinds, ["times"]);
    assert_eq!(
        row.pure_queue_time,
        Some(60_015 * MS),
        "the row has it as it came"
    );
    let [left] = &*believed(std::slice::from_ref(&row)) else {
        panic!("one row");
    };
    assert_eq!(
        (left.pure_queue_time, left.timeline.nanos(Period::NETWORK)),
        (None, None)
    );
    assert_eq!(left.total_latency, Some(50 * MS));
    assert_eq!(found(left), nothing());

    // Only how long is told; and on a clock that nobody can compare.
    let lonely = changed(|row| {
        without_engine(row);
        row.pure_queue_time = Some(60_000 * MS);
    });
    assert_eq!(
        found(&lonely),
        ("pure_queue_time>elapsed".into(), vec!["times"])
    );
    let raw = changed(|row| {
        row.timeline.relate(ClockOf::Engine, Relation::Unknown);
        engine_at(row, Moment::ServerFirstToken, 70_000);
        row.timeline.clear(Moment::ServerFinish);
    });
    let named = "queue_time_in_server>elapsed;prefill_time>elapsed";
    assert_eq!(found(&raw), (named.into(), vec!["times"]));
}

#[test]
fn clocks_may_run_a_little_apart_and_a_server_may_go_on_after_who_left() {
    let queue = |nanos: i64| {
        changed(|row| {
            without_engine(row);
            row.pure_queue_time = Some(nanos);
        })
    };
    assert_eq!(found(&queue(50 * MS + 15_000)), nothing());
    assert_ne!(found(&queue(50 * MS + 15_001)), nothing());
    let left = changed(|row| {
        without_engine(row);
        row.pure_queue_time = Some(60_000 * MS);
        row.outcome = Some(Outcome::ClientAbort);
        row.timing_source = Some(TimingSource::Trace);
    });
    assert_eq!(found(&left), nothing());
}

#[test]
fn a_way_beyond_its_clocks_error_takes_only_what_needs_both_clocks() {
    for ms in [-2, 90] {
        let row = changed(|row| {
            let at = |ms: i64| Stamp::from_nanos(ms * MS + AHEAD);
            for (moment, more) in ENGINE.into_iter().zip([0, 3, 13, 22, 23, 47]) {
                row.timeline.set(moment, at(ms + more));
            }
        });
        let (named, kinds) = found(&row);
        let word = if ms < 0 {
            "network_time<0"
        } else {
            "network_time>elapsed"
        };
        assert!(named.contains(word), "{named}");
        assert_eq!(kinds, ["clocks"]);
        let left = &believed(std::slice::from_ref(&row))[0];
        assert_eq!(left.timeline.nanos(Period::NETWORK), None);
        assert_eq!(
            left.pure_queue_time,
            Some(10 * MS),
            "of one clock, it stays"
        );
    }
    // 1 ms before it was sent, which is no more than the error.
    let within = changed(|row| engine_at(row, Moment::ServerCreated, 0));
    assert_eq!(found(&within), nothing());
}

#[test]
fn the_order_of_the_servers_moments_must_hold() {
    let row = changed(|row| engine_at(row, Moment::QueueEnd, 4));
    let (named, kinds) = found(&row);
    assert!(named.starts_with("queue_end<queue_start"), "{named}");
    assert_eq!(kinds, ["times"]);
    assert_eq!(believed(&[row])[0].pure_queue_time, None);
}

#[test]
fn tokens_that_cannot_be_are_named_and_not_told() {
    const FEW: &str = "actual_output_tokens<token_chunks";
    const MANY: &str = "actual_output_tokens>100000000";
    type Change = fn(&mut Row);
    let cases: [(Change, &str); 6] = [
        (|row| row.actual_output_tokens = Some(0), FEW),
        (|row| row.token_chunks = Some(33), FEW),
        (|row| row.actual_output_tokens = Some(1 << 60), MANY),
        (
            |row| {
                (row.actual_output_tokens, row.token_count_source) = (None, None);
                row.more.usage_completion_tokens = Some(MOST_TOKENS + 1);
            },
            MANY,
        ),
        (
            |row| row.actual_prompt_tokens = Some(u64::MAX),
            "actual_prompt_tokens>100000000",
        ),
        (
            |row| row.cached_tokens = Some(11),
            "cached_tokens>actual_prompt_tokens",
        ),
    ];
    for (change, name) in cases {
        let row = changed(change);
        assert_eq!(found(&row), (name.to_owned(), vec!["tokens"]));
        let left = &believed(std::slice::from_ref(&row))[0];
        assert_eq!(found(left), nothing(), "{name}");
        let counts = [
            left.actual_output_tokens,
            left.actual_prompt_tokens,
            left.cached_tokens,
        ];
        let gone = counts.iter().filter(|count| count.is_none()).count();
        assert_eq!(gone, 1, "{name}");
    }
    let possible: [Change; 3] = [
        |row| {
            row.actual_output_tokens = Some(0);
            row.expected_output_length = Some(0);
            row.token_chunks = Some(1);
        },
        |row| {
            row.cached_tokens = Some(11);
            row.num_retractions = Some(1);
        },
        |row| row.token_chunks = Some(32),
    ];
    for change in possible {
        assert_eq!(found(&changed(change)), nothing());
    }
}
