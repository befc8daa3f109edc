use super::*;
use crate::report::load::RunFacts;
use crate::report::load::tests::{assert_says, run};
use crate::report::sample::Sample;
use crate::request::row::Row;
use crate::request::timeline::Moment;

fn shown(records: &[Row]) -> String {
    let run = RunFacts {
        scheduled: records.len(),
        ..run()
    };
    Summary::of_records(records, &run).to_text()
}

#[test]
fn a_run_without_one_answer_has_its_errors_and_no_table() {
    let error = "no answer: word word";
    let failed = |start: i64, error: &str| {
        let sample = Sample::starting(start).without(&[Moment::ServerFinish]);
        sample.ended(Outcome::Timeout, error).open_row()
    };
    let text = shown(&[failed(0, error), failed(9, error), failed(20, "refused")]);
    for said in [
        "3 requests in 2.00 s: 0 ok (0.0 %), 3 timeout\n",
        "  2 × no answer: word word\n",
        "  1 × refused\n",
        "3 of 3 requests (100 %) failed: ",
    ] {
        assert_says(&text, said);
    }
    assert!(!text.contains(" of 3 requests  "), "{text}");
    let dashes = |line: &&str| line.split_whitespace().any(|word| word == "-");
    assert_eq!(text.lines().find(dashes), None, "{text}");

    let text = shown(&[]);
    assert_says(&text, "No request ended");
    assert_says(&text, "offered 2.50, sent");
    let text = shown(&[Sample::whole().open_row(), failed(9, error)]);
    assert_says(&text, "ms, 1 of 2 requests");
}

#[test]
fn a_token_count_that_cannot_be_is_not_called_untold() {
    let wild = Sample::starting(9).with(|row| row.actual_output_tokens = Some(1_000_000_000));
    let text = shown(&[Sample::whole().open_row(), wild.open_row()]);
    for said in [
        "token counts; the first: actual_output_tokens>",
        "1 of 2 ok requests are in no token figure",
        ", or the reported numbers are impossible (the column `inconsistency` names it)\n",
    ] {
        assert_says(&text, said);
    }
    let silent = Sample::starting(9).with(|row| row.actual_output_tokens = None);
    let text = shown(&[Sample::whole().open_row(), silent.open_row()]);
    assert!(!text.contains("cannot be"), "{text}");
}

#[test]
fn what_runs_at_once_is_told_as_an_upper_limit() {
    // The second takes the first one's slot before the end of the first was told.
    let first = Sample::whole().at(Moment::ServerFinish, 495);
    let second = Sample::starting(400).at(Moment::QueueEnd, 490);
    let text = shown(&[first.open_row(), second.open_row()]);
    assert_says(&text, "running 0.4 (peak about 2)");
}

#[test]
fn nothing_has_no_sign() {
    assert_eq!(ms(-2.4e-7), "0.000");
    assert_eq!(ms(-0.002), "-2.000");
    assert_eq!(ms(0.0009), "0.900");
    assert_eq!(ms(1.5), "1500.0");
}
