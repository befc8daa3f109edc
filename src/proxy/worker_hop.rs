//! How a hop tells the front what it stamped, and how the front takes it in.

use http::HeaderMap;

use crate::clock::Stamp;
use crate::request::stamps::Stamps;

/// The header's value for `stamps`.
pub fn render(stamps: &Stamps) -> String {
    let mut text = String::new();
    render_into(stamps, "", &mut text);
    text
}

fn render_into(stamps: &Stamps, prefix: &str, text: &mut String) {
    let nanos = |stamp: Option<Stamp>| stamp.map(|s| s.nanos().to_string());
    for (key, value) in [
        ("clock", Some(stamps.clock.clone())),
        ("now", nanos(stamps.now)),
        ("arrival", nanos(stamps.arrival)),
        ("request_end", nanos(stamps.request_end)),
        ("forwarded", nanos(stamps.forwarded)),
        ("host", stamps.host.clone()),
        ("attempts", stamps.attempts.map(|n| n.to_string())),
    ] {
        if let Some(value) = value {
            let separator = if text.is_empty() { "" } else { ";" };
            *text += &format!("{separator}{prefix}{key}={value}");
        }
    }
    if let Some(hop) = &stamps.hop {
        render_into(hop, "hop.", text);
    }
}

/// The stamps in a header's value; `None` without a clock's name.
pub fn parse(text: &str) -> Option<Stamps> {
    let (mut own, mut hop) = (Stamps::default(), Stamps::default());
    for (key, value) in text.split(';').filter_map(|pair| pair.split_once('=')) {
        match key.trim().strip_prefix("hop.") {
            Some(key) => parse_into(&mut hop, key, value.trim()),
            None => parse_into(&mut own, key.trim(), value.trim()),
        }
    }
    own.hop = (!hop.clock.is_empty()).then(|| Box::new(hop));
    (!own.clock.is_empty()).then_some(own)
}

fn parse_into(stamps: &mut Stamps, key: &str, value: &str) {
    let stamp = || value.parse().ok().map(Stamp::from_nanos);
    match key {
        "clock" => stamps.clock = value.into(),
        "now" => stamps.now = stamp(),
        "arrival" => stamps.arrival = stamp(),
        "request_end" => stamps.request_end = stamp(),
        "forwarded" => stamps.forwarded = stamp(),
        "host" => stamps.host = Some(value.into()),
        "attempts" => stamps.attempts = value.parse().ok(),
        _ => {}
    }
}

/// The stamps under `name` in a response's head.
pub fn read(headers: &HeaderMap, name: &str) -> Option<Stamps> {
    parse(headers.get(name)?.to_str().ok()?)
}
