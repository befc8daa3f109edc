use crate::report::load::Summary;
use crate::request::ColumnId;
use crate::whatif::figures::Figures;
use crate::whatif::load::Request;

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
    let rows = Results::default().run_of("", &[], &load).table;
    for name in "ttft e2el tpot total_latency pure_queue_time prefill_time decode_time".split(' ') {
        let column = match name {
            "ttft" => ColumnId::ttft_observed,
            "e2el" => ColumnId::total_latency,
            name => ColumnId::named(name).unwrap(),
        };
        let mut shares = Vec::new();
        // Limits that one request just keeps, or just misses.
        let took = (0..rows.len()).filter_map(|row| rows.integer(column, row));
        for limit in took.step_by(9).flat_map(|nanos| [nanos, nanos - 1]) {
            let limit = limit.max(1) as f64 / 1e6;
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
            let goals = &results.args.goodput;
            let shown = Figures::of_run(&Summary::of_run(&run), goals).goodput_share;
            let share = goodput_share(&load, goals);
            assert_eq!(shown, Some(share), "{name} {limit}");
            shares.push(share);
        }
        shares.sort_unstable_by(f64::total_cmp);
        assert!(shares[0] < shares[shares.len() - 1], "{name}: {shares:?}");
    }
}
