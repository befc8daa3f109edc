//! Load that never ends: it rises and falls as in a day of a few minutes, with bursts, of several kinds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::traffic::arrival::curve::Curve;
use crate::traffic::arrival::{Arrival, Gaps};
use crate::traffic::{self, RunPlan, Stop};

/// The model that two of the servers have.
pub(super) const SMALL: &str = "demo-8b";
/// The model of the third.
pub(super) const LARGE: &str = "demo-70b";

/// The load is laid out anew for each slice of time, as a short run of the generator's for each kind.
const SLICE: Duration = Duration::from_secs(5);
/// Slices of a day: four minutes.
const DAY: u64 = 48;
/// It begins in the morning, so that there is something to see at once.
const MORNING: u64 = DAY / 4;
/// Requests a second at noon and at midnight.
const NOON: f64 = 11.0;
const MIDNIGHT: f64 = 3.0;
/// Every so many slices, the first soon, comes a burst of so many times the load.
const BURST_EVERY: u64 = 10;
const FIRST_BURST: u64 = 3;
const BURST: f64 = 2.2;

/// A kind of request.
struct Kind {
    /// Of all requests.
    share: f64,
    /// As the generator's own flags say it.
    flags: &'static str,
}

const KINDS: [Kind; 6] = [
    Kind {
        share: 0.38,
        flags: "--backend sglang --model demo-8b --random-input-len 260 --random-output-len 60",
    },
    Kind {
        share: 0.36,
        flags: "--backend sglang-oai-chat --model demo-8b --random-input-len 200 --random-output-len 70",
    },
    Kind {
        share: 0.14,
        flags: "--backend sglang-oai-chat --model demo-70b --random-input-len 300 --random-output-len 50",
    },
    Kind {
        share: 0.08,
        flags: "--backend sglang --model demo-70b --random-input-len 200 --random-output-len 30 --disable-stream",
    },
    // Clients that lose patience.
    Kind {
        share: 0.03,
        flags: "--backend sglang-oai-chat --model demo-8b --random-output-len 400 --request-timeout-s 1",
    },
    // A prompt twice, as text and as ids: the server refuses it.
    Kind {
        share: 0.01,
        flags: "--backend sglang --model demo-8b --random-input-len 20 --extra-request-body {\"input_ids\":[1]}",
    },
];
const ALL_KINDS: &str = "--request-rate 1 --random-range-ratio 0.3";

/// Sends until it is dropped; what is under way then is given up.
///
/// # Errors
/// The generator takes no such load.
pub(super) async fn run(front: SocketAddr, clock: &Clock) -> anyhow::Result<()> {
    let plans = KINDS.iter().map(|kind| plan(kind, front));
    let plans = plans.collect::<anyhow::Result<Vec<RunPlan>>>()?;
    let mut slices = JoinSet::new();
    let mut ticks = tokio::time::interval(SLICE);
    for slice in 0.. {
        ticks.tick().await;
        while slices.try_join_next().is_some() {}
        for (number, (plan, kind)) in (0..).zip(plans.iter().zip(&KINDS)) {
            let plan = of_slice(plan, number, slice, rate(slice) * kind.share);
            slices.spawn(send(plan, clock.clone()));
        }
    }
    Ok(())
}

/// Requests a second in a slice of time.
fn rate(slice: u64) -> f64 {
    let time = (slice + MORNING) % DAY;
    let day = (1.0 - (std::f64::consts::TAU * time as f64 / DAY as f64).cos()) / 2.0;
    let rate = MIDNIGHT + (NOON - MIDNIGHT) * day;
    let is_burst = slice % BURST_EVERY == FIRST_BURST;
    if is_burst { rate * BURST } else { rate }
}

fn plan(kind: &Kind, front: SocketAddr) -> anyhow::Result<RunPlan> {
    let target = format!("--base-url http://{front}");
    let flags = [ALL_KINDS, &target, kind.flags].join(" ");
    let flags = std::iter::once("traffic").chain(flags.split(' '));
    Ok(traffic::Args::try_parse_from(flags)?.plan()?)
}

fn of_slice(plan: &RunPlan, kind: u64, slice: u64, rate: f64) -> RunPlan {
    let seed = slice * KINDS.len() as u64 + kind;
    let mut plan = plan.clone();
    plan.arrival = Arrival::Process {
        gaps: Gaps::Exponential,
        rate: Curve::flat(rate),
    };
    plan.amount.duration = Some(SLICE);
    plan.seed = seed;
    plan.workload.seed = seed;
    plan.request_id_prefix = format!("demo-{seed}");
    plan
}

async fn send(plan: RunPlan, clock: Clock) {
    match traffic::drive(plan, clock, Arc::default(), Stop::new()).await {
        Ok(_) => {}
        // None of this kind was due.
        Err(error) if error.is_usage() => {}
        Err(error) => log::warn!("load: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_one_that_the_generator_sends() {
        let front = SocketAddr::from(([127, 0, 0, 1], 1));
        let shares: f64 = KINDS.iter().map(|kind| kind.share).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        for kind in &KINDS {
            let plan = plan(kind, front).unwrap();
            let model = plan.workload.options.model.clone().unwrap();
            assert!([SMALL, LARGE].contains(&model.as_str()), "{model}");
            let (one, next) = (of_slice(&plan, 0, 7, 9.0), of_slice(&plan, 1, 7, 9.0));
            assert_ne!(one.req_id(0), next.req_id(0));
            assert_ne!(one.schedule().unwrap(), next.schedule().unwrap());
        }
    }

    #[test]
    fn a_day_is_like_the_next_with_a_night_and_bursts() {
        let usual = |slice: &u64| slice % BURST_EVERY != FIRST_BURST;
        let day: Vec<f64> = (0..DAY).filter(usual).map(rate).collect();
        let (least, most) = day.iter().fold((f64::MAX, 0.0_f64), |(least, most), rate| {
            (least.min(*rate), most.max(*rate))
        });
        assert!(
            (least - MIDNIGHT).abs() < 0.1 && (most - NOON).abs() < 0.1,
            "{least} {most}"
        );
        assert!((rate(3) - rate(3 + 5 * DAY)).abs() < 1e-9);
        assert!(rate(FIRST_BURST) > 1.5 * rate(FIRST_BURST - 1));
    }
}
