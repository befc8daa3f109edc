//! Faults that a hop injects on demand, so that an experiment knows what went wrong, where and when. Whether and how is
//! decided here, from numbers alone; [`registry`] keeps the faults in force and logs what was injected.

use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub mod registry;

/// A fault as it was set.
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
        ms: Option<u32>,
    },
    /// The response comes slowly.
    Slow {
        /// Milliseconds before each piece.
        ms: Option<u32>,
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
        after_ms: Option<u32>,
    },
}

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
        let fixed = ms.map(|ms| Duration::from_millis(ms.into()));
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

    /// Reads the body of a request for a fault.
    ///
    /// # Errors
    /// The field, what is wrong with it and what would be right.
    pub fn parse(json: &[u8]) -> Result<Fault, String> {
        let mut json = serde_json::Deserializer::from_slice(json);
        let body = serde_path_to_error::deserialize(&mut json).map_err(|error| error.to_string());
        let body = body.and_then(|body: Body| json.end().map(|()| body).map_err(|e| e.to_string()));
        let body = body.map_err(|error| {
            format!("{error}; give an object, as in {{\"kind\": \"stall\", \"ms\": 500}}")
        })?;
        let probability = body.probability.unwrap_or(1.0);
        if !(probability > 0.0 && probability <= 1.0) {
            return Err(format!(
                "probability = {probability}: must be a number above 0 and at most 1"
            ));
        }
        Ok(Fault {
            kind: body.kind()?,
            probability,
            seed: body.seed,
            count: body.count.map(u64::from),
        })
    }
}

/// A fault as JSON, with the fields of every kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    kind: KindName,
    probability: Option<f64>,
    #[serde(default)]
    seed: u64,
    count: Option<NonZeroU64>,
    ms: Option<u32>,
    bytes_per_s: Option<NonZeroU64>,
    after_bytes: Option<u64>,
    after_pieces: Option<u64>,
    after_ms: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindName {
    Refuse,
    Reset,
    Stall,
    Slow,
    Cut,
}

impl Body {
    fn kind(&self) -> Result<Kind, String> {
        let (ms, bytes_per_s) = (self.ms, self.bytes_per_s.map(u64::from));
        let (after_bytes, after_pieces) = (self.after_bytes, self.after_pieces);
        let after_ms = self.after_ms;
        let afters = [after_bytes, after_pieces, after_ms.map(u64::from)];
        let afters = afters.iter().flatten().count();
        let given = (ms.is_some(), bytes_per_s.is_some(), afters);
        let takes = match (self.kind, given) {
            (KindName::Refuse, (false, false, 0)) => return Ok(Kind::Refuse),
            (KindName::Reset, (false, false, 0)) => return Ok(Kind::Reset),
            (KindName::Stall, (_, false, 0)) => return Ok(Kind::Stall { ms }),
            (KindName::Slow, (true, _, 0) | (_, true, 0)) => {
                return Ok(Kind::Slow { ms, bytes_per_s });
            }
            (KindName::Cut, (false, false, 1)) => {
                return Ok(Kind::Cut {
                    after_bytes,
                    after_pieces,
                    after_ms,
                });
            }
            (KindName::Refuse, _) => "\"refuse\": takes no field of its own",
            (KindName::Reset, _) => "\"reset\": takes no field of its own",
            (KindName::Stall, _) => "\"stall\": takes ms or nothing",
            (KindName::Slow, _) => "\"slow\": takes ms (before each piece), bytes_per_s or both",
            (KindName::Cut, _) => {
                "\"cut\": takes exactly one of after_bytes, after_pieces and after_ms"
            }
        };
        Err(format!(
            "kind = {takes}; beside probability, seed and count"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Fault, String> {
        Fault::parse(json.as_bytes())
    }

    #[test]
    fn an_error_names_the_field_and_what_is_right() {
        for (json, pieces) in [
            ("", &["EOF", "as in {\"kind\""][..]),
            ("[1]", &["expected", "as in {\"kind\""]),
            (r#"{"kind":"reset"} 1"#, &["trailing"]),
            ("{}", &["missing field `kind`"]),
            (
                r#"{"kind":"crash"}"#,
                &["kind: ", "`crash`", "`refuse`, `reset`, `stall`"],
            ),
            (r#"{"kind":"stall","ms":-1}"#, &["ms: ", "-1"]),
            (
                r#"{"kind":"stall","ms":5000000000}"#,
                &["ms: ", "5000000000"],
            ),
            (r#"{"kind":"stall","ms":"1"}"#, &["ms: ", "\"1\""]),
            (r#"{"kind":"slow"}"#, &["slow", "ms", "bytes_per_s"]),
            (
                r#"{"kind":"slow","bytes_per_s":0}"#,
                &["bytes_per_s: ", "nonzero"],
            ),
            (r#"{"kind":"cut"}"#, &["cut", "exactly one"]),
            (
                r#"{"kind":"cut","after_ms":1,"after_bytes":2}"#,
                &["exactly one"],
            ),
            (r#"{"kind":"cut","after_ms":1,"ms":2}"#, &["exactly one"]),
            (
                r#"{"kind":"reset","ms":1}"#,
                &["reset", "no field of its own"],
            ),
            (
                r#"{"kind":"stall","bytes_per_s":1}"#,
                &["stall", "takes ms"],
            ),
            (r#"{"kind":"reset","speed":1}"#, &["`speed`", "`seed`"]),
            (
                r#"{"kind":"reset","probability":0}"#,
                &["probability = 0", "above 0"],
            ),
            (
                r#"{"kind":"reset","probability":1.5}"#,
                &["probability = 1.5"],
            ),
            (r#"{"kind":"reset","count":0}"#, &["count: ", "nonzero"]),
            (r#"{"kind":"reset","seed":-5}"#, &["seed: ", "-5"]),
        ] {
            let error = parse(json).unwrap_err();
            for piece in pieces {
                assert!(error.contains(piece), "{json}: {error}");
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
