use crate::request::sample;
use crate::request::sample::Sample;
use crate::request::{End, Endpoint, Observer, Row, Side, without_quotes};

use super::*;

/// A successful request with only its sending and its end known: the end in seconds, the duration in milliseconds.
fn request(ended: i64, took_ms: i64) -> Sample {
    let unseen = Sample::whole().without(&Moment::ALL);
    let sent = unseen.at(Moment::Sent, ended * 1000 - took_ms);
    sent.at(Moment::Finish, ended * 1000)
}

fn record(recent: &Recent, rows: &Rows) {
    recent.record(rows, Some(&CountedRequest::of(rows)));
}

/// The state after this request alone.
fn recent(rows: impl Into<Rows>) -> Recent {
    let recent = Recent::default();
    record(&recent, &rows.into());
    recent
}

/// The rows kept of the first request.
fn kept(recent: &Recent) -> Rows {
    recent.all().remove(0).rows
}

fn ok(ended: i64, took_ms: i64) -> Rows {
    vec![request(ended, took_ms).row()].into()
}

fn timeout(ended: i64) -> Rows {
    let late = request(ended, 1).ended(Outcome::Timeout, "too late");
    vec![late.row()].into()
}

fn at(seconds: i64) -> Stamp {
    sample::at(seconds * 1000)
}

fn median_ms(view: &View, name: &str) -> Option<i64> {
    let mut all = view.figures.quantiles();
    let (_, values) = all.find(|(column, _)| column.name == name).unwrap();
    Some(values.quantile(0.5)? / 1_000_000)
}

#[test]
fn the_last_requests_are_kept_and_failed_ones_longer() {
    let recent = recent(timeout(0));
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
    assert_eq!(kept(&recent)[0].outcome(), Outcome::Timeout);
}

#[test]
fn the_first_rows_of_a_request_with_many_are_kept() {
    for (count, expected) in [(3, 3), (MAX_ROWS, MAX_ROWS), (1000, MAX_ROWS)] {
        let recent = recent(vec![request(1, 1).row(); count]);
        assert_eq!(kept(&recent).len(), expected);
    }
}

#[test]
fn a_servers_error_message_is_not_kept() {
    // Our own texts are kept. A number in the message is not kept as a code; the member `code` is.
    let quoted = "the server's message";
    let coded = |status: u16| format!("{status}; {quoted}");
    let error = |members: &str| format!("{{\"error\":{{\"message\":{members}}}}}");
    for (status, body, in_row, expected) in [
        (400, error("\"secret\""), "400 secret", coded(400)),
        (200, error("\"secret\""), "secret", quoted.to_owned()),
        (200, error("\"4111 is\""), "4111 is", quoted.to_owned()),
        (200, error("\"m\",\"code\":429"), "429 m", coded(429)),
        (503, "{}".to_owned(), "503", "503".to_owned()),
    ] {
        let mut observer = Observer::new(Side::Front, Endpoint::Generate, "r".into());
        observer.response_head(status, Some("application/json"), false, at(1));
        observer.response_body(body.as_bytes(), at(1), 0);
        observer.response_end(at(1));
        let rows = Rows::from(Row::ended(observer.finish(End::Complete, at(1))));
        let kept = &kept(&recent(without_quotes(&rows)))[0];
        assert_eq!(rows[0].error.as_deref(), Some(in_row));
        let text = kept.error.as_deref().unwrap();
        assert!(text.starts_with(&expected), "{text}");
    }
    let late = kept(&recent(without_quotes(&timeout(1))));
    assert_eq!(late[0].error.as_deref(), Some("too late"));
}

#[test]
fn the_window_drops_older_requests() {
    let recent = Recent::default();
    for second in 0..600 {
        record(&recent, &ok(second, 10));
    }
    for _ in 0..2000 {
        record(&recent, &ok(600, 200));
    }
    record(&recent, &timeout(600));
    // Rows of attempts that belong to no request arrive late.
    record(&recent, &ok(495, 10));
    let view = recent.view(0, at(600));
    let sum = &view.figures;
    let outcomes: Vec<_> = sum.outcomes().collect();
    assert_eq!(outcomes, [(Outcome::Ok, 2251), (Outcome::Timeout, 1)]);
    assert_eq!(sum.spent[0].requests, 2251, "only successful ones");
    let median = median_ms(&view, "elapsed").unwrap();
    assert!((194..=206).contains(&median), "{median}");
    assert_eq!(median_ms(&view, "pure_queue_time"), None, "it is missing");

    // A half begins at 500 s, with 2101 requests, and one at 650 s: then those before leave, also the late one.
    let later = [649, 650, 799, 800, 2000].map(|second| recent.view(0, at(second)));
    let counts = later.map(|view| view.figures.requests());
    assert_eq!(counts, [2252, 2101, 2101, 0, 0]);
    assert_eq!(view.figures.requests(), 2252, "a view does not change");
}

#[test]
fn tokens_are_those_of_the_request_and_an_impossible_value_is_kept_in_the_row_and_in_no_figure() {
    let mut rows = vec![request(1, 50).row(); 2];
    for (row, index) in rows.iter_mut().zip(0..) {
        (row.sequences, row.index) = (2, index);
        row.request_output_tokens = Some(14);
    }
    let view = recent(rows).view(0, at(1));
    assert_eq!(view.figures.output_tokens, 14);

    let mut rows = vec![request(1, 50).row()];
    rows[0].inconsistency = Some("pure_queue_time>elapsed".to_owned());
    rows[0].pure_queue_time = Some(60 * NANOS);
    rows[0].actual_output_tokens = Some(1 << 60);
    rows[0].request_output_tokens = Some(1 << 60);
    let recent = recent(rows);
    let view = recent.view(0, at(1));
    assert_eq!(median_ms(&view, "pure_queue_time"), None);
    assert_eq!(view.figures.output_tokens, 0);
    assert_eq!(kept(&recent)[0].pure_queue_time, Some(60 * NANOS));
}
