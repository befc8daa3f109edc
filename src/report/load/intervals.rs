//! What the quantiles on the terminal lie between.

use crate::stats::interval::TooFew;

use super::latency::Latencies;

/// Latencies of which the terminal shows intervals: what they are called there, and their names. All have them in
/// `summary.json`.
const INTERVALS_OF: [(&str, &str); 2] = [
    ("total, from send", "total_latency_from_send"),
    ("TTFT, from send", "ttft_from_send"),
];

/// What the figures that everybody asks for lie between, in milliseconds; a quantile of too few requests says so.
pub(super) fn intervals(latencies: &Latencies) -> Vec<String> {
    let of = |(label, name): &(&str, &str)| {
        let latency = latencies.latency(name)?;
        latency.summary?;
        let shown = latency.intervals.named().into_iter();
        let shown = shown.filter(|(name, _)| *name != "p90");
        let shown: Vec<String> = shown
            .map(|(name, interval)| within(name, interval))
            .collect();
        Some(format!("  {label}: {}", shown.join(", ")))
    };
    let lines: Vec<String> = INTERVALS_OF.iter().filter_map(of).collect();
    let head = "95 % intervals, ms (what neighbours have in common is reckoned in)";
    let head = (!lines.is_empty()).then(|| head.to_owned());
    head.into_iter().chain(lines).collect()
}

fn within(name: &str, interval: Result<(f64, f64), TooFew>) -> String {
    match interval {
        Ok((low, high)) => format!("{name} {} to {}", ms(low), ms(high)),
        Err(few) if few.count < few.needed => {
            format!(
                "{name} - (needs {} requests, has {})",
                few.needed, few.count
            )
        }
        Err(few) => {
            let as_much = few
                .effective
                .map_or("far fewer".to_owned(), |count| format!("{count:.0}"));
            format!(
                "{name} - (needs {} independent requests; these {}, each like its neighbours, tell as much as {as_much})",
                few.needed, few.count
            )
        }
    }
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
    use crate::report::load::tests::{assert_near, run};
    use crate::report::sample::Sample;
    use crate::request::record::Record;
    use crate::request::timeline::Moment;

    /// Each takes one more millisecond than the one three places before.
    fn records(count: i64) -> Vec<Record> {
        let one = |index: i64| {
            let sample = Sample::starting(index * 10);
            let host = ["a:1", "b:1", "c:1"][index as usize % 3];
            let mut record = sample
                .at(Moment::Finish, index * 10 + 100 + index * 7919 % 100)
                .host(host)
                .record();
            record.facts.req_id = format!("r-{index}");
            record
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn a_p99_of_too_few_requests_says_how_many_it_takes() {
        let text = Summary::of(&records(100), &run()).to_text();
        assert!(text.contains("p95 1"), "{text}");
        assert!(
            text.contains("p99 - (needs 368 requests, has 100)"),
            "{text}"
        );
        let few = TooFew {
            needed: 368,
            count: 1000,
            effective: Some(120.4),
        };
        let said = "p99 - (needs 368 independent requests; these 1000, each like its neighbours, tell as much as 120)";
        assert_eq!(within("p99", Err(few)), said);
    }

    #[test]
    fn intervals_are_of_requests_in_the_order_of_their_arrival_whatever_server_they_were_at() {
        let records = records(600);
        let json = Summary::of(&records, &run()).to_json();
        let totals: Vec<f64> = (0..600)
            .map(|index| (98 + index * 7919 % 100) as f64 / 1e3)
            .collect();
        // A sample arrives 2 ms after its send.
        let wanted = crate::stats::interval::Intervals::of(&totals);
        let (low, high) = wanted.p95.unwrap();
        assert_near(&json, "/latency/total_latency/ci95/p95/0", low);
        assert_near(&json, "/latency/total_latency/ci95/p95/1", high);
        assert!(json["hosts"]["a:1"]["latency"]["total_latency"]["ci95"]["p99"].is_null());
    }
}
