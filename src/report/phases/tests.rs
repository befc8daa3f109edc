use super::*;
use crate::report::load::tests::*;

const HOSTS: [&str; 2] = ["127.0.0.1:30001", "127.0.0.1:30002"];
const SERVERS: [&str; 2] = ["server-1", "server-2"];
const AT_ONCE: &str = "no request was sent there during the fault";
const STAYED: &str = "traffic did not leave it: none came after the last that was sent there";
const UNKNOWN: &str = "when traffic moved away is unknown";

/// A request: its arrival, its TTFT (`None` if it failed), the server and the hop that its row names, and other cells.
#[derive(Clone)]
struct Sent {
    at: f64,
    ttft: Option<f64>,
    host: &'static str,
    worker: &'static str,
    more: String,
}

fn sent(at: f64, server: usize, ttft: Option<f64>) -> Sent {
    Sent {
        at,
        ttft,
        host: HOSTS[server],
        worker: SERVERS[server],
        more: String::new(),
    }
}

impl Sent {
    /// The same without its server and hop, but with these cells.
    fn nowhere(self, more: String) -> Sent {
        Sent {
            host: "",
            worker: "",
            more,
            ..self
        }
    }

    fn row(self) -> String {
        let Sent { at, host, .. } = self;
        let ended = match self.ttft {
            Some(ttft) => format!("outcome=ok, ttft={ttft}, total_latency={}", 10.0 * ttft),
            None => "outcome=upstream_died".to_owned(),
        };
        format!(
            "arrival_time={at}, host={host}, worker={}, {ended}, {}",
            self.worker, self.more
        )
    }
}

/// Faults, each by its time, server, kind and event.
fn faults(text: &str) -> Vec<FaultRow> {
    let of = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [time, server, kind, event] => FaultRow::of(time.parse().unwrap(), server, kind, event),
        _ => panic!("{line}"),
    };
    text.split(", ").map(of).collect()
}

/// The episodes of requests to two servers.
fn episodes_of(sent: impl IntoIterator<Item = Sent>, told: &str) -> Vec<Episode> {
    let servers = [0, 1].map(|n| ServerFile::of(SERVERS[n], HOSTS[n]));
    episodes_at(&servers, sent, told)
}

fn episodes_at(
    servers: &[ServerFile],
    sent: impl IntoIterator<Item = Sent>,
    told: &str,
) -> Vec<Episode> {
    let table = Table::of_lines(sent.into_iter().map(Sent::row));
    episodes(&table, &faults(told), servers)
}

/// The only fault.
fn only(sent: impl IntoIterator<Item = Sent>, told: &str) -> Fault {
    let mut found = episodes_of(sent, told);
    assert_eq!((found.len(), found[0].faults.len()), (1, 1), "{found:?}");
    found[0].faults.remove(0)
}

/// Ten requests a second for 90 s, in turns. Server 1 is down from 30 s: requests to it fail until 31 s, then all go to the other and take
/// twice as long. At 60 s it is back, it is used from 62 s on, and times are as before from 65 s.
fn killed() -> Vec<Sent> {
    // TTFTs vary a little, without a pattern.
    let usual = |n: usize| 0.1 + 0.01 * ((n * 7919) % 97) as f64 / 97.0;
    let one = |n| match (n as f64 / 10.0, n % 2) {
        (at @ 30.0..31.0, 0) => sent(at, 0, None),
        (at @ 30.0..62.0, _) => sent(at, 1, Some(2.0 * usual(n))),
        (at @ 62.0..65.0, server) => sent(at, server, Some(2.0 * usual(n))),
        (at, server) => sent(at, server, Some(usual(n))),
    };
    (0..900).map(one).collect()
}

const KILL: &str = "30 server-1 kill down, 58 server-1 kill up, 60 server-1 kill ready";

#[track_caller]
fn assert_after(effect: &Effect, seconds: f64) {
    let found = effect.seconds.unwrap_or(f64::NAN);
    assert!((found - seconds).abs() < 1e-9, "{effect:?}");
}

/// The requests of each phase, and how many of them failed.
fn counts(found: &[Episode]) -> Vec<[(usize, usize); 3]> {
    let count = |phase: &Phase| (phase.requests, phase.failed.values().sum());
    let phases = found.iter().map(|of| of.phases.each_ref());
    phases.map(|phases| phases.map(count)).collect()
}

#[test]
fn a_retried_request_was_sent_to_the_dead_server_too() {
    let mut requests = killed();
    // The other server answered, but the attempt at 40 s names the dead one.
    requests[400].more = format!("failed_attempts={} connect_error 0 0.001", HOSTS[0]);
    assert_after(&only(requests.clone(), KILL).left, 10.0);
    // A longer address with the same beginning is another server.
    requests[400].more = format!("failed_attempts={}9 connect_error 0 0.001", HOSTS[0]);
    assert_after(&only(requests, KILL).left, 0.8);
}

#[test]
fn a_request_that_a_hop_broke_was_sent_there() {
    let left = |requests: Vec<Sent>, kind| only(requests, &KILL.replace("kill", kind)).left;
    // As in rows behind such a hop: they have no host, but an attempt that names the hop.
    let broken_by = |hop: &str| -> Vec<Sent> {
        let attempt = format!("failed_attempts={hop} proxy_error after 0.000115 s");
        let broken = |of: Sent| match of.ttft {
            None => of.nowhere(attempt.clone()),
            Some(_) => of,
        };
        killed().into_iter().map(broken).collect()
    };
    assert_after(&left(broken_by("server-1"), "reset"), 0.8);
    assert_eq!(left(broken_by("server-12"), "reset").said, AT_ONCE);
    // A hop that refuses connections reads no request.
    assert_says(&left(broken_by("server-1"), "refuse").said, UNKNOWN);
    // Without a hop a refused connection is in no row.
    let mut without = killed();
    without.retain(|of| of.ttft.is_some());
    without.iter_mut().for_each(|of| of.worker = "");
    assert_says(&left(without, "kill").said, UNKNOWN);
}

#[test]
fn traffic_left_a_server_that_serves_before_it_is_seen_ready() {
    let mut requests = killed();
    // Up at 58 s, seen at 60 s, used since 59 s.
    for request in &mut requests[590..600] {
        *request = sent(request.at, 0, request.ttft);
    }
    assert_after(&only(requests, KILL).left, 0.8);
}

#[test]
fn requests_that_a_fault_broke_count_as_during_it() {
    let mut requests = killed();
    // Two arrived before the fault, which broke one; the other was long. One had failed by itself before, and a second fault broke another.
    for (broken, end) in [(295, 30.001), (100, 12.0), (799, 80.5)] {
        requests[broken].ttft = None;
        requests[broken].more = format!("end_time={end}");
    }
    for request in requests.iter_mut() {
        if let Some(ttft) = request.ttft {
            request.more = format!("end_time={}", request.at + 10.0 * ttft);
        }
    }
    requests[296].more = "end_time=45".to_owned();
    let twice = format!("{KILL}, 80 server-2 kill down, 81 server-2 kill ready");
    let found = episodes_of(requests, &twice);
    let first = [(299, 1), (301, 6), (199, 0)];
    assert_eq!(counts(&found), [first, [(199, 0), (11, 1), (90, 0)]]);
}

#[test]
fn faults_that_overlap_are_one_episode_and_others_are_not() {
    let told = "30 server-1 kill down, 31 server-2 kill down, 40 server-2 kill ready, 45 server-1 kill ready, \
        70 server-2 kill down, 80 server-2 kill ready";
    let found = episodes_of(killed(), told);
    let ends = |of: &Episode| of.phases.each_ref().map(|phase| (phase.from, phase.to));
    let shape: Vec<_> = found.iter().map(|of| (of.faults.len(), ends(of))).collect();
    // After one fault is before the next.
    let first = [(0.0, Some(30.0)), (30.0, Some(45.0)), (45.0, Some(70.0))];
    let second = [(45.0, Some(70.0)), (70.0, Some(80.0)), (80.0, None)];
    assert_eq!(shape, [(2, first), (1, second)]);
}

#[test]
fn traffic_that_never_leaves_or_never_comes() {
    let told = "10.5 server-1 kill down, 20.5 server-1 kill ready";
    let all = |request: fn(f64, bool) -> Sent| {
        (0..100).map(move |n| request(f64::from(n), (11..21).contains(&n)))
    };
    let left = |request| only(all(request), told);
    let found = left(|at, _| sent(at, 0, None));
    assert_eq!((found.left.seconds, &*found.left.said), (None, STAYED));
    let never = "it served nothing in the 78.50 s after the fault, in which 79 requests came";
    assert_eq!((found.recovery.said.as_str(), found.unserved), (never, 79));
    let but_then = all(|at, _| sent(at, 0, Some(0.1))).filter(|of| !(11.0..21.0).contains(&of.at));
    assert_eq!(only(but_then, told).left.said, AT_ONCE);
    let elsewhere = left(|at, is_down| sent(at, usize::from(is_down), Some(0.1)));
    assert_eq!(elsewhere.left.said, AT_ONCE);
    // A request that timed out while the server stood still has no host: its server is unknown, unless there is only one, or its proxy
    // named its hop.
    let nowhere = |at, is_down| match is_down {
        true => sent(at, 0, None).nowhere(String::new()),
        false => sent(at, 0, Some(0.1)),
    };
    assert_says(&left(nowhere).left.said, UNKNOWN);
    let held = left(|at, is_down| match is_down {
        true => sent(at, 0, None).nowhere("worker=server-1".to_owned()),
        false => sent(at, 0, Some(0.1)),
    });
    assert_eq!(held.left.said, STAYED);
    let one = [ServerFile::of(SERVERS[0], HOSTS[0])];
    let only = &episodes_at(&one, all(nowhere), told)[0].faults[0];
    assert_says(&only.left.said, "it is the only server");
}

fn given_up(at: f64, end: &str) -> Sent {
    let more = format!("outcome=client_abort, error={GIVEN_UP}, end_time={end}");
    sent(at, 0, None).nowhere(more)
}

#[test]
fn requests_given_up_when_the_run_was_stopped_count_where_they_arrived() {
    let before = (0..20).map(|n| sent(0.05 * n as f64, n % 2, Some(0.1)));
    // One arrived before the fault and was under way when it began.
    let held = (0..72).map(|n| 1.0 + 0.05 * f64::from(n)).chain([0.96]);
    let requests = before.chain(held.map(|at| given_up(at, "4.6")));
    let found = episodes_of(requests, "1 server-1 stall down, 1 server-2 stall down");
    assert_eq!(counts(&found), [[(21, 0), (72, 0), (0, 0)]]);
    let expected = ["72 given up when the run was stopped", UNKNOWN];
    assert_says_all(&lines(&found).join("\n"), expected);
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json[0]["phases"][1]["given_up"], 72);
}

#[test]
fn requests_given_up_after_a_fault_do_not_count_as_unserved() {
    let requests = killed().into_iter().map(|of| match of.at {
        60.0.. => given_up(of.at, ""),
        _ => of,
    });
    let found = only(requests, KILL);
    assert_says(&found.recovery.said, "in which 300 requests came");
    assert_eq!(found.unserved, 0);
}

/// Requests that reached no server say nothing.
#[test]
fn requests_that_ended_in_the_proxy_were_sent_to_no_server() {
    let all = (0..60).map(|n| match n {
        0..30 => sent(n as f64, n % 2, Some(0.1)),
        _ => sent(n as f64, 0, None).nowhere("ended_in=proxy".to_owned()),
    });
    let left = only(all, "10.5 server-1 kill down").left;
    assert_after(&left, 17.5);
    assert_says(&left.said, "31 requests came later");
}

/// A router held the first request, and sent it to the server after two that had come later.
#[test]
fn requests_that_overtook_the_last_did_not_come_later() {
    let all = (0..60).map(|n| {
        let mut request = sent(n as f64, n % 2, Some(0.1));
        if n == 12 {
            request.more = "router_send_time=17".to_owned();
        }
        request
    });
    let left = only(all, "10.5 server-1 kill down, 17.5 server-1 kill ready").left;
    assert_after(&left, 6.5);
    assert_says(&left.said, "1 request came later");
}

/// All had come before the fault, and waited before they were sent.
#[test]
fn a_server_that_got_none_of_those_that_waited_is_left() {
    let all = (0..60).map(|n| {
        let server = if n < 13 { n % 2 } else { 1 };
        let mut request = sent(0.01 * n as f64, server, Some(0.1));
        request.more = format!("router_send_time={n}");
        request
    });
    let left = only(all, "10.5 server-1 kill down").left;
    assert_after(&left, 1.5);
    let expected = "the last request was sent there 1.50 s after it began";
    assert_eq!(left.said, expected);
}

#[test]
fn a_server_that_was_reachable_all_the_time_is_not_called_back() {
    let outcome = |kind: &str| {
        let requests = (0..100).map(|n| sent(0.1 * n as f64, n % 2, Some(0.1)));
        let told = "2 server-1 KIND down, 4 server-1 KIND up, 4.3 server-1 KIND ready";
        let found = episodes_of(requests, &told.replace("KIND", kind));
        (lines(&found).join("\n"), found[0].phases[1].to)
    };
    for (kind, went_on) in [
        ("slow", "it could be reached all the time"),
        ("cut", "it could be reached all the time"),
        ("stall", "it could be reached all the time"),
        ("reset", "it served again"),
    ] {
        let (text, over) = outcome(kind);
        let from = format!("server-1 {kind} from 2.0 s until 4.0 s\n");
        assert_says_all(
            &text,
            [
                &from,
                &format!("1.80 s after it began; 1 request came later; {went_on}"),
            ],
        );
        assert_eq!(text.contains("served again"), kind == "reset", "{text}");
        assert_eq!(over, Some(4.0));
    }
    let (text, over) = outcome("refuse");
    let back = "it served again 0.10 s after it was back";
    assert_says_all(&text, ["until 4.3 s\n", back]);
    assert_eq!(over, Some(4.3));
}

#[test]
fn a_slow_server_that_got_no_more_requests_is_found() {
    let requests = (0..100).map(|n| sent(0.1 * n as f64, usize::from(n > 30), Some(0.1)));
    let found = only(requests, "2 server-1 slow down, 4 server-1 slow up");
    let never = "it served nothing in the 5.90 s after the fault, in which 60 requests came";
    assert_eq!((found.recovery.said.as_str(), found.unserved), (never, 60));
}
