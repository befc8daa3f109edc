//! What the quantiles on the terminal lie between.

use super::latency::{Latencies, Latency, label};

/// Latencies of which the terminal shows intervals. All have them in `summary.json`.
const INTERVALS_OF: [&str; 2] = ["total_latency_from_send", "ttft_from_send"];

/// What the figures that everybody asks for lie between, in milliseconds: a line a latency, or one for all where nothing
/// can be said of any.
pub(super) fn intervals(latencies: &Latencies) -> Vec<String> {
    let known = INTERVALS_OF.iter();
    let known = known.filter_map(|name| latencies.latency(name));
    let known: Vec<&Latency> = known.filter(|of| of.summary.is_some()).collect();
    let mut intervals = known.iter().flat_map(|of| of.intervals.named());
    if intervals.all(|(_, found)| found.is_none()) {
        let none =
            "No 95 % intervals: too few requests, or neighbouring ones too alike. Run longer.";
        return known.first().map(|_| none.to_owned()).into_iter().collect();
    }
    let within = |(name, found): (&str, Option<(f64, f64)>)| match found {
        Some((low, high)) => format!("{name} [{}, {}]", ms(low), ms(high)),
        None => format!("{name} too few"),
    };
    let line = |of: &&Latency| {
        let told = of.intervals.named().filter(|(name, _)| *name != "p90");
        let shown: Vec<String> = told.map(within).collect();
        format!("  {}: {}", label(of.name), shown.join(", "))
    };
    let head = std::iter::once("95 % intervals, ms".to_owned());
    head.chain(known.iter().map(line)).collect()
}

/// Milliseconds, with as many digits as are worth reading.
pub(super) fn ms(seconds: f64) -> String {
    let ms = seconds * 1e3;
    match ms.abs() {
        size if !size.is_finite() => "-".to_owned(),
        size if size >= 99.95 => format!("{ms:.1}"),
        size if size >= 9.995 => format!("{ms:.2}"),
        // A float's rounding makes a small negative of nothing: no "-0.000".
        size if size < 0.0005 => "0.000".to_owned(),
        _ => format!("{ms:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::load::Summary;
    use crate::report::load::tests::{assert_near, assert_says, run};
    use crate::report::sample::Sample;
    use crate::request::row::Row;
    use crate::request::timeline::Moment;

    /// Each takes one more millisecond than the one three places before.
    fn records(count: i64) -> Vec<Row> {
        let one = |index: i64| {
            let sample = Sample::starting(index * 10);
            let host = ["a:1", "b:1", "c:1"][index as usize % 3];
            let mut record = sample
                .at(Moment::Finish, index * 10 + 100 + index * 7919 % 100)
                .host(host)
                .open_row();
            record.req_id = Some(format!("r-{index}"));
            record
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn what_too_few_requests_have_no_interval_of_is_said() {
        let text = Summary::of_records(&records(100), &run()).to_text();
        assert_says(&text, "\n\n95 % intervals, ms\n  total, from send: p50 [");
        assert!(text.contains("p95 [1"), "{text}");
        assert!(text.contains(", p99 too few\n"), "{text}");
        let text = Summary::of_records(&records(30), &run()).to_text();
        assert!(
            text.contains("\n\nNo 95 % intervals: too few requests,"),
            "{text}"
        );
    }

    #[test]
    fn intervals_are_of_requests_in_the_order_of_their_arrival_whatever_server_they_were_at() {
        let records = records(600);
        let json = Summary::of_records(&records, &run()).to_json();
        let totals: Vec<f64> = (0..600)
            .map(|index| (98 + index * 7919 % 100) as f64 / 1e3)
            .collect();
        // A sample arrives 2 ms after its send.
        let mut sorted = totals.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let wanted = crate::stats::interval::Intervals::of(&totals, &sorted);
        let (_, p95) = wanted.named().nth(2).unwrap();
        let (low, high) = p95.unwrap();
        assert_near(&json, "/latency/total_latency/ci95/p95/0", low);
        assert_near(&json, "/latency/total_latency/ci95/p95/1", high);
        assert!(json["hosts"]["a:1"]["latency"]["total_latency"]["ci95"]["p99"].is_null());
    }
}
