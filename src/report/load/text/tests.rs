use super::*;
use crate::report::load::tests::*;

#[test]
fn a_run_without_requests_has_no_figures() {
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

/// Where more than half got no response, no lower bound of all is known.
#[test]
fn without_a_response_there_is_no_table_and_no_line_of_dashes() {
    let failed = [(0, "no answer"), (9, "no answer"), (20, "refused")].map(|(start, error)| {
        let sample = Sample::starting(start).without(&[Moment::ServerFinish]);
        sample.ended(Outcome::Rejected, error).open_row()
    });
    let one_ok = [&failed[..], &[Sample::whole().open_row()]].concat();
    for (records, has_table) in [(&failed[..], false), (&one_ok, true)] {
        let text = Summary::of_records(records, &run()).to_text();
        assert_eq!(text.contains("p50"), has_table, "{text}");
        let dashes = |line: &&str| line.split_whitespace().any(|word| word == "-");
        assert_eq!(text.lines().find(dashes), None, "{text}");
    }
}

#[test]
fn one_request_of_a_window_is_in_the_singular() {
    let mut one = Summary::of_records(&[Sample::whole().open_row()], &run());
    one.window = Some(Window {
        left_out_first: 1,
        ..Window::default()
    });
    let told = one.of_window().unwrap();
    assert_says(&told, "figures are of the 1 request that arrived from");
}

#[test]
fn intervals_take_requests_of_all_servers_in_the_order_of_arrival() {
    // Requests of varying lengths at three servers in turn.
    let one = |index: i64| {
        let sample = Sample::starting(index * 10).host(["a:1", "b:1", "c:1"][index as usize % 3]);
        let sample = sample.at(Moment::Finish, index * 10 + 100 + index * 7919 % 100);
        let sample = sample.with(|row| row.req_id = Some(format!("r-{index}")));
        sample.open_row()
    };
    let mut records: Vec<Row> = (0..600).map(one).collect();
    // Whatever order they were written in: here by length, which looks as dependent as possible.
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
