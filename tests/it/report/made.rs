//! Rows of made runs, and their folders.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

/// The same numbers every time.
struct Chance(u64);

impl Chance {
    /// Evenly between 0 and 1.
    fn even(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }
}

/// A made run: requests at a steady rate with some chance, to two servers that queue.
#[derive(Clone, Copy)]
pub struct Made {
    pub requests: usize,
    /// Seconds that a request keeps one of a server's places.
    pub serves: f64,
    /// Every so many-th request fails.
    pub fails: usize,
    /// The servers are down then.
    pub down: (f64, f64),
    pub seed: u64,
}

pub const MADE: Made = Made {
    requests: 120,
    serves: 0.09,
    fails: usize::MAX,
    down: (f64::NAN, f64::NAN),
    seed: 7,
};

pub const HEADER: &str = "req_id,success,error,host,input_length,actual_prompt_tokens,actual_output_tokens,arrival_time,router_send_time,\
    server_created_time,queue_time_start,queue_time_end,server_first_token_time,finish_time,server_latency,total_latency,ttft,\
    queue_time_in_router,queue_time_in_server,tokenize_time,pure_queue_time,scheduled_time,sent_time,schedule_lag,first_token_time,\
    prefill_end_time,prefill_time,decode_time,network_time,ttft_observed,ttft_from_schedule,tpot,itl_mean,itl_max,num_retractions,\
    model,endpoint,stream,status,outcome,attempts,clock_offset,clock_offset_error,clock_state,timing_source,seen_by,worker,\
    failed_attempts,end_time,elapsed,ended_in,token_count_source,token_chunks";

/// Durations of a good row: the columns of their ends.
const DURATIONS: &str = "\
server_latency router_send_time finish_time
total_latency arrival_time finish_time
ttft arrival_time server_first_token_time
queue_time_in_router arrival_time router_send_time
queue_time_in_server server_created_time server_first_token_time
tokenize_time server_created_time queue_time_start
pure_queue_time queue_time_start queue_time_end
schedule_lag scheduled_time sent_time
prefill_time queue_time_end server_first_token_time
decode_time first_token_time finish_time
network_time router_send_time server_created_time
ttft_observed arrival_time first_token_time
ttft_from_schedule scheduled_time first_token_time
elapsed arrival_time end_time";

impl Made {
    /// Its rows.
    pub fn rows(self) -> String {
        // Arrivals and lengths are the same whatever the servers do.
        let (mut arrivals, mut chance) = (Chance(3), Chance(self.seed));
        let mut free = [0.0_f64; 2];
        let mut text = format!("{HEADER}\n");
        let mut scheduled = 0.0;
        for n in 0..self.requests {
            scheduled += -(1.0 - arrivals.even()).ln() / 18.0;
            let sent = scheduled + 0.0002 + 0.0005 * chance.even();
            let (arrival, server) = (sent + 0.0004, n % 2);
            let send = arrival + 0.001 + 0.002 * chance.even();
            let created = send + 0.0007;
            let start = created + 0.003;
            let end = free[server].max(start + 0.0001);
            free[server] = end + self.serves * (0.5 + chance.even());
            let prefill = end + 0.03 + 0.01 * chance.even();
            let first = prefill + 0.002;
            let read = first + 0.0012;
            let tokens = 20 + (arrivals.even() * 20.0) as u32;
            let tpot = 0.006 + 0.002 * chance.even();
            let finish = read + tpot * f64::from(tokens - 1) + 0.0005;
            let is_down = (self.down.0..self.down.1).contains(&arrival) && server == 1;
            let fails = is_down || n % self.fails == self.fails - 1;
            let over = match fails {
                true => send + if is_down { 0.02 } else { 0.3 },
                false => finish,
            };
            let ours = "scheduled_time sent_time arrival_time router_send_time end_time";
            let ours = ours.split(' ').zip([scheduled, sent, arrival, send, over]);
            let its = "server_created_time queue_time_start queue_time_end prefill_end_time server_first_token_time \
                first_token_time finish_time";
            let all = [created, start, end, prefill, first, read, finish];
            let its = its.split(' ').zip(all);
            let mut times: BTreeMap<&str, f64> = ours.collect();
            times.extend(its.filter(|_| !fails));
            let durations = DURATIONS.lines().filter_map(|line| {
                let [name, from, to] = line.split(' ').collect::<Vec<_>>()[..] else {
                    panic!("{line}");
                };
                Some((name, times.get(to)? - times.get(from)?))
            });
            let mut seconds: BTreeMap<&str, f64> = durations.collect();
            seconds.extend(&times);
            if !fails {
                seconds.extend([("tpot", tpot), ("itl_mean", tpot), ("itl_max", 2.0 * tpot)]);
                let error = if n == 20 { 0.02 } else { 0.0004 };
                seconds.extend([("clock_offset", 0.0), ("clock_offset_error", error)]);
            }
            let (outcome, ended) = match (fails, is_down) {
                (false, _) => ("ok", "done"),
                (_, true) => ("upstream_died", "server"),
                _ => ("timeout", "server"),
            };
            let host = format!("127.0.0.1:3000{}", server + 1);
            let input = 30 + n % 9;
            let of_all = format!(
                "req_id=g-{n}|host={host}|input_length={input}|model=m|endpoint=/generate|stream=True|outcome={outcome}|\
                seen_by=traffic|worker=server-{}|ended_in={ended}",
                server + 1
            );
            let of_one = match fails {
                true => format!(
                    "success=False|error=\"it was {outcome}, alas\"|attempts=2|\
                    failed_attempts={host} server_error 500 after 0.010000 s"
                ),
                false => format!(
                    "success=True|actual_prompt_tokens={}|actual_output_tokens={tokens}|token_chunks={tokens}|\
                    num_retractions={}|status=200|attempts=1|clock_state=offset|timing_source=meta_info|token_count_source=meta_info",
                    input + 3,
                    u8::from(n % 50 == 9)
                ),
            };
            let cells = of_all.split('|').chain(of_one.split('|'));
            let cells: BTreeMap<&str, &str> =
                cells.filter_map(|cell| cell.split_once('=')).collect();
            let cell = |column| match seconds.get(column) {
                Some(seconds) => format!("{seconds:.9}"),
                None => cells.get(column).copied().unwrap_or_default().to_owned(),
            };
            text += &(HEADER.split(',').map(cell).collect::<Vec<_>>().join(",") + "\n");
        }
        text
    }

    /// Its folder, with what the generator and the experiment tell of it.
    pub fn write(self, dir: &Path, settings: Value, summary: &Value) {
        std::fs::create_dir_all(dir).unwrap();
        put(dir, "requests.csv", &self.rows());
        put(dir, "summary.json", &summary.to_string());
        let servers = [1, 2].map(|n| {
            json!({ "name": format!("server-{n}"), "url": format!("http://127.0.0.1:3000{n}"),
            "host": format!("127.0.0.1:3000{n}"), "engine": "sim", "max_running_requests": 1 })
        });
        let file = json!({ "label": "", "settings": settings, "repeat": 0, "state": "done", "error": null, "began": 1_795_000_000.25,
            "servers": servers, "router": "builtin round_robin", "workload_sha256": "sent", "notes": ["the cache was not emptied"],
            "processes": [{ "name": "server-1", "command": "sim --max-running-requests 1", "log": "logs/server-1" }] });
        put(dir, "run.json", &file.to_string());
    }
}

pub fn put(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}
