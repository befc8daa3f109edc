//! Who may ask for what needs the token: whoever sends it, as a program (`Bearer`) or as a browser that asked its user
//! for a password (`Basic`). Where there is none: no page of somebody else's in a browser, whose name was turned to our
//! address (DNS rebinding).

use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use http::uri::Authority;

use crate::secret::Secret;

/// Whether a request with these headers knows the token.
pub fn is_allowed(headers: &HeaderMap, token: &Secret) -> bool {
    let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|given| std::str::from_utf8(given).ok());
    let Some((scheme, given)) = given.and_then(|given| given.split_once(' ')) else {
        return false;
    };
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => token.is(given.as_bytes()),
        "basic" => {
            let pair = BASE64_STANDARD.decode(given).unwrap_or_default();
            let pair = String::from_utf8(pair).unwrap_or_default();
            // The user's name says nothing.
            let password = pair.split_once(':').map(|(_, password)| password);
            password.is_some_and(|password| token.is(password.as_bytes()))
        }
        _ => false,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
