//! The summary in words.

use crate::report::duration;
use crate::report::grid::Grid;
use crate::report::words::{Block, text};
use crate::request::record::Outcome;
use crate::request::timeline::Stage;
use crate::stats;

use super::flow::InServer;
use super::intervals::{intervals, ms};
use super::latency::label;
use super::summary::Summary;
use super::way_back;

/// The latencies of the table.
const ROWS: [&str; 15] = [
    "server_latency",
    "total_latency_from_send",
    "total_latency_from_schedule",
    "ttft_from_send",
    "ttft_from_schedule",
    "queue_time_in_router",
    "pure_queue_time",
    "tokenize_time",
    "decode_bootstrap_time",
    "prefill_queue_time",
    "prefill_time",
    "kv_transfer_time",
    "decode_queue_time",
    "decode_time",
    "tpot",
];

/// So many errors, kinds of failures, and servers are named.
const NAMED: (usize, usize, usize) = (3, 4, 6);

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
        let said = match is_answered {
            true => self.all.verdict(),
            false => unanswered(self),
        };
        let mut lines: Vec<String> = self.of_window().into_iter().collect();
        lines.push(counts(self));
        lines.extend(errors(self));
        lines.extend(failures(self));
        lines.push(rates(self));
        lines.extend(is_answered.then(|| tokens(self)));
        lines.extend(concurrency(self));
        lines.extend(goodput(self));
        lines.extend(servers(self));
        // The answer first.
        let mut blocks = vec![
            Block::Words(vec![said]),
            Block::Figures(self.all.spent.bars()),
            Block::Figures(lines),
        ];
        blocks.extend(table(self).map(Block::Table));
        blocks.push(Block::Figures(intervals(&self.all.latencies)));
        blocks.push(Block::Words(warnings(self).collect()));
        blocks
    }

    /// What the figures are of, where it is not all.
    pub fn of_window(&self) -> Option<String> {
        let window = self.window.as_ref().filter(|window| !window.is_all())?;
        let [from, to] = [window.from_s, window.to_s].map(duration);
        let (requests, rule) = (self.all.counts.requests, &window.rule);
        let (first, last) = (window.left_out_first, window.left_out_last);
        Some(format!(
            "figures are of the {requests} requests that arrived from {from} to {to} ({rule}): {first} before and {last} after \
             are left out of them"
        ))
    }
}

/// Figures behind their label.
fn line(label: &str, figures: impl std::fmt::Display) -> String {
    format!("{label:<14}{figures}")
}

/// How many of `all` are not among the first `shown`, in words.
fn more(all: usize, shown: usize, words: impl FnOnce(usize) -> String) -> Option<String> {
    let more = all.checked_sub(shown).filter(|more| *more > 0);
    more.map(words)
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), |rate| format!("{rate:.2}"))
}

/// Whether the run came to a steady state.
fn unsteady(summary: &Summary) -> Option<String> {
    let window = summary.window.as_ref()?;
    let trend = window.trend.filter(|trend| !trend.is_steady)?;
    let what = match window.is_all() {
        true => "leave its beginning out (--leave-out-first auto), or let it go on longer",
        false => "let the run go on longer, or lower the rate",
    };
    let [first, last] = [trend.first, trend.last].map(duration);
    Some(format!(
        "note: TTFT went from {first} in the first quarter to {last} in the last, so the figures depend on how long it ran: {what}"
    ))
}

fn counts(summary: &Summary) -> String {
    let counts = &summary.all.counts;
    let ends = counts
        .outcomes
        .iter()
        .map(|(outcome, count)| match outcome {
            Outcome::Ok => (outcome.name(), 0),
            Outcome::ClientAbort => (outcome.name(), count - counts.given_up),
            _ => (outcome.name(), *count),
        });
    let ends = ends.chain([("given up when the run was stopped", counts.given_up)]);
    let ends = ends.filter(|(_, count)| *count > 0);
    let ends: String = ends
        .map(|(name, count)| format!(", {count} {name}"))
        .collect();
    let share = counts.success_rate();
    let share = share.map_or(String::new(), |share| format!(" ({:.1} %)", share * 100.0));
    format!(
        "{} requests in {:.2} s: {} ok{share}{ends}",
        counts.requests,
        summary.run.duration().unwrap_or(0.0),
        counts.ok(),
    )
}

fn errors(summary: &Summary) -> impl Iterator<Item = String> {
    let errors = &summary.all.counts.errors;
    let shown = errors.most_frequent().take(NAMED.0).map(|(error, count)| {
        let said = match error.as_str() {
            "" => "(nothing said)".to_owned(),
            error => shortened(error),
        };
        format!("  {count} × {said}")
    });
    shown.chain(more(errors.len(), NAMED.0, |more| {
        format!("  and {more} other errors")
    }))
}

/// What stands in place of the table where there is nothing to put into it.
fn unanswered(summary: &Summary) -> String {
    if summary.all.counts.requests == 0 {
        return "No request was sent, so there are no times to show.".to_owned();
    }
    let verdict = summary.all.verdict();
    format!(
        "No request succeeded. {verdict} The column ended_in has the stage in which each ended."
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
fn failures(summary: &Summary) -> impl Iterator<Item = String> {
    let kinds = &summary.all.failures.kinds;
    let shown = kinds.iter().take(NAMED.1).map(|kind| {
        let ended_in = kind.last_seen.map(|seen| seen.ended_in(Stage::label));
        let waited = kind.waited.map(|waited| {
            let [mean, max] = [waited.mean, waited.max].map(duration);
            format!(", after {mean} (longest {max})")
        });
        let elsewhere = kind.elsewhere();
        let elsewhere =
            elsewhere.map(|(spent, share)| format!(", {share:.0} % of it {}", spent.place()));
        let what = format!(
            "{} {}, last seen in {}{}{}",
            kind.requests,
            kind.outcome.name(),
            ended_in.unwrap_or("no stage".into()),
            waited.unwrap_or_default(),
            elsewhere.unwrap_or_default(),
        );
        line("failed", what)
    });
    let others = more(kinds.len(), NAMED.1, |more| {
        line("failed", format!("and {more} other ways"))
    });
    shown.chain(others)
}

fn rates(summary: &Summary) -> String {
    let (run, all) = (&summary.run, &summary.all);
    let drawn = all.flow.schedule_rate;
    let drawn = drawn.map_or(String::new(), |drawn| format!(" (as drawn {drawn:.2})"));
    let came = match run.offered_rate {
        Some(offered) => format!("offered {offered:.2}{drawn}, sent"),
        None if !run.config.is_null() => format!("offered without limit{drawn}, sent"),
        // Rows alone tell of no rate that was asked for, and a proxy's of no schedule.
        None if all.flow.is_scheduled => format!("sent{drawn}"),
        None => "arrived".to_owned(),
    };
    let achieved = rate(all.flow.achieved_rate);
    let completed = rate(run.a_second(all.completed as f64));
    line(
        "requests/s",
        format!("{came} {achieved}, completed {completed}"),
    )
}

fn tokens(summary: &Summary) -> String {
    let tokens = &summary.all.tokens;
    let all = [
        ("input", tokens.input),
        ("output", tokens.output),
        ("total", tokens.total()),
    ];
    let all = all.map(|(name, count)| {
        let rate = count.and_then(|count| summary.run.a_second(count as f64));
        match count.zip(rate) {
            Some((count, rate)) => format!("{name} {count} ({rate:.1}/s)"),
            None => format!("{name} unknown"),
        }
    });
    line("tokens", all.join(", "))
}

fn concurrency(summary: &Summary) -> Option<String> {
    let over_time = summary.all.flow.over_time.as_ref()?;
    let at_once = |name: &str, of: Option<&InServer>, known: &str, most: &str, note: &str| {
        let of = of?;
        let (mean, peak) = (of.known.mean, of.known.peak);
        Some(match of.unknown {
            0 => format!("{name} {mean:.1} (peak {known}{peak}{note})"),
            unknown => format!(
                "{name} at least {mean:.1} (peak {most} {peak}; of {unknown} requests it is not known)"
            ),
        })
    };
    let (mean, peak) = (over_time.in_flight.mean, over_time.in_flight.peak);
    // Between an end and its stamp another request may run already.
    let late = "; a request's end is stamped a little after its slot is free";
    let figures = [
        Some(format!("in flight {mean:.1} (peak {peak})")),
        at_once("queued", over_time.queued.as_ref(), "", "at least", ""),
        at_once(
            "running",
            over_time.running.as_ref(),
            "at most ",
            "about",
            late,
        ),
    ];
    let figures: Vec<String> = figures.into_iter().flatten().collect();
    Some(line("at once", figures.join(", ")))
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
        unknown => format!("; unknown for {unknown}, which have no such latency"),
    };
    let (good, goals) = (goodput.good, goals.join(", "));
    Some(line(
        "goodput",
        format!("{rate:.2}/s, {good} requests kept {goals}{unknown}"),
    ))
}

fn servers(summary: &Summary) -> impl Iterator<Item = String> {
    let shown = summary.hosts.iter().take(NAMED.2).map(|(host, group)| {
        let (requests, ok) = (group.counts.requests, group.counts.ok());
        let median = |name| {
            let summary = group.latencies.get(name);
            summary.map_or("-".to_owned(), |s| format!("{} ms", ms(s.p50)))
        };
        let figures = match ok {
            0 => "none ok".to_owned(),
            ok => format!(
                "{ok} ok: median server queue {}, server latency {}",
                median("pure_queue_time"),
                median("server_latency")
            ),
        };
        line("server", format!("{host}: {requests} requests, {figures}"))
    });
    let others = summary
        .other_hosts
        .as_ref()
        .map_or(0, |(servers, _)| *servers);
    let all = summary.hosts.len() + others;
    shown.chain(more(all, NAMED.2, |more| {
        line("server", format!("and {more} more"))
    }))
}

/// The latencies of those that went well; below them, where some did not, those that everybody waits for, of all requests:
/// those given up while they waited waited longer, and a figure that those without any answer take part in is a dash.
fn table(summary: &Summary) -> Option<Grid> {
    let all = &summary.all;
    let (requests, ok) = (all.counts.requests, all.counts.ok());
    let mut rows = Vec::new();
    if ok > 0 {
        // Without a router that column holds our own proxy's time, or nothing at all.
        let no_router = all.spent.requests > 0 && all.spent.routed == 0;
        // A proxy does not know when its clients sent.
        let is_sent = all.latencies.get("total_latency_from_send").is_some();
        let shown = ROWS.iter().filter_map(|name| match *name {
            "queue_time_in_router" if no_router => None,
            // Only requests of pairs have them.
            "decode_bootstrap_time"
            | "prefill_queue_time"
            | "kv_transfer_time"
            | "decode_queue_time" => all.latencies.get(name).map(|_| *name),
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
    let known = known.filter(|(_, told)| told.p50.is_finite() && ok < requests);
    let known: Vec<(&&str, &stats::Summary)> = known.collect();
    // Where none went well there is no table above whose heads it could share.
    if !known.is_empty() && ok > 0 {
        let sent = all.failures.at_least("total_latency_from_send");
        let sent = sent.filter(|told| told.count < requests);
        let sent = sent.map_or(String::new(), |told| format!(" ({} sent)", told.count));
        let dash = match known.iter().all(|(_, told)| told.mean.is_finite()) {
            true => "",
            false => "; -: no answer ever",
        };
        rows.push(vec![format!("of all {requests}{sent}, at least{dash}")]);
    }
    rows.extend(known.iter().map(|(name, told)| row(name, Some(told))));
    let head = match (ok, requests - ok) {
        (0, _) => "ms, at least".to_owned(),
        (_, 0) => "ms, ok requests".to_owned(),
        _ => format!("ms, {ok} of {requests} requests"),
    };
    let heads = [&head, "count", "mean", "p50", "p95", "p99"].map(str::to_owned);
    let heads = heads.into();
    (!rows.is_empty()).then_some(Grid { heads, rows })
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

/// What is to be known of the figures.
fn warnings(summary: &Summary) -> impl Iterator<Item = String> {
    let (counts, scheduled) = (&summary.all.counts, summary.run.scheduled);
    let (wrong, first) = &counts.inconsistent;
    let contradictions = first.as_ref().map(|first| {
        format!(
            "warning: {wrong} of {} rows hold what cannot be: moments out of order, durations that are negative or too long, \
             token counts; the first: {first}",
            counts.rows
        )
    });
    let left_out = some(summary.all.left_out, |left_out| {
        let are = match left_out {
            1 => "request is",
            _ => "requests are",
        };
        format!(
            "note: {left_out} {are} left out of what was measured with two clocks: one was known there too poorly"
        )
    });
    let missing = (scheduled as u64).saturating_sub(summary.whole.requests);
    let missing = some(missing, |missing| {
        format!(
            "warning: {missing} of {scheduled} scheduled requests have no record: the run ended before them"
        )
    });
    let unknown = some(summary.all.tokens.output_unknown, |unknown| {
        let impossible = match wrong {
            0 => "",
            _ => ", or the reported numbers are impossible (the column `inconsistency` names it)",
        };
        format!(
            "note: {unknown} of {} ok requests are in no token figure: the server did not report how many (streams of \
             the OpenAI endpoints have it with `\"stream_options\": {{\"include_usage\": true}}`){impossible}",
            counts.ok()
        )
    });
    let held = way_back::finding(&summary.all).map(|finding| format!("note: {finding}"));
    let all = [
        contradictions,
        some(counts.retried, |retried| retries(summary, retried)),
        left_out,
        held,
        missing,
        unknown,
        unsteady(summary),
    ];
    all.into_iter().flatten()
}

/// Words of a count, where there are any.
fn some(count: u64, words: impl FnOnce(u64) -> String) -> Option<String> {
    (count > 0).then(|| words(count))
}

fn retries(summary: &Summary, retried: u64) -> String {
    let counts = &summary.all.counts;
    let failed = counts.failed_attempts.most_frequent();
    let failed = failed.take(NAMED.0).map(|(of, count)| {
        let status = of
            .status
            .map_or(String::new(), |status| format!(" {status}"));
        format!("{count} x {} {}{status}", of.host, of.outcome)
    });
    let failed: Vec<String> = failed.collect();
    let what = match failed.is_empty() {
        true => String::new(),
        false => format!("; attempts that failed: {}", failed.join(", ")),
    };
    let all = counts.requests;
    format!("note: {retried} of {all} requests took more than one attempt{what}")
}

#[cfg(test)]
mod tests;
