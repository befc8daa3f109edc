//! What is wanted of a document.

use crate::request::field::Field;

/// What to do with a value.
#[derive(Debug)]
pub struct Rule {
    /// Report numbers, literals and (short) strings as this field.
    pub scalar: Option<Field>,
    /// Report pieces of a string as this field, instead of the whole; the string may be of any size.
    pub text: Option<Field>,
    /// Report this field as opened and closed when the value is an object or array.
    pub container: Option<Field>,
    /// Members of an object that matter.
    pub members: Members,
    /// What to do with the elements of an array.
    pub elements: Option<&'static Rule>,
}

/// The members of an object that matter, and what makes them quick to find.
#[derive(Debug)]
pub struct Members {
    pub(super) list: &'static [(&'static str, Rule)],
    /// Bit `n` says that a key of `n` bytes is among them.
    lengths: u64,
}

impl Members {
    /// These members, best in the order in which documents have them. Keys must be shorter than 64 bytes.
    const fn of(list: &'static [(&'static str, Rule)]) -> Members {
        let mut lengths = 0;
        let mut at = 0;
        while at < list.len() {
            lengths |= 1 << list[at].0.len();
            at += 1;
        }
        Members { list, lengths }
    }

    /// The rule of `key` and the place behind it. `from` is where to look first: documents repeat an order.
    pub(super) fn find(&'static self, key: &[u8], from: usize) -> Option<(&'static Rule, usize)> {
        if key.len() > 63 || self.lengths >> key.len() & 1 == 0 {
            return None;
        }
        // The first byte tells most keys apart, without a call.
        let same = |name: &str| name.as_bytes().first() == key.first() && name.as_bytes() == key;
        let is = |at: usize| self.list.get(at).filter(|(name, _)| same(name));
        let found = |at: usize| is(at).map(|(_, rule)| (rule, at + 1));
        found(from).or_else(|| (0..self.list.len()).find_map(found))
    }
}

impl Rule {
    /// Skips the value.
    pub const SKIP: Rule = Rule {
        scalar: None,
        text: None,
        container: None,
        members: Members::of(&[]),
        elements: None,
    };

    /// The same, and where the value is an array, looks at its elements.
    pub const fn or_elements(self, rule: &'static Rule) -> Rule {
        Rule {
            elements: Some(rule),
            ..self
        }
    }
}

/// Reports a number, literal or short string.
pub const fn scalar(field: Field) -> Rule {
    Rule {
        scalar: Some(field),
        ..Rule::SKIP
    }
}

/// Reports a string in pieces.
pub const fn text(field: Field) -> Rule {
    Rule {
        text: Some(field),
        ..Rule::SKIP
    }
}

/// Looks for these members of an object.
pub const fn members(list: &'static [(&'static str, Rule)]) -> Rule {
    Rule {
        members: Members::of(list),
        ..Rule::SKIP
    }
}

/// The same, and reports where the object begins and ends.
pub const fn object(field: Field, list: &'static [(&'static str, Rule)]) -> Rule {
    Rule {
        container: Some(field),
        ..members(list)
    }
}

/// Looks at the elements of an array.
pub const fn elements(rule: &'static Rule) -> Rule {
    Rule::SKIP.or_elements(rule)
}
