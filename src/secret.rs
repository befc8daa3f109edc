//! A secret that is compared and never shown; and values that may hold one, as they are shown.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;

/// A token that a client must know. Its `Debug` shows nothing of it, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Its bytes, for what is made of it.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether `given` is the secret. How long it takes says nothing but whether it is as long.
    pub fn is(&self, given: &[u8]) -> bool {
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
        let shy = |_| D::Error::custom("invalid type, expected text in quotes");
        String::deserialize(deserializer).map(Secret).map_err(shy)
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

/// What stands for a secret.
pub const MASK: &str = "***";

/// A value of the key, flag or variable `name`, as it is shown: of a header its name alone, of a token nothing, of a URL no user
/// and no query, of a JSON object no such values within it.
pub fn shown(name: &str, value: &str) -> String {
    let name = name.trim_start_matches('-').replace('-', "_");
    let name = name.to_ascii_lowercase();
    let name = name.rsplit('.').next().unwrap_or_default();
    if name == "header" {
        return match value.split_once(':') {
            // Where it is to be read from.
            _ if value.starts_with('@') => value.to_owned(),
            Some((header, _)) => format!("{header}:{MASK}"),
            None => MASK.to_owned(),
        };
    }
    let words = [
        "token",
        "secret",
        "password",
        "passwd",
        "credentials",
        "api_key",
        "access_key",
        "private_key",
        "apikey",
        "headers",
    ];
    if words.iter().any(|word| name.ends_with(word)) {
        return MASK.to_owned();
    }
    if let Ok(members) = serde_json::from_str::<Map<String, Value>>(value) {
        let seen = shown_members(&members);
        return match seen == members {
            true => value.to_owned(),
            false => Value::Object(seen).to_string(),
        };
    }
    let Some((scheme, rest)) = value.split_once("://") else {
        return value.to_owned();
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, _)) => (rest, "?***"),
        None => (rest, ""),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{MASK}@{host}{path}{query}"),
        None => format!("{scheme}://{rest}{query}"),
    }
}

/// The members of a JSON object as [`shown`] shows values of their names, at any depth.
pub fn shown_members(members: &Map<String, Value>) -> Map<String, Value> {
    let members = members.iter();
    members
        .map(|(name, value)| (name.clone(), shown_json(name, value)))
        .collect()
}

fn shown_json(name: &str, value: &Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(shown_members(members)),
        Value::Array(all) => all.iter().map(|value| shown_json(name, value)).collect(),
        Value::String(text) => shown(name, text).into(),
        value => value.clone(),
    }
}

/// Whether this is what stands for a secret of that name, and not the secret.
pub fn is_masked(name: &str, value: &str) -> bool {
    value.ends_with(MASK) && shown(name, value) == value && shown(name, "x") == MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_itself_is_it() {
        let secret = Secret::from("open sesame");
        assert!(secret.is(b"open sesame"));
        for other in [
            "",
            "open",
            "open sesamf",
            "open sesameopen sesame",
            "Open sesame",
        ] {
            assert!(!secret.is(other.as_bytes()), "{other}");
        }
        assert!(!Secret::from("").is(b""));
        assert!(!format!("{secret:?}").contains("sesame"));
    }

    #[test]
    fn what_may_be_secret_is_not_shown() {
        for (name, value, seen) in [
            ("header", "authorization: Bearer S", "authorization:***"),
            ("--header", "Bearer S", "***"),
            ("header", "@/run/secrets/header", "@/run/secrets/header"),
            ("proxy.admin_token", "S", "***"),
            ("proxy.admin_token_file", "/f", "/f"),
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
            (
                "extra_request_body",
                r#"{"a":[{"api_key":"S"}],"n":1}"#,
                r#"{"a":[{"api_key":"***"}],"n":1}"#,
            ),
            ("extra_request_body", r#"{"n": 1}"#, r#"{"n": 1}"#),
        ] {
            assert_eq!(shown(name, value), seen, "{name}");
        }
    }
}
