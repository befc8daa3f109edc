use super::client::Exchange;
use super::ended::Done;
use super::signals::{SIGINT, SIGTERM};
use super::*;
use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::timeline::Side;

const AT: Stamp = Stamp::from_nanos(1_795_168_000_000_000_000);

/// What the generator makes of these flags; ids begin with `t-`.
pub(super) fn planned(line: &str) -> RunPlan {
    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        args: Args,
    }
    let line = format!("traffic --request-id-prefix t {line}");
    let flags: Flags = clap::Parser::try_parse_from(line.split_whitespace()).unwrap();
    flags.args.plan().unwrap()
}

/// Signals as a run gets them; `then` when it waits for more.
fn signals(numbers: &[u8], then: impl FnOnce()) -> impl AsyncFnMut() -> u8 {
    let (mut numbers, mut then) = (numbers.iter().copied(), Some(then));
    async move || {
        if let Some(number) = numbers.next() {
            return number;
        }
        if let Some(then) = then.take() {
            then();
        }
        std::future::pending().await
    }
}

#[tokio::test]
async fn the_second_signal_while_rows_are_put_in_order_stops_that() {
    let skip = CancellationToken::new();
    let skipped = skip.clone();
    let work = tokio::spawn(async move { skipped.cancelled().await });
    let came = signals(&[SIGINT, SIGTERM], || {});
    let (done, signal) = unless_skipped(work, &skip, came).await;
    assert_eq!((done.is_ok(), signal), (true, Some(SIGTERM)));

    for once in [&[SIGINT][..], &[]] {
        let skip = CancellationToken::new();
        let (end, ended) = tokio::sync::oneshot::channel();
        let work = tokio::spawn(async { ended.await.unwrap() });
        let came = signals(once, || end.send(7).unwrap());
        let (done, signal) = unless_skipped(work, &skip, came).await;
        assert_eq!((done.unwrap(), signal), (7, None));
        assert!(!skip.is_cancelled());
    }
}

/// A request that ended as soon as it was due.
fn done(observer: Observer) -> Done {
    Done {
        place: 0,
        scheduled: AT,
        slot_nanos: 0,
        exchange: Exchange {
            observed: observer.finish(End::Complete, AT),
            stamps: None,
            sent: Some(AT),
            response_head: None,
            connect_nanos: 0,
        },
    }
}

#[test]
fn rows_that_cannot_be_read_again_stay_as_they_were_and_the_error_names_them() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(Some(root.path()), false, "unused");
    let output = Output::begin(&folder, &planned(""), &[], AT).unwrap();
    let skip = CancellationToken::new();
    let files = Files {
        spool: output.spool().unwrap(),
        partial: output.partial().unwrap(),
        begun: output.begun(serde_json::json!({})),
        times_from: TimeOrigin::Epoch,
        skip_ordering: skip.clone(),
    };
    let (send, ended) = tokio::sync::mpsc::unbounded_channel();
    let observer = Observer::new(Side::Traffic, Endpoint::Generate, "r".into());
    send.send(done(observer)).unwrap();
    drop(send);
    let requests = Ended::new("ours".to_owned(), AT, Some(files)).take_all(ended);
    let clocks = requests.clocks().unwrap();
    skip.cancel();
    let gathering = Gathering::new(UsualErrors::default().median(), Vec::new());
    let written = put_in_order(
        &requests,
        &clocks,
        &output,
        TimeBase::Epoch,
        gathering,
        None,
    );
    assert!(written.is_err());
    let left = std::fs::read_dir(root.path()).unwrap();
    let mut left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["begun.json", "requests.partial.csv", "schedule.csv"]);

    let facts = RunFacts {
        started: AT,
        ended: AT,
        offered_rate: None,
        scheduled: 1,
        config: serde_json::Value::Null,
        goodput: Vec::new(),
        machine: None,
    };
    let run = Driven {
        started: AT,
        ended: AT,
        requests,
        schedule: Arc::default(),
        plan: Arc::new(planned("")),
        dropped: 0,
        turns_not_sent: 0,
        stopped: false,
    };
    let beside = Beside {
        watched: Watched::default(),
        limit: Known::Nothing,
        edges: <(Edge, Edge)>::default(),
        insecure: false,
        spans: None,
        logs: None,
    };
    let error = finish(&run, &output, &facts, TimeOrigin::Epoch, beside).unwrap_err();
    let rows = root.path().join("requests.partial.csv");
    let named = format!("see {} for the rows", rows.display());
    assert!(error.to_string().ends_with(&named), "{error}");
    assert_eq!(std::fs::read_to_string(rows).unwrap().lines().count(), 2);
}
