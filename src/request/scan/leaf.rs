//! The values that have no parts here: strings, numbers, literals, and containers that do not matter.

use memchr::{memchr2, memchr3};

use super::sink::{CAPTURE, Sink};
use crate::request::field::Field;
use crate::request::scalar::Scalar;

/// A value and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// A string.
    String(StringUse),
    /// A number or literal.
    Bare(Option<Field>),
    /// An object or array that does not matter, by the bracket that opens it.
    Container(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringUse {
    Ignore,
    /// It is no value but a key.
    Key,
    Capture(Field),
    Pieces(Field),
}

/// Where the end of a container is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Skip {
    pub open: u8,
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Leaf {
    /// Where the value that `rest` begins with ends, if it is of this kind and ends there. A string's `rest` begins
    /// behind its quote, a container's behind its bracket.
    pub fn end(self, rest: &[u8]) -> Option<usize> {
        match self {
            Leaf::String(_) => string_end(false, rest),
            Leaf::Bare(_) if is_bare(*rest.first()?) => bare_end(rest),
            Leaf::Bare(_) => None,
            Leaf::Container(open) => Skip::new(open).end(rest),
        }
    }

    /// Whether anything is told of it.
    pub fn is_told(self) -> bool {
        !matches!(
            self,
            Leaf::String(StringUse::Ignore | StringUse::Key)
                | Leaf::Bare(None)
                | Leaf::Container(_)
        )
    }

    /// Whether the sink may do without it.
    pub fn is_optional<S: Sink>(self) -> bool {
        matches!(self, Leaf::Bare(Some(field)) if S::may_skip(field))
    }

    /// Tells of the value that these are the bytes of.
    pub fn tell(self, bytes: &[u8], sink: &mut impl Sink) {
        let captured = || &bytes[..bytes.len().min(CAPTURE)];
        match self {
            Leaf::String(StringUse::Pieces(field)) => {
                if !bytes.is_empty() {
                    sink.text(field, bytes);
                }
                sink.text_end(field);
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
    /// About to look for the end of what `open` has opened.
    pub fn new(open: u8) -> Skip {
        Skip {
            open,
            depth: 1,
            in_string: false,
            escaped: false,
        }
    }

    /// Looks on: the place behind the bracket that closes it, if `rest` holds that.
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

/// Whether a number or literal begins so. Python writes NaN and Infinity too, which are no JSON.
pub fn is_bare(byte: u8) -> bool {
    matches!(byte, b'-' | b'0'..=b'9' | b't' | b'f' | b'n' | b'N' | b'I')
}

/// Where a number or literal ends.
pub fn bare_end(rest: &[u8]) -> Option<usize> {
    // Most are short: a call of memchr costs more than their bytes.
    let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']');
    let (short, long) = rest.split_at(rest.len().min(8));
    let end = short.iter().position(is_end);
    end.or_else(|| Some(short.len() + memchr3(b',', b'}', b']', long)?))
}

/// The closing quote of a string that continues with `rest`, past a byte that `escaped` says is escaped.
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

/// Whether a string without end in `rest` leaves the next byte escaped.
pub fn ends_escaped(escaped: bool, rest: &[u8]) -> bool {
    let trailing = rest.iter().rev().take_while(|b| **b == b'\\').count();
    // A run that reaches back to the start begins with the byte that was escaped before.
    let first_is_escaped = escaped && trailing == rest.len();
    (trailing - usize::from(first_is_escaped && trailing > 0)) % 2 == 1
}
