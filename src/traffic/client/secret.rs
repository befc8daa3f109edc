//! Secrets, which are sent but never shown: the API key and the values of the user's headers.

use http::HeaderValue;

use crate::secret::MASK;

/// Shorter secrets are not masked: a text may contain them by chance.
const MIN_BYTES: usize = 6;

/// Returns the value of `Authorization` for the given key, or for that of the variable `OPENAI_API_KEY`; `None` if it is empty. Its
/// `Debug` does not show it.
///
/// # Errors
/// Says what is expected, without the key.
pub fn api_key(given: Option<&str>) -> Result<Option<HeaderValue>, String> {
    let from_environment = || std::env::var("OPENAI_API_KEY").ok();
    let key = given.map(str::to_owned).or_else(from_environment);
    let key = key.filter(|key| !key.is_empty());
    let error = |problem| format!("the API key (--api-key or OPENAI_API_KEY) {problem}");
    key.map(|key| bearer(&key)).transpose().map_err(error)
}

/// Returns the value of `Authorization` for a token.
///
/// # Errors
/// Says what is expected, without the token.
pub fn bearer(key: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(&format!("Bearer {key}")).ok();
    let mut value = value
        .filter(|_| key.is_ascii())
        .ok_or("must be printable ASCII on one line")?;
    value.set_sensitive(true);
    Ok(value)
}

/// Masks these values of headers in a text.
pub(super) fn masked<'a>(text: &str, values: impl Iterator<Item = &'a HeaderValue>) -> String {
    let texts = values.filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
    // Of `Bearer KEY`, also the key alone.
    let texts = texts.flat_map(|text| [Some(text), text.split_once(' ').map(|(_, key)| key)]);
    let long = texts.flatten().filter(|text| text.len() >= MIN_BYTES);
    long.fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_values_of_headers_are_masked() {
        let key = bearer("sk-12345").unwrap();
        let other = HeaderValue::from_static("long enough");
        let short = HeaderValue::from_static("a");
        let foreign = HeaderValue::from_str("schlüssel").unwrap();
        let values = [&key, &other, &short, &foreign];
        for (text, shown) in [
            ("a wrong key: sk-12345.", "a wrong key: ***."),
            ("no `Bearer sk-12345`", "no `***`"),
            ("long enough, long enough", "***, ***"),
            ("no schlüssel", "no ***"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(masked(text, values.into_iter()), shown);
        }
        assert!(!format!("{key:?}").contains("12345"));
    }
}
