//! What a proxy has done in all, for the last line of its log.

use prometheus::IntCounterVec;

use crate::telemetry::family::Family;

use super::{Loss, Metrics};

/// What a proxy has done since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Total {
    /// Generation requests that have ended.
    pub requests: u64,
    /// Requests to paths that are not recorded.
    pub passed_through: u64,
    /// Rows on disk.
    pub written: u64,
    /// Rows that could not be written.
    pub not_written: u64,
    /// Rows for which the queue to the file was full.
    pub not_queued: u64,
}

impl Metrics {
    /// All that was counted so far.
    pub fn total(&self) -> Total {
        let lost = |why: Loss| self.rows_lost.with(&[why.name()]).get();
        let all = |counts: &Family<IntCounterVec>| {
            counts
                .shown(&[])
                .iter()
                .map(|(_, count)| *count as u64)
                .sum()
        };
        Total {
            requests: all(&self.requests),
            passed_through: all(&self.passed_through),
            written: self.rows_written.with(&[]).get(),
            not_written: lost(Loss::Write),
            not_queued: lost(Loss::QueueFull),
        }
    }
}

impl Total {
    /// In words; `trouble` is the last error of writing.
    pub fn words(&self, trouble: Option<&str>) -> String {
        let lost = self.not_written + self.not_queued;
        let mut why = Vec::new();
        if self.not_written > 0 {
            let trouble = trouble.unwrap_or("no reason known");
            why.push(format!("{} not written: {trouble}", self.not_written));
        }
        if self.not_queued > 0 {
            let (many, key) = (self.not_queued, "record_queue");
            why.push(format!(
                "{many} while the queue to the file was full ({key})"
            ));
        }
        let why = if why.is_empty() {
            String::new()
        } else {
            format!(" ({})", why.join("; "))
        };
        format!(
            "served {} requests, passed {} others through, wrote {} rows, lost {lost}{why}",
            self.requests, self.passed_through, self.written
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::endpoint::Endpoint;
    use crate::request::outcome::Outcome;
    use crate::request::sample::rows;
    use crate::telemetry::prometheus::tests::row;

    #[test]
    fn all_that_was_counted_is_told_with_the_reasons_for_loss() {
        let metrics = Metrics::new().unwrap();
        let words = metrics.total().words(None);
        assert_eq!(
            words,
            "served 0 requests, passed 0 others through, wrote 0 rows, lost 0"
        );
        for (endpoint, outcome) in [
            (Endpoint::Chat, Outcome::Ok),
            (Endpoint::Chat, Outcome::Timeout),
            (Endpoint::Generate, Outcome::Ok),
        ] {
            metrics.request_ended(&rows(&[row(endpoint, outcome)]));
        }
        metrics.passed_through("/v1/embeddings");
        metrics.rows_written.with(&[]).inc_by(4);
        metrics.rows_lost(Loss::Write, 2);
        let words = metrics.total().words(Some("r.csv: no space"));
        assert_eq!(
            words,
            "served 3 requests, passed 1 others through, wrote 4 rows, lost 2 (2 not written: r.csv: no space)"
        );
        metrics.rows_lost(Loss::QueueFull, 5);
        let words = metrics.total().words(Some("x"));
        let why =
            "lost 7 (2 not written: x; 5 while the queue to the file was full (record_queue))";
        assert!(words.ends_with(why), "{words}");
    }
}
