use super::*;
use crate::request::endpoint::Endpoint;
use crate::request::row::Row;
use crate::request::timeline::Side;

fn rows(many: u32) -> Rows {
    let mut row = Row::new(Side::Front, Endpoint::Chat, "r".into());
    row.sequences = many;
    Rows::from(Row::ended(vec![row; many as usize]))
}

/// Settings of a collector that nobody is.
fn nobody() -> Settings {
    let given = settings::Otlp {
        endpoint: Some("http://127.0.0.1:1".into()),
        queue: crate::keys::values::Whole::of::<2000>(),
        ..settings::Otlp::default()
    };
    Settings::resolve(&given, "t", &|_| None).unwrap().unwrap()
}

fn start(settings: &Settings) -> (Result<Traces, Error>, Metrics) {
    let metrics = Metrics::new().unwrap();
    let started = Traces::start(settings, "i".into(), metrics.clone(), Duration::ZERO);
    (started, metrics)
}

#[test]
fn a_backlog_goes_in_batches_of_bounded_rows() {
    let (traces, metrics) = start(&nobody());
    let traces = traces.unwrap();
    let (queue, waiting) = Queue::new(4096);
    for many in [[1; 600].as_slice(), &[1000, 1]].concat() {
        let trace = Trace {
            rows: rows(many),
            id: 1,
            kept: Kept::Ratio,
        };
        queue.push(trace, many as usize).unwrap();
    }
    let mut sender = Sender {
        waiting,
        queue: queue.into(),
        closing: traces.closing.clone(),
        deliveries: traces.deliveries.clone(),
        metrics: metrics.clone(),
        exporter: Exporter::new(&nobody(), "i".into()).unwrap(),
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
    let (traces, metrics) = start(&nobody());
    let traces = traces.unwrap();
    traces.close();
    traces.record(&rows(1));
    traces.record_in_time(&rows(1), Duration::MAX);
    let lost = metrics.traces_dropped.with(&["shutdown"]).get();
    assert_eq!(lost, 2);
}

#[test]
fn a_collector_that_no_way_can_be_made_to_is_an_error_of_the_start() {
    let settings = Settings {
        endpoint: "no url".into(),
        ..nobody()
    };
    let (started, _) = start(&settings);
    assert!(matches!(started, Err(Error::Exporter(_))), "{started:?}");
}
