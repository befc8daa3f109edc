//! The recorded exchanges of a real SGLang 0.5.23 (`tests/data`), as what a reader of the socket saw.

use std::path::{Path, PathBuf};

use base64::Engine;
use serde_json::Value;

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
    let mut reader = HeadAndBody::default();
    let mut pieces = Vec::new();
    let mut raw = Vec::new();
    for (at, bytes) in reads {
        raw.push(bytes.clone());
        let body = reader.feed(&bytes);
        if !body.is_empty() {
            pieces.push((at, body));
        }
    }
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
        status: reader.status,
        headers: reader.headers,
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

/// Takes an HTTP/1.1 response apart as it comes.
#[derive(Default)]
struct HeadAndBody {
    raw: Vec<u8>,
    status: u16,
    headers: Vec<(String, String)>,
    head_done: bool,
    chunked: bool,
    chunk_left: usize,
}

impl HeadAndBody {
    fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.raw.extend_from_slice(bytes);
        if !self.head_done {
            let Some(end) = self.raw.windows(4).position(|w| w == b"\r\n\r\n") else {
                return Vec::new();
            };
            let head = String::from_utf8(self.raw.drain(..end + 4).collect()).unwrap();
            self.head(&head);
        }
        if self.chunked {
            self.dechunk()
        } else {
            std::mem::take(&mut self.raw)
        }
    }

    fn head(&mut self, head: &str) {
        self.head_done = true;
        let mut lines = head.lines();
        self.status = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            self.headers
                .push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let chunked = ("transfer-encoding".to_owned(), "chunked".to_owned());
        self.chunked = self.headers.contains(&chunked);
    }

    fn dechunk(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            if self.chunk_left > 2 {
                let take = (self.chunk_left - 2).min(self.raw.len());
                body.extend(self.raw.drain(..take));
                self.chunk_left -= take;
                if self.chunk_left > 2 {
                    return body;
                }
            }
            if self.chunk_left > 0 {
                let take = self.chunk_left.min(self.raw.len());
                self.raw.drain(..take);
                self.chunk_left -= take;
                if self.chunk_left > 0 {
                    return body;
                }
            }
            let Some(end) = self.raw.windows(2).position(|w| w == b"\r\n") else {
                return body;
            };
            let size: Vec<u8> = self.raw.drain(..end + 2).collect();
            let size = std::str::from_utf8(&size).unwrap().trim();
            self.chunk_left = usize::from_str_radix(size, 16).unwrap() + 2;
            if self.chunk_left == 2 {
                return body;
            }
        }
    }
}
