//! The recorded spans of a real SGLang 0.5.23 (`tests/data/sglang-0.5.23-otlp`), and messages of OTLP, made by hand.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The spans of one recorded request, and what `meta_info` told of its sequences.
pub struct Case {
    /// Path below `tests/data/sglang-0.5.23-otlp`.
    pub name: String,
    /// As recorded, but for spans of tokens beyond the second.
    pub spans: Vec<Value>,
    pub meta_info: Vec<Value>,
}

/// Every case, in the order of names.
pub fn all() -> Vec<Case> {
    let mut folders = Vec::new();
    walk(&folder(), &mut folders);
    folders.sort();
    assert!(folders.len() > 35, "the recordings are there");
    folders.iter().map(|folder| load(folder)).collect()
}

pub fn named(name: &str) -> Case {
    load(&folder().join(name))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sglang-0.5.23-otlp")
}

fn walk(folder: &Path, folders: &mut Vec<PathBuf>) {
    if folder.join("spans.jsonl").exists() {
        folders.push(folder.to_owned());
        return;
    }
    for entry in std::fs::read_dir(folder).unwrap() {
        walk(&entry.unwrap().path(), folders);
    }
}

fn load(case: &Path) -> Case {
    let lines = |name: &str| {
        let text = std::fs::read_to_string(case.join(name)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    };
    Case {
        name: case.strip_prefix(folder()).unwrap().display().to_string(),
        spans: lines("spans.jsonl"),
        meta_info: lines("meta_info.jsonl"),
    }
}

/// A message with these spans, as a server sends them.
pub fn message(spans: &[Value]) -> Vec<u8> {
    let spans: Vec<Vec<u8>> = spans.iter().map(|one| span(one).concat()).collect();
    message_of(&spans)
}

/// The same of spans that are made already.
pub fn message_of(spans: &[Vec<u8>]) -> Vec<u8> {
    let scope = bytes(1, &bytes(1, b"sglang server"));
    let spans = spans.iter().map(|span| bytes(2, span));
    let of_scope: Vec<u8> = std::iter::once(scope).chain(spans).flatten().collect();
    let service = attribute("service.name", &Value::from("sglang"));
    let resource = bytes(1, &bytes(1, &service));
    bytes(1, &[resource, bytes(2, &of_scope)].concat())
}

/// The fields of a span, in the order of their numbers.
pub fn span(span: &Value) -> Vec<Vec<u8>> {
    let hex = |name: &str| {
        let text = span[name].as_str().unwrap();
        let pairs = (0..text.len()).step_by(2);
        let bytes = pairs.map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap());
        bytes.collect::<Vec<u8>>()
    };
    let mut fields = vec![bytes(1, &hex("trace_id")), bytes(2, &hex("span_id"))];
    if !hex("parent").is_empty() {
        fields.push(bytes(4, &hex("parent")));
    }
    fields.push(bytes(5, span["name"].as_str().unwrap().as_bytes()));
    fields.push(number(6, span["kind"].as_u64().unwrap()));
    fields.push(fixed(7, span["start_ns"].as_u64().unwrap()));
    fields.push(fixed(8, span["end_ns"].as_u64().unwrap()));
    for (key, value) in span["attrs"].as_object().unwrap() {
        fields.push(bytes(9, &attribute(key, value)));
    }
    for event in span["events"].as_array().unwrap() {
        let name = bytes(2, event["name"].as_str().unwrap().as_bytes());
        let at = fixed(1, event["ns"].as_u64().unwrap());
        let of = event["attrs"].as_object().unwrap().iter();
        let of = of.map(|(key, value)| bytes(3, &attribute(key, value)));
        let event = [at, name].into_iter().chain(of).flatten();
        fields.push(bytes(11, &event.collect::<Vec<u8>>()));
    }
    let code = span["status"]["code"].as_u64().unwrap();
    if code > 0 {
        fields.push(bytes(15, &number(3, code)));
    }
    // `flags`.
    let mut flags = varint(16 << 3 | 5);
    flags.extend((span["flags"].as_u64().unwrap() as u32).to_le_bytes());
    fields.push(flags);
    fields
}

fn attribute(key: &str, value: &Value) -> Vec<u8> {
    let value = match value {
        Value::String(text) => bytes(1, text.as_bytes()),
        Value::Bool(is) => number(2, u64::from(*is)),
        Value::Number(n) if n.is_f64() => fixed(4, n.as_f64().unwrap().to_bits()),
        // A negative one is ten bytes long.
        Value::Number(n) => number(3, n.as_i64().unwrap() as u64),
        other => panic!("{other}"),
    };
    [bytes(1, key.as_bytes()), bytes(2, &value)].concat()
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn fixed(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3 | 1), value.to_le_bytes().to_vec()].concat()
}

fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    let head = [varint(field << 3 | 2), varint(value.len() as u64)];
    [head.concat(), value.to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
