//! A line on a long way back.

use crate::report::duration;
use crate::request::row::Row;
use crate::request::timeline::{Moment, Period};

/// Less on the ways to the server and back is not worth a line.
const NOTABLE_NANOS: i64 = 2_000_000;

/// Who can tell how much of the way back the router took: a front says no more after its response's head.
pub fn way_back(record: &Row) -> Option<String> {
    record.worker.as_ref()?;
    let timeline = &record.timeline;
    let there_and_back = timeline.nanos(Period {
        from: Moment::RouterSend,
        to: Moment::FirstToken,
    })?;
    // However the engine's clock stands to ours.
    let ways = there_and_back - timeline.nanos(Period::QUEUE_IN_SERVER)?;
    let is_notable = ways >= NOTABLE_NANOS && ways >= there_and_back / 20;
    is_notable.then(|| {
        format!(
            "from the hop to the server and back to here took {}; the router's part is router_return of {} in the proxy's records\n",
            duration(ways as f64 / 1e9),
            record.request_id()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::load::tests::assert_says;
    use crate::report::sample::Sample;

    #[test]
    fn long_ways_are_named_with_who_can_tell_more() {
        let through = |return_ms: i64| {
            let sample = Sample::whole().at(Moment::FirstToken, 200 + return_ms);
            sample.with(|r| r.facts.worker = Some("w0".into()))
        };
        let line = way_back(&through(10).row()).unwrap();
        assert!(line.contains("took 15.0 ms"), "{line}");
        assert_says(&line, "router_return of r0 in the proxy's");
        // However the engine's clock stands to ours.
        assert_eq!(way_back(&through(10).engine_unknown().row()), Some(line));
        assert_eq!(way_back(&through(1).row()), None);
        let no_hop = through(10).with(|r| r.facts.worker = None);
        assert_eq!(way_back(&no_hop.row()), None);
    }
}
