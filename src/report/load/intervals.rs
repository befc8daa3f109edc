//! What the quantiles on the terminal lie between.

use crate::stats::interval::{Between, TooFew};

use super::latency::{Latencies, Latency, label};

/// Latencies of which the terminal shows intervals. All have them in `summary.json`.
const INTERVALS_OF: [&str; 2] = ["total_latency_from_send", "ttft_from_send"];

/// A quantile, and what it lies between.
type Named = (&'static str, Between);

/// What the figures that everybody asks for lie between, in milliseconds: a line a latency, or one for all where nothing
/// can be said of any.
pub(super) fn intervals(latencies: &Latencies) -> Vec<String> {
    let known = INTERVALS_OF.iter();
    let known = known.filter_map(|name| latencies.latency(name));
    let known: Vec<&Latency> = known.filter(|of| of.summary.is_some()).collect();
    if known
        .iter()
        .flat_map(|of| named(of))
        .all(|(_, found)| found.is_err())
    {
        let count = |of: &&Latency| of.summary.map(|summary| summary.count);
        let longest = known.into_iter().max_by_key(count);
        return longest.and_then(|of| none(named(of))).into_iter().collect();
    }
    let line = |of: &Latency| {
        let shown: Vec<String> = named(of).map(within).collect();
        format!("  {}: {}", label(of.name), shown.join(", "))
    };
    let head = "95 % intervals, ms".to_owned();
    std::iter::once(head)
        .chain(known.into_iter().map(line))
        .collect()
}

fn named(of: &Latency) -> impl Iterator<Item = Named> {
    of.intervals.named().filter(|(name, _)| *name != "p90")
}

fn within((name, interval): Named) -> String {
    match interval {
        Ok((low, high)) => format!("{name} [{}, {}]", ms(low), ms(high)),
        Err(few) if few.count < few.needed => format!("{name} - (needs {})", few.needed),
        Err(_) => format!("{name} - (neighbours too alike)"),
    }
}

/// Why there is no interval of any.
fn none(named: impl Iterator<Item = Named>) -> Option<String> {
    let few = named.filter_map(|(name, found)| Some((name, found.err()?)));
    let few: Vec<(&str, TooFew)> = few.collect();
    let count = few.first()?.1.count;
    if few.iter().any(|(_, few)| few.count >= few.needed) {
        return Some(format!(
            "No 95 % intervals: latencies of neighbouring requests are correlated, so {count} requests are not enough. Run longer."
        ));
    }
    let needs = few
        .iter()
        .map(|(name, few)| format!("{name} needs {}", few.needed));
    let needs = needs.collect::<Vec<_>>().join(", ");
    Some(format!(
        "No 95 % intervals: {count} requests are too few ({needs})"
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
        assert_eq!(none([("p99", Err(few))].into_iter()).unwrap(), said);
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
