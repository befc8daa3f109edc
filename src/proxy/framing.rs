//! What of a message's head is about its framing or its connection: refused where it could be understood in two ways,
//! made plain, or taken off.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderValue, TRAILER, TRANSFER_ENCODING,
};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::{Error, ErrorType, Result};

/// Status of a request with a transfer coding other than `chunked`: RFC 9112, section 6.1.
pub const UNKNOWN_CODING: u16 = 501;

/// Status of a request whose target holds a NUL, or its path a control byte: raw, which Pingora escapes where the
/// request came together with the one before it, or escaped.
pub const BAD_TARGET: u16 = 400;

/// Holds a request's head to what is passed on as it came.
///
/// # Errors
/// The status for the client.
pub fn of_request(request: &RequestHeader) -> Result<()> {
    let refuse = |status| Err(Error::new_down(ErrorType::HTTPStatus(status)));
    if has_control(request.raw_path()) {
        return refuse(BAD_TARGET);
    }
    let mut codings = request.headers.get_all(TRANSFER_ENCODING).iter();
    if codings.any(|coding| {
        !coding
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"chunked")
    }) {
        return refuse(UNKNOWN_CODING);
    }
    Ok(())
}

fn has_control(target: &[u8]) -> bool {
    let path = target
        .split(|byte| *byte == b'?')
        .next()
        .unwrap_or_default();
    let is_control =
        |bytes: &[u8]| matches!(bytes, [b'%', b'0' | b'1', _] | [b'%', b'7', b'f' | b'F']);
    path.windows(3).any(is_control) || target.windows(3).any(|bytes| bytes == b"%00")
}

/// The one value of a `Content-Length` that is there several times; `None` when it is as it should be. Pingora has
/// refused those that differ.
pub fn one_length(headers: &HeaderMap) -> Option<HeaderValue> {
    let first = headers.get(CONTENT_LENGTH)?.as_bytes();
    let one = first.split(|byte| *byte == b',').next()?.trim_ascii();
    let is_one = headers.get_all(CONTENT_LENGTH).iter().count() == 1 && one.len() == first.len();
    (!is_one).then(|| HeaderValue::from_bytes(one).ok())?
}

/// Takes off the fields that belong to the upstream's connection alone: RFC 9110, section 7.6.1; and the
/// announcement of trailers, which Pingora drops. The framing stays; Pingora writes its own `Connection`.
///
/// # Errors
/// None that can come of a header that was read.
pub fn of_response(head: &mut ResponseHeader) -> Result<()> {
    let named: Vec<String> = head
        .headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| {
            !matches!(
                name.as_str(),
                "" | "close" | "transfer-encoding" | "content-length"
            )
        })
        .collect();
    let fixed = ["keep-alive", "proxy-connection", TRAILER.as_str()];
    for name in named.iter().map(String::as_str).chain(fixed) {
        head.remove_header(name);
    }
    if let Some(length) = one_length(&head.headers) {
        head.insert_header(CONTENT_LENGTH, length)?;
    }
    Ok(())
}
