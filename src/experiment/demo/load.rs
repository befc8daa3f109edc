//! Load that never ends: it rises and falls as in a day of a few minutes, with bursts, of several kinds.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::traffic::{self, Stop};

/// A day, seconds.
const DAY: u64 = 240;
/// Seconds and requests a second of all kinds, from the morning (so that there is something to see at once) over noon and midnight to
/// the next, with bursts.
const CURVE: &str = "0:7 15:8.5 15:18.7 20:19.5 20:8.9 60:11 65:10.9 65:24 70:23.8 70:10.8 120:7 180:3 215:5 215:11 220:11.6 \
                     220:5.3 240:7";

/// Kinds of requests, a line each: the share of all, and the generator's flags. The clients of the last but one lose patience; the
/// last has a prompt twice, as text and as ids, which the server refuses.
const KINDS: &str = "\
0.38 --backend sglang --model demo-8b --random-input-len 260 --random-output-len 60 --header x-tenant:search
0.36 --backend sglang-oai-chat --model demo-8b --random-input-len 200 --random-output-len 70 --header x-tenant:chat
0.14 --backend sglang-oai-chat --model demo-70b --random-input-len 300 --random-output-len 50 --header x-tenant:chat
0.08 --backend sglang --model demo-70b --random-input-len 200 --random-output-len 30 --disable-stream --header x-tenant:batch
0.03 --backend sglang-oai-chat --model demo-8b --random-output-len 400 --request-timeout-s 1
0.01 --backend sglang --model demo-8b --random-input-len 20 --extra-request-body {\"input_ids\":[1]}";

/// Sends until it is dropped; what is under way then is given up.
///
/// # Errors
/// The generator takes no such load.
pub(super) async fn run(front: &str, clock: &Clock) -> anyhow::Result<()> {
    let mut loads = JoinSet::new();
    let mut days = tokio::time::interval(Duration::from_secs(DAY));
    for day in 0_u64.. {
        days.tick().await;
        while loads.try_join_next().is_some() {}
        for (kind, number) in KINDS.lines().zip(day * KINDS.lines().count() as u64..) {
            let plan = of_day(kind, front, number)?.plan()?;
            let sent = traffic::drive(plan, clock.clone(), Arc::default(), Stop::new());
            loads.spawn(async {
                if let Err(error) = sent.await {
                    log::warn!("load: {error}");
                }
            });
        }
    }
    Ok(())
}

/// The load of a kind in a day: each has a number of its own.
fn of_day(kind: &str, front: &str, number: u64) -> anyhow::Result<traffic::Args> {
    let (share, flags) = kind.split_once(' ').context("a share and flags")?;
    let share: f64 = share.parse()?;
    let point = |point: &str| {
        let (at, rate) = point.split_once(':').context("a time and a rate")?;
        anyhow::Ok(format!("{at}:{}", rate.parse::<f64>()? * share))
    };
    let curve: Vec<String> = CURVE.split(' ').map(point).collect::<Result<_, _>>()?;
    let line = format!(
        "traffic --base-url {front} --rate-curve {} --seed {number} --request-id-prefix demo-{number} \
         --random-range-ratio 0.3 {flags}",
        curve.join(",")
    );
    Ok(traffic::Args::try_parse_from(line.split(' '))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_one_that_the_generator_sends_all_day() {
        let share = |kind: &str| kind.split(' ').next().unwrap().parse::<f64>().unwrap();
        let shares: f64 = KINDS.lines().map(share).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        for kind in KINDS.lines() {
            let plan = |number| {
                of_day(kind, "http://127.0.0.1:1", number)
                    .unwrap()
                    .plan()
                    .unwrap()
            };
            let (one, next) = (plan(0), plan(6));
            let model = one.args.model.clone().unwrap();
            assert!(["demo-8b", "demo-70b"].contains(&model.as_str()), "{model}");
            assert_ne!(one.req_id(0), next.req_id(0));
            assert_ne!(one.schedule().unwrap(), next.schedule().unwrap());
        }
    }
}
