//! Requests: known to be understood in two ways, and random ones made of what is.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use http::Uri;
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};

use super::*;

/// What a client sends: bytes, or a request of HTTP/2 with its body.
pub struct Case {
    pub bytes: Vec<u8>,
    pub http2: Option<(http::Request<()>, &'static str)>,
    /// The number of the server's answer.
    pub answer: usize,
}

/// Follows each case on its connection, so that each has an end: what a body swallows of it shows.
pub const LAST: &[u8] = b"GET /last HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";

/// The answer that tells its length twice, in one field.
pub const LENGTH_TWICE: usize = 6;
/// The answer that switches protocols.
pub const UNASKED_SWITCH: usize = 12;

/// The pieces of a table of `tests/data/framing.toml`.
pub fn table(name: &str) -> &'static [String] {
    static TABLES: LazyLock<BTreeMap<String, Vec<String>>> =
        LazyLock::new(|| toml::from_str(include_str!("../../../data/framing.toml")).unwrap());
    &TABLES[name]
}

/// An answer, and whether the server closes then.
pub fn answer(number: usize) -> (&'static str, bool) {
    let (then, answer) = table("answers")[number].split_once(' ').unwrap();
    (answer, then == "closes")
}

impl Case {
    fn of(answer: usize, bytes: impl Into<Vec<u8>>) -> Case {
        Case {
            bytes: bytes.into(),
            http2: None,
            answer,
        }
    }

    pub fn shown(&self) -> String {
        match &self.http2 {
            Some(request) => format!("{request:?}"),
            None => self.bytes.escape_ascii().to_string(),
        }
    }
}

/// Cases that have been attacks, or mistakes of proxies.
pub fn known() -> Vec<Case> {
    let mut all = Vec::new();
    for post in table("posts") {
        let [pieces, fields, body] = post.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{post}")
        };
        for piece in table(pieces) {
            let [fields, body] = [fields, body].map(|part| part.replace("{}", piece));
            let head = format!("POST /generate HTTP/1.1\r\nhost: h\r\n{fields}\r\n\r\n");
            all.push(Case::of(0, head + &body));
        }
    }
    for target in table("targets") {
        for method in table("methods") {
            let head = format!("{method} {target} HTTP/1.1\r\nhost: h\r\n\r\n");
            all.push(Case::of(0, head));
        }
    }
    for answer in 0..table("answers").len() {
        for (method, version) in [
            ("GET", "1.1"),
            ("HEAD", "1.1"),
            ("GET", "1.0"),
            ("POST", "1.1"),
        ] {
            let line = format!("{method} /x HTTP/{version}");
            let head = format!("{line}\r\nhost: h\r\nx-answer: {answer}\r\n\r\n");
            all.push(Case::of(answer, head));
        }
    }
    all.extend(table("raw").iter().map(|raw| Case::of(0, raw.as_bytes())));
    all
}

fn pick(from: &str, rng: &mut impl Rng) -> &'static str {
    table(from).choose(rng).unwrap()
}

/// Fields and the body of a random request, mostly of nasty parts.
fn message(answer: usize, rng: &mut impl Rng) -> (Vec<String>, &'static str) {
    let mut lines = vec![format!("x-answer: {answer}")];
    if rng.random_bool(0.95) {
        lines.push("host: h".into());
    }
    for _ in 0..rng.random_range(0..4) {
        lines.push(pick("lines", rng).into());
    }
    let framing = rng.random_range(0..6);
    let mut body = "";
    if matches!(framing, 1 | 2 | 5) {
        lines.push(format!("content-length: {}", pick("lengths", rng)));
        body = "hello";
    }
    if framing > 2 {
        lines.push(format!("transfer-encoding: {}", pick("codings", rng)));
        body = pick("chunked", rng);
    }
    if rng.random_bool(0.5) {
        lines.push(connection(&lines, rng));
    }
    lines.shuffle(rng);
    (lines, body)
}

/// A `Connection` that names fields of the request, which go no further then; `Host` would be refused.
fn connection(lines: &[String], rng: &mut impl Rng) -> String {
    let names = lines
        .iter()
        .filter_map(|line| Some(line.split_once(':')?.0));
    let names: Vec<&str> = names.filter(|name| *name != "host").collect();
    let count = rng.random_range(1..4);
    let named: Vec<&str> = names.choose_multiple(rng, count).copied().collect();
    let comma = *[",", ", ", " ,\t"].choose(rng).unwrap();
    let named = named.join(comma);
    match rng.random_bool(0.5) {
        true => format!("Connection: {}", named.to_uppercase()),
        false => format!("connection: {named}"),
    }
}

/// A random request.
pub fn random(rng: &mut impl Rng) -> Case {
    let answer = rng.random_range(0..table("answers").len());
    let (lines, body) = message(answer, rng);
    let target = match rng.random_bool(0.7) {
        true => "/generate",
        false => pick("targets", rng),
    };
    let (method, version) = (pick("methods", rng), pick("versions", rng));
    let end = if rng.random_bool(0.95) { "\r\n" } else { "\n" };
    let lines = lines.join(end);
    let request = format!("{method} {target} {version}{end}{lines}{end}{end}{body}");
    Case::of(answer, request)
}

/// The same of HTTP/2, as far as its client lets it be sent.
pub fn random_http2(rng: &mut impl Rng) -> Case {
    // A server that switches protocols knows no HTTP/2.
    let answer = rng.random_range(0..UNASKED_SWITCH);
    let (lines, body) = message(answer, rng);
    let authority = *["h", "h", "h:80", "other"].choose(rng).unwrap();
    let target = pick("targets", rng);
    let mut request = http::Request::new(());
    *request.version_mut() = http::Version::HTTP_2;
    let uri = format!("http://{authority}{target}").parse();
    *request.uri_mut() = uri.unwrap_or(Uri::from_static("http://h/generate"));
    let method = pick("methods", rng).replace("CONNECT", "PATCH");
    *request.method_mut() = method.parse().unwrap();
    let of_connection = "connection keep-alive proxy-connection transfer-encoding upgrade";
    let of_connection: Vec<&str> = of_connection.split(' ').collect();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_bytes(value.trim().as_bytes());
        if let (Ok(name), Ok(value)) = (name, value)
            && !of_connection.contains(&name.as_str())
            && (name != "te" || value == "trailers")
        {
            request.headers_mut().append(name, value);
        }
    }
    Case {
        http2: Some((request, body)),
        ..Case::of(answer, format!("{method} {target}"))
    }
}
