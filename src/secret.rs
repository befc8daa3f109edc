//! Secrets that are compared and never shown, and masking of values that may hold one.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;

/// A secret, such as a token that clients must send. Its `Debug` does not show it, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Its bytes, to derive keys from.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether `given` is the secret. The time it takes depends on the length alone.
    pub fn matches(&self, given: &[u8]) -> bool {
        !self.0.is_empty() && bool::from(self.bytes().ct_eq(given))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a secret")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        // Serde's own message would show the value.
        let hide = |_| D::Error::custom("invalid type, expected text in quotes");
        String::deserialize(deserializer).map(Secret).map_err(hide)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret(text.to_owned())
    }
}

/// The ends of names whose values are secret.
const SUFFIXES: &str =
    "token secret password passwd credentials api_key access_key private_key apikey headers";

/// Shown in place of a secret.
pub const MASK: &str = "***";

/// Masks the secret parts of a value by the `name` of its key, flag or variable: all of a token, the value of a header, user and
/// query of a URL, and such values within a JSON object.
pub fn masked(name: &str, value: &str) -> String {
    let name = name.trim_start_matches('-').replace('-', "_");
    let name = name.to_ascii_lowercase();
    let name = name.rsplit('.').next().unwrap_or_default();
    if name == "header" {
        return match value.split_once(':') {
            // The file that has it.
            _ if value.starts_with('@') => value.to_owned(),
            Some((header, _)) => format!("{header}:{MASK}"),
            None => MASK.to_owned(),
        };
    }
    let mut suffixes = SUFFIXES.split(' ');
    // A key of the proxy that has names of headers, and none of a secret.
    if name != "label_headers" && suffixes.any(|suffix| name.ends_with(suffix)) {
        return MASK.to_owned();
    }
    if let Ok(members) = serde_json::from_str::<Map<String, Value>>(value) {
        let masked = masked_members(&members);
        return match masked == members {
            true => value.to_owned(),
            false => Value::Object(masked).to_string(),
        };
    }
    let Some((scheme, rest)) = value.split_once("://") else {
        return value.to_owned();
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    // Else it is a password that contains a `/` or `?`.
    let is_whole = authority.contains('@')
        || authority
            .rsplit_once(':')
            .is_none_or(|(_, port)| is_port(port));
    let with_user = if is_whole { authority } else { rest };
    let (user, rest) = match with_user.rfind('@') {
        Some(at) => (format!("{MASK}@"), &rest[at + 1..]),
        None => (String::new(), rest),
    };
    match rest.find(['?', '#']) {
        Some(at) => format!("{scheme}://{user}{}{MASK}", &rest[..=at]),
        None => format!("{scheme}://{user}{rest}"),
    }
}

/// Masks the members of a JSON object by their names as [`masked`], at any depth.
pub fn masked_members(members: &Map<String, Value>) -> Map<String, Value> {
    let members = members.iter();
    members
        .map(|(name, value)| (name.clone(), masked_json(name, value)))
        .collect()
}

fn masked_json(name: &str, value: &Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(masked_members(members)),
        Value::Array(all) => all.iter().map(|value| masked_json(name, value)).collect(),
        Value::String(text) => masked(name, text).into(),
        value => value.clone(),
    }
}

/// Whether a value of that name is one that [`masked`] has written, but for blanks.
pub fn is_masked(name: &str, value: &str) -> bool {
    let without_blanks = |text: &str| text.split_whitespace().collect::<String>();
    let again = masked(name, &value.replace(MASK, "x"));
    value.contains(MASK) && without_blanks(&again) == without_blanks(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_itself_matches() {
        let secret = Secret::from("open sesame");
        assert!(secret.matches(b"open sesame"));
        let others = ["", "open", "open sesamf", "Open sesame"].map(str::to_owned);
        for other in others.into_iter().chain(["open sesame".repeat(2)]) {
            assert!(!secret.matches(other.as_bytes()), "{other}");
        }
        assert!(!Secret::from("").matches(b""));
        assert!(!format!("{secret:?}").contains("sesame"));
    }

    #[test]
    fn values_that_may_be_secret_are_masked() {
        let nested = r#"{"a":[{"api_key":"S"}],"n":1}"#;
        let masked_nested = r#"{"a":[{"api_key":"***"}],"n":1}"#;
        for (name, value, seen) in [
            ("header", "authorization: Bearer S", "authorization:***"),
            ("--header", "Bearer S", "***"),
            ("header", "@/run/secrets/header", "@/run/secrets/header"),
            ("proxy.admin_token", "S", "***"),
            ("proxy.admin_token_file", "/f", "/f"),
            ("proxy.label_headers", "x-tenant", "x-tenant"),
            ("--hop-secret", "S", "***"),
            ("sglang.api_key", "S", "***"),
            ("env.AWS_SECRET_ACCESS_KEY", "S", "***"),
            ("sglang_router.admin-api-key", "S", "***"),
            ("MYTOKEN", "S", "***"),
            ("env.OTEL_EXPORTER_OTLP_HEADERS", "a=S", "***"),
            ("env.HTTPS_PROXY", "http://me:S@h:1", "http://***@h:1"),
            ("max_total_tokens", "800", "800"),
            ("router_url", "http://me:S@h:1/p@q", "http://***@h:1/p@q"),
            ("servers", "http://h:1", "http://h:1"),
            ("servers", "http://h:1/?key=S", "http://h:1/?***"),
            ("servers", "http://h:1#S", "http://h:1#***"),
            ("servers", "http://me:S/S@h:1/p#S", "http://***@h:1/p#***"),
            ("servers", "http://me:S?S#S@h:1", "http://***@h:1"),
            ("servers", "http://me:1#S@h:1", "http://***@h:1"),
            ("extra_request_body", nested, masked_nested),
            ("extra_request_body", r#"{"n": 1}"#, r#"{"n": 1}"#),
        ] {
            assert_eq!(masked(name, value), seen, "{name}");
            assert_eq!(is_masked(name, seen), seen.contains(MASK), "{name}");
        }
        // As people write it, and where nothing is hidden.
        assert!(is_masked("header", "Authorization: ***"));
        assert!(!is_masked("header", "Authorization: ***S"));
        assert!(!is_masked("dataset_path", "***"));
    }
}
