//! What is wrong with a run, in sentences.

use crate::report::duration;

use super::evidence::Evidence;
use super::grade::{Grade, Verdict};

fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent >= 9.95 => format!("{percent:.0} %"),
        percent => format!("{percent:.1} %"),
    }
}

fn of_due(count: u64, evidence: &Evidence) -> String {
    let share = count as f64 / evidence.due.max(1) as f64;
    format!("{count} of {} requests ({})", evidence.due, percent(share))
}

pub(super) fn late(evidence: &Evidence) -> String {
    let lag = evidence.lag.unwrap_or_default();
    format!(
        "{} were sent more than {} late, {} of them more than {} (p99 {}, at most {}; not counting waits for a slot or a \
         connection): lower the rate, give the generator a processor of its own, or use several (--shard)",
        of_due(evidence.late, evidence),
        duration(evidence.bounds.slight),
        evidence.very_late,
        duration(evidence.bounds.gross),
        duration(lag.p99),
        duration(lag.max),
    )
}

pub(super) fn event_loop(evidence: &Evidence) -> String {
    let delay = evidence.event_loop.unwrap_or_default();
    format!(
        "the generator's event loop woke more than {} late in {} of the run, more than {} in {} (p99 {}, at most {}): \
         what came in then is stamped late",
        duration(evidence.loop_bounds.slight),
        percent(evidence.loop_late),
        duration(evidence.loop_bounds.gross),
        percent(evidence.loop_very_late),
        duration(delay.p99),
        duration(delay.max),
    )
}

pub(super) fn stretch(evidence: &Evidence) -> String {
    let gaps = evidence.gaps.unwrap_or_default();
    format!(
        "all sends took {} longer than the schedule: the rate asked for was not reached",
        percent(gaps.stretch - 1.0)
    )
}

pub(super) fn dropped(evidence: &Evidence) -> String {
    format!(
        "{} were never sent, as this machine gave no more files or ports: raise the limit (ulimit -n), or use several \
         generators (--shard)",
        of_due(evidence.dropped, evidence)
    )
}

pub(super) fn stopped(evidence: &Evidence) -> String {
    let all = evidence.due + evidence.unsent;
    format!(
        "the run was stopped: {} of {all} requests were never sent and {} given up, so the figures are of its beginning",
        evidence.unsent, evidence.given_up
    )
}

pub(super) fn failed(evidence: &Evidence) -> String {
    format!(
        "{} failed: latencies are those of the others",
        of_due(evidence.failed, evidence)
    )
}

pub(super) fn busy(evidence: &Evidence) -> String {
    format!(
        "the generator's event loop was at work {} of the time: it is near its own limit",
        percent(evidence.cpu.loop_busy.unwrap_or_default())
    )
}

impl Verdict {
    /// The verdict as the terminal shows it, the last line ended.
    pub fn to_text(&self, evidence: &Evidence) -> String {
        let late = |name: &str, delay: Option<super::evidence::Delay>| {
            delay.map(|delay| format!("{name} p99 {} late", duration(delay.p99)))
        };
        let figures = [
            late("sends", evidence.lag),
            late("event loop", evidence.event_loop),
        ];
        let figures: Vec<String> = figures.into_iter().flatten().collect();
        let mut text = format!(
            "{:<14}{}: {}\n",
            "verdict",
            self.grade.name(),
            figures.join(", ")
        );
        for reason in &self.reasons {
            text.push_str(&format!("{:<14}{reason}\n", ""));
        }
        text
    }

    /// `text` with a line above each of its blocks that says that its figures are not to be believed, if they are not.
    pub fn marked(&self, text: &str) -> String {
        let line = match self.grade {
            Grade::Valid => return text.to_owned(),
            // Its figures hold, within what the reasons say: once is enough.
            Grade::Degraded => {
                return format!("DEGRADED: read the verdict before these figures\n{text}");
            }
            Grade::Invalid => "INVALID: these figures are not the server's",
        };
        let blocks = text.split("\n\n").map(|block| format!("{line}\n{block}"));
        blocks.collect::<Vec<_>>().join("\n\n")
    }
}
