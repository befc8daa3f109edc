//! Requests: known to be understood in two ways, and random ones made of what is.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rand::Rng;
use rand::seq::IndexedRandom;

/// What a client sends: bytes, or a request of HTTP/2.
pub struct Case {
    pub bytes: Vec<u8>,
    pub http2: Option<(http::Request<()>, Vec<u8>)>,
    answer: usize,
}

/// Follows each case on its connection, so that each has an end: what a body swallows of it shows.
pub const LAST: &[u8] = b"GET /last HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";

/// The answer that tells its length twice, in one field.
pub const LENGTH_TWICE: usize = 6;
/// The answer that switches protocols.
pub const UNASKED_SWITCH: usize = 12;

/// The pieces of a table of `tests/data/framing.txt`.
pub fn table(name: &str) -> &'static [String] {
    static TABLES: LazyLock<BTreeMap<&str, Vec<String>>> = LazyLock::new(|| {
        let sections = include_str!("../../../data/framing.txt").split("\n[");
        let tables = sections.skip(1).map(|section| {
            let (name, lines) = section.split_once("]\n").unwrap();
            let pieces = lines.lines().filter_map(|line| line.strip_prefix('|'));
            (name, pieces.map(unescaped).collect())
        });
        tables.collect()
    });
    &TABLES[name]
}

fn unescaped(piece: &str) -> String {
    let (mut text, mut rest) = (String::new(), piece);
    while let Some((plain, escape)) = rest.split_once('\\') {
        let (byte, length) = match escape.as_bytes()[0] {
            b'r' => ('\r', 1),
            b'n' => ('\n', 1),
            b't' => ('\t', 1),
            _ => (
                char::from(u8::from_str_radix(&escape[1..3], 16).unwrap()),
                3,
            ),
        };
        text.push_str(plain);
        text.push(byte);
        rest = &escape[length..];
    }
    text + rest
}

/// An answer, and whether the server closes then.
pub fn answer(number: usize) -> (&'static str, bool) {
    let (then, answer) = table("answers")[number].split_once(' ').unwrap();
    (answer, then == "closes")
}

impl Case {
    fn of(bytes: impl Into<Vec<u8>>) -> Case {
        Case {
            bytes: bytes.into(),
            http2: None,
            answer: 0,
        }
    }

    /// Whether the server gives the answer of this number.
    pub fn is_answered_by(&self, answer: usize) -> bool {
        self.answer == answer
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
        let mut parts = post.splitn(3, " | ");
        let (pieces, fields, body) = (parts.next(), parts.next(), parts.next());
        for piece in table(pieces.unwrap()) {
            let [fields, body] = [fields, body].map(|part| part.unwrap().replace("{}", piece));
            let head = format!("POST /generate HTTP/1.1\r\nhost: h\r\n{fields}\r\n\r\n");
            all.push(Case::of(head + &body));
        }
    }
    for target in table("targets") {
        for method in table("methods") {
            let head = format!("{method} {target} HTTP/1.1\r\nhost: h\r\n\r\n");
            all.push(Case::of(head));
        }
    }
    for answer in 0..table("answers").len() {
        for line in [
            "GET /x HTTP/1.1",
            "HEAD /x HTTP/1.1",
            "GET /x HTTP/1.0",
            "POST /x HTTP/1.1",
        ] {
            let head = format!("{line}\r\nhost: h\r\nx-answer: {answer}\r\n\r\n");
            all.push(Case {
                answer,
                ..Case::of(head)
            });
        }
    }
    for raw in table("raw") {
        all.push(Case::of(raw.as_bytes()));
    }
    all
}

/// A random request: mostly of nasty parts.
pub fn random(rng: &mut impl Rng) -> Case {
    let pick = |from, rng: &mut _| table(from).choose(rng).unwrap().as_str();
    let answer = rng.random_range(0..table("answers").len());
    let mut lines = vec![format!("x-answer: {answer}")];
    if rng.random_bool(0.95) {
        lines.push("host: h".into());
    }
    for _ in 0..rng.random_range(0..4) {
        lines.push(pick("lines", rng).into());
    }
    let body = match rng.random_range(0..6) {
        0 => "",
        1 | 2 => {
            lines.push(format!("content-length: {}", pick("lengths", rng)));
            "hello"
        }
        3 | 4 => {
            lines.push(format!("transfer-encoding: {}", pick("codings", rng)));
            pick("chunked", rng)
        }
        _ => {
            lines.push(format!("content-length: {}", pick("lengths", rng)));
            lines.push(format!("transfer-encoding: {}", pick("codings", rng)));
            pick("chunked", rng)
        }
    };
    // Their order is random too.
    for at in (1..lines.len()).rev() {
        lines.swap(at, rng.random_range(0..=at));
    }
    let target = if rng.random_bool(0.7) {
        "/generate"
    } else {
        pick("targets", rng)
    };
    let (method, version) = (pick("methods", rng), pick("versions", rng));
    let end = if rng.random_bool(0.95) { "\r\n" } else { "\n" };
    let head = format!(
        "{method} {target} {version}{end}{}{end}{end}",
        lines.join(end)
    );
    Case {
        answer,
        ..Case::of([head.as_bytes(), body.as_bytes()].concat())
    }
}

/// The same of HTTP/2, as far as its client lets it be sent.
pub fn random_http2(rng: &mut impl Rng) -> Case {
    // A server that switches protocols knows no HTTP/2.
    let answer = rng.random_range(0..UNASKED_SWITCH);
    let targets = [
        "/generate",
        "/x?y=1",
        "/a%0ab",
        "/x?y=%0a",
        "/a/../b",
        "//h/x",
    ];
    let authority = *["h", "h", "h:80", "other"].choose(rng).unwrap();
    let target = targets.choose(rng).unwrap();
    let method = *["GET", "POST", "PUT", "HEAD", "OPTIONS"]
        .choose(rng)
        .unwrap();
    let mut request = http::Request::builder()
        .method(method)
        .uri(format!("http://{authority}{target}"))
        .version(http::Version::HTTP_2)
        .header("x-answer", answer);
    for _ in 0..rng.random_range(0..4) {
        let line = table("lines").choose(rng).unwrap();
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let name = http::HeaderName::from_bytes(name.as_bytes());
        let value = http::HeaderValue::from_bytes(value.trim().as_bytes());
        if let (Ok(name), Ok(value)) = (name, value) {
            request = request.header(name, value);
        }
    }
    let body = match rng.random_range(0..4) {
        0 | 1 => Vec::new(),
        2 => b"hello".to_vec(),
        _ => {
            request = request.header("content-length", table("lengths").choose(rng).unwrap());
            b"hello".to_vec()
        }
    };
    Case {
        answer,
        http2: request.body(()).ok().map(|request| (request, body)),
        bytes: format!("{method} {target}").into_bytes(),
    }
}
