//! Values without wanted parts: strings, numbers, literals, and skipped containers.

use memchr::{memchr2, memchr3};

use super::{Field, MAX_SCALAR_BYTES, Scalar, Sink};

/// A value, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// A string.
    String(StringUse),
    /// A number or literal.
    Bare(Option<Field>),
    /// A skipped object or array, by its opening bracket.
    Container(u8),
}

/// What a string is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringUse {
    Ignore,
    /// It is a key.
    Key,
    /// It is reported as a whole.
    Capture(Field),
    /// It is reported in pieces.
    Pieces,
}

/// The search for the end of a container.
#[derive(Clone, Copy, Debug)]
pub struct Skip {
    pub open: u8,
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Leaf {
    /// Returns where the value at the start of `rest` ends, if it is of this kind and complete. For a string `rest` begins after
    /// the quote, for a container after the bracket.
    #[inline]
    pub fn end(self, rest: &[u8]) -> Option<usize> {
        match self {
            Leaf::String(_) => string_end(false, rest),
            Leaf::Bare(_) if is_bare(*rest.first()?) => bare_end(rest),
            Leaf::Bare(_) => None,
            Leaf::Container(open) => Skip::new(open).end(rest),
        }
    }

    /// Whether it is reported to the sink.
    pub fn is_reported(self) -> bool {
        use StringUse::{Capture, Pieces};
        matches!(
            self,
            Leaf::String(Capture(_) | Pieces) | Leaf::Bare(Some(_))
        )
    }

    /// Whether sinks may do without it: a number of `meta_info`.
    pub fn is_optional(self) -> bool {
        matches!(self, Leaf::Bare(Some(Field::Meta(_))))
    }

    /// Reports the value with these bytes to the sink.
    pub fn report(self, bytes: &[u8], sink: &mut impl Sink) {
        let captured = || &bytes[..bytes.len().min(MAX_SCALAR_BYTES)];
        match self {
            Leaf::String(StringUse::Pieces) => {
                if !bytes.is_empty() {
                    sink.text(bytes);
                }
                sink.text_end();
            }
            Leaf::String(StringUse::Capture(field)) => {
                sink.scalar(field, Scalar::Quoted(captured()))
            }
            Leaf::Bare(Some(field)) => {
                sink.scalar(field, Scalar::Bare(captured().trim_ascii_end()))
            }
            _ => {}
        }
    }
}

impl Skip {
    /// Begins the search for the end of the container that `open` opened.
    pub fn new(open: u8) -> Skip {
        Skip {
            open,
            depth: 1,
            in_string: false,
            escaped: false,
        }
    }

    /// Continues the search; returns the index after the closing bracket if `rest` contains it.
    pub fn end(&mut self, rest: &[u8]) -> Option<usize> {
        let close = match self.open {
            b'{' => b'}',
            _ => b']',
        };
        let mut at = 0;
        while at < rest.len() {
            if self.in_string {
                match string_end(self.escaped, &rest[at..]) {
                    Some(end) => at += end + 1,
                    None => {
                        self.escaped = ends_escaped(self.escaped, &rest[at..]);
                        return None;
                    }
                }
                self.in_string = false;
                self.escaped = false;
            }
            let found = memchr3(b'"', self.open, close, &rest[at..])?;
            let byte = rest[at + found];
            at += found + 1;
            if byte == b'"' {
                self.in_string = true;
            } else if byte == self.open {
                self.depth += 1;
            } else {
                self.depth -= 1;
                if self.depth == 0 {
                    return Some(at);
                }
            }
        }
        None
    }
}

/// Whether a number or literal begins with this byte. Python writes NaN and Infinity too, which are not JSON.
pub fn is_bare(byte: u8) -> bool {
    matches!(byte, b'-' | b'0'..=b'9' | b't' | b'f' | b'n' | b'N' | b'I')
}

/// Returns where a number or literal ends: at a `,`, `}` or `]`.
pub fn bare_end(rest: &[u8]) -> Option<usize> {
    const fn all(byte: u8) -> u64 {
        u64::from_le_bytes([byte; 8])
    }
    // The high bit of each byte that is 0, at least up to the first one.
    let zeros = |word: u64| word.wrapping_sub(all(1)) & !word & all(0x80);
    // Eight bytes at once: most numbers are so short that a call of memchr costs more.
    let (eights, last) = rest.as_chunks();
    for (eight, at) in eights.iter().zip((0..).step_by(8)) {
        let word = u64::from_le_bytes(*eight);
        // With the bit 0x20, `]` is `}`.
        let ends = zeros(word ^ all(b',')) | zeros((word | all(0x20)) ^ all(b'}'));
        if ends != 0 {
            return Some(at + ends.trailing_zeros() as usize / 8);
        }
    }
    let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']');
    Some(rest.len() - last.len() + last.iter().position(is_end)?)
}

/// Returns the index of the closing quote of a string that continues with `rest`; the first byte may be `escaped`.
pub fn string_end(escaped: bool, rest: &[u8]) -> Option<usize> {
    let mut at = usize::from(escaped);
    loop {
        let found = at + memchr2(b'"', b'\\', rest.get(at..)?)?;
        if rest[found] == b'"' {
            return Some(found);
        }
        at = found + 2;
    }
}

/// Whether a string that does not end in `rest` leaves the next byte escaped.
pub fn ends_escaped(escaped: bool, rest: &[u8]) -> bool {
    let trailing = rest.iter().rev().take_while(|b| **b == b'\\').count();
    // A run of backslashes that starts at the beginning of `rest` may start with an escaped one.
    let first_is_escaped = escaped && trailing == rest.len();
    (trailing - usize::from(first_is_escaped && trailing > 0)) % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_ends_at_the_first_end_wherever_it_stands() {
        for at in 0..20 {
            for end in *b",}]" {
                // What differs from an end by a bit, and an end behind it, are none.
                let mut text = [b'\x0c', b'=', b'\xac', b'\xfd'].repeat(6);
                text[at] = end;
                text[at + 1] = b',';
                assert_eq!(bare_end(&text), Some(at));
                assert_eq!(bare_end(&text[..at]), None);
            }
        }
    }
}
