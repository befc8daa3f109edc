//! What is sent and never shown: the API key and the values of the user's headers.

use http::HeaderValue;

use crate::secret::MASK;

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

/// A text without these values of headers.
pub(super) fn hidden<'a>(text: &str, values: impl Iterator<Item = &'a HeaderValue>) -> String {
    let texts = values.filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
    // `Bearer KEY`: a server may say the key alone.
    let texts = texts.flat_map(|text| [Some(text), text.split_once(' ').map(|(_, key)| key)]);
    let long = texts.flatten().filter(|text| text.len() >= SHORTEST);
    long.fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_what_is_sent_with_it_are_hidden() {
        let key = bearer("sk-12345").unwrap();
        let other = HeaderValue::from_static("long enough");
        let short = HeaderValue::from_static("a");
        let foreign = HeaderValue::from_str("schlüssel").unwrap();
        let values = [&key, &other, &short, &foreign];
        for (said, shown) in [
            ("a wrong key: sk-12345.", "a wrong key: ***."),
            ("no `Bearer sk-12345`", "no `***`"),
            ("long enough, long enough", "***, ***"),
            ("no schlüssel", "no ***"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(hidden(said, values.into_iter()), shown);
        }
        assert!(!format!("{key:?}").contains("12345"));
    }
}
