//! Judges whether the figures of a run can be trusted: whether the generator sent the load that was asked for in time, and read the
//! responses in time.
//!
//! Pure. It judges effects (late sends, a late event loop, a load other than the one asked for), not their causes.

pub mod evidence;
#[cfg(test)]
mod tests;

use evidence::Evidence;

use crate::report::files::{Grade, Verdict};
use crate::units::{duration, percent};

/// A figure with two limits: above the first the run is degraded, above the second invalid; `None`: it never is by this figure alone.
type Limit = (fn(&Evidence) -> f64, f64, Option<f64>);

/// Figures that are judged together, and the reason that is given if one of them is above a limit.
type Criterion = (&'static [Limit], fn(&Evidence) -> String);

/// One percent of late sends is what decides the p99; with a tenth of the sends late, the load is another one. Tokens that arrive
/// while the event loop is late get late timestamps. Failures are the server's, and may be what is
/// tested: they never make a run invalid.
const CRITERIA: [Criterion; 5] = [
    (
        &[
            (|e| share_of_several(e.late, e.sent), 0.01, Some(0.1)),
            (|e| share_of_several(e.very_late, e.sent), 0.002, Some(0.01)),
        ],
        late_reason,
    ),
    (
        &[
            (|e| e.loop_late, 0.02, Some(0.2)),
            (|e| e.loop_very_late, 0.01, Some(0.05)),
        ],
        event_loop_reason,
    ),
    (&[(|e| share(e.dropped, e.due), 0.0, Some(0.01))], |e| {
        let dropped = count_of(e.dropped, e.due);
        format!(
            "{dropped} were never sent, as this machine gave no more files or ports: raise the limit (ulimit -n), or use several \
             generators (--shard)"
        )
    }),
    (&[(|e| (e.unsent + e.given_up) as f64, 0.0, None)], |e| {
        let (unsent, given_up, all) = (e.unsent, e.given_up, e.scheduled);
        format!(
            "the run was stopped: {unsent} of {all} requests were never sent and {given_up} given up, so the figures are of its \
             beginning"
        )
    }),
    (
        &[(|e| share_of_several(e.failed, e.due), 0.03, None)],
        |e| {
            let latencies = match e.failed < e.due {
                true => "latencies are those of the others",
                false => "there are no latencies",
            };
            format!("{} failed: {latencies}", count_of(e.failed, e.due))
        },
    ),
];

/// Judges a run.
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut found: Vec<(Grade, String)> = CRITERIA
        .iter()
        .filter_map(|(limits, reason)| Some((grade(limits, evidence)?, reason(evidence))))
        .collect();
    found.sort_by_key(|(grade, _)| std::cmp::Reverse(*grade));
    Verdict {
        grade: found.first().map_or(Grade::Valid, |(grade, _)| *grade),
        reasons: found.into_iter().map(|(_, reason)| reason).collect(),
    }
}

fn grade(limits: &[Limit], evidence: &Evidence) -> Option<Grade> {
    let grades = limits.iter().filter_map(|(value, degraded, invalid)| {
        let value = value(evidence);
        match invalid.is_some_and(|limit| value > limit) {
            true => Some(Grade::Invalid),
            false => (value > *degraded).then_some(Grade::Degraded),
        }
    });
    grades.max()
}

impl Verdict {
    /// Renders the verdict for the terminal, with a line break at the end.
    pub fn to_text(&self, evidence: &Evidence) -> String {
        let figures = [("sends", evidence.lag), ("event loop", evidence.event_loop)];
        let figures = figures
            .into_iter()
            .filter_map(|(name, delay)| Some(format!("{name} p99 {} late", duration(delay?.p99))));
        let figures: Vec<String> = figures.collect();
        let (grade, figures) = (self.grade.name(), figures.join(", "));
        let reasons = self
            .reasons
            .iter()
            .map(|reason| format!("{:<14}{reason}\n", ""));
        format!(
            "{:<14}{grade}: {figures}\n{}",
            "verdict",
            reasons.collect::<String>()
        )
    }

    /// Marks `text`, the figures of a run: each block if they are invalid, once if they are degraded.
    pub fn marked(&self, text: &str) -> String {
        let line = match self.grade {
            Grade::Valid => return text.to_owned(),
            // The figures hold within what the reasons say.
            Grade::Degraded => {
                return format!("DEGRADED: read the verdict before these figures\n{text}");
            }
            Grade::Invalid => "INVALID: these figures are not the server's",
        };
        let blocks = text.split("\n\n").map(|block| format!("{line}\n{block}"));
        blocks.collect::<Vec<_>>().join("\n\n")
    }
}

fn share(count: u64, all: u64) -> f64 {
    count as f64 / all.max(1) as f64
}

/// The share of `count` in `all`; 0 of a single request, which says nothing about a share.
fn share_of_several(count: u64, all: u64) -> f64 {
    match count {
        0 | 1 => 0.0,
        count => share(count, all),
    }
}

fn count_of(count: u64, all: u64) -> String {
    let share = percent(share(count, all));
    format!("{count} of {all} requests ({share})")
}

fn late_reason(evidence: &Evidence) -> String {
    let (late, very_late) = (count_of(evidence.late, evidence.sent), evidence.very_late);
    let (bounds, lag) = (evidence.bounds, evidence.lag.unwrap_or_default());
    let [slight, gross, p99, max] = [bounds.slight, bounds.gross, lag.p99, lag.max].map(duration);
    format!(
        "{late} were sent more than {slight} late, {very_late} of them more than {gross} (p99 {p99}, at most {max}; not \
         counting waits for a slot or a connection): lower the rate, give the generator a processor of its own, or use \
         several (--shard)"
    )
}

fn event_loop_reason(evidence: &Evidence) -> String {
    let [late, very_late] = [evidence.loop_late, evidence.loop_very_late].map(percent);
    let bounds = evidence.bounds;
    let delay = evidence.event_loop.unwrap_or_default();
    let [slight, gross, p99, max] =
        [bounds.slight, bounds.gross, delay.p99, delay.max].map(duration);
    format!(
        "the generator's event loop woke more than {slight} late in {late} of the run, more than {gross} in {very_late} \
         (p99 {p99}, at most {max}): what arrived then has times that are too late"
    )
}
