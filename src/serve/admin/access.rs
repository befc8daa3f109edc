//! Who may ask for what needs the token: whoever sends it, as a program (`Bearer`) or as a browser that asked its user
//! for a password (`Basic`). Where there is none: no page of somebody else's in a browser, whose name was turned to our
//! address (DNS rebinding).

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST, HeaderMap};
use http::uri::Authority;

use crate::secret::Secret;

/// Whether a request with these headers knows the token.
pub fn is_allowed(headers: &HeaderMap, token: &Secret) -> bool {
    let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
    let Some((scheme, given)) = given.and_then(|given| split_at(given, b' ')) else {
        return false;
    };
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return token.is(given);
    }
    let is_basic = scheme.eq_ignore_ascii_case(b"basic");
    let pair = is_basic.then(|| base64(given)).flatten();
    // The user's name says nothing.
    let password = pair.as_deref().and_then(|pair| split_at(pair, b':'));
    password.is_some_and(|(_, password)| token.is(password))
}

/// Whether a request was sent to a name that nobody else can give us: localhost, an address, or one of `names`.
pub fn is_our_name(headers: &HeaderMap, names: &[String]) -> bool {
    let given = headers.get(HOST).map(|host| host.as_bytes());
    let Some(given) = given.and_then(|host| Authority::try_from(host).ok()) else {
        return false;
    };
    let host = given.host();
    let host = host.strip_suffix('.').unwrap_or(host);
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let mut ours = names.iter().map(String::as_str).chain(["localhost"]);
    address.parse::<IpAddr>().is_ok() || ours.any(|name| name.eq_ignore_ascii_case(host))
}

/// What stands before and after the first `separator`.
fn split_at(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == separator)?;
    let (before, rest) = bytes.split_at(at);
    Some((before, rest.get(1..)?))
}

/// The bytes that `text` encodes (RFC 4648, section 4).
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte != b'=')?;
    let mut bytes = Vec::with_capacity(text.len());
    let (mut held, mut bits) = (0_u32, 0);
    for byte in text.get(..=end)? {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = (held << 6 | u32::from(six)) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use http::HeaderValue;

    use super::*;

    #[test]
    fn base64_is_read_as_others_write_it() {
        for length in 1..100_usize {
            let bytes: Vec<u8> = (0..length).map(|n| (n * 37 + length) as u8).collect();
            let text = BASE64_STANDARD.encode(&bytes);
            assert_eq!(super::base64(text.as_bytes()), Some(bytes), "{text}");
        }
        for wrong in ["", "====", "a b=", "\u{e4}"] {
            assert_eq!(super::base64(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_name_is_ours_if_nobody_else_can_give_it_to_us() {
        let names = ["gpu1.Example".to_owned()];
        let is_ours = |host: &str| {
            let host = HeaderValue::from_str(host).unwrap();
            is_our_name(&HeaderMap::from_iter([(HOST, host)]), &names)
        };
        for ours in [
            "localhost",
            "LocalHost:8801",
            "localhost.",
            "127.0.0.1:8801",
            "10.0.0.7",
            "[::1]:8801",
            "[fe80::1]",
            "GPU1.example:80",
        ] {
            assert!(is_ours(ours), "{ours}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "gpu1",
            "evil.example:127",
            "a b",
        ] {
            assert!(!is_ours(other), "{other}");
        }
        assert!(!is_our_name(&HeaderMap::new(), &names));
    }

    #[test]
    fn the_token_is_a_bearers_or_any_users_password() {
        let token = Secret::from("to:ken");
        let is_allowed = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            is_allowed(&headers, &token)
        };
        let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
        assert!(is_allowed("Bearer to:ken") && is_allowed("bearer to:ken"));
        assert!(is_allowed(&basic("anybody:to:ken")) && is_allowed(&basic(":to:ken")));
        for wrong in [
            "to:ken",
            "Bearer",
            "Bearer  to:ken",
            "Basic to:ken",
            "Digest to:ken",
            "",
        ] {
            assert!(!is_allowed(wrong), "{wrong}");
        }
        for wrong in ["to:ken", "ken", "a:to:kenx", "a:to:ke", "a:", ""] {
            assert!(!is_allowed(&basic(wrong)), "{wrong}");
        }
    }
}
