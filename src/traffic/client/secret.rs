//! What is sent and never shown: the API key and the values of the user's headers.

use http::HeaderValue;

/// Texts that must not be shown.
#[derive(Clone)]
pub(super) struct Secrets(Vec<String>);

/// What is shown in their place.
const HIDDEN: &str = "***";
/// Shorter ones are words that a text may hold for other reasons.
const SHORTEST: usize = 6;

/// The value of `Authorization` for the key that was given, or else that of the variable `OPENAI_API_KEY`; an
/// empty one is none. No `Debug` shows it.
///
/// # Errors
/// Says what would be right; nothing of the key.
pub fn api_key(given: Option<&str>) -> Result<Option<HeaderValue>, String> {
    let from_environment = || std::env::var("OPENAI_API_KEY").ok();
    let key = given.map(str::to_owned).or_else(from_environment);
    let key = key.filter(|key| !key.is_empty());
    let wrong = |wrong| format!("the API key (--api-key or OPENAI_API_KEY) {wrong}");
    key.map(|key| bearer(&key)).transpose().map_err(wrong)
}

/// The value of `Authorization` for a token.
///
/// # Errors
/// Says what would be right; nothing of the token.
pub fn bearer(key: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(&format!("Bearer {key}")).ok();
    let mut value = value
        .filter(|_| key.is_ascii())
        .ok_or("must be printable ASCII on one line")?;
    value.set_sensitive(true);
    Ok(value)
}

impl Secrets {
    pub(super) fn of<'a>(values: impl Iterator<Item = &'a HeaderValue>) -> Secrets {
        let texts = values.filter_map(|value| value.to_str().ok());
        // `Bearer KEY`: a server may say the key alone.
        let texts = texts.flat_map(|text| [Some(text), text.split_once(' ').map(|(_, key)| key)]);
        let long = texts.flatten().filter(|text| text.len() >= SHORTEST);
        Secrets(long.map(str::to_owned).collect())
    }

    /// A text without them.
    pub(super) fn hide(&self, text: &str) -> String {
        let hide = |text: String, secret: &String| text.replace(secret, HIDDEN);
        self.0.iter().fold(text.to_owned(), hide)
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_what_is_sent_with_it_are_hidden() {
        let key = bearer("sk-12345").unwrap();
        let other = HeaderValue::from_static("long enough");
        let short = HeaderValue::from_static("a");
        let secrets = Secrets::of([&key, &other, &short].into_iter());
        for (said, shown) in [
            ("a wrong key: sk-12345.", "a wrong key: ***."),
            ("no `Bearer sk-12345`", "no `***`"),
            ("long enough, long enough", "***, ***"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(secrets.hide(said), shown);
        }
        for shown in [format!("{key:?}"), format!("{secrets:?}")] {
            assert!(!shown.contains("12345"), "{shown}");
        }
    }
}
