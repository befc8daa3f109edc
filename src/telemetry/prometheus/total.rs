//! What a proxy has done in all, for the last line of its log.

use prometheus::IntCounter;

use crate::telemetry::family::Family;

use super::{Loss, Metrics};

impl Metrics {
    /// All that was counted so far, in words; `trouble` is the last error of writing.
    pub fn total(&self, trouble: Option<&str>) -> String {
        let all = |counts: &Family<IntCounter>| -> u64 {
            let sets = counts.sets();
            sets.iter().map(|(_, count)| count.get()).sum()
        };
        let not_written = format!("not written: {}", trouble.unwrap_or("no reason known"));
        let lost = [
            (Loss::Write, not_written.as_str()),
            (
                Loss::QueueFull,
                "while the queue to the file was full (record_queue)",
            ),
        ];
        let lost = lost.map(|(why, words)| (self.rows_lost.with(&[why.name()]).get(), words));
        let why = lost.iter().filter(|(rows, _)| *rows > 0);
        let why: Vec<String> = why.map(|(rows, words)| format!("{rows} {words}")).collect();
        let total = format!(
            "served {} requests, passed {} others through, wrote {} rows, lost {}",
            all(&self.requests),
            all(&self.passed_through),
            self.rows_written.with(&[]).get(),
            lost.iter().map(|(rows, _)| rows).sum::<u64>()
        );
        match why.is_empty() {
            true => total,
            false => format!("{total} ({})", why.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_counted_is_told_with_the_reasons_for_loss() {
        let metrics = Metrics::new().unwrap();
        metrics.rows_written.with(&[]).inc_by(4);
        metrics.rows_lost.with(&["write"]).inc_by(2);
        metrics.rows_lost.with(&["queue_full"]).inc_by(5);
        let told = "served 0 requests, passed 0 others through, wrote 4 rows, lost 7 \
                    (2 not written: r.csv: no space; 5 while the queue to the file was full (record_queue))";
        assert_eq!(metrics.total(Some("r.csv: no space")), told);
    }
}
