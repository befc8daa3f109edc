//! Load that never ends: it rises and falls as in a day of a few minutes, with bursts, of several kinds.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::traffic::{self, Stop};

/// The model that two of the servers have.
pub(super) const SMALL: &str = "demo-8b";
/// The model of the third.
pub(super) const LARGE: &str = "demo-70b";

/// The load is laid out in slices of so many seconds.
const SLICE: u64 = 5;
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

/// Kinds of requests: the share of all, and the generator's flags.
const KINDS: [(f64, &str); 6] = [
    (
        0.38,
        "--backend sglang --model demo-8b --random-input-len 260 --random-output-len 60",
    ),
    (
        0.36,
        "--backend sglang-oai-chat --model demo-8b --random-input-len 200 --random-output-len 70",
    ),
    (
        0.14,
        "--backend sglang-oai-chat --model demo-70b --random-input-len 300 --random-output-len 50",
    ),
    (
        0.08,
        "--backend sglang --model demo-70b --random-input-len 200 --random-output-len 30 --disable-stream",
    ),
    // Clients that lose patience.
    (
        0.03,
        "--backend sglang-oai-chat --model demo-8b --random-output-len 400 --request-timeout-s 1",
    ),
    // A prompt twice, as text and as ids: the server refuses it.
    (
        0.01,
        "--backend sglang --model demo-8b --random-input-len 20 --extra-request-body {\"input_ids\":[1]}",
    ),
];

/// Sends until it is dropped; what is under way then is given up.
///
/// # Errors
/// The generator takes no such load.
pub(super) async fn run(front: &str, clock: &Clock) -> anyhow::Result<()> {
    let mut loads = JoinSet::new();
    let mut days = tokio::time::interval(Duration::from_secs(DAY * SLICE));
    for day in 0_u64.. {
        days.tick().await;
        while loads.try_join_next().is_some() {}
        for (kind, number) in KINDS.iter().zip(day * KINDS.len() as u64..) {
            let plan = of_day(*kind, front, number)?.plan()?;
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
fn of_day((share, flags): (f64, &str), front: &str, number: u64) -> anyhow::Result<traffic::Args> {
    let curve: Vec<String> = (0..DAY).map(|slice| points(slice, share)).collect();
    let line = format!(
        "traffic --base-url {front} --rate-curve {} --seed {number} --request-id-prefix demo-{number} \
         --random-range-ratio 0.3 {flags}",
        curve.join(",")
    );
    let flags: Vec<String> = line.split(' ').map(str::to_owned).collect();
    super::traffic_args(&flags)
}

/// A slice of the curve: its rate from its begin to its end.
fn points(slice: u64, share: f64) -> String {
    let (begin, rate) = (slice * SLICE, share * rate(slice));
    format!("{begin}:{rate},{}:{rate}", begin + SLICE)
}

/// Requests a second in a slice of time.
fn rate(slice: u64) -> f64 {
    let time = (slice + MORNING) % DAY;
    let day = (1.0 - (std::f64::consts::TAU * time as f64 / DAY as f64).cos()) / 2.0;
    let rate = MIDNIGHT + (NOON - MIDNIGHT) * day;
    let is_burst = slice % BURST_EVERY == FIRST_BURST;
    if is_burst { rate * BURST } else { rate }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_one_that_the_generator_sends_all_day() {
        let shares: f64 = KINDS.iter().map(|(share, _)| share).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        for kind in KINDS {
            let plan = |number| {
                of_day(kind, "http://127.0.0.1:1", number)
                    .unwrap()
                    .plan()
                    .unwrap()
            };
            let (one, next) = (plan(0), plan(6));
            let model = one.workload.options.model.clone().unwrap();
            assert!([SMALL, LARGE].contains(&model.as_str()), "{model}");
            assert_ne!(one.req_id(0), next.req_id(0));
            assert_ne!(one.schedule().unwrap(), next.schedule().unwrap());
        }
    }

    #[test]
    fn a_day_has_a_night_and_bursts() {
        let usual = |slice: &u64| slice % BURST_EVERY != FIRST_BURST;
        let day: Vec<f64> = (0..DAY).filter(usual).map(rate).collect();
        let (least, most) = day.iter().fold((f64::MAX, 0.0_f64), |(least, most), rate| {
            (least.min(*rate), most.max(*rate))
        });
        let is_near = |a: f64, b: f64| (a - b).abs() < 0.1;
        assert!(
            is_near(least, MIDNIGHT) && is_near(most, NOON),
            "{least} {most}"
        );
        assert!(rate(FIRST_BURST) > 1.5 * rate(FIRST_BURST - 1));
    }
}
