use super::*;
use crate::report::load::tests::assert_says;
use crate::table::Cell;

const HOSTS: [&str; 2] = ["127.0.0.1:30001", "127.0.0.1:30002"];

/// A request: when it arrived, which server had it, its TTFT; `None`: it failed there.
#[derive(Clone, Default)]
struct Sent {
    at: f64,
    server: usize,
    ttft: Option<f64>,
    end: Option<f64>,
}

fn sent(at: f64, server: usize, ttft: Option<f64>) -> Sent {
    Sent {
        at,
        server,
        ttft,
        ..Sent::default()
    }
}

/// What is said of requests to two servers.
fn told(sent: &[Sent], faults: &[FaultRow]) -> Vec<Episode> {
    let mut table = Table::default();
    for (n, request) in sent.iter().enumerate() {
        let id = format!("x-{n}");
        let (success, outcome) = match request.ttft {
            Some(_) => ("True", "ok"),
            None => ("False", "upstream_died"),
        };
        let number = |column, value: Option<f64>| Some((column, Cell::Number(value?)));
        let cells = [
            Some(("req_id", Cell::Id(&id))),
            number("arrival_time", Some(request.at)),
            number("end_time", request.end),
            number("ttft", request.ttft),
            number("total_latency", request.ttft.map(|ttft| 10.0 * ttft)),
            Some(("success", Cell::Word(success))),
            Some(("outcome", Cell::Word(outcome))),
            Some(("host", Cell::Word(HOSTS[request.server]))),
        ];
        table.push(cells.into_iter().flatten());
    }
    episodes(&table, faults)
}

fn fault(time: f64, server: u32, event: &str) -> FaultRow {
    FaultRow {
        time,
        server: format!("server-{server}"),
        kind: "kill".to_owned(),
        event: event.to_owned(),
    }
}

/// Ten requests a second for 90 s, in turns. From 30 s server 1 is down: what goes there fails until 31 s, then all goes
/// to the other and takes twice as long. At 60 s it is back, is used from 62 s on, and times are as before from 65 s.
fn killed() -> Vec<Sent> {
    // Times to first token differ a little, without a pattern of the places.
    let usual = |n: usize| 0.1 + 0.01 * ((n * 7919) % 97) as f64 / 97.0;
    (0..900)
        .map(|n| {
            let at = n as f64 / 10.0;
            match (at, n % 2) {
                (30.0..31.0, 0) => sent(at, 0, None),
                (30.0..62.0, _) => sent(at, 1, Some(2.0 * usual(n))),
                (62.0..65.0, server) => sent(at, server, Some(2.0 * usual(n))),
                (_, server) => sent(at, server, Some(usual(n))),
            }
        })
        .collect()
}

fn kill() -> Vec<FaultRow> {
    [(30.0, "down"), (58.0, "up"), (60.0, "ready")]
        .map(|(time, event)| fault(time, 1, event))
        .into()
}

#[test]
fn a_kill_before_during_and_after() {
    let found = told(&killed(), &kill());
    assert_eq!(found.len(), 1);
    let [before, during, after] = &found[0].phases;
    let requests = [before, during, after].map(|phase| phase.requests);
    assert_eq!(requests, [300, 300, 300]);
    assert_eq!([before, after].map(|phase| phase.failed.len()), [0, 0]);
    let died = BTreeMap::from([("upstream_died".to_owned(), 5)]);
    assert_eq!(during.failed, died);
    let p50 = |phase: &Phase| phase.ttft.p50.unwrap();
    assert!(p50(before) < 0.11 && p50(during) > 0.2 && p50(after) < 0.11);
    assert!((during.total_latency.p99.unwrap() - 10.0 * during.ttft.p99.unwrap()).abs() < 1e-9);
    let text = lines(&found).join("\n");
    for said in [
        "server-1 kill from 30.0 s until 60.0 s, when it answered again",
        "upstream_died 5",
    ] {
        assert_says(&text, said);
    }
}

#[test]
fn of_requests_under_way_at_a_fault_those_that_it_broke_are_its_own() {
    let mut requests = killed();
    for request in &mut requests {
        request.end = request.ttft.map(|ttft| request.at + 10.0 * ttft);
    }
    // Two came before the fault: it broke one, the other was long. One failed before of itself, a second fault broke another.
    for (broken, end) in [(295, 30.001), (100, 12.0), (799, 80.5)] {
        (requests[broken].ttft, requests[broken].end) = (None, Some(end));
    }
    requests[296].end = Some(45.0);
    let mut faults = kill();
    faults.extend([fault(80.0, 2, "down"), fault(81.0, 2, "ready")]);
    let found = told(&requests, &faults);
    let count = |phase: &Phase| (phase.requests, phase.failed.values().sum::<usize>());
    let counts = |episode: usize| found[episode].phases.each_ref().map(count);
    assert_eq!(counts(0), [(299, 1), (301, 6), (199, 0)]);
    assert_eq!(counts(1), [(199, 0), (11, 1), (90, 0)]);
}

#[test]
fn a_fault_to_the_end_has_no_after() {
    let found = told(&killed(), &kill()[..1]);
    let [_, during, after] = &found[0].phases;
    assert_eq!((during.requests, after.requests), (600, 0));
    let text = lines(&found).join("\n");
    assert_says(&text, "to the end of the run");
}

#[test]
fn faults_that_overlap_are_one_episode_and_others_are_not() {
    let faults = [
        fault(30.0, 1, "down"),
        fault(31.0, 2, "down"),
        fault(40.0, 2, "ready"),
        fault(45.0, 1, "ready"),
        fault(70.0, 2, "down"),
        fault(80.0, 2, "ready"),
    ];
    let found = told(&killed(), &faults);
    let ends = |episode: &Episode| {
        episode
            .phases
            .each_ref()
            .map(|phase| (phase.from, phase.to))
    };
    let shape: Vec<_> = found.iter().map(|of| (of.faults.len(), ends(of))).collect();
    // What is after one is before the next.
    let first = [(0.0, Some(30.0)), (30.0, Some(45.0)), (45.0, Some(70.0))];
    let second = [(45.0, Some(70.0)), (70.0, Some(80.0)), (80.0, None)];
    assert_eq!(shape, [(2, first), (1, second)]);
}

#[test]
fn too_few_requests_are_said() {
    let every_second = |count: u32| -> Vec<Sent> {
        let one = |n| sent(f64::from(n), 1, Some(0.1));
        (0..count).map(one).collect()
    };
    let down = |from, to| [fault(from, 1, "down"), fault(to, 1, "ready")];
    let few = told(&every_second(30), &down(10.0, 20.0));
    let ttft = few[0].phases[0].ttft;
    assert_eq!((ttft.p50, ttft.p99), (Some(0.1), None));
    let text = lines(&few).join("\n");
    assert_says(&text, "0.10 s / too few");
    assert_eq!(told(&every_second(30), &[]), []);
}
