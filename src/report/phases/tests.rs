use super::*;
use crate::report::load::tests::*;

const HOSTS: [&str; 2] = ["127.0.0.1:30001", "127.0.0.1:30002"];
const SERVERS: [&str; 2] = ["server-1", "server-2"];
const AT_ONCE: &str = "no request was sent there during the fault";
const STAYED: &str = "traffic did not leave it: none came after the last that was sent there";
const UNKNOWN: &str = "when traffic moved away is unknown: not every row names the server that its request was sent to";

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

/// The requests of each phase, and how many of them failed.
fn counts(found: &[Episode]) -> Vec<[(usize, usize); 3]> {
    let count = |phase: &Phase| (phase.requests, phase.failed.values().sum());
    let phases = found.iter().map(|of| of.phases.each_ref());
    phases.map(|phases| phases.map(count)).collect()
}

/// Asserts when the last request was sent to the server that the fault disturbed, seconds after its begin (`None`: that is not known),
/// and the end of what is said of it.
#[track_caller]
fn assert_left(requests: Vec<Sent>, told: &str, after: Option<f64>, said: &str) {
    let left = only(requests, told).left;
    let found = left.seconds.map(|seconds| (seconds * 1e9).round() / 1e9);
    assert_eq!(found, after, "{left:?}");
    assert!(left.said.ends_with(said), "{left:?}");
}

#[test]
fn a_request_was_sent_to_the_server_that_its_row_or_an_attempt_names() {
    let retried = |host: &str| {
        let mut requests = killed();
        requests[400].more = format!("failed_attempts={host} connect_error 0 0.001");
        requests
    };
    // As in rows behind a hop that broke them: they have no host, but an attempt that names the hop.
    let broken_by = |hop: &str| -> Vec<Sent> {
        let attempt = format!("failed_attempts={hop} proxy_error after 0.000115 s");
        let broken = |of: Sent| match of.ttft {
            None => of.nowhere(attempt.clone()),
            Some(_) => of,
        };
        killed().into_iter().map(broken).collect()
    };
    // Without a hop a refused connection is in no row.
    let mut without_hop = killed();
    without_hop.retain(|of| of.ttft.is_some());
    without_hop.iter_mut().for_each(|of| of.worker = "");
    let [reset, refused] = ["reset", "refuse"].map(|kind| KILL.replace("kill", kind));
    for (requests, told, after, said) in [
        // The other server answered, but the attempt at 40 s names the dead one.
        (retried(HOSTS[0]), KILL, Some(10.0), ""),
        // A longer address with the same beginning is another server.
        (retried("127.0.0.1:300019"), KILL, Some(0.8), ""),
        (broken_by("server-1"), &reset, Some(0.8), ""),
        (broken_by("server-12"), &reset, None, AT_ONCE),
        // A hop that refuses connections reads no request.
        (broken_by("server-1"), &refused, None, UNKNOWN),
        (without_hop, KILL, None, UNKNOWN),
    ] {
        assert_left(requests, told, after, said);
    }
}

const DOWN: &str = "10.5 server-1 kill down";
const BACK: &str = "10.5 server-1 kill down, 17.5 server-1 kill ready";

#[test]
fn traffic_has_left_a_server_once_others_come_and_go_elsewhere() {
    // Up at 58 s, seen at 60 s, used since 59 s.
    let mut used_before_ready = killed();
    for request in &mut used_before_ready[590..600] {
        *request = sent(request.at, 0, request.ttft);
    }
    assert_left(used_before_ready, KILL, Some(0.8), "");
    // Requests that ended before any server were sent to none.
    let in_turns = |n: usize| sent(n as f64, n % 2, Some(0.1));
    let ended_in = |places: &[&str]| {
        let one = |n| match n {
            0..30 => in_turns(n),
            _ => {
                let place = places[n % places.len()];
                sent(n as f64, 0, None).nowhere(format!("ended_in={place}"))
            }
        };
        (0..60).map(one).collect()
    };
    let before = ended_in(&["connecting", "to proxy", "proxy", "router"]);
    assert_left(before, DOWN, Some(17.5), "31 requests came later");
    // A server that refused the connection had been chosen.
    for place in ["network", "to proxy+router+network"] {
        assert_left(ended_in(&[place]), DOWN, None, UNKNOWN);
    }
    // A router held the request of 12 s, and sent it to the server after two that had come later.
    let mut overtaken: Vec<Sent> = (0..60).map(in_turns).collect();
    overtaken[12].more = "router_send_time=17".to_owned();
    assert_left(overtaken, BACK, Some(6.5), "1 request came later");
    // All had come before the fault, and waited before they were sent.
    let one = |n: usize| Sent {
        more: format!("router_send_time={n}"),
        ..sent(0.01 * n as f64, if n < 13 { n % 2 } else { 1 }, Some(0.1))
    };
    let waited = (0..60).map(one).collect();
    assert_left(waited, DOWN, Some(1.5), "sent there 1.50 s after it began");
}

#[test]
fn traffic_that_never_leaves_or_never_comes() {
    // All others go to the server.
    let while_down = |request: fn(f64) -> Sent| -> Vec<Sent> {
        let one = |n| match f64::from(n) {
            at @ 11.0..18.0 => request(at),
            at => sent(at, 0, Some(0.1)),
        };
        (0..60).map(one).collect()
    };
    assert_left(while_down(|at| sent(at, 0, None)), BACK, None, STAYED);
    assert_left(while_down(|at| sent(at, 1, Some(0.1))), BACK, None, AT_ONCE);
    // A request that timed out while the server stood still has no host: its server is unknown, unless there is only one, or its proxy
    // named its hop.
    let of_nobody = while_down(|at| sent(at, 0, None).nowhere(String::new()));
    let of_hop = |at| sent(at, 0, None).nowhere("worker=server-1".to_owned());
    assert_left(of_nobody.clone(), BACK, None, UNKNOWN);
    assert_left(while_down(of_hop), BACK, None, STAYED);
    let alone = [ServerFile::of(SERVERS[0], HOSTS[0])];
    let alone = episodes_at(&alone, of_nobody, BACK);
    let said = &alone[0].faults[0].left.said;
    assert_says(said, "it is the only server");
}

/// How soon a server served again from when it could, or how many requests came since.
#[test]
fn a_server_serves_again_or_does_not() {
    let in_turns: Vec<Sent> = (0..100)
        .map(|n| sent(0.1 * n as f64, n % 2, Some(0.1)))
        .collect();
    let failing = in_turns.iter().map(|of| Sent {
        ttft: None,
        ..of.clone()
    });
    let left = (0..100).map(|n| sent(0.1 * n as f64, usize::from(n > 30), Some(0.1)));
    let stopped = in_turns.iter().cloned().map(|of| match of.at {
        4.0.. => given_up(of.at, ""),
        _ => of,
    });
    let [failing, left, stopped] = [failing.collect(), left.collect(), stopped.collect()];
    let reachable = "it could be reached all the time";
    let never = "it served nothing in the 5.90 s after the fault, in which 60 requests came";
    for (requests, kind, over, said, unserved) in [
        (&in_turns, "slow", 4.0, reachable, 0),
        (&in_turns, "cut", 4.0, reachable, 0),
        (&in_turns, "stall", 4.0, reachable, 0),
        (
            &in_turns,
            "reset",
            4.0,
            "it served again 0 µs after it was back",
            0,
        ),
        (
            &in_turns,
            "refuse",
            4.3,
            "it served again 0.10 s after it was back",
            0,
        ),
        (&failing, "reset", 4.0, never, 60),
        (&left, "slow", 4.0, never, 60),
        // Requests given up when the run was stopped could not have been served.
        (&stopped, "reset", 4.0, never, 0),
    ] {
        let told =
            format!("2 server-1 {kind} down, 4 server-1 {kind} up, 4.3 server-1 {kind} ready");
        let found = episodes_of(requests.clone(), &told);
        assert_eq!(found[0].phases[1].to, Some(over), "{kind}");
        let fault = only(requests.clone(), &told);
        let recovery = (fault.over, &*fault.recovery.said, fault.unserved);
        assert_eq!(recovery, (Some(over), said, unserved), "{kind}");
    }
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
