//! What the router did on the way back, where it is worth a sentence.

use crate::report::duration;

use super::Group;

/// Less than this is no finding, seconds.
const LEAST: f64 = 1e-3;
/// Nor is less than this share of the time to the first token.
const LEAST_SHARE: f64 = 0.05;

/// One sentence, if the router held first events back for a notable time.
pub fn finding(group: &Group) -> Option<String> {
    let latencies = &group.latencies;
    let held = latencies.get("router_return")?.p50;
    let ttft = latencies.ttft.as_ref()?.p50;
    if held < LEAST || held < LEAST_SHARE * ttft {
        return None;
    }
    let mut sentence = format!(
        "the router held the first event back {} on its way to the client (p50), {:.0} % of the TTFT",
        duration(held),
        held / ttft * 100.0
    );
    let last = latencies.get("router_return_last").map(|last| last.p50);
    if let Some(last) = last.filter(|last| *last < held - LEAST) {
        sentence.push_str(&format!(
            ", and the last bytes {}: what is measured between tokens is too short by the difference",
            duration(last)
        ));
    }
    Some(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::load::{RunFacts, Summary};
    use crate::report::sample::{Sample, at};
    use crate::request::record::Record;
    use serde_json::Value;

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
            started: at(0),
            ended: at(2000),
            offered_rate: None,
            scheduled: rows.len(),
            config: Value::Null,
            goodput: Vec::new(),
            machine: None,
        };
        finding(&Summary::of(rows, &run).all)
    }

    #[test]
    fn a_first_event_held_back_is_named() {
        let said = found(&[row(12_500, 800), row(12_500, 800), row(200, 800)]).unwrap();
        assert_eq!(
            said,
            "the router held the first event back 12.5 ms on its way to the client (p50), 6 % of the TTFT, and the \
             last bytes 800 µs: what is measured between tokens is too short by the difference"
        );
        let alike = found(&[row(12_500, 12_000)]).unwrap();
        assert!(alike.ends_with("of the TTFT"), "{alike}");
    }

    #[test]
    fn what_is_short_or_was_not_seen_is_no_finding() {
        assert_eq!(found(&[row(800, 0)]), None);
        // 209 ms to the first token.
        assert_eq!(found(&[row(10_000, 0)]), None);
        assert_eq!(found(&[Sample::whole().record()]), None);
    }
}
