//! What of a message's head is about its framing or its connection: refused where it could be understood in two ways,
//! made plain, or taken off. RFC 9110, section 7.6.1; RFC 9112, sections 3.2 and 6.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::authority::raw_target_authority;
use pingora::{Error, ErrorType};

use crate::client::answer::Refusal;
use crate::request::headers::OUTCOME_HEADER;
use crate::request::stamps::{FRONT_HEADER, HOP_HEADER};

// Fields of our own: a map finds a name sooner than text.
/// What asks for our stamps, and tells them.
pub static STAMPS: HeaderName = HeaderName::from_static(FRONT_HEADER);
/// What a hop stamped.
pub static HOP: HeaderName = HeaderName::from_static(HOP_HEADER);
/// How a proxy of ours judged its own error.
pub static OUTCOME: HeaderName = HeaderName::from_static(OUTCOME_HEADER);
/// With the secret of `stamps = "token"`.
pub static TOKEN: HeaderName = HeaderName::from_static("x-queuescope-token");
/// Fields of a connection besides those that `Connection` names.
static OF_CONNECTION: [HeaderName; 10] = [
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    CONNECTION,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];
/// Fields that a client may not have taken off.
const KEPT: [&str; 4] = [
    "host",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];
/// Names in `Connection` beyond which a request is refused.
const NAMED: usize = 9;

/// Holds a request's head to what is passed on as it came.
///
/// # Errors
/// What the client is refused.
pub fn check(request: &RequestHeader) -> Result<(), Refusal> {
    if request.method == Method::CONNECT {
        return Err(Refusal::Tunnel);
    }
    if has_control(request.raw_path()) {
        return Err(Refusal::BadTarget);
    }
    let mut codings = request.headers.get_all(TRANSFER_ENCODING).iter();
    if codings.any(|coding| {
        !coding
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"chunked")
    }) {
        return Err(Refusal::UnknownCoding);
    }
    named(&request.headers).map(drop)
}

/// Whether a target holds a NUL, or its path a control byte: raw, which Pingora escapes, or escaped.
fn has_control(target: &[u8]) -> bool {
    let path = target
        .split(|byte| *byte == b'?')
        .next()
        .unwrap_or_default();
    let is_control =
        |bytes: &[u8]| matches!(bytes, [b'%', b'0' | b'1', _] | [b'%', b'7', b'f' | b'F']);
    path.windows(3).any(is_control) || target.windows(3).any(|bytes| bytes == b"%00")
}

/// The head that goes to an upstream, over HTTP/1.1, for one that came.
///
/// # Errors
/// It is not one that has been [checked](check).
pub fn to_upstream(came: &RequestHeader, has_body: bool) -> pingora::Result<RequestHeader> {
    let mut head = came.clone();
    head.set_version(Version::HTTP_11);
    set_host(&mut head, came.version)?;
    let asks_websocket = came.version == Version::HTTP_11
        && came
            .headers
            .get(UPGRADE)
            .is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let named = named(&came.headers).unwrap_or_default();
    let stays_here = |name: &&HeaderName| OF_CONNECTION.contains(name) || named.contains(name);
    for name in came.headers.keys().filter(stays_here) {
        head.remove_header(name);
    }
    if asks_websocket {
        head.insert_header(CONNECTION, "Upgrade")?;
        head.insert_header(UPGRADE, "websocket")?;
    }
    if let Some(length) = one_length(&head.headers) {
        head.insert_header(CONTENT_LENGTH, length)?;
    }
    if has_body && !head.headers.contains_key(CONTENT_LENGTH) {
        head.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    Ok(head)
}

/// Sets `Host` where the authority says it: that of HTTP/2, or of an absolute target. Ingress has made sure that the two
/// do not differ. HTTP/2 needs one in any case.
fn set_host(head: &mut RequestHeader, came: Version) -> pingora::Result<()> {
    let authority = head.uri.authority().map(|a| a.as_str().as_bytes());
    let authority = authority.or_else(|| raw_target_authority(head.raw_path()).authority());
    let host = match authority {
        Some(authority) => HeaderValue::from_bytes(authority)
            .map_err(|_| Error::new(ErrorType::InvalidHTTPHeader))?,
        None if came == Version::HTTP_2 => HeaderValue::from_static(""),
        None => return Ok(()),
    };
    if !head.headers.contains_key(HOST) {
        head.insert_header(HOST, host)?;
    }
    Ok(())
}

/// The fields that `Connection` names.
///
/// # Errors
/// It names what it may not.
fn named(headers: &HeaderMap) -> Result<Vec<HeaderName>, Refusal> {
    let mut names = Vec::new();
    for token in tokens(headers) {
        let name = HeaderName::from_bytes(token).ok();
        let name = name.filter(|name| is_token(token) && !KEPT.contains(&name.as_str()));
        names.push(name.ok_or(Refusal::BrokenHead)?);
    }
    if names.len() > NAMED {
        return Err(Refusal::BrokenHead);
    }
    Ok(names)
}

/// What `Connection` says, one word after another.
fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(CONNECTION).iter();
    let tokens = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let tokens = tokens.map(<[u8]>::trim_ascii);
    tokens.filter(|token| !token.is_empty())
}

/// RFC 9110, section 5.6.2.
fn is_token(token: &[u8]) -> bool {
    let is_tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    token.iter().all(is_tchar)
}

/// The one value of a `Content-Length` that is there several times; `None` when it is as it should be. Pingora has
/// refused those that differ.
fn one_length(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let first = values.next()?.as_bytes();
    let one = first.split(|byte| *byte == b',').next()?.trim_ascii();
    let is_one = values.next().is_none() && one.len() == first.len();
    (!is_one).then(|| HeaderValue::from_bytes(one).ok())?
}

/// Makes the final head of a response, which `is_end` says has no body, fit for the client of a request: takes off the
/// fields that belong to the upstream's connection alone, and the announcement of trailers, which Pingora drops. Pingora
/// writes its own `Connection`. Gives whether the body ends with the client's connection.
///
/// # Errors
/// None that can come of a header that was read.
pub fn to_client(
    head: &mut ResponseHeader,
    is_end: bool,
    (method, version): (&Method, Version),
) -> pingora::Result<bool> {
    let is_bodiless = *method == Method::HEAD
        || matches!(
            head.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
    let is_framed = head.headers.contains_key(TRANSFER_ENCODING)
        || head.headers.contains_key(CONTENT_LENGTH)
        || is_bodiless
        || is_end;
    if !is_framed {
        head.set_version(Version::HTTP_11);
        head.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    // To HTTP/1.0 the end of the connection is the end of the body.
    let ends_by_close =
        version < Version::HTTP_11 && head.remove_header(&TRANSFER_ENCODING).is_some();
    let of_framing = [TRANSFER_ENCODING, CONTENT_LENGTH];
    let named = tokens(&head.headers).filter_map(|token| HeaderName::from_bytes(token).ok());
    let named: Vec<_> = named
        .filter(|name| !of_framing.contains(name) && name != "close")
        .collect();
    let [.., keep_alive, old, _] = &OF_CONNECTION;
    for name in named.iter().chain([keep_alive, old, &TRAILER]) {
        head.remove_header(name);
    }
    if let Some(length) = one_length(&head.headers) {
        head.insert_header(CONTENT_LENGTH, length)?;
    }
    Ok(ends_by_close)
}
