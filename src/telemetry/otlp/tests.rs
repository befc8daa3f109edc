use super::*;
use crate::request::endpoint::Endpoint;
use crate::request::row::Row;
use crate::request::timeline::Side;

fn rows(many: u32) -> Rows {
    let mut row = Row::new(Side::Front, Endpoint::Chat, "r".into());
    row.sequences = many;
    Rows::from(Row::ended(vec![row; many as usize]))
}

/// To a collector that nobody is, by this URL.
fn start(endpoint: &str) -> (Result<Traces, Error>, Metrics) {
    let given = settings::Otlp {
        endpoint: Some("http://127.0.0.1:1".into()),
        queue: crate::keys::values::Whole::of::<2000>(),
        ..settings::Otlp::default()
    };
    let resolved = Settings::resolve(&given, "t", &|_| None).unwrap();
    let settings = Settings {
        endpoint: endpoint.into(),
        ..resolved.settings.unwrap()
    };
    let metrics = Metrics::new().unwrap();
    let started = Traces::start(&settings, "i".into(), metrics.clone(), Duration::ZERO);
    (started, metrics)
}

fn trace(many: u32) -> Trace {
    Trace {
        rows: rows(many),
        id: 1,
        kept: Kept::Ratio,
    }
}

#[test]
fn a_backlog_goes_in_batches_of_bounded_rows() {
    let (traces, metrics) = start("http://127.0.0.1:1");
    let traces = traces.unwrap();
    let (queue, waiting) = Queue::new(4096);
    for many in [[1; 600].as_slice(), &[1000, 1]].concat() {
        queue.push(trace(many), many as usize).unwrap();
    }
    let given = settings::Otlp {
        endpoint: Some("http://127.0.0.1:1".into()),
        ..settings::Otlp::default()
    };
    let settings = Settings::resolve(&given, "t", &|_| None).unwrap().settings;
    let mut sender = Sender {
        waiting,
        queue: queue.into(),
        closing: traces.closing.clone(),
        deliveries: traces.deliveries.clone(),
        metrics: metrics.clone(),
        exporter: Exporter::new(&settings.unwrap(), "i".into()).unwrap(),
        delay: Duration::ZERO,
        scope: InstrumentationScope::builder("t").build(),
    };
    let taken = [(); 3].map(|()| {
        let first = sender.waiting.try_recv().unwrap();
        let requests = sender.batch(first).len();
        (requests, metrics.trace_queue.with(&[]).get())
    });
    // What is left is told in rows.
    assert_eq!(taken, [(512, 1089), (89, 1), (1, 0)]);
}

#[test]
fn what_comes_after_the_close_is_lost_to_the_shutdown() {
    let (traces, metrics) = start("http://127.0.0.1:1");
    let traces = traces.unwrap();
    traces.close();
    traces.record(&rows(1));
    traces.record_in_time(&rows(1), Duration::MAX);
    let lost = metrics.traces_dropped.with(&["shutdown"]).get();
    assert_eq!(lost, 2);
}

#[tokio::test]
async fn a_collector_that_no_way_can_be_made_to_is_an_error_of_the_start() {
    let (started, _) = start("no url");
    assert!(matches!(started, Err(Error::Exporter(_))), "{started:?}");
}
