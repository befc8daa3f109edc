//! `queuescope traffic --calibrate`: the highest rate that the generator keeps on this machine, against a simulated server
//! that answers at once.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::clock::Clock;
use crate::report::verdict::{Grade, Verdict};
use crate::terminal;
use crate::traffic;
use crate::traffic::calibration::{Calibration, Highest, Of};

use super::launch::{Deployment, Engine, Router, Wanted};

/// Lengths of answers that are tried, tokens, each an event of the stream: what a request costs grows evenly with it.
const LENGTHS: [u64; 2] = [1, 128];
/// The first rate that is tried, requests a second.
const FIRST: f64 = 20.0;
/// How long requests are sent at a rate, seconds: two hundred wake-ups of the event loop.
const STEP: f64 = 2.0;
/// A rate that was not kept is tried again: what else this machine does now is not its limit.
const TRIES: usize = 3;
/// The rates that were kept and were not are this near in the end.
const NEAR: f64 = 1.1;
/// After so long for a length, what has been found is what there is, seconds.
const ENOUGH: f64 = 35.0;

#[derive(Debug, Parser)]
struct Traffic {
    #[command(flatten)]
    args: traffic::Args,
}

/// A search for the highest rate, between one that was kept and one that was not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Search {
    kept: Option<f64>,
    missed: Option<f64>,
}

/// Measures, keeps what was found, and says it.
///
/// # Errors
/// The simulated server did not start, not even the first rate was kept, or the result could not be kept.
pub fn run(clock: &Clock) -> anyhow::Result<String> {
    traffic::runtime()?.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            measured = calibrated(clock) => measured,
            _ = interrupt.recv() => Err(traffic::Error::Interrupted(2).into()),
            _ = terminate.recv() => Err(traffic::Error::Interrupted(15).into()),
        }
    })
}

async fn calibrated(clock: &Clock) -> anyhow::Result<String> {
    let dir = std::env::temp_dir().join(format!("queuescope-calibrate-{}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let _removed = Removed(dir.clone());
    let engine = Engine::Sim {
        flags: vec!["--instant".to_owned()],
    };
    let deployment = Deployment::start(&Wanted {
        servers: 1,
        env: Vec::new(),
        base_port: None,
        router: Router::None,
        front: false,
        hops: false,
        fault_injection: false,
        proxy: toml::Table::new(),
        program: program()?,
        dir,
        start_timeout: engine.start_timeout(),
        engine,
    })
    .await?;
    let mut limits = Vec::new();
    for tokens in LENGTHS {
        let rate = highest(deployment.target(), tokens, clock).await?;
        limits.push(Highest {
            output_tokens: tokens,
            rate,
        });
    }
    deployment.stop().await;
    let calibration = Calibration {
        measured: clock.now().seconds(),
        of: Of::here(),
        limits,
    };
    let path = calibration.keep().context("the result cannot be kept")?;
    let found = calibration.limits.iter().map(|limit| {
        let Highest {
            output_tokens,
            rate,
        } = limit;
        let s = if *output_tokens == 1 { "" } else { "s" };
        format!("{rate:.0} requests a second with answers of {output_tokens} token{s}")
    });
    let found: Vec<String> = found.collect();
    Ok(format!(
        "this machine keeps up to {}, each token an event of its own\n\
         kept in {}; later runs say how far below they stay\n",
        found.join(", and "),
        path.display()
    ))
}

/// The highest rate that is kept, requests a second.
async fn highest(url: &str, tokens: u64, clock: &Clock) -> anyhow::Result<f64> {
    let began = clock.now();
    let mut search = Search::default();
    while let Some(rate) = search.next(clock.now().since(began)) {
        let mut tried = Verdict::default();
        for attempt in 0..TRIES {
            tried = judged(url, rate, tokens, attempt, clock).await?;
            if tried.grade == Grade::Valid {
                break;
            }
        }
        let is_kept = tried.grade == Grade::Valid;
        let said = match tried.reasons.first() {
            Some(reason) if !is_kept => format!("not kept: {reason}"),
            _ => "kept".to_owned(),
        };
        terminal::complain(&format!(
            "answers of {tokens}, {rate:.0} requests a second: {said}\n"
        ));
        match is_kept {
            true => search.kept = Some(rate),
            false => search.missed = Some(rate),
        }
    }
    search.kept.with_context(|| {
        format!("not even {FIRST} requests a second were kept: this machine is too busy with other things")
    })
}

async fn judged(
    url: &str,
    rate: f64,
    tokens: u64,
    attempt: usize,
    clock: &Clock,
) -> anyhow::Result<Verdict> {
    let line = format!(
        "traffic --base-url {url} --request-rate {rate} --duration {STEP} --seed {} --random-input-len 64 \
         --random-output-len {tokens} --upstream-kind server",
        attempt + 1
    );
    let args = Traffic::try_parse_from(line.split(' '))?.args;
    Ok(traffic::judged(args.plan()?, clock.clone()).await?)
}

/// The program that is also the simulated server: this one, or what lies beside `queuescope-traffic`.
fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("this program does not know where it is")?;
    match own
        .file_stem()
        .is_some_and(|name| name == "queuescope-traffic")
    {
        true => Ok(own.with_file_name("queuescope")),
        false => Ok(own),
    }
}

impl Search {
    /// The rate to try next: twice as much until one is missed, then between the two; `None` when they are near, or it
    /// took `seconds` long enough.
    fn next(&self, seconds: f64) -> Option<f64> {
        match (self.kept, self.missed) {
            (None, None) => Some(FIRST),
            _ if seconds > ENOUGH => None,
            (Some(kept), None) => Some(2.0 * kept),
            (Some(kept), Some(missed)) if missed > NEAR * kept => Some((kept * missed).sqrt()),
            _ => None,
        }
    }
}

/// A folder that is removed in the end.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // Left behind, it harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_closes_in_on_the_highest_rate_that_is_kept() {
        for limit in [30.0, 333.0, 4000.0] {
            let mut search = Search::default();
            let mut steps = 0;
            while let Some(rate) = search.next(0.0) {
                match rate <= limit {
                    true => search.kept = Some(rate),
                    false => search.missed = Some(rate),
                }
                steps += 1;
            }
            let kept = search.kept.unwrap();
            assert!(kept <= limit && limit < kept * NEAR, "{kept} of {limit}");
            assert!(steps < 16, "{steps}");
        }
        let missed = Search {
            kept: None,
            missed: Some(FIRST),
        };
        assert_eq!(missed.next(0.0), None);
        assert_eq!(
            Search {
                kept: Some(100.0),
                missed: None
            }
            .next(ENOUGH + 1.0),
            None
        );
    }
}
