//! Request ids and W3C trace contexts: <https://www.w3.org/TR/trace-context/>, version 00.

use http::HeaderMap;

/// The request id header.
pub const REQUEST_ID: &str = "x-request-id";
/// The trace context header.
pub const TRACEPARENT: &str = "traceparent";
/// W3C header with what vendors add to a trace.
pub const TRACESTATE: &str = "tracestate";

/// Longest request id that a record keeps, bytes.
const LONGEST_ID: usize = 256;

/// Where a request belongs in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// 32 hex digits.
    pub id: String,
    /// 2 hex digits.
    pub flags: String,
}

/// A new request id: 32 random hex digits.
pub fn new_request_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The client's request id as a record shows it; `None` when it sent none, or none that can be shown.
pub fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.as_bytes();
    let shown = String::from_utf8_lossy(&id[..id.len().min(LONGEST_ID)]);
    (!shown.trim().is_empty()).then(|| shown.into_owned())
}

impl Trace {
    /// A new trace, sampled.
    pub fn new() -> Trace {
        let id = rand::random::<u128>().max(1);
        Trace {
            id: format!("{id:032x}"),
            flags: "01".into(),
        }
    }

    /// The client's trace; `None` when the header is absent, there twice or invalid.
    pub fn of(headers: &HeaderMap) -> Option<Trace> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        let (Some(value), None) = (all.next(), all.next()) else {
            return None;
        };
        Trace::parse(value.to_str().ok()?.trim())
    }

    fn parse(text: &str) -> Option<Trace> {
        let mut parts = text.splitn(5, '-');
        let mut hex = |digits: usize| {
            let part = parts.next()?;
            let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
            (part.len() == digits && part.bytes().all(is_hex)).then_some(part)
        };
        let (version, id, parent, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let zero = |part: &str| part.bytes().all(|c| c == b'0');
        // Version 00 has exactly four parts; what later ones append is theirs to know.
        let whole = version != "ff" && (version != "00" || parts.next().is_none());
        (whole && !zero(id) && !zero(parent)).then(|| Trace {
            id: id.into(),
            flags: flags.into(),
        })
    }

    /// The header of a new span in this trace.
    pub fn child(&self) -> String {
        let span = rand::random::<u64>().max(1);
        format!("00-{}-{span:016x}-{}", self.id, self.flags)
    }
}

impl Default for Trace {
    fn default() -> Trace {
        Trace::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    #[test]
    fn a_valid_parent_keeps_its_trace_and_flags() {
        for (text, flags) in [
            (format!("00-{ID}-{PARENT}-00"), "00"),
            (format!("00-{ID}-{PARENT}-03"), "03"),
            (format!("cc-{ID}-{PARENT}-01-what-comes"), "01"),
        ] {
            let trace = Trace::parse(&text).unwrap();
            assert_eq!((trace.id.as_str(), trace.flags.as_str()), (ID, flags));
            let (one, two) = (trace.child(), trace.child());
            assert_ne!(one, two);
            assert!(!one.contains(PARENT));
            assert_eq!(Trace::parse(&one).unwrap(), trace);
        }
    }

    #[test]
    fn an_invalid_parent_is_none() {
        for text in [
            String::new(),
            format!("00-{ID}-{PARENT}"),
            format!("00-{ID}-{PARENT}-01-more"),
            format!("ff-{ID}-{PARENT}-01"),
            format!("00-{}-{PARENT}-01", "0".repeat(32)),
            format!("00-{ID}-{}-01", "0".repeat(16)),
            format!("00-{}-{PARENT}-01", ID.to_uppercase()),
            format!("00-{}-{PARENT}-01", &ID[1..]),
        ] {
            assert_eq!(Trace::parse(&text), None, "{text}");
        }
        assert!(Trace::parse(&Trace::new().child()).is_some());
    }

    #[test]
    fn a_request_id_is_bounded_and_shown() {
        let mut headers = HeaderMap::new();
        assert_eq!(request_id(&headers), None);
        headers.insert(REQUEST_ID, "a".repeat(1000).parse().unwrap());
        assert_eq!(request_id(&headers).unwrap().len(), LONGEST_ID);
        headers.insert(REQUEST_ID, http::HeaderValue::from_static(""));
        assert_eq!(request_id(&headers), None);
    }
}
