//! Headers: what they name of a response's body and server, and of a request's labels. The proxy and the generator use the same
//! functions.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};

use super::outcome::Outcome;

/// Header in which smg 1.13 names the worker that served.
static SMG_WORKER: HeaderName = HeaderName::from_static("x-smg-routed-worker-id");

/// The number of characters of a header's value that are kept as a label.
const MAX_LABEL_CHARS: usize = 64;

/// Response header with the outcome that a proxy of ours records, on responses that it gives itself. It tells them apart from a
/// server's own errors of the same status.
pub const OUTCOME_HEADER: &str = "x-queuescope-outcome";

/// Returns the `Content-Type`.
pub fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_TYPE)?.to_str().ok()
}

/// Returns the outcome that a proxy of ours put on a response that it gave itself.
pub fn reported_outcome(headers: &HeaderMap) -> Option<Outcome> {
    Outcome::named(headers.get(OUTCOME_HEADER)?.to_str().ok()?)
}

/// Whether a content coding hides the body. `identity` is none (RFC 9110, section 8.4.1).
pub fn is_encoded(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let mut codings = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| {
        let coding = coding.trim_ascii();
        !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity")
    })
}

/// Returns the server that smg chose, `host:port`.
pub fn smg_worker(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(&SMG_WORKER)?.to_str().ok()?.trim();
    // smg names its workers by http, https or grpc URLs.
    let value = value.split_once("://").map_or(value, |(_, rest)| rest);
    let value = value.strip_suffix('/').unwrap_or(value);
    (!value.is_empty()).then(|| value.to_owned())
}

/// Returns the column `labels`: a request's headers of these names, as `x-tenant=acme; x-team=search`.
pub fn labels(headers: &HeaderMap, names: &[String]) -> Option<String> {
    let pair = |name: &String| {
        let value = String::from_utf8_lossy(headers.get(name)?.as_bytes());
        let value: String = value.trim().chars().take(MAX_LABEL_CHARS).collect();
        (!value.is_empty()).then(|| format!("{name}={}", value.replace(';', "_")))
    };
    let pairs: Vec<String> = names.iter().filter_map(pair).collect();
    (!pairs.is_empty()).then(|| pairs.join("; "))
}

/// Splits [`labels`] into names and values.
pub fn label_pairs(labels: &str) -> impl Iterator<Item = (&str, &str)> {
    labels.split("; ").filter_map(|pair| pair.split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(name: HeaderName, values: &[&'static str]) -> HeaderMap {
        let values = values.iter().map(|v| HeaderValue::from_static(v));
        values.map(|value| (name.clone(), value)).collect()
    }

    #[test]
    fn named_headers_label_a_request() {
        let names = ["x-tenant", "x-team", "x-city", "x-none"].map(str::to_owned);
        let mut all = headers(HeaderName::from_static("x-tenant"), &[" a; b=c ", "second"]);
        all.insert("x-city", HeaderValue::from_str("Zürich").unwrap());
        all.insert("x-team", HeaderValue::from_str(&"t".repeat(99)).unwrap());
        let text = labels(&all, &names).unwrap();
        assert_eq!(
            text,
            format!("x-tenant=a_ b=c; x-team={}; x-city=Zürich", "t".repeat(64))
        );
        let pairs: Vec<_> = label_pairs(&text).map(|(name, _)| name).collect();
        assert_eq!(pairs, ["x-tenant", "x-team", "x-city"]);
        assert_eq!(label_pairs(&text).next(), Some(("x-tenant", "a_ b=c")));
        assert_eq!(labels(&HeaderMap::new(), &names), None);
    }

    #[test]
    fn identity_is_no_coding_however_it_is_written() {
        for (values, expected) in [
            (&[][..], false),
            (&["identity"], false),
            (&[" Identity\t"], false),
            (&["identity, identity", ""], false),
            (&["gzip"], true),
            (&["identity, gzip"], true),
            (&["identity", "br"], true),
        ] {
            let headers = headers(CONTENT_ENCODING, values);
            assert_eq!(is_encoded(&headers), expected, "{values:?}");
        }
        let mut odd = HeaderMap::new();
        odd.insert(CONTENT_ENCODING, HeaderValue::from_bytes(b"\xff").unwrap());
        assert!(is_encoded(&odd));
    }

    #[test]
    fn a_worker_is_named_as_hosts_are() {
        let name = SMG_WORKER.clone();
        for (value, expected) in [
            ("http://10.0.0.7:30000/", Some("10.0.0.7:30000")),
            (" http://10.0.0.7:30000 ", Some("10.0.0.7:30000")),
            ("10.0.0.7:30000", Some("10.0.0.7:30000")),
            ("https://h:30000", Some("h:30000")),
            ("grpc://h:30000", Some("h:30000")),
            ("http://", None),
            ("", None),
        ] {
            let worker = smg_worker(&headers(name.clone(), &[value]));
            assert_eq!(worker.as_deref(), expected, "{value}");
        }
    }
}
