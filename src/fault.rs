//! Faults that a hop injects on demand, so that an experiment knows what went wrong, where and when. What is to
//! be done is decided here, from a number alone; [`desk`] keeps what was asked for and writes down what was
//! done, and [`hook`] does it.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::config_error::ConfigError;

pub mod registry;

/// A fault as it was asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fault {
    /// What is done.
    #[serde(flatten)]
    pub kind: Kind,
    /// How likely each chance is taken, 0 to 1.
    pub probability: f64,
    /// What the draws depend on, besides the chance's number.
    pub seed: u64,
    /// At most so many times; `None` for any number.
    pub count: Option<u64>,
}

/// What a fault does to a request, or for [`Kind::Refuse`] to a connection.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Kind {
    /// The connection is reset as soon as it was accepted, and a kept one at its next request. The listener
    /// stays, so that a peer's `connect` mostly succeeds first.
    Refuse,
    /// The connection is reset when a request's head was read.
    Reset,
    /// The request is held before it is sent on.
    Stall {
        /// For how many milliseconds; `None` until the fault is taken away.
        ms: Option<u64>,
    },
    /// The response comes slowly.
    Slow {
        /// Milliseconds before each piece.
        ms: Option<u64>,
        /// Bytes of body a second.
        bytes_per_s: Option<u64>,
    },
    /// The connection closes within the response's body, without its end.
    Cut {
        /// When so many bytes of the body were passed on.
        after_bytes: Option<u64>,
        /// When so many pieces were passed on, as they were read: an event is one, mostly.
        after_pieces: Option<u64>,
        /// So many milliseconds after the request's head was read.
        after_ms: Option<u64>,
    },
}

/// The names of the kinds.
pub const KINDS: [&str; 5] = ["refuse", "reset", "stall", "slow", "cut"];

/// A day, in milliseconds.
const LONGEST_MS: u64 = 86_400_000;

impl Kind {
    /// The name in JSON and in the metric's label.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Refuse => "refuse",
            Kind::Reset => "reset",
            Kind::Stall { .. } => "stall",
            Kind::Slow { .. } => "slow",
            Kind::Cut { .. } => "cut",
        }
    }

    /// How long a piece of `bytes` is held back.
    pub fn delay(&self, bytes: usize) -> Option<Duration> {
        let Kind::Slow { ms, bytes_per_s } = self else {
            return None;
        };
        if bytes == 0 {
            return None;
        }
        let by_rate = bytes_per_s.map(|rate| bytes as f64 / rate.max(1) as f64);
        let by_rate = by_rate.map(Duration::from_secs_f64);
        let fixed = ms.map(Duration::from_millis);
        Some(by_rate.unwrap_or_default() + fixed.unwrap_or_default())
    }

    /// How many bytes of a piece of `bytes` still pass, when `passed` bytes in `pieces` pieces did before; `None`
    /// when all do and the body goes on.
    pub fn cuts(&self, passed: u64, pieces: u64, bytes: u64) -> Option<u64> {
        let Kind::Cut {
            after_bytes,
            after_pieces,
            ..
        } = self
        else {
            return None;
        };
        if let Some(limit) = after_bytes
            && passed + bytes >= *limit
        {
            return Some(limit.saturating_sub(passed));
        }
        match after_pieces {
            Some(0) => Some(0),
            Some(limit) if pieces + 1 >= *limit => Some(bytes),
            _ => None,
        }
    }
}

impl Fault {
    /// Whether chance number `n` is taken. The same seed and number give the same answer, always.
    pub fn takes(&self, n: u64) -> bool {
        // SplitMix64, counted from the seed; the upper 53 bits make a number from 0 to 1.
        let mut z = self
            .seed
            .wrapping_add(n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let drawn = (z >> 11) as f64 / (1u64 << 53) as f64;
        drawn < self.probability
    }

    /// Reads what was asked for.
    ///
    /// # Errors
    /// The field, what is wrong with it and what would be right.
    pub fn parse(json: &[u8]) -> Result<Fault, ConfigError> {
        let value: Value = serde_json::from_slice(json).map_err(|error| {
            let right = "give an object, as in {\"kind\": \"stall\", \"ms\": 500}";
            ConfigError::new("body", "", format!("not JSON ({error}); {right}"))
        })?;
        let Value::Object(object) = value else {
            let wrong = "must be an object, as in {\"kind\": \"stall\", \"ms\": 500}";
            return Err(ConfigError::new("body", value, wrong));
        };
        let mut fields = Fields(object);
        let kind = fields.kind()?;
        let fault = Fault {
            kind,
            probability: fields.probability()?,
            seed: fields.whole("seed", 0, u64::MAX)?.unwrap_or(0),
            count: fields.whole("count", 1, u64::MAX)?,
        };
        fields.no_others(&fault.kind)?;
        Ok(fault)
    }
}

/// The fields of a body that are not yet read.
struct Fields(Map<String, Value>);

impl Fields {
    fn kind(&mut self) -> Result<Kind, ConfigError> {
        let right = format!("must be one of {}", KINDS.join(", "));
        let Some(kind) = self.0.remove("kind") else {
            return Err(ConfigError::new("kind", "nothing", right));
        };
        let of_ms = |fields: &mut Fields, name| fields.whole(name, 0, LONGEST_MS);
        match kind.as_str() {
            Some("refuse") => Ok(Kind::Refuse),
            Some("reset") => Ok(Kind::Reset),
            Some("stall") => Ok(Kind::Stall {
                ms: of_ms(self, "ms")?,
            }),
            Some("slow") => {
                let ms = of_ms(self, "ms")?;
                let bytes_per_s = self.whole("bytes_per_s", 1, u64::MAX)?;
                if ms.is_none() && bytes_per_s.is_none() {
                    let right = "slow needs ms (before each piece) or bytes_per_s";
                    return Err(ConfigError::new("ms", "nothing", right));
                }
                Ok(Kind::Slow { ms, bytes_per_s })
            }
            Some("cut") => {
                let after_bytes = self.whole("after_bytes", 0, u64::MAX)?;
                let after_pieces = self.whole("after_pieces", 0, u64::MAX)?;
                let after_ms = of_ms(self, "after_ms")?;
                let given = [after_bytes, after_pieces, after_ms];
                if given.iter().flatten().count() != 1 {
                    let right = "cut needs exactly one of after_bytes, after_pieces and after_ms";
                    let given = given.iter().flatten().count();
                    return Err(ConfigError::new(
                        "after_*",
                        format!("{given} of them"),
                        right,
                    ));
                }
                Ok(Kind::Cut {
                    after_bytes,
                    after_pieces,
                    after_ms,
                })
            }
            _ => Err(ConfigError::new("kind", kind, right)),
        }
    }

    fn probability(&mut self) -> Result<f64, ConfigError> {
        let Some(value) = self.0.remove("probability") else {
            return Ok(1.0);
        };
        let number = value.as_f64().filter(|p| *p > 0.0 && *p <= 1.0);
        number.ok_or_else(|| {
            let right = "must be a number above 0 and at most 1";
            ConfigError::new("probability", value, right)
        })
    }

    fn whole(&mut self, name: &str, least: u64, most: u64) -> Result<Option<u64>, ConfigError> {
        let Some(value) = self.0.remove(name) else {
            return Ok(None);
        };
        let number = value.as_u64().filter(|n| (least..=most).contains(n));
        number.map(Some).ok_or_else(|| {
            let right = format!("must be a whole number from {least} to {most}");
            ConfigError::new(name, value, right)
        })
    }

    fn no_others(&self, kind: &Kind) -> Result<(), ConfigError> {
        let Some((name, value)) = self.0.iter().next() else {
            return Ok(());
        };
        let own = match kind {
            Kind::Refuse | Kind::Reset => "",
            Kind::Stall { .. } => "ms, ",
            Kind::Slow { .. } => "ms, bytes_per_s, ",
            Kind::Cut { .. } => "after_bytes, after_pieces, after_ms, ",
        };
        let kind = kind.name();
        let right = format!("no field of {kind}; those are kind, {own}probability, seed and count");
        Err(ConfigError::new(name, value, right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Fault, String> {
        Fault::parse(json.as_bytes()).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_right() {
        for (json, pieces) in [
            ("", &["body", "not JSON"][..]),
            ("[1]", &["body = [1]", "object"]),
            ("{}", &["kind = nothing", "refuse, reset, stall, slow, cut"]),
            (r#"{"kind":"crash"}"#, &["kind = \"crash\"", "one of"]),
            (
                r#"{"kind":"stall","ms":-1}"#,
                &["ms = -1", "from 0 to 86400000"],
            ),
            (
                r#"{"kind":"stall","ms":"1"}"#,
                &["ms = \"1\"", "whole number"],
            ),
            (r#"{"kind":"slow"}"#, &["ms", "bytes_per_s"]),
            (
                r#"{"kind":"slow","bytes_per_s":0}"#,
                &["bytes_per_s = 0", "from 1"],
            ),
            (r#"{"kind":"cut"}"#, &["0 of them", "exactly one"]),
            (
                r#"{"kind":"cut","after_ms":1,"after_bytes":2}"#,
                &["2 of them"],
            ),
            (
                r#"{"kind":"reset","ms":1}"#,
                &["ms = 1", "no field of reset"],
            ),
            (
                r#"{"kind":"reset","probability":0}"#,
                &["probability = 0", "above 0"],
            ),
            (
                r#"{"kind":"reset","probability":1.5}"#,
                &["probability = 1.5"],
            ),
            (r#"{"kind":"reset","count":0}"#, &["count = 0", "from 1"]),
            (r#"{"kind":"reset","seed":-5}"#, &["seed = -5"]),
        ] {
            let wrong = parse(json).unwrap_err();
            for piece in pieces {
                assert!(wrong.contains(piece), "{json}: {wrong}");
            }
        }
    }

    #[test]
    fn what_was_asked_for_is_shown_as_it_was() {
        let fault = parse(r#"{"kind":"stall","ms":500,"probability":0.3,"seed":7,"count":2}"#);
        let shown = serde_json::to_value(fault.unwrap()).unwrap();
        assert_eq!(shown["kind"], "stall");
        assert_eq!((&shown["ms"], &shown["count"]), (&500.into(), &2.into()));
        let again = parse(r#"{"kind":"stall"}"#).unwrap();
        assert_eq!(again.kind, Kind::Stall { ms: None });
        assert_eq!((again.probability, again.count), (1.0, None));
    }

    #[test]
    fn chances_are_taken_as_often_as_asked_and_always_the_same() {
        let fault = |seed| Fault {
            kind: Kind::Reset,
            probability: 0.3,
            seed,
            count: None,
        };
        let taken = |seed| -> Vec<u64> { (0..10_000).filter(|n| fault(seed).takes(*n)).collect() };
        assert_eq!(taken(1), taken(1));
        assert_ne!(taken(1), taken(2));
        // 0.3 ± 6 standard errors: fails for one seed in 5e8.
        let share = taken(1).len() as f64 / 10_000.0;
        assert!((share - 0.3).abs() < 0.0275, "{share}");
        let sure = Fault {
            probability: 1.0,
            ..fault(3)
        };
        assert!((0..10_000).all(|n| sure.takes(n)));
    }

    #[test]
    fn a_cut_comes_where_it_was_asked_for() {
        let cut = |after_bytes, after_pieces| Kind::Cut {
            after_bytes,
            after_pieces,
            after_ms: None,
        };
        assert_eq!(cut(Some(10), None).cuts(0, 0, 9), None);
        assert_eq!(cut(Some(10), None).cuts(0, 0, 10), Some(10));
        assert_eq!(cut(Some(10), None).cuts(4, 1, 10), Some(6));
        assert_eq!(cut(Some(0), None).cuts(0, 0, 5), Some(0));
        assert_eq!(cut(None, Some(2)).cuts(5, 0, 5), None);
        assert_eq!(cut(None, Some(2)).cuts(5, 1, 5), Some(5));
        assert_eq!(cut(None, Some(0)).cuts(0, 0, 5), Some(0));
        assert_eq!(Kind::Reset.cuts(0, 0, 5), None);
    }

    #[test]
    fn a_slow_response_is_slow_by_piece_and_by_rate() {
        let slow = |ms, bytes_per_s| Kind::Slow { ms, bytes_per_s };
        let ms = Duration::from_millis;
        assert_eq!(slow(Some(20), None).delay(1000), Some(ms(20)));
        assert_eq!(slow(None, Some(1000)).delay(500), Some(ms(500)));
        assert_eq!(slow(Some(20), Some(1000)).delay(500), Some(ms(520)));
        assert_eq!(slow(Some(20), None).delay(0), None);
    }
}
