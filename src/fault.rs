//! Faults that a hop injects on demand, so that an experiment knows what went wrong, where and when. What a fault does is decided
//! here, purely; [`registry`] holds the faults that are set and logs each injection.

use std::fmt::{self, Display};
use std::num::NonZeroU64;
use std::time::Duration;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _, Serialize};
use serde_json::{Map, Value};

use crate::request::names::names;
use crate::units;

pub mod registry;

/// A fault as it is set, also in JSON. Parsing checks which fields a kind takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What it does.
    pub kind: Kind,
    /// The probability that it is injected at a chance, 0 to 1.
    #[serde(default = "always")]
    pub probability: f64,
    /// The seed of the random numbers.
    #[serde(default)]
    pub seed: u64,
    /// The most injections; `None` for any number.
    pub count: Option<NonZeroU64>,
    /// Milliseconds: the delay of each piece of a slow response, or how long a request is stalled; `None` there: until the fault is
    /// removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<u32>,
    /// The rate of a slow response's body, in bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<NonZeroU64>,
    /// After how many bytes of the body it is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_bytes: Option<u64>,
    /// After how many pieces as they were read, mostly one event each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_pieces: Option<u64>,
    /// After how many milliseconds since the request's head was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u32>,
}

names! {
    /// What a fault does to a request, or for [`Kind::Refuse`] to a connection.
    #[serde(rename_all = "lowercase")]
    pub enum Kind {
        /// The connection is reset as soon as it was accepted, and a kept one at its next request. The listener
        /// stays, so that a peer's `connect` mostly succeeds first.
        Refuse = "refuse",
        /// The connection is reset when a request's head was read.
        Reset = "reset",
        /// The request is held before it is sent on.
        Stall = "stall",
        /// The response comes slowly.
        Slow = "slow",
        /// The connection closes within the response's body, without its end.
        Cut = "cut",
    }
}

impl Fault {
    /// Whether it is injected at chance number `n`; depends on `n`, seed and probability only.
    pub fn takes(&self, n: u64) -> bool {
        // SplitMix64 from the seed; the upper 53 bits make a number from 0 to 1.
        let mut z = self
            .seed
            .wrapping_add(n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let drawn = (z >> 11) as f64 / (1u64 << 53) as f64;
        drawn < self.probability
    }

    /// Returns the delay of a piece of `bytes`.
    pub fn delay(&self, bytes: usize) -> Option<Duration> {
        if self.kind != Kind::Slow || bytes == 0 {
            return None;
        }
        let by_rate = |rate: NonZeroU64| Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
        let fixed = self.ms.map(|ms| Duration::from_millis(ms.into()));
        Some(self.bytes_per_s.map(by_rate).unwrap_or_default() + fixed.unwrap_or_default())
    }

    /// Returns how many bytes of a piece of `bytes` pass before the cut, after `passed` bytes in `pieces` pieces; `None` if the
    /// body is not cut there.
    pub fn bytes_to_cut(&self, passed: u64, pieces: u64, bytes: u64) -> Option<u64> {
        let by_bytes = self.after_bytes.filter(|limit| passed + bytes >= *limit);
        match (by_bytes, self.after_pieces) {
            (Some(limit), _) => Some(limit.saturating_sub(passed)),
            (None, Some(0)) => Some(0),
            (None, Some(limit)) => (pieces + 1 >= limit).then_some(bytes),
            (None, None) => None,
        }
    }

    /// Parses a fault from JSON.
    ///
    /// # Errors
    /// The field, what is wrong with it, and a hint.
    pub fn parse(json: &[u8]) -> Result<Fault, String> {
        let mut json = serde_json::Deserializer::from_slice(json);
        let read = json.deserialize_map(Fields);
        let read = read.and_then(|fields| json.end().map(|()| fields));
        let problem = match read {
            Ok(fields) if fields.contains_key("kind") => return Fault::from_fields(fields),
            Ok(_) => "kind: is missing".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(format!(
            "{problem}; give an object, as in {{\"kind\": \"stall\", \"ms\": 500}}"
        ))
    }

    /// Reads a fault from its fields, of which numbers may be texts with a unit.
    ///
    /// # Errors
    /// See [`Fault::parse`].
    pub fn from_fields(mut fields: Map<String, Value>) -> Result<Fault, String> {
        for (field, value) in &mut fields {
            let text = value.as_str().filter(|text| text.parse::<f64>().is_err());
            if let Some(number) = text.and_then(|text| number(field, text)) {
                *value = number;
            }
        }
        let fields = Value::Object(fields);
        let read: Result<Fault, _> = serde_path_to_error::deserialize(&fields);
        let read = read.map_err(|error| {
            let field = error.path().to_string();
            let message = error.inner().to_string();
            match fields.get(&field) {
                Some(value) if !message.starts_with("unknown field") => invalid(&field, value),
                _ => message,
            }
        });
        read?.check()
    }

    fn check(self) -> Result<Fault, String> {
        let probability = self.probability;
        if !(probability > 0.0 && probability <= 1.0) {
            return Err(invalid("probability", probability));
        }
        let after_ms = self.after_ms.map(u64::from);
        let afters = [self.after_bytes, self.after_pieces, after_ms];
        let afters = afters.iter().flatten().count();
        let (has_ms, has_rate) = (self.ms.is_some(), self.bytes_per_s.is_some());
        let (is_valid, takes) = match self.kind {
            Kind::Refuse | Kind::Reset => {
                (!has_ms && !has_rate && afters == 0, "no field of its own")
            }
            Kind::Stall => (!has_rate && afters == 0, "ms or nothing"),
            Kind::Slow => (
                (has_ms || has_rate) && afters == 0,
                "ms (before each piece), bytes_per_s or both",
            ),
            Kind::Cut => (
                !has_ms && !has_rate && afters == 1,
                "exactly one of after_bytes, after_pieces and after_ms",
            ),
        };
        let name = self.kind.name();
        let error = || {
            format!("kind = \"{name}\": takes {takes}; all kinds take probability, seed and count")
        };
        is_valid.then_some(self).ok_or_else(error)
    }
}

/// Reads the fields of an object, of which none may be given twice.
struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut fields = Map::new();
        while let Some((field, value)) = object.next_entry::<String, Value>()? {
            if fields.insert(field.clone(), value).is_some() {
                return Err(A::Error::custom(format!("{field}: is given twice")));
            }
        }
        Ok(fields)
    }
}

/// Parses a field's text with a unit.
fn number(field: &str, text: &str) -> Option<Value> {
    let whole = match field {
        "probability" => return units::fraction(text).map(Value::from),
        "ms" | "after_ms" => units::seconds(text)? / units::MS,
        "after_bytes" => units::bytes(text)?,
        // A rate per minute is mostly not whole per second.
        "bytes_per_s" => units::byte_rate(text)?.round(),
        _ => return None,
    };
    (whole >= 0.0 && whole.fract() == 0.0).then(|| (whole as u64).into())
}

/// Returns the message for a field's invalid value.
fn invalid(field: &str, value: impl Display) -> String {
    let number = "a whole number,";
    let expected = match field {
        "kind" => format!("one of {}", Kind::ALL.map(Kind::name).join(", ")),
        "probability" => "a share above 0 and at most 1, such as 0.05 or \"5%\"".to_owned(),
        "ms" | "after_ms" => {
            format!(
                "{number} or a text such as \"250ms\", from 0 to {}",
                u32::MAX
            )
        }
        "after_bytes" => format!("{number} or a text such as \"64KiB\", 0 or more"),
        "bytes_per_s" => format!("{number} or a text such as \"64KiB/s\", 1 or more"),
        "count" => format!("{number} 1 or more"),
        _ => format!("{number} 0 or more"),
    };
    format!("{field} = {value}: must be {expected}")
}

fn always() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Fault, String> {
        Fault::parse(json.as_bytes())
    }

    /// JSON, and pieces of its error.
    const INVALID: &str = r#" | EOF | as in {"kind"
[1] | expected | as in {"kind"
{"kind":"reset"} 1 | trailing
{} | kind: is missing; give an object
{"kind":"crash"} | kind = "crash": must be one of refuse, reset, stall, slow, cut
{"kind":"stall","ms":1,"ms":2} | ms: is given twice | ; give an object
{"kind":"stall","ms":"1ms","kind":"reset"} | kind: is given twice
{"kind":"stall","ms":-1} | ms = -1: must be a whole number, or a text such as "250ms", from 0 to 4294967295
{"kind":"stall","ms":5000000000} | ms = 5000000000: must be
{"kind":"stall","ms":"1"} | ms = "1": must be
{"kind":"stall","ms":"0.5us"} | ms = "0.5us": must be
{"kind":"stall","ms":"1KiB"} | ms = "1KiB": must be
{"kind":"slow"} | slow | ms | bytes_per_s
{"kind":"slow","bytes_per_s":0} | bytes_per_s = 0: must be a whole number, or a text such as "64KiB/s", 1 or more
{"kind":"cut"} | cut | exactly one
{"kind":"cut","after_ms":1,"after_bytes":2} | exactly one
{"kind":"cut","after_ms":1,"ms":2} | exactly one
{"kind":"cut","after_pieces":"2"} | after_pieces = "2": must be a whole number, 0 or more
{"kind":"reset","ms":1} | reset | no field of its own
{"kind":"stall","bytes_per_s":1} | stall | takes ms
{"kind":"reset","speed":1} | `speed` | `seed`
{"kind":"reset","probability":0} | probability = 0: must be a share above 0
{"kind":"reset","probability":1.5} | probability = 1.5
{"kind":"reset","probability":"p"} | probability = "p": must be a share above 0
{"kind":"reset","count":0} | count = 0: must be a whole number, 1 or more
{"kind":"reset","seed":-5} | seed = -5: must be"#;

    #[test]
    fn an_error_names_the_field_and_what_is_valid() {
        for line in INVALID.lines() {
            let mut pieces = line.split(" | ");
            let json = pieces.next().unwrap();
            let error = parse(json).unwrap_err();
            for piece in pieces {
                assert!(error.contains(piece), "{json}: {error}");
            }
        }
    }

    #[test]
    fn a_number_may_be_a_text_with_its_unit() {
        for (with_units, plain) in [
            (r#""stall","ms":"2min""#, r#""stall","ms":120000"#),
            (
                r#""slow","ms":"50ms","bytes_per_s":"64KiB/s""#,
                r#""slow","ms":50,"bytes_per_s":65536"#,
            ),
            (
                r#""slow","bytes_per_s":"1MB/min""#,
                r#""slow","bytes_per_s":16667"#,
            ),
            (
                r#""cut","after_bytes":"1.5KB""#,
                r#""cut","after_bytes":1500"#,
            ),
            (r#""cut","after_ms":"2s""#, r#""cut","after_ms":2000"#),
            (
                r#""reset","probability":"5%""#,
                r#""reset","probability":0.05"#,
            ),
        ] {
            let [read, same] =
                [with_units, plain].map(|rest| parse(&format!("{{\"kind\":{rest}}}")));
            assert_eq!(read, same, "{with_units}");
            assert!(read.is_ok(), "{read:?}");
        }
    }

    #[test]
    fn a_fault_is_injected_as_often_as_its_probability_and_reproducibly() {
        let reset = |seed| format!(r#"{{"kind":"reset","probability":0.3,"seed":{seed}}}"#);
        let fault = |seed| parse(&reset(seed)).unwrap();
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
}
