//! A secret that is compared and never shown.

use std::fmt;
use std::hint::black_box;

use serde::de::{Deserialize, Deserializer, Error};

/// A token that a client must know. Its `Debug` shows nothing of it, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Whether there is nothing to know.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its bytes, for what is made of it.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether `given` is the secret. Takes a time that depends on the length of `given` alone.
    pub fn is(&self, given: &[u8]) -> bool {
        let secret = self.0.as_bytes();
        if secret.is_empty() {
            return false;
        }
        let mut differs = u8::from(secret.len() != given.len());
        for (given, secret) in given.iter().zip(secret.iter().cycle()) {
            differs = black_box(differs | (given ^ secret));
        }
        differs == 0
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
        let shy = |_| D::Error::custom("a token must be text in quotes");
        String::deserialize(deserializer).map(Secret).map_err(shy)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret(text.to_owned())
    }
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
}
