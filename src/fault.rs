//! Faults that a hop injects on demand, so that an experiment knows what went wrong, where and when. Whether and how is
//! decided here, from numbers alone; [`registry`] keeps the faults in force and logs what was injected.

use std::fmt::{self, Display};
use std::num::NonZeroU64;
use std::time::Duration;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _, Serialize};
use serde_json::{Map, Value};

use crate::request::names::names;
use crate::units;

pub mod registry;

/// A fault as it was set, in JSON too. Which fields a kind takes is checked when it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What is done.
    pub kind: Kind,
    /// How likely each chance is taken, 0 to 1.
    #[serde(default = "sure")]
    pub probability: f64,
    /// What the draws depend on, besides the chance's number.
    #[serde(default)]
    pub seed: u64,
    /// At most so many times; `None` for any number.
    pub count: Option<NonZeroU64>,
    /// Milliseconds: before each piece of a slow response; for which a request is stalled, else until the fault is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<u32>,
    /// Bytes of a slow response's body a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<NonZeroU64>,
    /// A cut comes when so many bytes of the body were passed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_bytes: Option<u64>,
    /// When so many pieces were passed on, as they were read: an event is one, mostly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_pieces: Option<u64>,
    /// So many milliseconds after the request's head was read.
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

    /// Whether it holds requests until it is removed or their clients give up.
    pub fn holds_on(&self) -> bool {
        self.kind == Kind::Stall && self.ms.is_none()
    }

    /// How long a piece of `bytes` is held back.
    pub fn delay(&self, bytes: usize) -> Option<Duration> {
        if self.kind != Kind::Slow || bytes == 0 {
            return None;
        }
        let by_rate = |rate: NonZeroU64| Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
        let fixed = self.ms.map(|ms| Duration::from_millis(ms.into()));
        Some(self.bytes_per_s.map(by_rate).unwrap_or_default() + fixed.unwrap_or_default())
    }

    /// How many bytes of a piece of `bytes` still pass, when `passed` bytes in `pieces` pieces did before; `None`
    /// when all do and the body goes on.
    pub fn cuts(&self, passed: u64, pieces: u64, bytes: u64) -> Option<u64> {
        let by_bytes = self.after_bytes.filter(|limit| passed + bytes >= *limit);
        match (by_bytes, self.after_pieces) {
            (Some(limit), _) => Some(limit.saturating_sub(passed)),
            (None, Some(0)) => Some(0),
            (None, Some(limit)) => (pieces + 1 >= limit).then_some(bytes),
            (None, None) => None,
        }
    }

    /// Reads the body of a request for a fault.
    ///
    /// # Errors
    /// The field, what is wrong with it and what would be right.
    pub fn parse(json: &[u8]) -> Result<Fault, String> {
        let mut json = serde_json::Deserializer::from_slice(json);
        let read = json.deserialize_map(Fields);
        let read = read.and_then(|fields| json.end().map(|()| fields));
        let why = match read {
            Ok(fields) if fields.contains_key("kind") => return Fault::of(fields),
            Ok(_) => "kind: is missing".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(format!(
            "{why}; give an object, as in {{\"kind\": \"stall\", \"ms\": 500}}"
        ))
    }

    /// Reads its fields, of which numbers may be texts with a unit.
    ///
    /// # Errors
    /// As [`Fault::parse`].
    pub fn of(mut fields: Map<String, Value>) -> Result<Fault, String> {
        for (field, value) in &mut fields {
            let number = value.as_str();
            let number = number.and_then(|text| units::in_unit_of(field, text));
            // A rate a minute is hardly ever whole a second.
            let is_rate = field == "bytes_per_s";
            let whole = number.filter(|of| (is_rate || of.fract() == 0.0) && *of >= 0.0);
            *value = whole.map_or_else(|| value.take(), |whole| (whole.round() as u64).into());
        }
        let fields = Value::Object(fields);
        let read: Result<Fault, _> = serde_path_to_error::deserialize(&fields);
        let read = read.map_err(|error| {
            let field = error.path().to_string();
            let said = error.inner().to_string();
            match fields.get(&field) {
                Some(value) if !said.starts_with("unknown field") => wrong(&field, value),
                _ => said,
            }
        });
        read?.checked()
    }

    fn checked(self) -> Result<Fault, String> {
        let fault = self;
        let probability = fault.probability;
        if !(probability > 0.0 && probability <= 1.0) {
            return Err(wrong("probability", probability));
        }
        let after_ms = fault.after_ms.map(u64::from);
        let afters = [fault.after_bytes, fault.after_pieces, after_ms];
        let afters = afters.iter().flatten().count();
        let (has_ms, has_rate) = (fault.ms.is_some(), fault.bytes_per_s.is_some());
        let (is_right, takes) = match fault.kind {
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
        let name = fault.kind.name();
        let wrong =
            || format!("kind = \"{name}\": takes {takes}; beside probability, seed and count");
        is_right.then_some(fault).ok_or_else(wrong)
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

/// What is wrong with a field's value, and what would be right.
fn wrong(field: &str, value: impl Display) -> String {
    let text = units::of_key(field).map(|(.., text)| format!(" or a text such as \"{text}\","));
    let number = format!("a whole number,{}", text.unwrap_or_default());
    let right = match field {
        "kind" => format!("one of {}", Kind::ALL.map(Kind::name).join(", ")),
        "probability" => "a number above 0 and at most 1".to_owned(),
        "ms" | "after_ms" => format!("{number} from 0 to {}", u32::MAX),
        "count" | "bytes_per_s" => number + " 1 or more",
        _ => number + " 0 or more",
    };
    format!("{field} = {value}: must be {right}")
}

fn sure() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Fault, String> {
        Fault::parse(json.as_bytes())
    }

    /// What is asked, and the pieces of what is said to it.
    const WRONG: &str = r#" | EOF | as in {"kind"
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
{"kind":"reset","probability":0} | probability = 0: must be a number above 0
{"kind":"reset","probability":1.5} | probability = 1.5
{"kind":"reset","probability":"p"} | probability = "p": must be a number above 0
{"kind":"reset","count":0} | count = 0: must be a whole number, 1 or more
{"kind":"reset","seed":-5} | seed = -5: must be"#;

    #[test]
    fn an_error_names_the_field_and_what_is_right() {
        for line in WRONG.lines() {
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
        ] {
            let [read, same] =
                [with_units, plain].map(|rest| parse(&format!("{{\"kind\":{rest}}}")));
            assert_eq!(read, same, "{with_units}");
            assert!(read.is_ok(), "{read:?}");
        }
    }

    #[test]
    fn chances_are_taken_as_often_as_asked_and_always_the_same() {
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
