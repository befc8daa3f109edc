use super::*;
use crate::table::Cell;

const HOSTS: [&str; 2] = ["127.0.0.1:30001", "127.0.0.1:30002"];
const SERVERS: [&str; 2] = ["server-1", "server-2"];

/// A request: when it arrived, which server had it, its TTFT; `None`: it failed there. By hops, unless they are taken away.
#[derive(Clone)]
struct Sent {
    at: f64,
    server: usize,
    ttft: Option<f64>,
    end: Option<f64>,
    has_hop: bool,
    failed_attempts: String,
}

fn sent(at: f64, server: usize, ttft: Option<f64>) -> Sent {
    Sent {
        at,
        server,
        ttft,
        end: None,
        has_hop: true,
        failed_attempts: String::new(),
    }
}

fn table(sent: &[Sent]) -> Table {
    let mut table = Table::default();
    for (n, request) in sent.iter().enumerate() {
        let id = format!("x-{n}");
        let is_ok = request.ttft.is_some();
        let mut cells = vec![
            ("req_id", Cell::Id(&id)),
            ("arrival_time", Cell::Number(request.at)),
            ("success", Cell::Word(if is_ok { "True" } else { "False" })),
            (
                "outcome",
                Cell::Word(if is_ok { "ok" } else { "upstream_died" }),
            ),
        ];
        // A request that a hop broke has no host, but an attempt that names the hop.
        if request.failed_attempts.is_empty() || is_ok {
            cells.push(("host", Cell::Word(HOSTS[request.server])));
        }
        if request.has_hop {
            cells.push(("worker", Cell::Word(SERVERS[request.server])));
        }
        cells.extend(request.end.map(|end| ("end_time", Cell::Number(end))));
        if !request.failed_attempts.is_empty() {
            cells.push(("failed_attempts", Cell::Word(&request.failed_attempts)));
        }
        for (column, factor) in [("ttft", 1.0), ("total_latency", 10.0)] {
            cells.extend(
                request
                    .ttft
                    .map(|ttft| (column, Cell::Number(ttft * factor))),
            );
        }
        table.push(cells);
    }
    table
}

fn servers() -> Vec<ServerFile> {
    let named = HOSTS.iter().zip(1..).map(|(host, n)| ServerFile {
        name: format!("server-{n}"),
        host: (*host).to_owned(),
        ..ServerFile::default()
    });
    named.collect()
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
    vec![
        fault(30.0, 1, "down"),
        fault(58.0, 1, "up"),
        fault(60.0, 1, "ready"),
    ]
}

#[test]
fn a_kill_before_during_and_after() {
    let found = episodes(&table(&killed()), &kill(), &servers());
    assert_eq!(found.len(), 1);
    let [before, during, after] = &found[0].phases;
    assert_eq!(
        [before.requests, during.requests, after.requests],
        [300, 300, 300]
    );
    assert_eq!([before, after].map(|phase| phase.failed.len()), [0, 0]);
    assert_eq!(
        during.failed,
        BTreeMap::from([("upstream_died".to_owned(), 5)])
    );
    let p50 = |phase: &Phase| phase.ttft.p50.unwrap();
    assert!(p50(before) < 0.11 && p50(during) > 0.2 && p50(after) < 0.11);
    assert!((during.total_latency.p99.unwrap() - 10.0 * during.ttft.p99.unwrap()).abs() < 1e-9);
    let fault = &found[0].faults[0];
    let Left::After(left) = fault.left else {
        panic!("{:?}", fault.left)
    };
    assert!(
        (left - 0.8).abs() < 1e-9,
        "the last went there at 30.8 s: {left}"
    );
    assert_eq!(fault.recovery, Recovery::After(2.0));
    // A window may hold two that are still slow, so it begins two before those that are as usual; a usual one that is
    // itself beyond the bound moves it by one more.
    let Latency::After { seconds, usual } = found[0].latency else {
        panic!("{:?}", found[0].latency)
    };
    assert!(
        (4.7..=5.2).contains(&seconds) && (0.105..0.111).contains(&usual),
        "{seconds} {usual}"
    );
    let text = lines(&found).join("\n");
    assert!(
        text.contains("server-1 kill from 30.0 s until 60.0 s, when it answered again"),
        "{text}"
    );
    assert!(
        text.contains("traffic left it within 0.80 s; it served again 2.00 s after it was back"),
        "{text}"
    );
    assert!(text.contains("upstream_died 5"), "{text}");
}

#[test]
fn a_retried_request_was_sent_to_the_dead_server_too() {
    let mut requests = killed();
    // Sent on to the other one and answered: its attempt at 40 s names the dead one.
    requests[400].failed_attempts = format!("{} connect_error 0 0.001", HOSTS[0]);
    let found = episodes(&table(&requests), &kill(), &servers());
    let Left::After(left) = found[0].faults[0].left else {
        panic!("{:?}", found[0].faults)
    };
    assert!((left - 10.0).abs() < 1e-9, "{left}");
    // A longer address that begins alike is another server.
    requests[400].failed_attempts = format!("{}9 connect_error 0 0.001", HOSTS[0]);
    let found = episodes(&table(&requests), &kill(), &servers());
    assert!(matches!(found[0].faults[0].left, Left::After(left) if left < 1.0));
}

#[test]
fn a_request_that_a_hop_broke_was_sent_there() {
    let mut requests = killed();
    for request in &mut requests {
        // As rows are behind a hop that resets connections.
        if request.ttft.is_none() {
            request.failed_attempts = "server-1 proxy_error after 0.000115 s".to_owned();
        }
    }
    let mut faults = kill();
    for fault in &mut faults {
        fault.kind = "reset".to_owned();
    }
    let left = |requests: &[Sent], faults: &[FaultRow]| {
        episodes(&table(requests), faults, &servers())[0].faults[0].left
    };
    let Left::After(seconds) = left(&requests, &faults) else {
        panic!("{:?}", left(&requests, &faults))
    };
    assert!((seconds - 0.8).abs() < 1e-9, "{seconds}");
    let mut other = requests.clone();
    for request in &mut other {
        request.failed_attempts = request.failed_attempts.replace("server-1", "server-12");
    }
    assert_eq!(left(&other, &faults), Left::AtOnce);
    // A hop that refuses reads nothing.
    for fault in &mut faults {
        fault.kind = "refuse".to_owned();
    }
    assert_eq!(left(&requests, &faults), Left::Unknown);
    // Without a hop a refused connection is in no row.
    let mut without = killed();
    for request in &mut without {
        request.has_hop = false;
    }
    without.retain(|request| request.ttft.is_some());
    assert_eq!(left(&without, &kill()), Left::Unknown);
}

#[test]
fn a_server_that_serves_before_it_is_seen_to_be_ready_was_left_all_the_same() {
    let mut requests = killed();
    // Up at 58 s, seen at 60 s, used since 59 s.
    for request in requests
        .iter_mut()
        .filter(|request| request.at >= 59.0 && request.at < 60.0)
    {
        request.server = 0;
    }
    let found = episodes(&table(&requests), &kill(), &servers());
    assert!(matches!(found[0].faults[0].left, Left::After(left) if left < 1.0));
}

#[test]
fn of_requests_under_way_at_a_fault_those_that_it_broke_are_its_own() {
    let mut requests = killed();
    for request in &mut requests {
        request.end = request.ttft.map(|ttft| request.at + 10.0 * ttft);
    }
    // Two came before the fault: it broke one, the other was long.
    let (broken, long) = (295, 296);
    requests[broken] = Sent {
        ttft: None,
        end: Some(30.001),
        ..requests[broken].clone()
    };
    requests[long].end = Some(45.0);
    // One that failed before of itself, and one that a second fault broke.
    requests[100] = Sent {
        ttft: None,
        end: Some(12.0),
        ..requests[100].clone()
    };
    requests[799] = Sent {
        ttft: None,
        end: Some(80.5),
        ..requests[799].clone()
    };
    let mut faults = kill();
    faults.extend([fault(80.0, 2, "down"), fault(81.0, 2, "ready")]);
    let found = episodes(&table(&requests), &faults, &servers());
    let counts = |episode: usize| {
        found[episode]
            .phases
            .each_ref()
            .map(|phase| (phase.requests, phase.failed.values().sum::<usize>()))
    };
    assert_eq!(counts(0), [(299, 1), (301, 6), (199, 0)]);
    assert_eq!(counts(1), [(199, 0), (11, 1), (90, 0)]);
}

#[test]
fn a_fault_to_the_end_has_no_after() {
    let found = episodes(&table(&killed()), &kill()[..1], &servers());
    assert_eq!(
        (found[0].phases[1].requests, found[0].phases[2].requests),
        (600, 0)
    );
    assert_eq!(found[0].faults[0].recovery, Recovery::NeverOver);
    assert_eq!(found[0].latency, Latency::NeverOver);
    assert!(lines(&found).join("\n").contains("to the end of the run"));
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
    let found = episodes(&table(&killed()), &faults, &servers());
    let shape: Vec<(usize, f64, Option<f64>)> = found
        .iter()
        .map(|episode| {
            (
                episode.faults.len(),
                episode.phases[1].from,
                episode.phases[1].to,
            )
        })
        .collect();
    assert_eq!(shape, [(2, 30.0, Some(45.0)), (1, 70.0, Some(80.0))]);
    // What is after one is before the next.
    assert_eq!(found[0].phases[2].to, Some(70.0));
    assert_eq!(
        (found[1].phases[0].from, found[1].phases[0].to),
        (45.0, Some(70.0))
    );
}

#[test]
fn too_few_requests_are_said() {
    let few: Vec<Sent> = (0..30).map(|n| sent(f64::from(n), 1, Some(0.1))).collect();
    let found = episodes(
        &table(&few),
        &[fault(10.0, 1, "down"), fault(20.0, 1, "ready")],
        &servers(),
    );
    let before = Latency::TooFewBefore {
        well: 10,
        needed: 72,
    };
    assert_eq!(found[0].latency, before);
    let many: Vec<Sent> = (0..100).map(|n| sent(f64::from(n), 1, Some(0.1))).collect();
    let back = [fault(80.0, 1, "down"), fault(90.0, 1, "ready")];
    let told = &episodes(&table(&many), &back, &servers())[0];
    let after = Latency::TooFewAfter {
        requests: 10,
        more: Some(30.0),
    };
    assert_eq!(told.latency, after);
    assert_eq!(
        told.latency.words(),
        "whether TTFT recovered cannot be said: 10 requests came after the fault, and it takes 40; the run would have \
         to go on for about 30 s more"
    );
    assert_eq!(
        (found[0].phases[0].ttft.p50, found[0].phases[0].ttft.p99),
        (Some(0.1), None)
    );
    assert_eq!(
        found[0].faults[0].left,
        Left::Unknown,
        "no row names server 1"
    );
    let text = lines(&found).join("\n");
    assert!(
        text.contains("0.10 s / too few") && text.contains("with hops rows do"),
        "{text}"
    );
    assert_eq!(episodes(&table(&few), &[], &servers()), []);
}

#[test]
fn traffic_that_never_leaves_or_never_comes() {
    let all: Vec<Sent> = (0..100).map(|n| sent(f64::from(n), 0, None)).collect();
    let faults = [fault(10.5, 1, "down"), fault(20.5, 1, "ready")];
    let found = episodes(&table(&all), &faults, &servers());
    assert_eq!(
        (found[0].faults[0].left, found[0].faults[0].recovery),
        (
            Left::Never,
            Recovery::Never {
                seconds: 78.5,
                requests: 79
            }
        )
    );
    let said = found[0].faults[0].recovery.words();
    assert!(
        said.ends_with("that it was back, in which 79 requests came"),
        "{said}"
    );
    let gap: Vec<Sent> = (0..100)
        .filter(|n| !(10..21).contains(n))
        .map(|n| sent(f64::from(n), 0, Some(0.1)))
        .collect();
    let found = episodes(&table(&gap), &faults, &servers());
    assert_eq!(found[0].faults[0].left, Left::NoRequests);
    let elsewhere: Vec<Sent> = (0..100)
        .map(|n| sent(f64::from(n), usize::from((10..21).contains(&n)), Some(0.1)))
        .collect();
    let found = episodes(&table(&elsewhere), &faults, &servers());
    assert_eq!(found[0].faults[0].left, Left::AtOnce);
}
