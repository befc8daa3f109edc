//! What the router did on the way back, where it is worth a sentence.

use crate::report::duration;

use super::summary::Group;

/// Less than this is no finding, seconds.
const LEAST: f64 = 1e-3;
/// Nor is less than this share of the time to the first token.
const LEAST_SHARE: f64 = 0.05;

/// One sentence, if first events were held back for a notable time on the way back.
pub fn finding(group: &Group) -> Option<String> {
    let ttft = group.latencies.ttft()?.mean;
    let held = group.latencies.get("router_return")?;
    let share = Some(held.mean / ttft).filter(|share| held.mean >= LEAST && *share >= LEAST_SHARE);
    let percent = share? * 100.0;
    let mut sentence = format!(
        "the router delayed the first event by {} on average on its way to the client (p50 {}, p99 {}), {percent:.0} % of the \
         TTFT",
        duration(held.mean),
        duration(held.p50),
        duration(held.p99)
    );
    let last = group.latencies.get("router_return_last");
    if let Some(last) = last.filter(|last| last.mean < held.mean - LEAST) {
        sentence.push_str(&format!(
            ", and the last bytes {}: what is measured between tokens is too short by the difference",
            duration(last.mean)
        ));
    }
    Some(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::load::tests::run;
    use crate::report::load::{RunFacts, Summary};
    use crate::report::sample::{Sample, at};
    use crate::request::record::Record;

    /// The first event read so many microseconds after it passed the hop, the last bytes after so many.
    fn row(first: i64, last: i64) -> Record {
        let sample = Sample::whole().with(|record| {
            let (worker, here) = (&mut record.facts.worker_passage, &mut record.facts.passage);
            here.piece(at(210), 0);
            here.piece(at(490), 0);
            worker.piece(at(210).plus_nanos(-first * 1_000), 0);
            worker.piece(at(490).plus_nanos(-last * 1_000), 0);
        });
        sample.record()
    }

    fn found(rows: &[Record]) -> Option<String> {
        let run = RunFacts {
            scheduled: rows.len(),
            ..run()
        };
        finding(&Summary::of_records(rows, &run).all)
    }

    #[test]
    fn a_first_event_held_back_is_named() {
        let said = found(&[row(40_000, 800), row(800, 800), row(200, 800)]).unwrap();
        assert_eq!(
            said,
            "the router delayed the first event by 13.7 ms on average on its way to the client (p50 800 µs, p99 39.2 ms), \
             7 % of the TTFT, and the last bytes 800 µs: what is measured between tokens is too short by the difference"
        );
        let alike = found(&[row(12_500, 12_000)]).unwrap();
        assert!(alike.ends_with("of the TTFT"), "{alike}");
    }

    #[test]
    fn what_is_short_or_was_not_seen_is_no_finding() {
        assert_eq!(found(&[row(800, 0)]), None);
        // 209 ms to the first token.
        assert_eq!(found(&[row(10_000, 0)]), None);
    }
}
