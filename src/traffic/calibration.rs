//! What this machine was measured to send, and how far below it a run stays.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::clock::NANOS;
use crate::disk;
use crate::report::machine::Machine;

use super::download;
use super::plan::Planned;

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// When, Unix seconds.
    pub measured: f64,
    /// By what and on what: of another one it tells nothing.
    pub of: Of,
    /// The highest rates, for answers of several lengths.
    pub limits: Vec<Highest>,
}

/// What a calibration is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Of {
    /// Version of queuescope, and whether it is a debug build.
    pub version: String,
    /// As in [`Machine`].
    pub cpu_model: Option<String>,
    /// Processors that the process may use.
    pub cores: Option<usize>,
}

/// The highest rate that was kept, for answers of one length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Highest {
    /// Tokens, each an event of the stream.
    pub output_tokens: u64,
    /// Requests a second.
    pub rate: f64,
}

/// What is known of this machine's limit.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// It was measured.
    Limit(Calibration),
    /// It was not, or what was kept cannot be read.
    Nothing,
    /// It was, by or on something else: what differs.
    Stale(String),
}

const FILE: &str = "calibration.json";

impl Of {
    /// This program on this machine.
    pub fn here() -> Of {
        let machine = Machine::read();
        let debug = if cfg!(debug_assertions) { " debug" } else { "" };
        Of {
            version: format!("{}{debug}", env!("CARGO_PKG_VERSION")),
            cpu_model: machine.cpu_model,
            cores: machine.cores,
        }
    }

    /// What differs, in words.
    fn differs(&self, then: &Of) -> Option<String> {
        let shown = |cores: Option<usize>| cores.map_or("?".to_owned(), |cores| cores.to_string());
        let model = |of: &Of| of.cpu_model.clone().unwrap_or_else(|| "?".to_owned());
        let pairs = [
            ("version", then.version.clone(), self.version.clone()),
            ("processor", model(then), model(self)),
            ("cores", shown(then.cores), shown(self.cores)),
        ];
        let found = pairs.into_iter().find(|(_, then, now)| then != now);
        found.map(|(what, then, now)| format!("{what} was {then} and is {now}"))
    }
}

impl Calibration {
    /// What is kept of this machine.
    pub fn known(here: &Of) -> Known {
        let text = path().and_then(|path| fs::read_to_string(path).ok());
        Calibration::read(&text.unwrap_or_default(), here)
    }

    fn read(text: &str, here: &Of) -> Known {
        match serde_json::from_str::<Calibration>(text) {
            Ok(kept) => match here.differs(&kept.of) {
                Some(what) => Known::Stale(what),
                None => Known::Limit(kept),
            },
            Err(_) => Known::Nothing,
        }
    }

    /// Keeps it for later runs; where.
    ///
    /// # Errors
    /// What the system answers.
    pub fn keep(&self) -> io::Result<PathBuf> {
        let nowhere =
            || io::Error::other("there is no folder to keep it in: set HOME or XDG_CACHE_HOME");
        let path = path().ok_or_else(nowhere)?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        disk::replace(&path, (text + "\n").as_bytes())?;
        Ok(path)
    }

    /// The highest rate for answers of so many tokens: what a request costs grows evenly with them.
    pub fn limit(&self, output_tokens: f64) -> Option<f64> {
        let by = |highest: &&Highest| highest.output_tokens;
        let (short, long) = (
            self.limits.iter().min_by_key(by)?,
            self.limits.iter().max_by_key(by)?,
        );
        let cost = |highest: &Highest| 1.0 / highest.rate;
        let apart = (long.output_tokens - short.output_tokens) as f64;
        let each = match apart > 0.0 {
            true => ((cost(long) - cost(short)) / apart).max(0.0),
            false => 0.0,
        };
        // Shorter answers than measured cost no less than nothing.
        let cost = cost(short) + each * (output_tokens - short.output_tokens as f64);
        (cost > 0.0 && cost.is_finite()).then(|| 1.0 / cost)
    }
}

impl Known {
    /// The share of the limit that a schedule takes in its busiest second; `None` where no limit is known, or all is due at
    /// once.
    pub fn share(&self, schedule: &[Planned]) -> Option<f64> {
        let Known::Limit(calibration) = self else {
            return None;
        };
        let rate = busiest(schedule)?;
        let tokens: f64 = schedule
            .iter()
            .map(|planned| planned.lengths.output as f64)
            .sum();
        let share = rate / calibration.limit(tokens / schedule.len() as f64)?;
        share.is_finite().then_some(share)
    }

    /// What is said of a run that takes this share.
    pub fn in_words(&self, share: Option<f64>) -> String {
        match (self, share) {
            (_, Some(share)) => {
                let percent = share * 100.0;
                let digits = usize::from(percent < 9.95);
                format!("at {percent:.digits$} % of this machine's limit")
            }
            (Known::Limit(_), None) => {
                "all at once, so no share of this machine's limit".to_owned()
            }
            (Known::Nothing, None) => {
                "this machine's limit is not known (queuescope traffic --calibrate)".to_owned()
            }
            (Known::Stale(what), None) => format!(
                "this machine's limit is not known: the calibration is stale, {what} (queuescope traffic --calibrate)"
            ),
        }
    }
}

/// The highest rate that a schedule has for a second; of a shorter one its rate. What a ramp or a burst asks for is its
/// top: there the generator keeps up or does not.
fn busiest(schedule: &[Planned]) -> Option<f64> {
    let second = NANOS;
    let (first, last) = (schedule.first()?, schedule.last()?);
    let whole = last.offset_nanos - first.offset_nanos;
    if whole < second {
        return Some((schedule.len() - 1) as f64 * second as f64 / whole as f64);
    }
    let mut from = 0;
    let mut most = 0;
    for (to, planned) in schedule.iter().enumerate() {
        let is_before = |one: &Planned| one.offset_nanos <= planned.offset_nanos - second;
        from += schedule
            .iter()
            .skip(from)
            .take_while(|one| is_before(one))
            .count();
        most = most.max(to + 1 - from);
    }
    Some(most as f64)
}

fn path() -> Option<PathBuf> {
    Some(download::cache()?.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::workload::Lengths;

    fn measured() -> Calibration {
        let highest = |output_tokens, rate| Highest {
            output_tokens,
            rate,
        };
        Calibration {
            measured: 1e9,
            of: Of::here(),
            // 1 ms a request and 0.01 ms a token.
            limits: vec![highest(100, 500.0), highest(0, 1000.0)],
        }
    }

    #[test]
    fn a_limit_is_for_answers_of_some_length() {
        for (tokens, limit) in [
            (0.0, 1000.0),
            (100.0, 500.0),
            (50.0, 1000.0 / 1.5),
            (300.0, 250.0),
        ] {
            let got = measured().limit(tokens).unwrap();
            assert!((got - limit).abs() < 1e-6, "{tokens}: {got}");
        }
        let none = Calibration {
            limits: Vec::new(),
            ..measured()
        };
        assert_eq!(none.limit(10.0), None);
    }

    #[test]
    fn a_run_says_how_far_below_the_limit_it_stays() {
        let planned = |index: i64| Planned {
            number: index as u64,
            offset_nanos: index * 10_000_000,
            lengths: Lengths {
                input: 1,
                output: 100,
                data_id: None,
            },
        };
        let schedule: Vec<Planned> = (0..101).map(planned).collect();
        let known = Known::Limit(measured());
        let share = known.share(&schedule).unwrap();
        assert!((share - 0.2).abs() < 1e-9, "{share}");
        assert_eq!(
            known.in_words(Some(share)),
            "at 20 % of this machine's limit"
        );
        // A ramp asks for its top: a hundred in its last second, after a minute in which there is little.
        let mut ramp: Vec<Planned> = (0..60).map(|second| planned(second * 100)).collect();
        ramp.extend((0..100).map(|index| planned(6000 + index)));
        let share = known.share(&ramp).unwrap();
        assert!((share - 0.2).abs() < 1e-9, "{share}");
        // Less than a second has the rate that it has.
        let share = known.share(&schedule[..51]).unwrap();
        assert!((share - 0.2).abs() < 1e-9, "{share}");
        assert_eq!(known.share(&[planned(0), planned(0)]), None);
        assert_eq!(
            (known.share(&[]), Known::Nothing.share(&schedule)),
            (None, None)
        );
    }

    #[test]
    fn one_of_another_machine_or_version_is_stale() {
        let text = serde_json::to_string(&measured()).unwrap();
        let here = Of::here();
        assert_eq!(Calibration::read(&text, &here), Known::Limit(measured()));
        let other = Of {
            cores: Some(777),
            ..here.clone()
        };
        let stale = Calibration::read(&text, &other);
        assert!(
            stale.in_words(None).contains("and is 777 (queuescope"),
            "{stale:?}"
        );
        let other = Of {
            version: "9".to_owned(),
            ..here.clone()
        };
        assert!(
            matches!(Calibration::read(&text, &other), Known::Stale(what) if what.starts_with("version was"))
        );
        assert_eq!(Calibration::read("{", &here), Known::Nothing);
    }
}
