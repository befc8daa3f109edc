use crate::clock::NANOS;
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::outcome::Outcome;
use crate::request::row::{Row, without_quotes};
use crate::request::timeline::Side;

use super::*;

const START: i64 = 1_795_000_000;

/// A request that took so many milliseconds and ended so many seconds after the start.
fn request(id: &str, ended: i64, took_ms: i64, end: End) -> Vec<Row> {
    let end_at = Stamp::from_nanos((START + ended) * NANOS);
    let mut observer = Observer::new(Side::Front, Endpoint::Generate, id.to_owned());
    let arrival = end_at.plus_nanos(-took_ms * 1_000_000);
    observer.timeline_mut().set(Moment::Arrival, arrival);
    observer.timeline_mut().set(Moment::Forwarded, arrival);
    if end == End::Complete {
        observer.response_head(200, Some("application/json"), false, end_at);
        observer.response_body(b"{\"text\":\"t\",\"meta_info\":{}}", end_at, 0);
        observer.response_end(end_at);
    }
    Row::ended(observer.finish(end, end_at))
}

fn record(recent: &Recent, rows: &Rows) {
    recent.record(rows, Some(&Counted::of(rows)));
}

fn ok(ended: i64, took_ms: i64) -> Rows {
    request("r", ended, took_ms, End::Complete).into()
}

fn timeout(ended: i64) -> Rows {
    request("late", ended, 1, End::Timeout("too late".into())).into()
}

fn at(seconds: i64) -> Stamp {
    Stamp::from_nanos((START + seconds) * NANOS)
}

fn median_ms(view: &View, name: &str) -> Option<i64> {
    let mut all = view.figures.sum.quantiles();
    let (_, values) = all.find(|(column, _)| column.name == name).unwrap();
    Some(values.quantile(0.5)? / 1_000_000)
}

#[test]
fn the_last_are_kept_and_those_that_failed_longer() {
    let recent = Recent::default();
    record(&recent, &timeout(0));
    for _ in 0..1000 {
        record(&recent, &ok(1, 50));
    }
    let numbers = |after| -> Vec<u64> {
        let view = recent.view(after, at(1));
        assert_eq!(view.last, 1001);
        view.requests.iter().map(|ended| ended.number).collect()
    };
    let all = numbers(0);
    assert_eq!((all.len(), all[0], all[1], all[200]), (201, 1, 802, 1001));
    assert_eq!(numbers(998), [999, 1000, 1001]);
    assert_eq!(numbers(1001), [0; 0]);
    assert_eq!(recent.find(1).unwrap().rows[0].request_id(), "late");
    assert!(recent.find(2).is_none() && recent.find(1001).is_some());
}

#[test]
fn of_a_request_of_many_rows_the_first_are_kept() {
    let kept = |many: usize, id: usize| {
        let mut row = request("r", 1, 1, End::Complete).remove(0);
        row.req_id = Some("i".repeat(id));
        let recent = Recent::default();
        record(&recent, &vec![row; many].into());
        recent.find(1).unwrap().rows.len()
    };
    let found = [
        kept(3, LONG),
        kept(1000, 1),
        kept(16, LONG + 1),
        kept(1, 100_000),
    ];
    assert_eq!(found, [3, ROWS, 1, 1]);
}

#[test]
fn what_the_server_said_of_an_error_is_not_kept() {
    let said = |status: u16, body: &str| {
        let mut observer = Observer::new(Side::Front, Endpoint::Generate, "r".into());
        observer.response_head(status, Some("application/json"), false, at(1));
        observer.response_body(body.as_bytes(), at(1), 0);
        observer.response_end(at(1));
        let observed = observer.finish(End::Complete, at(1));
        let rows = Rows::from(Row::ended(observed));
        let recent = Recent::default();
        record(&recent, &without_quotes(&rows));
        let kept = recent.find(1).unwrap().rows[0].error.clone();
        (rows[0].error.clone().unwrap(), kept.unwrap())
    };
    let quoted = "; the server's message";
    for (status, message, more, whole, kept) in [
        (
            400,
            "cannot read 'my secret'",
            "",
            "400 cannot read 'my secret'",
            "400; ",
        ),
        (
            200,
            "my secret is too long",
            "",
            "my secret is too long",
            "",
        ),
        // A word of the message is no code, though it is made of digits; what the server names as one is.
        (200, "4111 is too long", "", "4111 is too long", ""),
        (200, "my secret", ",\"code\":429", "429 my secret", "429; "),
    ] {
        let body = format!("{{\"error\":{{\"message\":\"{message}\"{more}}}}}");
        let kept = format!("{kept}{}", &quoted[2..]);
        let (told, left) = said(status, &body);
        assert!(told == whole && left.starts_with(&kept), "{told} {left}");
    }
    // Our own words stay.
    assert_eq!(
        said(503, "{}"),
        ("503".to_owned(), "503".to_owned()),
        "no message"
    );
    let recent = Recent::default();
    record(&recent, &timeout(1));
    assert_eq!(
        recent.find(1).unwrap().rows[0].error.as_deref(),
        Some("too late")
    );
}

#[test]
fn the_window_forgets_what_is_older() {
    let recent = Recent::default();
    for second in 0..600 {
        record(&recent, &ok(second, 10));
    }
    for _ in 0..2000 {
        record(&recent, &ok(600, 200));
    }
    record(&recent, &timeout(600));
    // Rows of attempts that nobody claimed come late.
    record(&recent, &ok(595, 10));
    let view = recent.view(0, at(600));
    let outcomes: Vec<_> = view.figures.sum.outcomes().collect();
    assert_eq!(outcomes, [(Outcome::Ok, 2301), (Outcome::Timeout, 1)]);
    assert_eq!(view.figures.slots.len(), 31);
    assert_eq!(
        view.figures.sum.spent[0].requests, 2301,
        "those that went well"
    );
    let median = median_ms(&view, "elapsed").unwrap();
    assert!((194..=206).contains(&median), "{median}");
    assert_eq!(median_ms(&view, "pure_queue_time"), None, "nobody told it");

    let later = recent.view(0, at(895));
    assert_eq!(later.figures.sum.requests(), 2011 + 1);
    let none = recent.view(0, at(2000));
    assert_eq!(
        (none.figures.sum.requests(), none.figures.slots.len()),
        (0, 0)
    );
}

#[test]
fn a_reader_keeps_what_it_has_read() {
    let recent = Recent::default();
    record(&recent, &ok(1, 10));
    let view = recent.view(0, at(1));
    record(&recent, &ok(1, 10));
    assert_eq!(view.figures.slots[0].1.requests(), 1);
    assert_eq!(recent.view(0, at(1)).figures.slots[0].1.requests(), 2);
}

#[test]
fn the_wait_in_a_router_is_one_that_a_hop_saw() {
    let told = |router: bool| {
        let mut rows = request("r", 1, 50, End::Complete);
        let timeline = &mut rows[0].timeline;
        timeline.upstream_is_server(!router);
        if router {
            timeline.hop_shares_front();
            timeline.set(Moment::WorkerArrival, at(1).plus_nanos(-20_000_000));
        }
        rows[0].derive_anew();
        let recent = Recent::default();
        record(&recent, &rows.into());
        median_ms(&recent.view(0, at(1)), "queue_time_in_router")
    };
    assert_eq!((told(true), told(false)), (Some(30), None));
}

#[test]
fn tokens_of_several_sequences_are_those_that_usage_tells() {
    let mut rows = vec![request("r", 1, 50, End::Complete).remove(0); 2];
    for (row, index) in rows.iter_mut().zip(0..) {
        (row.sequences, row.index) = (2, index);
        row.request_output_tokens = Some(14);
    }
    let recent = Recent::default();
    record(&recent, &rows.into());
    assert_eq!(recent.view(0, at(1)).figures.sum.output_tokens(), 14);
}

#[test]
fn what_cannot_be_is_in_no_figure_of_the_window_and_in_the_row() {
    let recent = Recent::default();
    let mut rows = request("r", 1, 50, End::Complete);
    rows[0].inconsistency = Some("pure_queue_time>total".into());
    rows[0].pure_queue_time = Some(60 * NANOS);
    rows[0].actual_output_tokens = Some(1 << 60);
    rows[0].request_output_tokens = Some(1 << 60);
    rows[0].inconsistency = Some("pure_queue_time>elapsed".to_owned());
    record(&recent, &rows.into());
    record(&recent, &ok(1, 50));
    let view = recent.view(0, at(1));
    assert_eq!(median_ms(&view, "pure_queue_time"), None);
    assert_eq!(
        (
            view.figures.sum.output_tokens(),
            view.figures.sum.requests()
        ),
        (0, 2)
    );
    assert_eq!(
        recent.find(1).unwrap().rows[0].pure_queue_time,
        Some(60 * NANOS)
    );
}
