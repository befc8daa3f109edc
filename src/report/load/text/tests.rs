use super::*;
use crate::report::load::tests::*;

fn shown(records: &[Row]) -> String {
    let run = RunFacts {
        scheduled: records.len(),
        ..run()
    };
    Summary::of_records(records, &run).to_text()
}

#[test]
fn a_run_without_a_response_shows_errors_and_no_table() {
    let failed = [(0, "no answer"), (9, "no answer"), (20, "refused")].map(|(start, error)| {
        let sample = Sample::starting(start).without(&[Moment::ServerFinish]);
        sample.ended(Outcome::Timeout, error).open_row()
    });
    let text = shown(&failed);
    let expected = [
        "3 requests in 2.00 s: 0 ok (0.0 %), 3 failed\n",
        "  2 × no answer\n",
        "  1 × refused\n",
        "3 of 3 requests (100.0 %) failed: ",
    ];
    assert_says_all(&text, expected);
    let dashes = |line: &&str| line.split_whitespace().any(|word| word == "-");
    assert_eq!(text.lines().find(dashes), None, "{text}");

    // Nor has a run without requests.
    let run = RunFacts {
        ended: run().started,
        ..run()
    };
    let none = Summary::of_records(&[], &run);
    let expected = ["No request ended", "offered 2.50, sent", "4 of 4 scheduled"];
    assert_says_all(&none.to_text(), expected);
    for key in "success_rate request_throughput mean_ttft_ms duration peak_concurrency".split(' ') {
        assert!(none.to_json()[key].is_null(), "{key}");
    }
}

#[test]
fn one_request_is_in_the_singular() {
    let records = [Sample::whole().open_row(), Sample::starting(9).open_row()];
    assert_says(&shown(&records[..1]), "1 request in 2.00 s: 1 ok");
    let mut summary = Summary::of_records(&records[..1], &run());
    summary.window = Some(Window {
        left_out_first: 1,
        ..Window::default()
    });
    let sentence = summary.of_window().unwrap();
    assert_says(&sentence, "figures are of the 1 request that arrived from");
}

#[test]
fn an_impossible_token_count_is_not_called_missing() {
    let wild = Sample::starting(9).with(|row| row.actual_output_tokens = Some(1_000_000_000));
    let text = shown(&[Sample::whole().open_row(), wild.open_row()]);
    let expected = [
        "token counts; the first: tokens>",
        "1 of 2 ok requests are in no token figure",
    ];
    assert_says_all(&text, expected);
    let silent = Sample::starting(9).with(|row| row.actual_output_tokens = None);
    let text = shown(&[Sample::whole().open_row(), silent.open_row()]);
    assert!(!text.contains("cannot be"), "{text}");
}

/// Requests of varying lengths at three servers in turn.
fn records(count: i64) -> Vec<Row> {
    let one = |index: i64| {
        let sample = Sample::starting(index * 10);
        let host = ["a:1", "b:1", "c:1"][index as usize % 3];
        let sample = sample.at(Moment::Finish, index * 10 + 100 + index * 7919 % 100);
        let sample = sample.with(|row| row.req_id = Some(format!("r-{index}")));
        sample.host(host).open_row()
    };
    (0..count).map(one).collect()
}

#[test]
fn intervals_take_requests_of_all_servers_in_the_order_of_arrival() {
    // Whatever order they were written in: here by length, which looks as dependent as possible.
    let mut records = records(600);
    records.sort_by_key(|record| {
        let [from, to] =
            [Moment::Arrival, Moment::Finish].map(|of| record.timeline.raw(of).unwrap());
        to.nanos_since(from)
    });
    let summary = Summary::of_records(&records, &run());
    let some = Summary::of_records(&records[..200], &run()).to_text();
    assert_says(&some, "p99 too few");
    let json = summary.to_json();
    // A sample arrives 2 ms after its send.
    let total = |index| f64::from(98 + index * 7919 % 100) / 1e3;
    let totals: Vec<f64> = (0..600).map(total).collect();
    let mut sorted = totals.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let wanted = crate::stats::confidence::intervals(&totals, &sorted);
    let (low, high) = wanted[2].1.unwrap();
    let p95 = &json["latency"]["total_latency"]["ci95"]["p95"];
    assert_figures(p95, [("/0", low), ("/1", high)]);
    assert!(json["hosts"]["a:1"]["latency"]["total_latency"]["ci95"]["p99"].is_null());
}

#[test]
fn servers_beyond_the_largest_are_counted() {
    let row = |n: i64| {
        let host = (n < 52).then(|| n.to_string());
        Sample::starting(n).with(|row| row.host = host).open_row()
    };
    let rows: Vec<Row> = (0..60).map(row).collect();
    let text = Summary::of_records(&rows, &run()).to_text();
    assert_says(&text, "2 more servers, with 2 requests, are not shown.");
}
