//! What is compared of two JSON texts: keys, their order, and the types of values.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

/// The skeleton of a JSON text, such as `{text:string,ids:[int],end:null}`. Arrays list the different
/// shapes of their elements. `cached_tokens_details` is `null` or an object, as the prefix cache has it,
/// so it only needs to be there.
#[derive(Debug, PartialEq)]
pub struct Shape(String);

impl Shape {
    /// The shape of a JSON text.
    pub fn of(json: &str) -> String {
        match serde_json::from_str::<Shape>(json) {
            Ok(shape) => shape.0,
            Err(error) => panic!("no JSON ({error}): {json}"),
        }
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_any(Skeleton).map(Shape)
    }
}

struct Skeleton;

impl<'de> Visitor<'de> for Skeleton {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<String, E> {
        Ok("bool".to_owned())
    }

    fn visit_i64<E>(self, _: i64) -> Result<String, E> {
        Ok("int".to_owned())
    }

    fn visit_u64<E>(self, _: u64) -> Result<String, E> {
        Ok("int".to_owned())
    }

    fn visit_f64<E>(self, _: f64) -> Result<String, E> {
        Ok("float".to_owned())
    }

    fn visit_str<E>(self, _: &str) -> Result<String, E> {
        Ok("string".to_owned())
    }

    fn visit_unit<E>(self) -> Result<String, E> {
        Ok("null".to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<String, A::Error> {
        let mut shapes: Vec<String> = Vec::new();
        while let Some(Shape(shape)) = elements.next_element()? {
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        Ok(format!("[{}]", shapes.join("|")))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<String, A::Error> {
        let mut shapes = Vec::new();
        while let Some((key, Shape(shape))) = members.next_entry::<String, Shape>()? {
            let shape = match key.as_str() {
                "cached_tokens_details" => "any",
                _ => shape.as_str(),
            };
            shapes.push(format!("{key}:{shape}"));
        }
        Ok(format!("{{{}}}", shapes.join(",")))
    }
}

/// The shapes of a body: of each SSE event as it differs from the one before, or of the one JSON text.
/// Also checks the framing: `data: `, one line, a blank line, nothing else.
pub fn shapes(body: &str) -> Vec<String> {
    if !body.starts_with("data: ") {
        return match body {
            "" => Vec::new(),
            json => vec![Shape::of(json)],
        };
    }
    let mut shapes: Vec<String> = Vec::new();
    let events = body.strip_suffix("\n\n").unwrap();
    for event in events.split("\n\n") {
        let data = event.strip_prefix("data: ").unwrap();
        assert!(!data.contains(['\n', '\r']), "one line: {data:?}");
        let shape = match data {
            "[DONE]" => data.to_owned(),
            json => Shape::of(json),
        };
        if shapes.last() != Some(&shape) {
            shapes.push(shape);
        }
    }
    shapes
}
