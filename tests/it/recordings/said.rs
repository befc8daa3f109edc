//! A recorded body taken apart with nothing of ours.

use serde_json::Value;

use super::is_stream;
use crate::support::recordings::Recording;

/// One thing that a body says of a sequence, and when it was read.
pub struct EventInFile {
    pub at: f64,
    pub index: usize,
    pub meta: Value,
    pub text: bool,
    pub id: Option<String>,
}

/// The body taken apart with nothing of ours.
pub fn said(recording: &Recording) -> Vec<EventInFile> {
    let is_stream = is_stream(recording);
    let mut values: Vec<(f64, Value)> = Vec::new();
    if is_stream {
        let mut pending = Vec::new();
        for (at, bytes) in &recording.pieces {
            pending.extend_from_slice(bytes);
            while let Some(end) = pending.windows(2).position(|w| w == b"\n\n") {
                let event: Vec<u8> = pending.drain(..end + 2).collect();
                let mut lines = std::str::from_utf8(&event).unwrap().lines();
                let data = lines.find_map(|line| line.strip_prefix("data: "));
                if let Some(json) = data.filter(|data| *data != "[DONE]") {
                    values.push((*at, serde_json::from_str(json).unwrap()));
                }
            }
        }
    } else if let Ok(value) = serde_json::from_slice(&recording.body()) {
        let at = recording.pieces.last().unwrap().0;
        match value {
            Value::Array(items) => {
                for (index, mut item) in items.into_iter().enumerate() {
                    item["index"] = Value::from(index);
                    values.push((at, item));
                }
            }
            value => values.push((at, value)),
        }
    }
    // `/v1/responses` names the response in its first event.
    let id = values
        .iter()
        .find_map(|(_, value)| value["response"]["id"].as_str());
    let said = |(at, value): &(f64, Value)| {
        let mut said = said_by(*at, value);
        said.iter_mut()
            .for_each(|said| said.id = said.id.take().or(id.map(str::to_owned)));
        said
    };
    values.iter().flat_map(said).collect()
}

/// What an event or reply of `/v1/responses` or `/v1/messages` says.
fn said_by_blocks(at: f64, value: &Value) -> Vec<EventInFile> {
    let says = match value["type"].as_str() {
        Some("response.output_text.delta") => value["delta"].as_str(),
        Some("content_block_delta") => value["delta"]["text"].as_str(),
        Some("message") => value["content"][0]["text"].as_str(),
        _ => value["output"][0]["content"][0]["text"].as_str(),
    };
    let id = value["id"].as_str().filter(|id| id.starts_with("resp_"));
    let said = says.filter(|text| !text.is_empty()).map(|_| EventInFile {
        at,
        index: 0,
        meta: Value::Null,
        text: true,
        id: id.map(str::to_owned),
    });
    Vec::from_iter(said)
}

fn said_by(at: f64, value: &Value) -> Vec<EventInFile> {
    let index = |of: &Value| of["index"].as_u64().unwrap_or(0) as usize;
    let filled = |v: &Value| v.as_str().is_some_and(|s| !s.is_empty());
    let owned = |v: &Value| v.as_str().map(str::to_owned);
    if let Some(choices) = value["choices"].as_array() {
        let of_choice = |choice: &Value| {
            let parts = [&choice["delta"], &choice["message"]];
            let text = filled(&choice["text"])
                || parts
                    .iter()
                    .any(|p| filled(&p["content"]) || filled(&p["reasoning_content"]));
            let id = owned(&choice["meta_info"]["id"]).or_else(|| owned(&value["id"]));
            EventInFile {
                at,
                index: index(choice),
                meta: choice["meta_info"].clone(),
                text,
                id,
            }
        };
        return choices
            .iter()
            .map(of_choice)
            .filter(|s| s.text || s.meta.is_object())
            .collect();
    }
    if !value["meta_info"].is_object() {
        return said_by_blocks(at, value);
    }
    let meta = value["meta_info"].clone();
    let id = owned(&meta["id"]);
    vec![EventInFile {
        at,
        index: index(value),
        text: filled(&value["text"]),
        meta,
        id,
    }]
}
