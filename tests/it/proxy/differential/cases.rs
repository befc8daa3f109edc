//! Requests: known to be understood in two ways, and random ones made of what is.

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

/// Bytes of an answer, and whether the server closes then.
pub const ANSWERS: [(&str, bool); 13] = [
    (
        "HTTP/1.1 200 OK\r\nx-server: 1\r\ncontent-length: 2\r\n\r\n{}",
        false,
    ),
    (
        "HTTP/1.1 200 OK\r\nx-server: 1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        false,
    ),
    ("HTTP/1.1 200 OK\r\nx-server: 1\r\n\r\nuntil close", true),
    (
        "HTTP/1.0 200 OK\r\nx-server: 1\r\ncontent-length: 2\r\n\r\n{}",
        true,
    ),
    ("HTTP/1.1 204 No Content\r\nx-server: 1\r\n\r\n", false),
    (
        "HTTP/1.1 304 Not Modified\r\nx-server: 1\r\netag: x\r\n\r\n",
        false,
    ),
    (
        "HTTP/1.1 404 Not Found\r\nx-server: 1\r\ncontent-length: 1, 1\r\n\r\nx",
        false,
    ),
    (
        "HTTP/1.1 200 OK\r\nx-server: 1\r\ncontent-length: 2\r\ncontent-length: 2\r\nset-cookie: a\r\nset-cookie: b\r\n\r\n{}",
        false,
    ),
    (
        "HTTP/1.1 200 OK\r\nx-server: 1\r\nconnection: x-of-connection\r\nx-of-connection: 1\r\nkeep-alive: 5\r\ntrailer: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: 1\r\n\r\n",
        true,
    ),
    (
        "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\nx-server: 1\r\ncontent-length: 2\r\n\r\n{}",
        false,
    ),
    (
        "HTTP/1.1 200 OK\r\nx-server: 1\r\ntransfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n1\r\na\r\n0\r\n\r\n",
        false,
    ),
    (
        "HTTP/1.1 200 OK\r\nx-server: 1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        true,
    ),
    (
        "HTTP/1.1 101 Switching Protocols\r\nx-server: 1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        true,
    ),
];
/// The one of them that tells its length twice, in one field.
pub const LENGTH_TWICE: usize = 6;
/// The one of them that switches protocols.
pub const UNASKED_SWITCH: usize = 12;

const TARGETS: [&str; 14] = [
    "/generate",
    "/x?y=1",
    "*",
    "http://h/abs",
    "http://other/abs",
    "//h/x",
    "/a/../b",
    "/%00",
    "/a%0ab",
    "/x?y=%0a",
    "/sp ace",
    "/\u{7f}",
    "http://u@h/x",
    "example.com:443",
];
const METHODS: [&str; 9] = [
    "GET", "POST", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "CONNECT", "get",
];
const VERSIONS: [&str; 6] = [
    "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0",
];
/// Lines of a head besides `Host` and the framing.
const LINES: [&str; 44] = [
    "host: other",
    "host: h",
    "host:",
    "host: u@h",
    "connection: close",
    "connection: keep-alive",
    "connection: x-named, keep-alive",
    "connection: host",
    "connection: x-forwarded-for",
    "connection: content-length",
    "connection: transfer-encoding",
    "connection: \"x\"",
    "connection: a,b,c,d,e,f,g,h,i",
    "connection: a,b,c,d,e,f,g,h,i,j",
    "connection: :path",
    "connection: ,, close",
    "connection: x-named",
    "x-named: secret",
    "keep-alive: timeout=5",
    "proxy-connection: keep-alive",
    "proxy-authorization: x",
    "proxy-authenticate: x",
    "te: trailers",
    "te: gzip",
    "trailer: x",
    "upgrade: h2c",
    "http2-settings: AAMAAABkAAQAAP__",
    "x-forwarded-for: 6.6.6.6",
    "accept: */*",
    "Accept: text/html",
    "cookie: a=b",
    "cookie: c=d",
    "x-bytes: \u{e9}",
    "x-empty:",
    "x space: 1",
    "x-space : 1",
    " x-folded: 1",
    "x-tab:\t1\t",
    "nocolon",
    ": noname",
    "x-nul: a\0b",
    "x-cr: a\rb",
    "x-dup: 1",
    "x-dup: 2",
];
const LENGTHS: [&str; 12] = [
    "5", "5", "5", "5", "+5", " 5", "5, 5", "5, 6", "-5", "0x5", "5 ", "",
];
const CODINGS: [&str; 12] = [
    "chunked",
    "chunked",
    "chunked",
    "Chunked",
    " chunked ",
    "chunked, chunked",
    "gzip, chunked",
    "chunked, gzip",
    "identity",
    "xchunked",
    "\u{b}chunked",
    "",
];
const CHUNKED: [&str; 14] = [
    "5\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n0\r\n\r\n",
    "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "5;ext=1\r\nhello\r\n0\r\n\r\n",
    "05\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n",
    "5 \r\nhello\r\n0\r\n\r\n",
    "5\nhello\n0\n\n",
    "0x5\r\nhello\r\n0\r\n\r\n",
    "5\r\nhelloX0\r\n\r\n",
    "g\r\nhello\r\n0\r\n\r\n",
    "-1\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n",
    "0\r\n\r\n",
];

impl Case {
    fn of(bytes: impl Into<Vec<u8>>) -> Case {
        Case {
            bytes: bytes.into(),
            http2: None,
            answer: 0,
        }
    }

    /// Whether the server answers with that one of [`ANSWERS`].
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
    let mut post = |fields: &str, body: &str| {
        let head = format!("POST /generate HTTP/1.1\r\nhost: h\r\n{fields}\r\n");
        all.push(Case::of(head + body));
    };
    // CL.TE, TE.CL, TE.TE, CL.0, and their like.
    let smuggled = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n";
    for coding in CODINGS {
        post(
            &format!("content-length: 6\r\ntransfer-encoding: {coding}\r\n"),
            smuggled,
        );
        post(
            &format!("transfer-encoding: {coding}\r\ncontent-length: 6\r\n"),
            smuggled,
        );
        post(
            &format!("transfer-encoding: {coding}\r\n"),
            "5\r\nhello\r\n0\r\n\r\n",
        );
        post(
            &format!("transfer-encoding: {coding}\r\ntransfer-encoding: chunked\r\n"),
            smuggled,
        );
        post(
            &format!("transfer-encoding: chunked\r\ntransfer-encoding: {coding}\r\n"),
            smuggled,
        );
    }
    for length in LENGTHS {
        post(&format!("content-length: {length}\r\n"), "hello");
        post(
            &format!("content-length: {length}\r\ncontent-length: 5\r\n"),
            "hello",
        );
        post(
            &format!("content-length: 5\r\nContent-Length: {length}\r\n"),
            "hello",
        );
    }
    for body in CHUNKED {
        post("transfer-encoding: chunked\r\n", body);
    }
    for line in LINES {
        post(&format!("{line}\r\ncontent-length: 5\r\n"), "hello");
        post(&format!("content-length: 5\r\n{line}\r\n"), "hello");
        post(
            &format!("connection: content-length\r\n{line}\r\ncontent-length: 5\r\n"),
            "hello",
        );
    }
    for target in TARGETS {
        for method in METHODS {
            let head = format!("{method} {target} HTTP/1.1\r\nhost: h\r\n\r\n");
            all.push(Case::of(head));
        }
    }
    for answer in 0..ANSWERS.len() {
        for (method, version) in [
            ("GET", "1.1"),
            ("HEAD", "1.1"),
            ("GET", "1.0"),
            ("POST", "1.1"),
        ] {
            let head =
                format!("{method} /x HTTP/{version}\r\nhost: h\r\nx-answer: {answer}\r\n\r\n");
            all.push(Case {
                answer,
                ..Case::of(head)
            });
        }
    }
    for raw in [
        "GET / HTTP/1.1\n\n",
        "GET /\r\n\r\n",
        "GET  / HTTP/1.1\r\nhost: h\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nhost: h\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: h\n\r\n",
        "GET / HTTP/1.9\r\nhost: h\r\n\r\n",
        "POST / HTTP/1.0\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\nhello",
    ] {
        all.push(Case::of(raw));
    }
    all
}

/// A random request: mostly of nasty parts.
pub fn random(rng: &mut impl Rng) -> Case {
    let pick = |from: &[&'static str], rng: &mut _| *from.choose(rng).unwrap();
    let answer = rng.random_range(0..ANSWERS.len());
    let mut lines = vec![format!("x-answer: {answer}")];
    if rng.random_bool(0.95) {
        lines.push("host: h".into());
    }
    for _ in 0..rng.random_range(0..4) {
        lines.push(pick(&LINES, rng).into());
    }
    let body = match rng.random_range(0..6) {
        0 => "",
        1 | 2 => {
            lines.push(format!("content-length: {}", pick(&LENGTHS, rng)));
            "hello"
        }
        3 | 4 => {
            lines.push(format!("transfer-encoding: {}", pick(&CODINGS, rng)));
            pick(&CHUNKED, rng)
        }
        _ => {
            lines.push(format!("content-length: {}", pick(&LENGTHS, rng)));
            lines.push(format!("transfer-encoding: {}", pick(&CODINGS, rng)));
            pick(&CHUNKED, rng)
        }
    };
    // Their order is random too.
    for at in (1..lines.len()).rev() {
        lines.swap(at, rng.random_range(0..=at));
    }
    let target = if rng.random_bool(0.7) {
        "/generate"
    } else {
        pick(&TARGETS, rng)
    };
    let (method, version) = (pick(&METHODS, rng), pick(&VERSIONS, rng));
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
        let line = LINES.choose(rng).unwrap();
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
            request = request.header("content-length", *LENGTHS.choose(rng).unwrap());
            b"hello".to_vec()
        }
    };
    Case {
        answer,
        http2: request.body(()).ok().map(|request| (request, body)),
        bytes: format!("{method} {target}").into_bytes(),
    }
}
