//! The recorded exchanges of a real SGLang 0.5.23 (`tests/data`), as what a reader of the socket saw.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::files;
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
    let mut files = files(&folder());
    files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
    assert!(files.len() > 80, "the recordings are there");
    files.iter().map(|file| load(file)).collect()
}

/// One recording by its name.
pub fn named(case: &str) -> Recording {
    load(&folder().join(format!("{case}.json")))
}

fn load(file: &Path) -> Recording {
    let exchange: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut reader = Reader::default();
    let mut pieces = Vec::new();
    let mut raw = Vec::new();
    for read in exchange["reads"].as_array().into_iter().flatten() {
        let bytes = STANDARD.decode(read["b64"].as_str().unwrap()).unwrap();
        let before = reader.body.len();
        reader.feed(&bytes);
        raw.push(bytes);
        if reader.body.len() > before {
            let at = read["t"].as_f64().unwrap();
            pieces.push((at, reader.body[before..].to_vec()));
        }
    }
    let head = reader.head.unwrap_or_default();
    let status = head.split(' ').nth(1).unwrap_or("0");
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
        status: status.parse().unwrap(),
        headers: headers(&head),
        raw,
        pieces,
        client_aborted: exchange["client_aborted"] == Value::Bool(true),
    }
}

impl Recording {
    /// The whole body.
    pub fn body(&self) -> Vec<u8> {
        let pieces: Vec<&[u8]> = self.pieces.iter().map(|(_, bytes)| &bytes[..]).collect();
        pieces.concat()
    }

    /// A response header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        let (_, value) = all.find(|(key, _)| key == name)?;
        Some(value)
    }
}
