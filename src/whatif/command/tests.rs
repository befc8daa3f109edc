use crate::clock::{NANOS, Stamp};
use crate::report::load::Summary;
use crate::whatif::figures::Figures;
use crate::whatif::load::{Request, Times};

use super::*;

/// Requests of all sizes that come faster than two servers take them, as these are predicted to have them.
fn predicted() -> Load {
    let request = |n: u32| Request {
        arrival: f64::from(n) * 0.011,
        // One is longer than the KV cache, and refused.
        prompt: if n == 17 {
            9_000
        } else {
            20 + n * 7_919 % 3_000
        },
        cached: 0,
        output: 1 + n * 104_729 % 40,
        server: 0,
        times: None,
    };
    let load = Load {
        requests: (0..60).map(request).collect(),
        servers: vec!["a".to_owned(), "b".to_owned()],
        slots: vec![Some(3), Some(3)],
        pool: Some(8_000),
        ..Load::default()
    };
    let model = Model {
        inbound_s: 0.000_7,
        return_s: 0.000_3,
        ..Model::default()
    };
    let mut servers = Deployment::of(&model, &load);
    servers.policy = Some(Policy::RoundRobin);
    servers.serve(&load)
}

/// The search goes by the requests, what is shown by their rows: both are the same to the nanosecond.
#[test]
fn a_search_finds_what_is_shown() {
    let load = predicted();
    assert_eq!(load.timed().count(), 59);
    assert!(load.requests.iter().any(|of| of.output == 1));
    let nanos = |from: f64, to: f64| {
        let [from, to] = [from, to].map(|at| Stamp::from_nanos(0).plus_seconds(at).nanos());
        to - from
    };
    let lasts = |name: &str, of: &Request, times: Times| match name {
        "ttft" => nanos(of.arrival, times.first),
        "tpot" => {
            let later = f64::from(of.output.max(2) - 1);
            ((times.finish - times.first) / later * NANOS as f64) as i64
        }
        "pure_queue_time" => nanos(times.queued, times.admitted),
        "prefill_time" => nanos(times.admitted, times.first),
        "decode_time" => nanos(times.first, times.finish),
        _ => nanos(of.arrival, times.finish),
    };
    for name in "ttft e2el tpot total_latency pure_queue_time prefill_time decode_time".split(' ') {
        let mut shares = Vec::new();
        // Limits that one request just keeps, or just misses.
        for (of, times) in load.timed().step_by(9) {
            for off in [0, -1] {
                let limit = (lasts(name, of, times) + off).max(1) as f64 / 1e6;
                let args = Args {
                    goodput: vec![goal(&format!("{name}:{limit}")).unwrap()],
                    ..Args::default()
                };
                let results = Results {
                    args,
                    ..Results::default()
                };
                let mut run = results.run_of("", &[], &load);
                results.set_goals(&mut run);
                let shown =
                    Figures::of_run(&Summary::of_run(&run), &results.args.goodput).goodput_share;
                let share = goodput_share(&load, &results.args.goodput);
                assert_eq!(shown, Some(share), "{name} {limit}");
                shares.push(share);
            }
        }
        shares.sort_unstable_by(f64::total_cmp);
        assert!(shares[0] < shares[shares.len() - 1], "{name}: {shares:?}");
    }
}
