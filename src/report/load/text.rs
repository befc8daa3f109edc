//! The summary as the terminal shows it.

use crate::stats;

use super::{Summary, way_back};

/// The rows of the table: what it is called there, and the latency's name.
const ROWS: [(&str, &str); 11] = [
    ("server latency", "server_latency"),
    ("total, from send", "total_latency_from_send"),
    ("total, from schedule", "total_latency_from_schedule"),
    ("TTFT, from send", "ttft_from_send"),
    ("TTFT, from schedule", "ttft_from_schedule"),
    ("router queue", "queue_time_in_router"),
    ("server queue (pure)", "pure_queue_time"),
    ("tokenize", "tokenize_time"),
    ("prefill", "prefill_time"),
    ("decode", "decode_time"),
    ("per output token", "tpot"),
];

pub fn summary(summary: &Summary) -> String {
    let mut lines = Vec::new();
    lines.push(counts(summary));
    lines.extend(errors(summary));
    lines.push(rates(summary));
    lines.push(tokens(summary));
    lines.extend(concurrency(summary));
    lines.extend(goodput(summary));
    lines.extend(servers(summary));
    lines.push(String::new());
    lines.extend(table(summary));
    lines.push(String::new());
    lines.push(summary.all.spent.sentence());
    lines.extend(warnings(summary));
    lines.push(String::new());
    lines.join("\n")
}

fn counts(summary: &Summary) -> String {
    let (counts, run) = (&summary.all.counts, &summary.run);
    let failed: Vec<String> = counts
        .outcomes
        .iter()
        .filter(|(outcome, count)| *count > 0 && outcome.name() != "ok")
        .map(|(outcome, count)| format!(", {count} {}", outcome.name()))
        .collect();
    let share = counts
        .success_rate()
        .map(|rate| format!(" ({:.1} %)", rate * 100.0));
    format!(
        "{} requests in {:.2} s: {} ok{}{}",
        counts.requests,
        run.duration().unwrap_or(0.0),
        counts.ok(),
        share.unwrap_or_default(),
        failed.concat()
    )
}

fn errors(summary: &Summary) -> Vec<String> {
    let errors = &summary.all.counts.errors;
    let mut lines: Vec<String> = errors
        .iter()
        .take(3)
        .map(|(error, count)| {
            let error: String = error.chars().take(90).collect();
            format!(
                "  {count} × {}",
                if error.is_empty() {
                    "(nothing said)"
                } else {
                    &error
                }
            )
        })
        .collect();
    if let Some(more @ 1..) = errors.len().checked_sub(3) {
        lines.push(format!("  and {more} other errors"));
    }
    lines
}

fn rates(summary: &Summary) -> String {
    let (run, all) = (&summary.run, &summary.all);
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
    format!(
        "{:<14}offered {} (as drawn {}), sent {}, completed {}",
        "requests/s",
        run.offered_rate
            .map_or("without limit".to_owned(), |r| rate(Some(r))),
        rate(all.flow.schedule_rate),
        rate(all.flow.achieved_rate),
        rate(run.a_second(all.counts.ok() as f64)),
    )
}

fn tokens(summary: &Summary) -> String {
    let (run, tokens) = (&summary.run, &summary.all.tokens);
    let figure = |name: &str, count: Option<u64>| {
        let rate = count.and_then(|count| run.a_second(count as f64));
        match count.zip(rate) {
            Some((count, rate)) => format!("{name} {count} ({rate:.1}/s)"),
            None => format!("{name} unknown"),
        }
    };
    format!(
        "{:<14}{}, {}, {}",
        "tokens",
        figure("input", tokens.input),
        figure("output", tokens.output),
        figure("total", tokens.total())
    )
}

fn concurrency(summary: &Summary) -> Option<String> {
    let over_time = summary.all.flow.over_time.as_ref()?;
    let known = [
        ("in flight", Some(&over_time.in_flight)),
        ("queued", over_time.queued.as_ref()),
        ("running", over_time.running.as_ref()),
    ];
    let figures: Vec<String> = known
        .into_iter()
        .filter_map(|(name, c)| c.map(|c| format!("{name} {:.1} (peak {})", c.mean, c.peak)))
        .collect();
    Some(format!("{:<14}{}", "at once", figures.join(", ")))
}

fn goodput(summary: &Summary) -> Option<String> {
    let goodput = summary.all.goodput.as_ref()?;
    let goals = summary.run.goodput.iter();
    let goals: Vec<String> = goals
        .map(|(name, ms)| format!("{name} ≤ {ms} ms"))
        .collect();
    let rate = summary.run.a_second(goodput.good as f64).unwrap_or(0.0);
    Some(format!(
        "{:<14}{rate:.2}/s, {} requests kept {}",
        "goodput",
        goodput.good,
        goals.join(", ")
    ))
}

fn servers(summary: &Summary) -> Vec<String> {
    const SHOWN: usize = 6;
    let mut lines: Vec<String> = summary
        .hosts
        .iter()
        .take(SHOWN)
        .map(|(host, group)| {
            let median = |name| {
                let summary = group.latencies.get(name);
                summary.map_or("-".to_owned(), |s: &stats::Summary| {
                    format!("{} ms", ms(s.p50))
                })
            };
            format!(
                "{:<14}{host}: {} requests, {} ok, median queue {}, server latency {}",
                "server",
                group.counts.requests,
                group.counts.ok(),
                median("pure_queue_time"),
                median("server_latency")
            )
        })
        .collect();
    if let Some(more @ 1..) = summary.hosts.len().checked_sub(SHOWN) {
        lines.push(format!("{:<14}and {more} more", "server"));
    }
    lines
}

fn table(summary: &Summary) -> Vec<String> {
    let header = format!(
        "{:<22}{:>7}{:>11}{:>11}{:>11}{:>11}",
        "ms, ok requests", "count", "mean", "p50", "p95", "p99"
    );
    // Without a router that column holds our own proxy's time, or nothing at all.
    let no_router = summary.all.spent.requests > 0 && summary.all.spent.routed == 0;
    let shown = ROWS
        .iter()
        .filter(|(label, _)| !(no_router && *label == "router queue"));
    let rows = shown.map(|(label, name)| match summary.all.latencies.get(name) {
        Some(s) => format!(
            "{label:<22}{:>7}{:>11}{:>11}{:>11}{:>11}",
            s.count,
            ms(s.mean),
            ms(s.p50),
            ms(s.p95),
            ms(s.p99)
        ),
        None => format!(
            "{label:<22}{:>7}{:>11}{:>11}{:>11}{:>11}",
            0, "-", "-", "-", "-"
        ),
    });
    [header].into_iter().chain(rows).collect()
}

fn warnings(summary: &Summary) -> Vec<String> {
    let (run, counts) = (&summary.run, &summary.all.counts);
    let mut lines = Vec::new();
    if let (rows @ 1.., Some(first)) = &counts.inconsistent {
        lines.push(format!(
            "warning: {rows} of {} rows hold moments out of order or negative durations; the first: {first}",
            counts.rows
        ));
    }
    if counts.retried > 0 {
        let failed = counts.failed_attempts.iter().take(3).map(|(of, count)| {
            let status = of
                .status
                .map_or_else(String::new, |status| format!(" {status}"));
            format!("{count} x {} {}{status}", of.host, of.outcome)
        });
        let failed: Vec<String> = failed.collect();
        let what = match failed.is_empty() {
            true => String::new(),
            false => format!("; attempts that failed: {}", failed.join(", ")),
        };
        lines.push(format!(
            "note: {} of {} requests took more than one attempt{what}",
            counts.retried, counts.requests
        ));
    }
    if let left_out @ 1.. = summary.all.left_out {
        let are = if left_out == 1 {
            "request is"
        } else {
            "requests are"
        };
        lines.push(format!(
            "note: {left_out} {are} left out of what was measured with two clocks: one was known there too poorly"
        ));
    }
    if let Some(finding) = way_back::finding(&summary.all) {
        lines.push(format!("note: {finding}"));
    }
    if let Some(missing @ 1..) = (run.scheduled as u64).checked_sub(counts.requests) {
        lines.push(format!(
            "warning: {missing} of {} scheduled requests have no record: the run ended before them",
            run.scheduled
        ));
    }
    if let counted @ 1.. = summary.all.tokens.output_counted {
        lines.push(format!(
            "note: for {counted} requests the server told no token count, so token events were counted"
        ));
    }
    lines
}

/// Milliseconds, with as many digits as are worth reading.
fn ms(seconds: f64) -> String {
    let ms = seconds * 1e3;
    match ms.abs() {
        size if size >= 99.95 => format!("{ms:.1}"),
        size if size >= 9.995 => format!("{ms:.2}"),
        // A float's rounding makes a small negative of nothing: no "-0.000".
        size if size < 0.0005 => "0.000".to_owned(),
        _ => format!("{ms:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::ms;

    #[test]
    fn nothing_has_no_sign() {
        assert_eq!(ms(-2.4e-7), "0.000");
        assert_eq!(ms(-0.002), "-2.000");
        assert_eq!(ms(0.0009), "0.900");
        assert_eq!(ms(1.5), "1500.0");
    }
}
