//! The summary as text.

use crate::report::grid::Grid;
use crate::report::render::{Block, servers_table, text};
use crate::request::ColumnId;
use crate::stats;
use crate::units::{count, duration, milliseconds, one_decimal};

use super::Summary;
use super::counts::most_frequent;
use super::latency::{Latencies, Latency};

/// The latencies in the table; those that no request had are left out.
const ROWS: [ColumnId; 17] = [
    ColumnId::server_latency,
    ColumnId::total_latency_from_send,
    ColumnId::total_latency,
    ColumnId::total_latency_from_schedule,
    ColumnId::ttft_from_send,
    ColumnId::ttft,
    ColumnId::ttft_from_schedule,
    ColumnId::queue_time_in_router,
    ColumnId::pure_queue_time,
    ColumnId::tokenize_time,
    ColumnId::decode_bootstrap_time,
    ColumnId::prefill_queue_time,
    ColumnId::prefill_time,
    ColumnId::kv_transfer_time,
    ColumnId::decode_queue_time,
    ColumnId::decode_time,
    ColumnId::tpot,
];

/// The most errors that are named.
const MAX_NAMED: usize = 3;

impl Summary {
    /// The summary as text for the terminal.
    pub fn to_text(&self) -> String {
        let blocks = self.blocks(str::to_owned);
        let shown = blocks.iter().filter_map(|block| text(block, None, None));
        shown.collect::<Vec<String>>().join("\n")
    }

    /// The summary as blocks; `named` returns the label of a host.
    pub fn blocks(&self, named: impl Fn(&str) -> String) -> Vec<Block> {
        let has_ok = self.all.counts.ok() > 0;
        let answer = match self.all.counts.requests {
            0 => "No request ended, so there are no times to show.".to_owned(),
            _ => self.all.time_sentences(),
        };
        let mut lines: Vec<String> = self.of_window().into_iter().collect();
        lines.push(counts(self));
        lines.extend(errors(self));
        lines.push(rates(self));
        lines.extend(has_ok.then(|| tokens(self)));
        lines.extend(concurrency(self));
        lines.extend(goodput(self));
        // The answer first.
        let mut blocks = vec![
            Block::Sentences(vec![answer]),
            Block::Figures(self.all.spent.bars()),
            Block::Figures(lines),
        ];
        blocks.extend(table(self).map(Block::Table));
        blocks.push(Block::Figures(intervals(&self.all.latencies)));
        blocks.push(Block::Sentences(self.warnings()));
        blocks.extend((self.hosts.len() > 1).then(|| Block::Table(servers_table(self, named))));
        let others = self.other_servers().into_iter().collect();
        blocks.push(Block::Sentences(others));
        blocks
    }

    /// That there are more servers than have figures.
    pub fn other_servers(&self) -> Option<String> {
        let (servers, requests) = self.other_hosts;
        let others = || format!("{servers} more servers, with {requests} requests, are not shown.");
        (servers > 0).then(others)
    }

    /// Warnings and notes on the figures.
    pub fn warnings(&self) -> Vec<String> {
        let (counts, scheduled) = (&self.all.counts, self.run.scheduled);
        let (inconsistent, first) = &counts.inconsistent;
        let contradictions = first.as_ref().map(|first| {
            format!(
                "warning: {inconsistent} of {} rows hold what cannot be: moments out of order, durations that are negative or too long, \
                 token counts; the first: {first}. A clock was set during the run, or a server reports wrong times or tokens",
                counts.rows
            )
        });
        let left_out = if_any(self.all.left_out, |left_out| {
            format!(
                "note: left out of what was measured with two clocks, as one was known too poorly: {}",
                count(left_out, "request")
            )
        });
        let missing = (scheduled as u64).saturating_sub(self.whole.requests);
        let missing = if_any(missing, |missing| {
            format!(
                "warning: {missing} of {scheduled} scheduled requests were never sent or have no row that can be read: they are in no figure"
            )
        });
        let unknown = if_any(self.all.tokens.output_unknown, |unknown| {
            format!(
                "note: {unknown} of {} ok requests are in no token figure: the server did not report how many (streams of \
                 the OpenAI endpoints have it with `\"stream_options\": {{\"include_usage\": true}}`), or impossible numbers",
                self.all.completed
            )
        });
        let all = [
            contradictions,
            if_any(counts.retried, |retried| retries(self, retried)),
            left_out,
            missing,
            unknown,
        ];
        all.into_iter().flatten().collect()
    }

    /// Says which requests the figures cover, if not all.
    pub fn of_window(&self) -> Option<String> {
        let window = self.window.as_ref();
        let window = window.filter(|window| !window.is_whole_run())?;
        let [from, to] = [window.from_s, window.to_s].map(duration);
        let requests = count(self.all.counts.requests, "request");
        let (first, last) = (window.left_out_first, window.left_out_last);
        Some(format!(
            "figures are of the {requests} that arrived from {from} to {to}: {first} before and {last} after \
             are left out of them"
        ))
    }
}

/// Figures behind their label.
fn line(label: &str, figures: impl std::fmt::Display) -> String {
    format!("{label:<14}{figures}")
}

fn two_decimals(figure: Option<f64>) -> String {
    figure.map_or("-".to_owned(), |figure| format!("{figure:.2}"))
}

/// A share of all requests in brackets; nothing if it is unknown.
fn of_all(share: Option<f64>) -> String {
    share.map_or(String::new(), |share| format!(" ({})", one_decimal(share)))
}

fn counts(summary: &Summary) -> String {
    let counts = &summary.all.counts;
    let failed = if_any(counts.failed(), |failed| format!(", {failed} failed"));
    format!(
        "{} in {} s: {} ok{}{}",
        count(counts.requests, "request"),
        two_decimals(summary.run.duration()),
        counts.ok(),
        of_all(counts.success_rate()),
        failed.unwrap_or_default(),
    )
}

fn errors(summary: &Summary) -> impl Iterator<Item = String> {
    let errors = &summary.all.counts.errors;
    let shown = most_frequent(errors).take(MAX_NAMED).map(|(error, count)| {
        let error = Some(error.as_str()).filter(|error| !error.is_empty());
        format!("  {count} × {}", error.unwrap_or("(no error text)"))
    });
    let others = errors.len().saturating_sub(MAX_NAMED) as u64;
    shown.chain(if_any(others, |others| {
        format!("  and {others} other errors")
    }))
}

fn rates(summary: &Summary) -> String {
    let (run, all) = (&summary.run, &summary.all);
    let drawn = all.schedule_rate;
    let drawn = drawn.map_or(String::new(), |drawn| format!(" (schedule {drawn:.2})"));
    // All else is of their turns.
    let is_talk = run.config["turns"].as_u64() > Some(1);
    let of = if is_talk { " conversations" } else { "" };
    let sent = match run.offered_rate {
        Some(offered) => format!("offered {offered:.2}{of}{drawn}, sent"),
        None if !run.config.is_null() => format!("offered without limit{drawn}, sent"),
        // Rows alone have no configured rate, and a proxy's have no schedule.
        None if all.is_scheduled => format!("sent{drawn}"),
        None => "arrived".to_owned(),
    };
    let achieved = two_decimals(all.achieved_rate);
    let completed = two_decimals(run.per_second(all.completed as f64));
    line(
        "requests/s",
        format!("{sent} {achieved}, completed {completed}"),
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
        let rate = count.and_then(|count| summary.run.per_second(count as f64));
        let known = count.zip(rate);
        let known = known.map(|(count, rate)| format!("{count} ({rate:.1}/s)"));
        format!("{name} {}", known.unwrap_or("unknown".to_owned()))
    });
    line("tokens", all.join(", "))
}

fn concurrency(summary: &Summary) -> Option<String> {
    let over_time = summary.all.over_time.as_ref()?;
    let places = ["in flight", "queued", "running"].into_iter();
    let places = places.zip(over_time.series.iter().zip(over_time.missing));
    let figures = places.filter_map(|(name, (known, missing))| {
        let (mean, peak) = known.as_ref().map(|known| (known.mean, known.peak))?;
        Some(match missing {
            0 => format!("{name} {mean:.1} (peak {peak})"),
            _ => format!("{name} at least {mean:.1} (peak {peak}; unknown of {missing} requests)"),
        })
    });
    let figures: Vec<String> = figures.collect();
    let counts = &summary.all.counts;
    let has_several = figures.len() > 1 && counts.rows > counts.requests;
    let unit = "; sequences are queued and run, not requests".repeat(has_several.into());
    (!figures.is_empty()).then(|| line("at once", figures.join(", ") + &unit))
}

fn goodput(summary: &Summary) -> Option<String> {
    let goodput = summary.all.goodput.as_ref()?;
    let goals = summary.run.goodput.iter();
    let goals = goals.map(|goal| format!("{} ≤ {} ms", goal.name, goal.limit_ms));
    let goals: Vec<String> = goals.collect();
    let completed = goodput.completed;
    let rate = two_decimals(completed.and_then(|n| summary.run.per_second(n as f64)));
    let unknown = match goodput.unknown {
        0 => String::new(),
        unknown => format!("; unknown for {unknown}, which have no such latency"),
    };
    let (good, share) = (goodput.good, of_all(summary.all.goodput_share()));
    let goals = goals.join(", ");
    Some(line(
        "goodput",
        format!("{rate}/s, {good} requests{share} kept {goals}{unknown}"),
    ))
}

/// The table of the latencies of successful requests. If some failed, lower bounds of all requests stand below; a dash is infinite.
fn table(summary: &Summary) -> Option<Grid> {
    let all = &summary.all;
    let (requests, ok) = (all.counts.requests, all.counts.ok());
    if ok == 0 {
        return None;
    }
    // Without a router that column has the time of our own proxy.
    let no_router = all.spent.requests > 0 && all.spent.routed == 0;
    let from_send = all.latencies.get(ColumnId::total_latency_from_send);
    let is_hidden = |of: &ColumnId| match *of {
        ColumnId::queue_time_in_router => no_router,
        // In the place of those from the send, which a proxy does not know.
        ColumnId::total_latency | ColumnId::ttft => from_send.is_some(),
        _ => false,
    };
    let shown = ROWS.into_iter().filter(|of| !is_hidden(of));
    let shown = shown.filter_map(|of| Some(row(of, all.latencies.get(of)?)));
    let mut rows: Vec<Vec<String>> = shown.collect();
    // If more than half got no response, all figures would be dashes.
    let is_known = |bound: &&stats::Summary| bound.p50.is_finite() && ok < requests;
    let bound = |id| {
        let bound = all.latencies.latency(id)?.at_least.as_ref();
        Some(row(id, bound.filter(is_known)?))
    };
    let mut bounds = ROWS.into_iter().filter_map(bound).peekable();
    if bounds.peek().is_some() {
        rows.push(vec![format!(
            "of all {requests}, at least (-: no answer ever)"
        )]);
    }
    rows.extend(bounds);
    let head = match requests - ok {
        0 => "ms, ok requests".to_owned(),
        _ => format!("ms, {ok} of {requests} requests"),
    };
    let heads = [&head, "count", "mean", "p50", "p95", "p99"];
    Some(Grid::new(heads, rows))
}

fn row(latency: ColumnId, of: &stats::Summary) -> Vec<String> {
    let figures = [of.mean, of.p50, of.p95, of.p99].map(milliseconds);
    let first = [latency.column().label.to_owned(), of.count.to_string()];
    first.into_iter().chain(figures).collect()
}

/// The latencies whose intervals the terminal shows. `summary.json` has those of all.
const INTERVALS_OF: [ColumnId; 2] = [ColumnId::total_latency_from_send, ColumnId::ttft_from_send];

/// The 95 % intervals of quantiles, milliseconds: a line per latency, or a single one if there are no intervals.
fn intervals(latencies: &Latencies) -> Vec<String> {
    let known = INTERVALS_OF.into_iter();
    let known = known.filter_map(|id| latencies.latency(id));
    let known: Vec<&Latency> = known.filter(|of| of.summary.is_some()).collect();
    let mut intervals = known.iter().flat_map(|of| of.intervals);
    if intervals.all(|(_, found)| found.is_none()) {
        let none =
            "No 95 % intervals: too few requests, or neighbouring ones too alike. Run longer.";
        return known.first().map(|_| none.to_owned()).into_iter().collect();
    }
    let within = |(name, found): (&str, Option<(f64, f64)>)| match found {
        Some((low, high)) => format!("{name} [{}, {}]", milliseconds(low), milliseconds(high)),
        None => format!("{name} too few"),
    };
    let line = |of: &&Latency| {
        let shown: Vec<String> = of.intervals.into_iter().map(within).collect();
        let (label, shown) = (of.id.column().label, shown.join(", "));
        format!("95 % intervals of {label}, ms: {shown}")
    };
    known.iter().map(line).collect()
}

/// The text of a count; `None` if it is 0.
fn if_any(count: u64, text: impl FnOnce(u64) -> String) -> Option<String> {
    (count > 0).then(|| text(count))
}

fn retries(summary: &Summary, retried: u64) -> String {
    let counts = &summary.all.counts;
    let failed = most_frequent(&counts.failed_attempts).take(MAX_NAMED);
    let failed = failed.map(|((host, outcome, status), count)| {
        let status = status.map_or(String::new(), |status| format!(" {status}"));
        format!("{count} x {host} {outcome}{status}")
    });
    let failed: Vec<String> = failed.collect();
    let attempts = match failed.is_empty() {
        true => String::new(),
        false => format!("; attempts that failed: {}", failed.join(", ")),
    };
    let all = counts.requests;
    format!("note: {retried} of {all} requests took more than one attempt{attempts}")
}

#[cfg(test)]
mod tests;
