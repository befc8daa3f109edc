//! The totals of a proxy's metrics, for the last line of its log.

use super::{Loss, Metrics};

impl Metrics {
    /// Returns the totals as a sentence. `write_error` is the last error of writing.
    pub fn totals(&self, write_error: Option<&str>) -> String {
        let served = self.requests.sets();
        let served: u64 = served.iter().map(|(_, count)| count.get()).sum();
        let not_written = format!("not written: {}", write_error.unwrap_or("no reason known"));
        let queue_full = "while the queue to the file was full (record_queue)".to_owned();
        let lost = [(Loss::Write, not_written), (Loss::QueueFull, queue_full)];
        let lost = lost.map(|(loss, text)| (self.rows_lost.with(&[loss.name()]).get(), text));
        let reasons = lost.iter().filter(|(rows, _)| *rows > 0);
        let reasons = reasons.map(|(rows, text)| format!("{rows} {text}"));
        let reasons: Vec<String> = reasons.collect();
        let total = format!(
            "served {served} requests, passed {} others through, wrote {} rows, lost {}",
            self.passed_through.with(&[]).get(),
            self.rows_written.with(&[]).get(),
            lost.iter().map(|(rows, _)| rows).sum::<u64>()
        );
        match reasons.is_empty() {
            true => total,
            false => format!("{total} ({})", reasons.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_totals_name_the_reasons_of_losses() {
        let metrics = Metrics::new().unwrap();
        metrics.rows_written.with(&[]).inc_by(4);
        metrics.rows_lost.with(&["write"]).inc_by(2);
        metrics.rows_lost.with(&["queue_full"]).inc_by(5);
        let expected = "served 0 requests, passed 0 others through, wrote 4 rows, lost 7 \
                    (2 not written: r.csv: no space; 5 while the queue to the file was full (record_queue))";
        assert_eq!(metrics.totals(Some("r.csv: no space")), expected);
    }
}
