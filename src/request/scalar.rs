//! A number, literal or string of a JSON document, and how it is read.

use super::cell::nanos;

/// A scalar as it stands in the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar<'a> {
    /// A number or literal: its bytes.
    Bare(&'a [u8]),
    /// A string: the bytes between its quotes, escapes still in it.
    Quoted(&'a [u8]),
}

impl Scalar<'_> {
    /// A whole number ≥ 0. Numbers with a fraction or exponent, strings and literals give `None`.
    pub fn count(self) -> Option<u64> {
        let Scalar::Bare(bytes) = self else {
            return None;
        };
        // It takes a sign, which no whole number here has.
        let digits = bytes.first().is_some_and(u8::is_ascii_digit);
        let number = digits.then(|| str::from_utf8(bytes).ok())?;
        number?.parse().ok()
    }

    /// A number of seconds, in nanoseconds.
    pub fn nanos(self) -> Option<i64> {
        match self {
            Scalar::Bare(bytes) => nanos(bytes),
            Scalar::Quoted(_) => None,
        }
    }

    /// `true` or `false`.
    pub fn flag(self) -> Option<bool> {
        match self {
            Scalar::Bare(b"true") => Some(true),
            Scalar::Bare(b"false") => Some(false),
            _ => None,
        }
    }

    /// The text of a string, its escapes resolved.
    pub fn string(self) -> Option<String> {
        let Scalar::Quoted(bytes) = self else {
            return None;
        };
        let raw = String::from_utf8_lossy(bytes);
        if !raw.contains('\\') {
            return Some(raw.into_owned());
        }
        // A capture cut within an escape is shown as it stands.
        Some(serde_json::from_str(&format!("\"{raw}\"")).unwrap_or_else(|_| raw.into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_read_strictly() {
        assert_eq!(Scalar::Bare(b"120").count(), Some(120));
        assert_eq!(Scalar::Bare(b"-1").count(), None);
        assert_eq!(Scalar::Bare(b"1.0").count(), None);
        assert_eq!(Scalar::Bare(b"99999999999999999999999").count(), None);
        assert_eq!(Scalar::Bare(b"null").nanos(), None);
        assert_eq!(Scalar::Bare(b"NaN").nanos(), None);
        assert_eq!(Scalar::Bare(b"1e999").nanos(), None);
        assert_eq!(Scalar::Bare(b"1.5e2").nanos(), Some(150_000_000_000));
        assert_eq!(
            Scalar::Quoted(b"a\\u00e9\\n").string().as_deref(),
            Some("aé\n")
        );
        assert_eq!(
            Scalar::Quoted(b"cut \\u00").string().as_deref(),
            Some("cut \\u00")
        );
    }
}
