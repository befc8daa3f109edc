use super::*;
use crate::report::load::tests::assert_says;
use crate::request::outcome::GIVEN_UP;
use crate::table::Cell;

const HOSTS: [&str; 2] = ["127.0.0.1:30001", "127.0.0.1:30002"];
const SERVERS: [&str; 2] = ["server-1", "server-2"];
const AT_ONCE: &str = "no request was sent there during the fault";
const UNKNOWN: &str = "when traffic moved away is unknown";

/// A request: its arrival, its server, and its TTFT (`None` if it failed there). There are hops unless `has_no_hop`.
#[derive(Clone, Default)]
struct Sent {
    at: f64,
    server: usize,
    ttft: Option<f64>,
    end: Option<f64>,
    has_no_hop: bool,
    has_no_host: bool,
    /// Whether its proxy named its hop.
    is_held: bool,
    is_given_up: bool,
    ended_in: &'static str,
    failed_attempts: String,
}

fn sent(at: f64, server: usize, ttft: Option<f64>) -> Sent {
    Sent {
        at,
        server,
        ttft,
        ..Sent::default()
    }
}

/// The episodes of requests to two servers.
fn episodes_of(sent: &[Sent], faults: &[FaultRow]) -> Vec<Episode> {
    episodes_at(2, sent, faults)
}

/// The episodes of requests to so many servers.
fn episodes_at(servers: usize, sent: &[Sent], faults: &[FaultRow]) -> Vec<Episode> {
    let mut table = Table::default();
    for (n, request) in sent.iter().enumerate() {
        let id = format!("x-{n}");
        let (success, outcome) = match request.ttft {
            Some(_) => ("True", "ok"),
            None if request.is_given_up => ("False", "client_abort"),
            None => ("False", "upstream_died"),
        };
        let error = request.is_given_up.then_some(GIVEN_UP);
        let attempts = request.failed_attempts.as_str();
        let is_named = attempts.is_empty() && !request.has_no_host || request.ttft.is_some();
        let number = |column, value: Option<f64>| Some((column, Cell::Number(value?)));
        let cells = [
            Some(("req_id", Cell::Id(&id))),
            number("arrival_time", Some(request.at)),
            number("end_time", request.end),
            number("ttft", request.ttft),
            number("total_latency", request.ttft.map(|ttft| 10.0 * ttft)),
            Some(("success", Cell::Word(success))),
            Some(("outcome", Cell::Word(outcome))),
            (!request.ended_in.is_empty()).then_some(("ended_in", Cell::Word(request.ended_in))),
            error.map(|error| ("error", Cell::Word(error))),
            // A request that a hop broke has no host, but an attempt that names the hop.
            is_named.then_some(("host", Cell::Word(HOSTS[request.server]))),
            (request.is_held || is_named && !request.has_no_hop)
                .then_some(("worker", Cell::Word(SERVERS[request.server]))),
            (!attempts.is_empty()).then_some(("failed_attempts", Cell::Word(attempts))),
        ];
        table.push(cells.into_iter().flatten());
    }
    let servers = HOSTS
        .iter()
        .zip(SERVERS)
        .take(servers)
        .map(|(host, name)| ServerFile {
            name: name.to_owned(),
            host: (*host).to_owned(),
            ..ServerFile::default()
        });
    episodes(&table, faults, &servers.collect::<Vec<_>>())
}

/// The only fault.
fn only(sent: &[Sent], faults: &[FaultRow]) -> Fault {
    let mut found = episodes_of(sent, faults);
    assert_eq!((found.len(), found[0].faults.len()), (1, 1), "{found:?}");
    found[0].faults.remove(0)
}

fn fault(time: f64, server: u32, event: &str) -> FaultRow {
    of_kind("kill", time, server, event)
}

fn of_kind(kind: &str, time: f64, server: u32, event: &str) -> FaultRow {
    FaultRow {
        time,
        server: format!("server-{server}"),
        kind: kind.to_owned(),
        event: event.to_owned(),
    }
}

/// Ten requests a second for 90 s, in turns. Server 1 is down from 30 s: requests to it fail until 31 s, then all go to the other and take
/// twice as long. At 60 s it is back, it is used from 62 s on, and times are as before from 65 s.
fn killed() -> Vec<Sent> {
    // TTFTs vary a little, without a pattern.
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

#[track_caller]
fn assert_after(effect: &Effect, seconds: f64) {
    let found = effect.seconds.unwrap_or(f64::NAN);
    assert!((found - seconds).abs() < 1e-9, "{effect:?}");
}

#[test]
fn a_killed_server_has_figures_before_during_and_after() {
    let found = episodes_of(&killed(), &kill());
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
    let fault = &found[0].faults[0];
    // The last went there at 30.8 s.
    assert_after(&fault.left, 0.8);
    assert_after(&fault.recovery, 2.0);
    let text = lines(&found).join("\n");
    for expected in [
        "server-1 kill from 30.0 s until 60.0 s, when it answered again",
        "traffic left it within 0.80 s; it served again 2.00 s after it was back",
        "upstream_died 5",
    ] {
        assert_says(&text, expected);
    }
}

#[test]
fn a_retried_request_was_sent_to_the_dead_server_too() {
    let mut requests = killed();
    // The other server answered, but the attempt at 40 s names the dead one.
    requests[400].failed_attempts = format!("{} connect_error 0 0.001", HOSTS[0]);
    assert_after(&only(&requests, &kill()).left, 10.0);
    // A longer address with the same beginning is another server.
    requests[400].failed_attempts = format!("{}9 connect_error 0 0.001", HOSTS[0]);
    assert_after(&only(&requests, &kill()).left, 0.8);
}

#[test]
fn a_request_that_a_hop_broke_was_sent_there() {
    // As in rows behind such a hop.
    let broken_by = |hop: &str| {
        let mut requests = killed();
        for request in requests.iter_mut().filter(|of| of.ttft.is_none()) {
            request.failed_attempts = format!("{hop} proxy_error after 0.000115 s");
        }
        requests
    };
    let left = |requests: &[Sent], kind: &str| {
        let mut faults = kill();
        faults
            .iter_mut()
            .for_each(|fault| fault.kind = kind.to_owned());
        only(requests, &faults).left
    };
    assert_after(&left(&broken_by("server-1"), "reset"), 0.8);
    assert_eq!(left(&broken_by("server-12"), "reset").said, AT_ONCE);
    // A hop that refuses connections reads no request.
    assert_says(&left(&broken_by("server-1"), "refuse").said, UNKNOWN);
    // Without a hop a refused connection is in no row.
    let mut without = killed();
    without
        .iter_mut()
        .for_each(|request| request.has_no_hop = true);
    without.retain(|request| request.ttft.is_some());
    assert_says(&left(&without, "kill").said, UNKNOWN);
}

#[test]
fn traffic_left_a_server_that_serves_before_it_is_seen_ready() {
    let mut requests = killed();
    // Up at 58 s, seen at 60 s, used since 59 s.
    let served = requests
        .iter_mut()
        .filter(|of| (59.0..60.0).contains(&of.at));
    served.for_each(|request| request.server = 0);
    assert_after(&only(&requests, &kill()).left, 0.8);
}

#[test]
fn requests_that_a_fault_broke_count_as_during_it() {
    let mut requests = killed();
    for request in &mut requests {
        request.end = request.ttft.map(|ttft| request.at + 10.0 * ttft);
    }
    // Two arrived before the fault, which broke one; the other was long. One had failed by itself before, and a second fault broke another.
    for (broken, end) in [(295, 30.001), (100, 12.0), (799, 80.5)] {
        (requests[broken].ttft, requests[broken].end) = (None, Some(end));
    }
    requests[296].end = Some(45.0);
    let mut faults = kill();
    faults.extend([fault(80.0, 2, "down"), fault(81.0, 2, "ready")]);
    let found = episodes_of(&requests, &faults);
    let count = |phase: &Phase| (phase.requests, phase.failed.values().sum::<usize>());
    let counts = |episode: usize| found[episode].phases.each_ref().map(count);
    assert_eq!(counts(0), [(299, 1), (301, 6), (199, 0)]);
    assert_eq!(counts(1), [(199, 0), (11, 1), (90, 0)]);
}

#[test]
fn a_fault_until_the_end_has_no_after() {
    let found = episodes_of(&killed(), &kill()[..1]);
    let [_, during, after] = &found[0].phases;
    assert_eq!((during.requests, after.requests), (600, 0));
    let text = lines(&found).join("\n");
    for expected in ["to the end of the run", "; it was not brought back"] {
        assert_says(&text, expected);
    }
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
    let found = episodes_of(&killed(), &faults);
    let ends = |of: &Episode| of.phases.each_ref().map(|phase| (phase.from, phase.to));
    let shape: Vec<_> = found.iter().map(|of| (of.faults.len(), ends(of))).collect();
    // After one fault is before the next.
    let first = [(0.0, Some(30.0)), (30.0, Some(45.0)), (45.0, Some(70.0))];
    let second = [(45.0, Some(70.0)), (70.0, Some(80.0)), (80.0, None)];
    assert_eq!(shape, [(2, first), (1, second)]);
}

#[test]
fn too_few_requests_have_no_quantiles() {
    let every_second = |count: u32| -> Vec<Sent> {
        let one = |n| sent(f64::from(n), 1, Some(0.1));
        (0..count).map(one).collect()
    };
    let down = |from, to| [fault(from, 1, "down"), fault(to, 1, "ready")];
    let few = episodes_of(&every_second(30), &down(10.0, 20.0));
    let ttft = few[0].phases[0].ttft;
    assert_eq!((ttft.p50, ttft.p99), (Some(0.1), None));
    // No row names server 1.
    assert_says(&few[0].faults[0].left.said, UNKNOWN);
    let text = lines(&few).join("\n");
    assert_says(&text, "0.10 s / too few");
    assert_says(&text, "no row tells of failed connects");
    assert_eq!(episodes_of(&every_second(30), &[]), []);
}

#[test]
fn traffic_that_never_leaves_or_never_comes() {
    let faults = [fault(10.5, 1, "down"), fault(20.5, 1, "ready")];
    let left = |request: &dyn Fn(usize, bool) -> Option<Sent>| {
        let all = (0..100).filter_map(|n| request(n, (11..21).contains(&n)));
        only(&all.collect::<Vec<_>>(), &faults)
    };
    let found = left(&|n, _| Some(sent(n as f64, 0, None)));
    assert_eq!(found.left.said, "traffic did not leave it");
    let never = "it served nothing in the 78.50 s that it was back, in which 79 requests came";
    assert_eq!((found.recovery.said.as_str(), found.unserved), (never, 79));
    let gap = left(&|n, is_down| (!is_down).then(|| sent(n as f64, 0, Some(0.1))));
    assert_eq!(gap.left.said, "no request came during the fault");
    let elsewhere = left(&|n, is_down| Some(sent(n as f64, usize::from(is_down), Some(0.1))));
    assert_eq!(elsewhere.left.said, AT_ONCE);
    // A request that timed out while the server stood still has no host: its server is unknown, unless there is only one.
    let nowhere = |n: usize, is_down: bool| Sent {
        has_no_host: is_down,
        ..sent(n as f64, 0, (!is_down).then_some(0.1))
    };
    let stalled = left(&|n, is_down| Some(nowhere(n, is_down)));
    assert_says(&stalled.left.said, "unknown: of 10 later requests no row");
    let all: Vec<Sent> = (0..100)
        .map(|n| nowhere(n, (11..21).contains(&n)))
        .collect();
    let held = left(&|n, is_down| {
        Some(Sent {
            is_held: is_down,
            ..nowhere(n, is_down)
        })
    });
    assert_eq!(held.left.said, "traffic did not leave it");
    let only = episodes_at(1, &all, &faults).remove(0).faults.remove(0);
    assert_says(&only.left.said, "it is the only server");
}

#[test]
fn requests_given_up_when_the_run_was_stopped_count_where_they_arrived() {
    let given_up = |at| Sent {
        end: Some(4.6),
        has_no_host: true,
        is_given_up: true,
        ..sent(at, 0, None)
    };
    let before = (0..20).map(|n| sent(0.05 * n as f64, n % 2, Some(0.1)));
    // One arrived before the fault and was under way when it began.
    let held = (0..72).map(|n| given_up(1.0 + 0.05 * f64::from(n)));
    let mut requests: Vec<Sent> = before.chain(held).collect();
    requests.push(given_up(0.96));
    let found = episodes_of(
        &requests,
        &[1, 2].map(|server| of_kind("stall", 1.0, server, "down")),
    );
    let counts = |phase: &Phase| (phase.requests, phase.failed.len());
    let counts = found[0].phases.each_ref().map(counts);
    assert_eq!(counts, [(21, 0), (72, 0), (0, 0)]);
    let text = lines(&found).join("\n");
    assert_says(&text, "72 given up when the run was stopped");
    assert_says(&text, "of 72 later requests no row tells");
    assert!(!text.contains("no request"), "{text}");
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json[0]["phases"][1]["given_up"], 72);
}

#[test]
fn requests_given_up_after_a_fault_do_not_count_as_unserved() {
    let mut requests = killed();
    for request in requests.iter_mut().filter(|of| of.at >= 60.0) {
        (request.ttft, request.is_given_up) = (None, true);
    }
    let found = only(&requests, &kill());
    assert_says(&found.recovery.said, "in which 300 requests came");
    assert_eq!(found.unserved, 0);
}

#[test]
fn traffic_has_left_a_server_unless_chance_explains_it() {
    // Every third request goes to the first server, except the last ones of the run.
    let but_for = |last: usize| {
        let server = |n: usize| usize::from(!n.is_multiple_of(3) || n >= 60 - last);
        let all = (0..60).map(|n| sent(0.05 * n as f64, server(n), Some(0.1)));
        only(&all.collect::<Vec<_>>(), &[fault(1.0, 1, "down")]).left
    };
    for few in [3, 6] {
        let found = but_for(few);
        assert_eq!(
            (found.seconds, &*found.said),
            (None, "traffic did not leave it")
        );
    }
    assert_says(&but_for(20).said, "traffic left it within 0.95 s");
    // Requests that reached no server say nothing.
    let mut all: Vec<Sent> = (0..30).map(|n| sent(n as f64, n % 2, Some(0.1))).collect();
    let refused = (30..60).map(|n| Sent {
        has_no_host: true,
        ended_in: "proxy",
        ..sent(f64::from(n), 0, None)
    });
    all.extend(refused);
    let found = only(&all, &[fault(10.5, 1, "down")]);
    assert_says(&found.left.said, "traffic did not leave it");
}

#[test]
fn a_server_that_was_reachable_all_the_time_is_not_called_back() {
    let outcome = |kind: &str, events: &[(f64, &str)]| {
        let requests = (0..100).map(|n| sent(0.1 * n as f64, n % 2, Some(0.1)));
        let events = events.iter();
        let faults = events.map(|(at, event)| of_kind(kind, *at, 1, event));
        let found = episodes_of(&requests.collect::<Vec<_>>(), &faults.collect::<Vec<_>>());
        (lines(&found).join("\n"), found[0].phases[1].to)
    };
    let whole = [(2.0, "down"), (4.0, "up"), (4.3, "ready")];
    for (kind, went_on) in [
        ("slow", "it could be reached all the time"),
        ("cut", "it could be reached all the time"),
        ("stall", "the stalled requests went on"),
        ("reset", "it served again"),
    ] {
        let (text, over) = outcome(kind, &whole);
        assert_says(
            &text,
            &format!("server-1 {kind} from 2.0 s taken away at 4.0 s"),
        );
        assert_says(&text, &format!("traffic did not leave it; {went_on}"));
        assert!(!text.contains("answered again"), "{text}");
        assert_eq!(text.contains("served again"), kind == "reset", "{text}");
        assert_eq!(over, Some(4.0));
        let (text, over) = outcome(kind, &whole[..1]);
        let end = match kind {
            "reset" => "it was not brought back",
            _ => "the fault was not taken away",
        };
        assert_says(&text, end);
        assert_eq!(over, None);
    }
    let (text, over) = outcome("refuse", &whole);
    assert_says(&text, "until 4.3 s, when it answered again");
    assert_says(&text, "it served again 0.10 s after it was back");
    assert_eq!(over, Some(4.3));
}

#[test]
fn a_slow_server_that_got_no_more_requests_is_found() {
    let requests = (0..100).map(|n| sent(0.1 * n as f64, usize::from(n > 30), Some(0.1)));
    let faults = [(2.0, "down"), (4.0, "up")].map(|(at, event)| of_kind("slow", at, 1, event));
    let found = only(&requests.collect::<Vec<_>>(), &faults);
    let never = "it served nothing in the 5.90 s after that, in which 60 requests came";
    assert_eq!((found.recovery.said.as_str(), found.unserved), (never, 60));
}
