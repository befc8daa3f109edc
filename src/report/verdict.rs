//! Whether the figures of a run can be believed: did the generator send what was asked for when it was asked for, and
//! could it see what came back when it came?
//!
//! Pure. It judges effects (late sends, a late event loop, another load than the one asked for); what may have caused
//! them (a throttled process, a crowded machine) stands beside them in the reasons.

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
    let causes = (!found.is_empty()).then(|| words::causes(evidence));
    let reasons = found.into_iter().map(|(_, reason)| reason);
    Verdict {
        grade,
        reasons: reasons.chain(causes.into_iter().flatten()).collect(),
    }
}
