//! What the quantiles on the terminal lie between.

use crate::stats::interval::{Between, TooFew};

use super::latency::{Latencies, label};

/// Latencies of which the terminal shows intervals. All have them in `summary.json`.
const INTERVALS_OF: [&str; 2] = ["total_latency_from_send", "ttft_from_send"];

/// What the figures that everybody asks for lie between, in milliseconds: a line a latency, or one for all where nothing
/// can be said of any.
pub(super) fn intervals(latencies: &Latencies) -> Vec<String> {
    let of = |name: &&'static str| {
        let latency = latencies.latency(name)?;
        latency.summary?;
        let named = latency.intervals.named();
        let named: Vec<Named> = named.filter(|(name, _)| *name != "p90").collect();
        Some((label(name), named))
    };
    let found: Vec<(&str, Vec<Named>)> = INTERVALS_OF.iter().filter_map(of).collect();
    let is_any = |(_, named): &(&str, Vec<Named>)| named.iter().any(|(_, found)| found.is_ok());
    if !found.iter().any(is_any) {
        let most = |(_, named): &(&str, Vec<Named>)| Some(named.first()?.1.err()?.count);
        let longest = found.into_iter().max_by_key(most);
        return longest
            .and_then(|(_, named)| none(&named))
            .into_iter()
            .collect();
    }
    let lines = found.into_iter().map(|(label, named)| {
        let shown: Vec<String> = named.into_iter().map(within).collect();
        format!("  {label}: {}", shown.join(", "))
    });
    let head = "95 % intervals, ms".to_owned();
    [head].into_iter().chain(lines).collect()
}

/// A quantile, and what it lies between.
type Named = (&'static str, Between);

fn within((name, interval): Named) -> String {
    match interval {
        Ok((low, high)) => format!("{name} [{}, {}]", ms(low), ms(high)),
        Err(few) if few.count < few.needed => format!("{name} - (needs {})", few.needed),
        Err(_) => format!("{name} - (neighbours too alike)"),
    }
}

/// Why there is no interval of any.
fn none(named: &[Named]) -> Option<String> {
    let few = named.iter().filter_map(|(_, found)| found.err());
    let few: Vec<TooFew> = few.collect();
    let count = few.first()?.count;
    if few.iter().any(|few| few.count >= few.needed) {
        return Some(format!(
            "No 95 % intervals: latencies of neighbouring requests are correlated, so {count} requests are not enough. Run longer."
        ));
    }
    let needs = named.iter().zip(&few);
    let needs: Vec<String> = needs
        .map(|((name, _), few)| format!("{name} needs {}", few.needed))
        .collect();
    Some(format!(
        "No 95 % intervals: {count} requests are too few ({})",
        needs.join(", ")
    ))
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
        let text = Summary::of_records(&records(100), &run()).to_text();
        assert!(text.contains("p95 [1"), "{text}");
        assert!(text.contains(", p99 - (needs 368)"), "{text}");
        assert_says(&text, "\n\n95 % intervals, ms\n  total, from send: p50 [");
        let text = Summary::of_records(&records(30), &run()).to_text();
        let said = "No 95 % intervals: 30 requests are too few (p50 needs 32, p95 needs 72, p99 needs 368)";
        assert!(text.contains(&format!("\n\n{said}\n\n")), "{text}");
        let few = TooFew {
            needed: 368,
            count: 1000,
            effective: Some(120.4),
        };
        assert_eq!(within(("p99", Err(few))), "p99 - (neighbours too alike)");
        let said = "No 95 % intervals: latencies of neighbouring requests are correlated, so 1000 requests are not enough. Run longer.";
        assert_eq!(none(&[("p99", Err(few))]).unwrap(), said);
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
