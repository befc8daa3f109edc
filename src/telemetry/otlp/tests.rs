use super::*;
use crate::request::endpoint::Endpoint;
use crate::request::row::Row;
use crate::request::timeline::Side;

fn rows(count: u32) -> Rows {
    let mut row = Row::new(Side::Front, Endpoint::Chat, "r".into());
    row.sequences = count;
    Rows::from(Row::ended(vec![row; count as usize]))
}

/// Settings with an address that no collector listens on.
fn unreachable_collector() -> Settings {
    let mut given = settings::tests::at("http://127.0.0.1:1");
    given.queue = crate::keys::values::Whole::of::<2000>();
    settings::tests::of(&given, "")
}

fn start(settings: &Settings) -> (Result<Traces, Error>, Metrics) {
    let metrics = Metrics::new().unwrap();
    let started = Traces::start(settings, "i".into(), metrics.clone(), Duration::ZERO);
    (started, metrics)
}

#[test]
fn a_backlog_goes_in_batches_of_bounded_rows() {
    let (traces, metrics) = start(&unreachable_collector());
    let traces = traces.unwrap();
    let (queue, receiver) = Queue::new(4096);
    for count in [[1; 600].as_slice(), &[1000, 1]].concat() {
        let trace = Trace {
            rows: rows(count),
            id: 1,
            reason: KeepReason::Ratio,
        };
        queue.push(trace, count as usize).unwrap();
    }
    let mut sender = Sender {
        receiver,
        queue: queue.into(),
        closing: traces.closing.clone(),
        deliveries: traces.deliveries.clone(),
        metrics: metrics.clone(),
        exporter: Exporter::new(&unreachable_collector(), "i".into()).unwrap(),
        delay: Duration::ZERO,
        scope: InstrumentationScope::builder("t").build(),
    };
    let taken = [(); 3].map(|()| {
        let first = sender.receiver.try_recv().unwrap();
        let requests = sender.batch(first).len();
        (requests, metrics.trace_queue.with(&[]).get())
    });
    // Requests in each batch, and rows left in the queue.
    assert_eq!(taken, [(512, 1089), (89, 1), (1, 0)]);
}

#[test]
fn a_trace_after_the_close_is_lost_to_the_shutdown() {
    let (traces, metrics) = start(&unreachable_collector());
    let traces = traces.unwrap();
    traces.close();
    traces.record(&rows(1));
    traces.record_blocking(&rows(1), Duration::MAX);
    let lost = metrics.traces_dropped.with(&["shutdown"]).get();
    assert_eq!(lost, 2);
}

#[test]
fn an_endpoint_that_no_exporter_can_be_made_for_is_an_error_at_the_start() {
    let settings = Settings {
        endpoint: "no url".into(),
        ..unreachable_collector()
    };
    let (started, _) = start(&settings);
    assert!(matches!(started, Err(Error::Exporter(_))), "{started:?}");
}
