//! The recorded exchanges of a real SGLang 0.5.23 (`tests/data`), as what a reader of the socket saw.

use std::path::{Path, PathBuf};

use base64::Engine;
use serde_json::Value;

use super::wire::{Reader, headers};

/// One recorded exchange.
pub struct Recording {
    /// Path below `tests/data/sglang-0.5.23`, without its ending.
    pub case: String,
    /// The request's method.
    pub method: String,
    /// The request's path.
    pub path: String,
    /// The request's body.
    pub request_body: Vec<u8>,
    /// HTTP status.
    pub status: u16,
    /// Response headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The reads as they came: head and chunk framing included.
    pub raw: Vec<Vec<u8>>,
    /// Body bytes with the chunk framing taken off, and the second after the send at which each was read.
    pub pieces: Vec<(f64, Vec<u8>)>,
    /// The recorder closed the connection on purpose.
    pub client_aborted: bool,
}

/// The folder of the recordings.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sglang-0.5.23")
}

/// Every recording, in the order of names.
pub fn all() -> Vec<Recording> {
    let mut files = Vec::new();
    walk(&folder(), &mut files);
    files.sort();
    assert!(files.len() > 80, "the recordings are there");
    files.iter().map(|file| load(file)).collect()
}

/// One recording by its name.
pub fn named(case: &str) -> Recording {
    load(&folder().join(format!("{case}.json")))
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "json") {
            files.push(path);
        }
    }
}

fn load(file: &Path) -> Recording {
    let exchange: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let reads = exchange["reads"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|read| {
            let bytes = read["b64"].as_str().unwrap();
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(bytes)
                .unwrap();
            (read["t"].as_f64().unwrap(), bytes)
        });
    let mut reader = Reader::default();
    let mut pieces = Vec::new();
    let mut raw = Vec::new();
    for (at, bytes) in reads {
        raw.push(bytes.clone());
        let before = reader.body.len();
        reader.feed(&bytes);
        if reader.body.len() > before {
            pieces.push((at, reader.body[before..].to_vec()));
        }
    }
    let head = reader.head.unwrap_or_default();
    let status = head
        .split(' ')
        .nth(1)
        .map_or(0, |status| status.parse().unwrap());
    let request = &exchange["request"];
    let body = match (&request["body"], request["body_text"].as_str()) {
        (Value::Null, text) => text.unwrap_or("").as_bytes().to_vec(),
        (body, _) => body.to_string().into_bytes(),
    };
    let case = file.strip_prefix(folder()).unwrap().with_extension("");
    Recording {
        case: case.to_str().unwrap().to_owned(),
        method: request["method"].as_str().unwrap_or("POST").to_owned(),
        path: request["path"].as_str().unwrap_or_default().to_owned(),
        request_body: body,
        status,
        headers: headers(&head),
        raw,
        pieces,
        client_aborted: exchange["client_aborted"] == Value::Bool(true),
    }
}

impl Recording {
    /// The whole body.
    pub fn body(&self) -> Vec<u8> {
        self.pieces
            .iter()
            .flat_map(|(_, bytes)| bytes.iter().copied())
            .collect()
    }

    /// A response header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}
