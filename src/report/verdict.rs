//! Whether the figures of a run can be believed: did the generator send what was asked for when it was asked for, and
//! could it see what came back when it came?
//!
//! Pure. It judges effects: late sends, a late event loop, another load than the one asked for.

mod evidence;
mod grade;
mod limits;
mod words;

#[cfg(test)]
mod tests;

pub use evidence::{Bounds, Cpu, Delay, Evidence, Gaps};
pub use grade::{Grade, Verdict};
pub use limits::{LIMITS, Limit};

/// Judges a run.
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut found = limits::judged(evidence);
    found.sort_by_key(|(grade, _)| std::cmp::Reverse(*grade));
    let grade = found.first().map_or(Grade::Valid, |(grade, _)| *grade);
    Verdict {
        grade,
        reasons: found.into_iter().map(|(_, reason)| reason).collect(),
    }
}
