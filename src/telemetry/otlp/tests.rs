use super::*;
use crate::request::{Endpoint, Row, Side};

fn rows(count: u32) -> Rows {
    let mut row = Row::new(Side::Front, Endpoint::Chat, "r".into());
    row.sequences = count;
    Rows::from(Row::ended(vec![row; count as usize]))
}

/// Settings with an address that no collector listens on.
fn unreachable_collector() -> ExportSettings {
    let mut given = settings::tests::at("http://127.0.0.1:1");
    given.queue = crate::keys::values::Whole::of::<2000>();
    settings::tests::of(&given, "")
}

fn start() -> (Traces, Metrics) {
    let (settings, metrics) = (unreachable_collector(), Metrics::new().unwrap());
    let started = Traces::start(&settings, "i".into(), metrics.clone(), Duration::ZERO);
    (started.unwrap(), metrics)
}

#[tokio::test]
async fn a_backlog_goes_in_batches_of_bounded_rows() {
    let (traces, metrics) = start();
    let (queue, receiver) = Queue::new(4096);
    for count in [[1; 600].as_slice(), &[1000, 1]].concat() {
        let trace = Trace {
            rows: rows(count),
            id: 1,
            reason: KeepReason::Ratio,
        };
        queue.push(trace, count as usize).unwrap();
    }
    queue.close();
    let mut sender = Sender {
        receiver,
        taken: 0,
        deliveries: traces.exports.deliveries.clone(),
        metrics,
        exporter: Exporter::new(&unreachable_collector(), "i".into()).unwrap(),
        full_batch: FULL_BATCH_ROWS,
        delay: Duration::MAX,
    };
    let mut batches = Vec::new();
    for _ in 0..4 {
        batches.push(sender.batch().await.len());
    }
    assert_eq!(batches, [512, 89, 1, 0]);
}

#[test]
fn traces_that_come_during_and_after_the_close_are_counted_once_each() {
    let (traces, metrics) = start();
    std::thread::scope(|scope| {
        let record = || (0..1000).for_each(|_| traces.record(&rows(1)));
        (0..4).for_each(|_| drop(scope.spawn(record)));
        traces.close();
    });
    traces.record(&rows(1));
    let lost = metrics.traces_dropped.sets();
    let lost: u64 = lost.iter().map(|(_, count)| count.get()).sum();
    assert_eq!(lost, 4 * 1000 + 1);
}
