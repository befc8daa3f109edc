//! Faults that a hop injects on demand, so that an experiment knows what went wrong, where and when. What a fault does is decided
//! here, purely; [`registry`] holds the faults that are set.

use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};
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
    /// The most injections; `None` for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<NonZeroU64>,
    /// Milliseconds: the delay of each piece of a slow response, or how long a request is stalled; `None` there: until the fault is
    /// removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<u32>,
    /// After how many bytes of the body it is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_bytes: Option<u64>,
}

/// The fields of a fault, each given at most once: of a map, the last one would be taken.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    kind: Option<Value>,
    count: Option<Value>,
    ms: Option<Value>,
    after_bytes: Option<Value>,
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
    /// Returns [`Fault::ms`].
    pub fn time(&self) -> Option<Duration> {
        self.ms.map(|ms| Duration::from_millis(ms.into()))
    }

    /// Parses a fault from JSON.
    ///
    /// # Errors
    /// The field, what is wrong with it, and a hint.
    pub fn parse(json: &[u8]) -> Result<Fault, String> {
        let given: Result<Given, _> = serde_json::from_slice(json);
        let fields = given.and_then(serde_json::to_value);
        let fields = fields.and_then(serde_json::from_value);
        let fields = fields.map_err(|error| error.to_string());
        fields.and_then(Fault::from_fields).map_err(|problem| {
            format!("{problem}; give an object, as in {{\"kind\": \"stall\", \"ms\": 500}}")
        })
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
        let (has_ms, has_after) = (self.ms.is_some(), self.after_bytes.is_some());
        let (is_valid, takes) = match self.kind {
            Kind::Refuse | Kind::Reset => (!has_ms && !has_after, "no field of its own"),
            Kind::Stall => (!has_after, "ms or nothing"),
            Kind::Slow => (has_ms && !has_after, "ms, before each piece"),
            Kind::Cut => (!has_ms && has_after, "after_bytes"),
        };
        let name = self.kind.name();
        let error = || format!("kind = \"{name}\": takes {takes}; all kinds take count");
        is_valid.then_some(self).ok_or_else(error)
    }
}

/// Parses a field's text with a unit.
fn number(field: &str, text: &str) -> Option<Value> {
    let whole = match field {
        "ms" => units::seconds(text)? / units::MS,
        "after_bytes" => units::bytes(text)?,
        _ => return None,
    };
    (whole >= 0.0 && whole.fract() == 0.0).then(|| (whole as u64).into())
}

/// Returns the message for a field's invalid value.
fn invalid(field: &str, value: &Value) -> String {
    let (number, max) = ("a whole number,", u32::MAX);
    let expected = match field {
        "kind" => format!("one of {}", Kind::ALL.map(Kind::name).join(", ")),
        "ms" => format!("{number} or a text such as \"250ms\", from 0 to {max}"),
        "after_bytes" => format!("{number} or a text such as \"64KiB\", 0 or more"),
        _ => format!("{number} 1 or more"),
    };
    format!("{field} = {value}: must be {expected}")
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
{} | kind = null: must be one of refuse
{"kind":"stall","ms":"1s","ms":2} | duplicate field `ms`
{"kind":"crash"} | kind = "crash": must be one of refuse, reset, stall, slow, cut
{"kind":"stall","ms":-1} | ms = -1: must be a whole number, or a text such as "250ms", from 0 to 4294967295
{"kind":"stall","ms":5000000000} | ms = 5000000000: must be
{"kind":"stall","ms":"1"} | ms = "1": must be
{"kind":"stall","ms":"0.5us"} | ms = "0.5us": must be
{"kind":"stall","ms":"1KiB"} | ms = "1KiB": must be
{"kind":"slow"} | slow | takes ms
{"kind":"slow","ms":1,"after_bytes":2} | slow | takes ms
{"kind":"cut"} | cut | takes after_bytes
{"kind":"cut","after_bytes":1,"ms":2} | cut | takes after_bytes
{"kind":"cut","after_bytes":-2} | after_bytes = -2: must be a whole number, or a text such as "64KiB", 0 or more
{"kind":"reset","ms":1} | reset | no field of its own
{"kind":"stall","after_bytes":1} | stall | takes ms
{"kind":"reset","speed":1} | `speed` | `count`
{"kind":"reset","count":0} | count = 0: must be a whole number, 1 or more"#;

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
                r#""cut","after_bytes":"1.5KB""#,
                r#""cut","after_bytes":1500"#,
            ),
        ] {
            let read = |rest| parse(&format!("{{\"kind\":{rest}}}"));
            let [read, same] = [with_units, plain].map(read);
            assert_eq!(read, same, "{with_units}");
            assert!(read.is_ok(), "{read:?}");
        }
    }
}
