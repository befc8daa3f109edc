//! What is compared of two JSON texts: keys, their order, and the types of values.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

/// A JSON text whose members keep their order.
#[derive(Deserialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "of most values the type is all that is asked for")]
enum Json {
    Object(Members),
    Array(Vec<Json>),
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Null(()),
}

struct Members(Vec<(String, Json)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Members, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = all.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(InOrder)
    }
}

/// The skeleton of a JSON text, such as `{text:string,ids:[int],end:null}`. Arrays list the different
/// shapes of their elements. `cached_tokens_details` is `null` or an object, as the prefix cache has it,
/// so it only needs to be there.
pub fn shape(json: &str) -> String {
    match serde_json::from_str(json) {
        Ok(value) => of(&value),
        Err(error) => panic!("no JSON ({error}): {json}"),
    }
}

fn of(value: &Json) -> String {
    match value {
        Json::Null(()) => "null".to_owned(),
        Json::Bool(_) => "bool".to_owned(),
        Json::Int(_) => "int".to_owned(),
        Json::Float(_) => "float".to_owned(),
        Json::Text(_) => "string".to_owned(),
        Json::Array(elements) => {
            let shapes: BTreeSet<String> = elements.iter().map(of).collect();
            format!("[{}]", Vec::from_iter(shapes).join("|"))
        }
        Json::Object(Members(members)) => {
            let members = members.iter().map(|(key, value)| match key.as_str() {
                "cached_tokens_details" => format!("{key}:any"),
                _ => format!("{key}:{}", of(value)),
            });
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
    }
}

/// The shapes of a body: of each SSE event as it differs from the one before, or of the one JSON text.
/// Also checks the framing: `data: `, one line, a blank line, nothing else.
pub fn shapes(body: &str) -> Vec<String> {
    if !body.starts_with("data: ") {
        return match body {
            "" => Vec::new(),
            json => vec![shape(json)],
        };
    }
    let mut shapes: Vec<String> = Vec::new();
    let events = body.strip_suffix("\n\n").unwrap();
    for event in events.split("\n\n") {
        let data = event.strip_prefix("data: ").unwrap();
        assert!(!data.contains(['\n', '\r']), "one line: {data:?}");
        let event = match data {
            "[DONE]" => data.to_owned(),
            json => shape(json),
        };
        if shapes.last() != Some(&event) {
            shapes.push(event);
        }
    }
    shapes
}
