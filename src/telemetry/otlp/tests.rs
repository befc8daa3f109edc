use super::*;
use crate::request::endpoint::Endpoint;
use crate::request::record::{Facts, Record};
use crate::request::row::Row;
use crate::request::sequence::Sequence;
use crate::request::timeline::{Side, Timeline};

fn rows(many: u32) -> Rows {
    let row = Record {
        facts: Facts::new(Endpoint::Chat, "r".into()),
        sequence: Sequence::default(),
        sequences: many,
        timeline: Timeline::new(Side::Front),
    };
    Rows::from(Row::all(vec![row; many as usize]))
}

fn waiting(many: u32) -> Waiting {
    Waiting {
        rows: rows(many),
        trace: 1,
        kept: Kept::Ratio,
    }
}

fn queue(most: usize) -> (Queue, Metrics) {
    let metrics = Metrics::new().unwrap();
    let queue = Queue {
        waiting: Mutex::default(),
        most,
        ready: Notify::new(),
        room: Condvar::new(),
        is_closing: AtomicBool::new(false),
        closing: Notify::new(),
        is_full: AtomicBool::new(false),
        metrics: metrics.clone(),
    };
    (queue, metrics)
}

/// Traces lost for this reason.
fn lost(metrics: &Metrics, why: Dropped) -> u64 {
    metrics.traces_dropped.with(&[why.name()]).get()
}

#[test]
fn what_waits_is_bounded_in_rows_but_one_that_is_larger_goes_alone() {
    let (queue, metrics) = queue(8);
    queue.push(waiting(5));
    queue.push(waiting(4));
    assert_eq!(lost(&metrics, Dropped::QueueFull), 1);
    queue.push(waiting(3));
    let lengths = |taken: Vec<Waiting>| taken.iter().map(|w| w.rows.len()).collect::<Vec<_>>();
    assert_eq!(lengths(queue.take()), [5, 3]);
    queue.push(waiting(1000));
    assert_eq!(lengths(queue.take()), [1000]);
    assert_eq!(lost(&metrics, Dropped::QueueFull), 1);
}

#[test]
fn who_waits_for_room_is_woken_by_room_alone() {
    let (queue, metrics) = queue(1);
    queue.push(waiting(1));
    std::thread::scope(|scope| {
        scope.spawn(|| queue.push_in_time(waiting(1), LAST * 100));
        // Woken for nothing, as the system may do.
        while queue.room.notify_all() == 0 {
            std::thread::yield_now();
        }
        // It sleeps again, or has given up: then it sleeps no more.
        while queue.room.notify_all() == 0 && lost(&metrics, Dropped::QueueFull) == 0 {
            std::thread::yield_now();
        }
        queue.take();
    });
    assert_eq!(lost(&metrics, Dropped::QueueFull), 0);
    assert_eq!(queue.take().len(), 1);
}

#[test]
fn a_backlog_goes_in_batches_of_bounded_rows() {
    let (queue, _metrics) = queue(4096);
    for _ in 0..600 {
        queue.push(waiting(1));
    }
    queue.push(waiting(1000));
    let taken: Vec<usize> = std::iter::from_fn(|| Some(queue.take().len()))
        .take(4)
        .collect();
    assert_eq!(taken, [512, 88, 1, 0]);
}

#[test]
fn what_comes_after_the_close_is_lost_to_the_shutdown() {
    let (queue, metrics) = queue(8);
    queue.is_closing.store(true, Ordering::Release);
    queue.push(waiting(1));
    assert_eq!(lost(&metrics, Dropped::Shutdown), 1);
    assert_eq!(lost(&metrics, Dropped::QueueFull), 0);
}

#[tokio::test]
async fn a_collector_that_no_way_can_be_made_to_is_an_error_of_the_start() {
    let given = settings::Given {
        endpoint: Some("http://c:4317".into()),
        ..settings::Given::default()
    };
    let resolved = Settings::resolve(&given, "t", &|_| None).unwrap();
    let mut settings = resolved.settings.unwrap();
    settings.endpoint = "no url".into();
    let (queue, _) = queue(1);
    let started = Traces::start(&settings, "i".into(), queue.metrics, LAST);
    assert!(matches!(started, Err(Error::Exporter(_))), "{started:?}");
}
