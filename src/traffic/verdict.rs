//! Whether the figures of a run can be believed: did the generator send what was asked for when it was asked for, and
//! could it see what came back when it came?
//!
//! Pure. It judges effects: late sends, a late event loop, another load than the one asked for.

mod evidence;
#[cfg(test)]
mod tests;

pub use evidence::{Bounds, Delay, Evidence, Gaps};

use crate::report::verdict::{Cause, Grade, Verdict};
use crate::units::{duration, percent};

/// A figure, and from where on it is what; `None`: this alone never makes it invalid.
type Bound = (fn(&Evidence) -> f64, f64, Option<f64>);

/// Something that is judged: figures, each with the limits above which it degrades a run and makes it invalid, and what is
/// wrong then.
type Limit = (Cause, &'static [Bound], fn(&Evidence) -> String);

/// A percent of late sends is what the p99 holds, and a percent of very late ones alone can make it; with a tenth of the
/// sends late, or a tenth of the time more, the load is another. Tokens that come while the event loop is late are stamped
/// late. To fail is the server's doing, and may be what is tested: alone it never makes a run invalid.
const LIMITS: [Limit; 6] = [
    (
        Cause::LateSends,
        &[
            (|e| several(e.late, e.sent), 0.01, Some(0.1)),
            (|e| several(e.very_late, e.sent), 0.002, Some(0.01)),
        ],
        late,
    ),
    (
        Cause::LateEventLoop,
        &[
            (|e| e.loop_late, 0.02, Some(0.2)),
            (|e| e.loop_very_late, 0.01, Some(0.05)),
        ],
        event_loop,
    ),
    (Cause::LowRate, &[(stretched, 0.02, Some(0.1))], |e| {
        let longer = percent(stretched(e));
        format!(
            "all sends took {longer} longer than the schedule: the rate asked for was not reached"
        )
    }),
    (
        Cause::Unsent,
        &[(|e| share(e.dropped, e.due), 0.0, Some(0.01))],
        |e| {
            let dropped = of_all(e.dropped, e.due);
            format!(
                "{dropped} were never sent, as this machine gave no more files or ports: raise the limit (ulimit -n), or use several \
             generators (--shard)"
            )
        },
    ),
    (
        Cause::Stopped,
        &[(|e| (e.unsent + e.given_up) as f64, 0.0, None)],
        |e| {
            let (unsent, given_up, all) = (e.unsent, e.given_up, e.scheduled);
            format!(
                "the run was stopped: {unsent} of {all} requests were never sent and {given_up} given up, so the figures are of its \
             beginning"
            )
        },
    ),
    (
        Cause::Failed,
        &[(|e| several(e.failed, e.due), 0.03, None)],
        |e| {
            let failed = of_all(e.failed, e.due);
            format!("{failed} failed: latencies are those of the others")
        },
    ),
];

/// Judges a run.
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut found: Vec<(Grade, Cause, String)> = LIMITS
        .iter()
        .filter_map(|(cause, bounds, words)| {
            Some((grade(bounds, evidence)?, *cause, words(evidence)))
        })
        .collect();
    found.sort_by_key(|(grade, ..)| std::cmp::Reverse(*grade));
    Verdict {
        grade: found.first().map_or(Grade::Valid, |(grade, ..)| *grade),
        causes: found.iter().map(|(_, cause, _)| *cause).collect(),
        reasons: found.into_iter().map(|(.., reason)| reason).collect(),
    }
}

fn grade(bounds: &[Bound], evidence: &Evidence) -> Option<Grade> {
    let grades = bounds.iter().filter_map(|(value, degraded, invalid)| {
        let value = value(evidence);
        match invalid.is_some_and(|most| value > most) {
            true => Some(Grade::Invalid),
            false => (value > *degraded).then_some(Grade::Degraded),
        }
    });
    grades.max()
}

impl Verdict {
    /// The verdict as the terminal shows it, the last line ended.
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

/// How much longer all sends took than the schedule gave them, as a share of that.
fn stretched(evidence: &Evidence) -> f64 {
    evidence.gaps.map_or(0.0, |gaps| gaps.stretch - 1.0)
}

fn share(count: u64, all: u64) -> f64 {
    count as f64 / all.max(1) as f64
}

/// A share of them; one request tells nothing of a share.
fn several(count: u64, all: u64) -> f64 {
    match count {
        0 | 1 => 0.0,
        count => share(count, all),
    }
}

fn of_all(count: u64, all: u64) -> String {
    let share = percent(share(count, all));
    format!("{count} of {all} requests ({share})")
}

fn late(evidence: &Evidence) -> String {
    let (late, very_late) = (of_all(evidence.late, evidence.sent), evidence.very_late);
    let (bounds, lag) = (evidence.bounds, evidence.lag.unwrap_or_default());
    let [slight, gross, p99, max] = [bounds.slight, bounds.gross, lag.p99, lag.max].map(duration);
    format!(
        "{late} were sent more than {slight} late, {very_late} of them more than {gross} (p99 {p99}, at most {max}; not \
         counting waits for a slot or a connection): lower the rate, give the generator a processor of its own, or use \
         several (--shard)"
    )
}

fn event_loop(evidence: &Evidence) -> String {
    let [late, very_late] = [evidence.loop_late, evidence.loop_very_late].map(percent);
    let (bounds, delay) = (
        evidence.loop_bounds,
        evidence.event_loop.unwrap_or_default(),
    );
    let [slight, gross, p99, max] =
        [bounds.slight, bounds.gross, delay.p99, delay.max].map(duration);
    format!(
        "the generator's event loop woke more than {slight} late in {late} of the run, more than {gross} in {very_late} \
         (p99 {p99}, at most {max}): what came in then is stamped late"
    )
}
