//! A summary gathered while records pass.

use super::*;

#[test]
fn records_that_come_in_pieces_make_the_same_figures() {
    let retried = Failed {
        worker: "w".into(),
        host: "a:1".into(),
        outcome: Some(Outcome::Rejected),
        status: Some(429),
        nanos: None,
    };
    let mut records = [four(), four(), four()].concat();
    for (number, record) in records.iter_mut().enumerate() {
        record.facts.req_id = format!("r{number}");
        if number % 3 == 0 {
            record.facts.attempts = 2;
            record.facts.failed = vec![retried.clone()];
        }
    }
    records[7].facts.error = "another".to_owned();
    // Order broken: the first that says so is named, whatever server it came from.
    records[5].timeline.set(Moment::LastToken, at(0));
    records[6].timeline.set(Moment::LastToken, at(0));
    let mut facts = run();
    facts.goodput = vec!["ttft:100".parse().unwrap()];
    let rows = crate::request::sample::rows(&records);
    let whole = Summary::of(&rows, &facts);
    for size in [1, 5] {
        let mut usual = UsualErrors::default();
        for some in rows.chunks(size) {
            usual.add(some);
        }
        let mut gathering = Gathering::new(usual.median(), facts.goodput.clone());
        for some in rows.chunks(size) {
            gathering.add(some);
        }
        let pieces = gathering.summary(&facts);
        assert_eq!(pieces.to_json(), whole.to_json(), "{size} at a time");
        assert_eq!(pieces.to_text(), whole.to_text(), "{size} at a time");
    }
    assert!(whole.to_text().contains("last_token<first_token"));
}
