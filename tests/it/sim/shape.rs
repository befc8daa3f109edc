//! What is compared of two JSON texts: keys and the types of values.

use std::collections::BTreeSet;

use serde_json::Value;

/// The skeleton of a JSON text, such as `{end:null,ids:[int],text:string}`. Arrays list the different
/// shapes of their elements. `cached_tokens_details` is `null` or an object, as the prefix cache has it,
/// so it only needs to be there.
pub fn shape(json: &str) -> String {
    match serde_json::from_str(json) {
        Ok(value) => of(&value),
        Err(error) => panic!("no JSON ({error}): {json}"),
    }
}

fn of(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if number.is_f64() => "float".to_owned(),
        Value::Number(_) => "int".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(elements) => {
            let shapes: BTreeSet<String> = elements.iter().map(of).collect();
            format!("[{}]", Vec::from_iter(shapes).join("|"))
        }
        Value::Object(members) => {
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
