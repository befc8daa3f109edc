//! The summary in words.

use crate::report::duration;
use crate::report::grid::Grid;
use crate::report::words::{Block, text};
use crate::request::last_seen::LastSeen;
use crate::request::record::Outcome;
use crate::stats;

use super::intervals::{intervals, ms};
use super::latency::label;
use super::summary::Summary;
use super::way_back;

/// The latencies of the table.
const ROWS: [&str; 11] = [
    "server_latency",
    "total_latency_from_send",
    "total_latency_from_schedule",
    "ttft_from_send",
    "ttft_from_schedule",
    "queue_time_in_router",
    "pure_queue_time",
    "tokenize_time",
    "prefill_time",
    "decode_time",
    "tpot",
];

impl Summary {
    /// The summary as the terminal shows it.
    pub fn to_text(&self) -> String {
        let blocks = self.blocks();
        let shown = blocks.iter().filter_map(|block| text(block, None, None));
        shown.collect::<Vec<String>>().join("\n")
    }

    /// All that is said of it.
    pub fn blocks(&self) -> Vec<Block> {
        let is_answered = self.all.counts.ok() > 0;
        let mut lines: Vec<String> = self.of_window().into_iter().collect();
        lines.push(counts(self));
        lines.extend(errors(self));
        lines.extend(failures(self));
        lines.push(rates(self));
        lines.extend(is_answered.then(|| tokens(self)));
        lines.extend(concurrency(self));
        lines.extend(goodput(self));
        lines.extend(servers(self));
        let mut blocks = vec![Block::Figures(lines)];
        blocks.extend(table(self).map(Block::Table));
        blocks.push(Block::Figures(intervals(&self.all.latencies)));
        let mut said = vec![match is_answered {
            true => self.all.verdict(),
            false => unanswered(self),
        }];
        said.extend(warnings(self));
        blocks.push(Block::Words(said));
        blocks
    }

    /// What the figures are of, where it is not all.
    pub fn of_window(&self) -> Option<String> {
        let window = self.window.as_ref().filter(|window| !window.is_all())?;
        Some(format!(
            "figures are of the {} requests that arrived from {} to {} ({}): {} before and {} after are left out of them",
            self.all.counts.requests,
            duration(window.from_s),
            duration(window.to_s),
            window.rule,
            window.left_out_first,
            window.left_out_last
        ))
    }
}

/// Whether the run came to a steady state.
fn unsteady(summary: &Summary) -> Option<String> {
    let window = summary.window.as_ref()?;
    let trend = window.trend.filter(|trend| !trend.is_steady)?;
    let what = match window.is_all() {
        true => "leave its beginning out (--leave-out-first auto), or let it go on longer",
        false => "let the run go on longer, or lower the rate",
    };
    Some(format!(
        "note: this was no steady state: TTFT was {} in the first quarter and {} in the last; {what}",
        duration(trend.first),
        duration(trend.last)
    ))
}

fn counts(summary: &Summary) -> String {
    let (counts, run) = (&summary.all.counts, &summary.run);
    let failed = counts.outcomes.iter().map(|(outcome, count)| {
        let given_up = match outcome {
            Outcome::ClientAbort => counts.given_up,
            _ => 0,
        };
        (outcome, count - given_up)
    });
    let failed = failed.filter(|(outcome, count)| *count > 0 && **outcome != Outcome::Ok);
    let mut failed: Vec<String> = failed
        .map(|(outcome, count)| format!(", {count} {}", outcome.name()))
        .collect();
    if let given_up @ 1.. = counts.given_up {
        failed.push(format!(", {given_up} given up when the run was stopped"));
    }
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
        .most_frequent()
        .take(3)
        .map(|(error, count)| {
            let said = if error.is_empty() {
                "(nothing said)"
            } else {
                error
            };
            format!("  {count} × {}", shortened(said))
        })
        .collect();
    if let Some(more @ 1..) = errors.len().checked_sub(3) {
        lines.push(format!("  and {more} other errors"));
    }
    lines
}

/// What stands in place of the table where there is nothing to put into it.
fn unanswered(summary: &Summary) -> String {
    if summary.all.counts.requests == 0 {
        return "No request was sent, so there are no times to show.".to_owned();
    }
    let verdict = summary.all.verdict();
    format!(
        "Not one request was answered well. {verdict} The column ended_in says how far each came."
    )
}

/// At most this much of an error is shown, characters.
const ERROR: usize = 240;

/// A text cut between words, if it is long.
fn shortened(text: &str) -> String {
    let Some((most, _)) = text.char_indices().nth(ERROR) else {
        return text.to_owned();
    };
    let kept = text.get(..most).unwrap_or(text);
    let kept = kept.rsplit_once(' ').map_or(kept, |(kept, _)| kept);
    format!("{kept} …")
}

/// What became of the failed, a line a kind.
fn failures(summary: &Summary) -> Vec<String> {
    const SHOWN: usize = 4;
    let kinds = &summary.all.failures.kinds;
    let shown = kinds.iter().take(SHOWN).map(|kind| {
        let ended_in = kind.last_seen.map(LastSeen::name);
        let waited = kind.waited.as_ref().map(|waited| {
            let [mean, max] = [waited.mean, waited.max].map(duration);
            format!(", after {mean} (longest {max})")
        });
        let elsewhere = kind.elsewhere();
        let elsewhere =
            elsewhere.map(|(spent, share)| format!(", {share:.0} % of it in {}", spent.name()));
        format!(
            "{:<14}{} {}, last seen in {}{}{}",
            "failed",
            kind.requests,
            kind.outcome.name(),
            ended_in.unwrap_or("no stage".into()),
            waited.unwrap_or_default(),
            elsewhere.unwrap_or_default(),
        )
    });
    let mut lines: Vec<String> = shown.collect();
    if let Some(more @ 1..) = kinds.len().checked_sub(SHOWN) {
        lines.push(format!("{:<14}and {more} other ways", "failed"));
    }
    lines
}

fn rates(summary: &Summary) -> String {
    let (run, all) = (&summary.run, &summary.all);
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
    let drawn = all.flow.schedule_rate;
    let drawn = drawn.map_or(String::new(), |drawn| format!(" (as drawn {drawn:.2})"));
    let came = match run.offered_rate {
        Some(offered) => format!("offered {offered:.2}{drawn}, sent"),
        None if !run.config.is_null() => format!("offered without limit{drawn}, sent"),
        // Rows alone tell of no rate that was asked for, and a proxy's of no schedule.
        None if all.flow.is_scheduled => format!("sent{drawn}"),
        None => "arrived".to_owned(),
    };
    format!(
        "{:<14}{came} {}, completed {}",
        "requests/s",
        rate(all.flow.achieved_rate),
        rate(run.a_second(all.completed as f64)),
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
    let in_flight = &over_time.in_flight;
    let mut figures = vec![format!(
        "in flight {:.1} (peak {})",
        in_flight.mean, in_flight.peak
    )];
    figures.extend(over_time.queued.as_ref().map(|queued| {
        let (mean, peak) = (queued.known.mean, queued.known.peak);
        match queued.unknown {
            0 => format!("queued {mean:.1} (peak {peak})"),
            unknown => format!(
                "queued at least {mean:.1} (peak at least {peak}; of {unknown} requests it is not known)"
            ),
        }
    }));
    figures.extend(over_time.running.as_ref().map(|running| {
        let (mean, peak) = (running.known.mean, running.known.peak);
        match running.unknown {
            // Between the two another request may run already.
            0 => format!(
                "running {mean:.1} (peak at most {peak}; a request's end is stamped a little after its slot is free)"
            ),
            unknown => format!(
                "running at least {mean:.1} (peak about {peak}; of {unknown} requests it is not known)"
            ),
        }
    }));
    Some(format!("{:<14}{}", "at once", figures.join(", ")))
}

fn goodput(summary: &Summary) -> Option<String> {
    let goodput = summary.all.goodput.as_ref()?;
    let goals = summary.run.goodput.iter();
    let goals: Vec<String> = goals
        .map(|goal| format!("{} ≤ {} ms", goal.name, goal.most_ms))
        .collect();
    let rate = summary.run.a_second(goodput.good as f64).unwrap_or(0.0);
    let unknown = match goodput.unknown {
        0 => String::new(),
        unknown => format!("; of {unknown} nobody can say: such a latency is not known of them"),
    };
    Some(format!(
        "{:<14}{rate:.2}/s, {} requests kept {}{unknown}",
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
            if group.counts.ok() == 0 {
                let requests = group.counts.requests;
                return format!("{:<14}{host}: {requests} requests, none ok", "server");
            }
            let median = |name| {
                let summary = group.latencies.get(name);
                summary.map_or("-".to_owned(), |s: &stats::Summary| {
                    format!("{} ms", ms(s.p50))
                })
            };
            format!(
                "{:<14}{host}: {} requests, {} ok: median queue {}, server latency {}",
                "server",
                group.counts.requests,
                group.counts.ok(),
                median("pure_queue_time"),
                median("server_latency")
            )
        })
        .collect();
    let others = summary
        .other_hosts
        .as_ref()
        .map_or(0, |(servers, _)| *servers);
    if let Some(more @ 1..) = (summary.hosts.len() + others).checked_sub(SHOWN) {
        lines.push(format!("{:<14}and {more} more", "server"));
    }
    lines
}

/// The latencies of those that went well; below them, where some did not, those that everybody waits for, of all requests:
/// those given up while they waited waited longer, and a figure that those without any answer take part in is a dash.
fn table(summary: &Summary) -> Option<Grid> {
    let (all, counts) = (&summary.all, &summary.all.counts);
    let mut rows = Vec::new();
    if counts.ok() > 0 {
        // Without a router that column holds our own proxy's time, or nothing at all.
        let no_router = all.spent.requests > 0 && all.spent.routed == 0;
        // A proxy does not know when its clients sent.
        let is_sent = all.latencies.get("total_latency_from_send").is_some();
        let shown = ROWS.iter().filter_map(|name| match *name {
            "queue_time_in_router" if no_router => None,
            name if is_sent => Some(name),
            "total_latency_from_send" => Some("total_latency"),
            "ttft_from_send" => Some("ttft"),
            "total_latency_from_schedule" | "ttft_from_schedule" => None,
            name => Some(name),
        });
        rows.extend(shown.map(|name| row(name, all.latencies.get(name))));
    }
    let known = ROWS
        .iter()
        .filter_map(|name| Some((name, all.failures.at_least(name)?)));
    // Where more than half got no answer nothing could be said but dashes.
    let known = known.filter(|(_, told)| told.p50.is_finite() && counts.ok() < counts.requests);
    let known: Vec<(&&str, &stats::Summary)> = known.collect();
    if !known.is_empty() {
        let sent = all.failures.at_least("total_latency_from_send");
        let sent = sent.filter(|told| told.count < counts.requests);
        let sent = sent.map_or(String::new(), |told| format!(" ({} sent)", told.count));
        let is_endless = known.iter().any(|(_, told)| !told.mean.is_finite());
        let dash = if is_endless {
            "; -: no answer ever"
        } else {
            ""
        };
        // Where none went well there is no table above whose heads it could share.
        if counts.ok() > 0 {
            let head = format!("of all {}{sent}, at least{dash}", counts.requests);
            rows.push(vec![head]);
        }
        rows.extend(known.iter().map(|(name, told)| row(name, Some(told))));
    }
    let head = match (counts.ok(), counts.requests - counts.ok()) {
        (0, _) => "ms, at least".to_owned(),
        (_, 0) => "ms, ok requests".to_owned(),
        _ => format!("ms, {} of {} requests", counts.ok(), counts.requests),
    };
    let heads = [&head, "count", "mean", "p50", "p95", "p99"];
    (!rows.is_empty()).then(|| Grid {
        heads: heads.map(str::to_owned).into(),
        rows,
    })
}

fn row(name: &str, summary: Option<&stats::Summary>) -> Vec<String> {
    let figures = match summary {
        Some(s) => [s.mean, s.p50, s.p95, s.p99].map(ms),
        None => ["-"; 4].map(str::to_owned),
    };
    let count = summary.map_or(0, |summary| summary.count);
    let first = [label(name).to_owned(), count.to_string()];
    first.into_iter().chain(figures).collect()
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
        let failed = counts
            .failed_attempts
            .most_frequent()
            .take(3)
            .map(|(of, count)| {
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
    if let Some(missing @ 1..) = (run.scheduled as u64).checked_sub(summary.whole.requests) {
        lines.push(format!(
            "warning: {missing} of {} scheduled requests have no record: the run ended before them",
            run.scheduled
        ));
    }
    if let unknown @ 1.. = summary.all.tokens.output_unknown {
        lines.push(format!(
            "note: {unknown} of {} ok requests are in no token figure: nobody told how many tokens they brought (streams \
             of the OpenAI endpoints do with `\"stream_options\": {{\"include_usage\": true}}`)",
            counts.ok()
        ));
    }
    lines.extend(unsteady(summary));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::load::RunFacts;
    use crate::report::load::tests::run;
    use crate::report::sample::Sample;
    use crate::request::record::Record;
    use crate::request::timeline::Moment;

    fn shown(records: &[Record]) -> String {
        let run = RunFacts {
            scheduled: records.len(),
            ..run()
        };
        Summary::of_records(records, &run).to_text()
    }

    #[test]
    fn a_run_without_one_answer_has_its_errors_and_no_table() {
        let error = format!("no answer: {}the end", "word ".repeat(60));
        let failed = |start: i64, error: &str| {
            let sample = Sample::starting(start).without(&[Moment::ServerFinish]);
            sample.ended(Outcome::Timeout, error).record()
        };
        let text = shown(&[failed(0, &error), failed(9, &error), failed(20, "refused")]);
        for said in [
            "3 requests in 2.00 s: 0 ok (0.0 %), 3 timeout\n",
            "  2 × no answer: word word",
            // Cut between words, and said to be.
            "word …\n",
            "  1 × refused\n",
            "server        127.0.0.1:30000: 3 requests, none ok\n",
            "Not one request was answered well. 3 of 3 requests (100 %) failed: ",
        ] {
            assert!(text.contains(said), "{said:?} is not in\n{text}");
        }
        assert!(!text.contains(" of 3 requests  "), "{text}");
        let dashes = |line: &&str| line.split_whitespace().any(|word| word == "-");
        assert_eq!(text.lines().find(dashes), None, "{text}");

        let text = shown(&[]);
        assert!(text.contains("No request was sent"), "{text}");
        assert!(text.contains("offered 2.50, sent"), "{text}");
        let text = shown(&[Sample::whole().record(), failed(9, &error)]);
        assert!(text.contains("ms, 1 of 2 requests"), "{text}");
    }

    #[test]
    fn what_runs_at_once_is_told_as_an_upper_limit() {
        // The second takes the first one's slot before the end of the first was told.
        let first = Sample::whole().at(Moment::ServerFinish, 495);
        let second = Sample::starting(400).at(Moment::QueueEnd, 490);
        let text = shown(&[first.record(), second.record()]);
        let said = "(peak at most 2; a request's end is stamped a little after its slot is free)";
        assert!(text.contains(said), "{text}");
    }

    #[test]
    fn nothing_has_no_sign() {
        assert_eq!(ms(-2.4e-7), "0.000");
        assert_eq!(ms(-0.002), "-2.000");
        assert_eq!(ms(0.0009), "0.900");
        assert_eq!(ms(1.5), "1500.0");
    }
}
