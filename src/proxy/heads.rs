//! Header fields about a message's framing or its connection: ambiguous ones are refused or made unambiguous, those of the
//! connection are removed. RFC 9110, section 7.6.1; RFC 9112, sections 3.2 and 6.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::authority::raw_target_authority;

use crate::client::limits::Refusal;
use crate::request::{FRONT_HEADER, HOP_HEADER, OUTCOME_HEADER};

use super::identity;

// Names of our own headers: a map finds a `HeaderName` faster than text.
/// Asks for our stamps in a request, has them in a response.
pub static STAMPS: HeaderName = HeaderName::from_static(FRONT_HEADER);
/// The stamps of a hop.
pub static HOP: HeaderName = HeaderName::from_static(HOP_HEADER);
/// The outcome of a response that a proxy of ours gave itself.
pub static OUTCOME: HeaderName = HeaderName::from_static(OUTCOME_HEADER);
/// The secret of `stamps = "token"`.
pub static TOKEN: HeaderName = HeaderName::from_static("x-queuescope-token");
/// Hop-by-hop fields, besides those that `Connection` names.
static HOP_BY_HOP: [HeaderName; 10] = [
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
/// Fields that `Connection` may not name.
const PROTECTED: [&str; 4] = [
    "host",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];
/// The most names in `Connection`; a request with more is refused.
const MAX_NAMES: usize = 9;

/// Checks that a request's head can be passed on safely.
///
/// # Errors
/// Why it is refused.
pub fn check(request: &RequestHeader) -> Result<(), Refusal> {
    if request.method == Method::CONNECT {
        return Err(Refusal::Tunnel);
    }
    // RFC 9112, section 3.2; an absolute target names the host.
    let has_host = request.headers.contains_key(HOST) || authority(request).is_some();
    let lacks_host = !has_host && request.version == Version::HTTP_11;
    if lacks_host || has_control(request.raw_path()) {
        return Err(Refusal::BrokenHead);
    }
    let mut codings = request.headers.get_all(TRANSFER_ENCODING).iter();
    if !codings.all(|coding| is_chunked(coding.as_bytes())) {
        return Err(Refusal::UnknownCoding);
    }
    connection_names(&request.headers).map(drop)
}

fn is_chunked(coding: &[u8]) -> bool {
    coding.trim_ascii().eq_ignore_ascii_case(b"chunked")
}

/// Whether a target has a NUL, or its path a control byte. All are escaped here: Pingora escapes raw ones.
fn has_control(target: &[u8]) -> bool {
    let path = target
        .split(|byte| *byte == b'?')
        .next()
        .unwrap_or_default();
    let is_control =
        |bytes: &[u8]| matches!(bytes, [b'%', b'0' | b'1', _] | [b'%', b'7', b'f' | b'F']);
    path.windows(3).any(is_control) || target.windows(3).any(|bytes| bytes == b"%00")
}

/// Returns the head to send to an upstream, over HTTP/1.1, for one that was received.
///
/// # Errors
/// The head does not pass [`check`].
pub fn to_upstream(received: &RequestHeader, has_body: bool) -> pingora::Result<RequestHeader> {
    let mut head = received.clone();
    head.set_version(Version::HTTP_11);
    // A missing `Host` is the authority of HTTP/2 or of an absolute target; Pingora has refused one that differs. A request received
    // over HTTP/2 gets an empty one if it has neither.
    let is_http2 = received.version == Version::HTTP_2;
    let host = authority(received).or(is_http2.then_some(&b""[..]));
    if let Some(host) = host.filter(|_| !received.headers.contains_key(HOST)) {
        head.insert_header(HOST, host)?;
    }
    let asks_websocket = received.version == Version::HTTP_11
        && received
            .headers
            .get(UPGRADE)
            .is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let named = connection_names(&received.headers).unwrap_or_default();
    // `Connection` may not remove the id: the record has it, and hops join by it.
    let is_named = |name: &HeaderName| named.contains(name) && *name != identity::ID;
    let is_hop_by_hop = |name: &&HeaderName| HOP_BY_HOP.contains(name) || is_named(name);
    for name in received.headers.keys().filter(is_hop_by_hop) {
        head.remove_header(name);
    }
    if asks_websocket {
        head.insert_header(CONNECTION, "Upgrade")?;
        head.insert_header(UPGRADE, "websocket")?;
    }
    if let Some(length) = repeated_length(&head.headers) {
        head.insert_header(CONTENT_LENGTH, length)?;
    }
    if has_body && !head.headers.contains_key(CONTENT_LENGTH) {
        head.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    Ok(head)
}

/// Returns the authority that a request's target names.
fn authority(head: &RequestHeader) -> Option<&[u8]> {
    let authority = head.uri.authority().map(|a| a.as_str().as_bytes());
    authority.or_else(|| raw_target_authority(head.raw_path()).authority())
}

/// Returns the names in a request's `Connection`.
///
/// # Errors
/// It names something that it may not.
fn connection_names(headers: &HeaderMap) -> Result<Vec<HeaderName>, Refusal> {
    let name = |token| {
        let name = HeaderName::from_bytes(token).ok();
        name.filter(|name| !PROTECTED.contains(&name.as_str()))
    };
    let names: Option<Vec<HeaderName>> = tokens(headers).map(name).collect();
    let names = names.filter(|names| names.len() <= MAX_NAMES);
    names.ok_or(Refusal::BrokenHead)
}

/// Returns the elements of `Connection`.
fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(CONNECTION).iter();
    let tokens = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let tokens = tokens.map(<[u8]>::trim_ascii);
    tokens.filter(|token| !token.is_empty())
}

/// Returns the value of a `Content-Length` that is repeated, in one field or several; `None` if it is not. Pingora has refused
/// values that differ.
fn repeated_length(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let first = values.next()?.as_bytes();
    let length = first.split(|byte| *byte == b',').next()?.trim_ascii();
    let is_single = values.next().is_none() && length.len() == first.len();
    (!is_single).then(|| HeaderValue::from_bytes(length).ok())?
}

/// Makes the final head of a response fit for the client: removes the fields of the upstream's connection, and the announcement
/// of trailers, which Pingora drops. Pingora writes its own `Connection`. `is_end` says that there is no body, as of a response to
/// `HEAD`; `version` is the request's. Returns whether the body ends with the client's connection.
///
/// # Errors
/// None that a head that was read can lead to.
pub fn to_client(
    head: &mut ResponseHeader,
    is_end: bool,
    version: Version,
) -> pingora::Result<bool> {
    let last = head.headers.get_all(TRANSFER_ENCODING).iter().next_back();
    let coding = last.and_then(|last| last.as_bytes().rsplit(|byte| *byte == b',').next());
    // RFC 9112, section 6.3.
    let is_unchunked = coding.is_some_and(|coding| !is_chunked(coding));
    if !is_end && coding.is_none() && !head.headers.contains_key(CONTENT_LENGTH) {
        head.set_version(Version::HTTP_11);
        head.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    // HTTP/1.0 has no chunks.
    let is_old = version < Version::HTTP_11 && head.remove_header(&TRANSFER_ENCODING).is_some();
    let ends_by_close = is_old || (!is_end && is_unchunked);
    let framing = [TRANSFER_ENCODING, CONTENT_LENGTH];
    let named = tokens(&head.headers).filter_map(|token| HeaderName::from_bytes(token).ok());
    let named: Vec<_> = named.filter(|name| !framing.contains(name)).collect();
    let [.., keep_alive, old, _] = &HOP_BY_HOP;
    for name in named.iter().chain([keep_alive, old, &TRAILER]) {
        head.remove_header(name);
    }
    if let Some(length) = repeated_length(&head.headers) {
        head.insert_header(CONTENT_LENGTH, length)?;
    }
    Ok(ends_by_close)
}
