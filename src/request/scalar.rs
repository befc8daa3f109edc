//! A number, literal or string of a JSON document, and its conversions.

use super::cell::nanos;

/// A scalar, as it stands in the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar<'a> {
    /// The bytes of a number or literal.
    Bare(&'a [u8]),
    /// The bytes between the quotes of a string, with escapes.
    Quoted(&'a [u8]),
}

impl Scalar<'_> {
    /// Converts an integer ≥ 0; `None` for numbers with a fraction or exponent, strings and literals.
    pub fn count(self) -> Option<u64> {
        let Scalar::Bare(bytes) = self else {
            return None;
        };
        str::from_utf8(bytes).ok()?.parse().ok()
    }

    /// Converts a number of seconds to nanoseconds.
    pub fn nanos(self) -> Option<i64> {
        match self {
            Scalar::Bare(bytes) => nanos(bytes),
            Scalar::Quoted(_) => None,
        }
    }

    /// Converts `true` or `false`.
    pub fn flag(self) -> Option<bool> {
        match self {
            Scalar::Bare(b"true") => Some(true),
            Scalar::Bare(b"false") => Some(false),
            _ => None,
        }
    }

    /// Converts a string, its escapes resolved.
    pub fn string(self) -> Option<String> {
        let Scalar::Quoted(bytes) = self else {
            return None;
        };
        let raw = String::from_utf8_lossy(bytes);
        if !raw.contains('\\') {
            return Some(raw.into_owned());
        }
        // A capture that was cut within an escape is kept as it stands.
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
        for (quoted, text) in [("a\\u00e9\\n", "aé\n"), ("cut \\u00", "cut \\u00")] {
            let read = Scalar::Quoted(quoted.as_bytes()).string();
            assert_eq!(read.as_deref(), Some(text));
        }
    }
}
