//! Rules: which values of a document are wanted.

use crate::request::field::Field;

/// What to do with a value.
#[derive(Debug)]
pub struct Rule {
    /// Report numbers, literals and short strings as this field.
    pub scalar: Option<Field>,
    /// Report a string, of any size, in pieces as this field.
    pub text: Option<Field>,
    /// Report the begin and end of an object or array as this field.
    pub container: Option<Field>,
    /// The wanted members of an object.
    pub members: &'static [(&'static str, Rule)],
    /// The rule of the elements of an array.
    pub elements: Option<&'static Rule>,
}

impl Rule {
    /// Skips the value.
    pub const SKIP: Rule = Rule {
        scalar: None,
        text: None,
        container: None,
        members: &[],
        elements: None,
    };

    /// Returns the rule of a member and the index after it. The search starts at `from`, as documents repeat an order.
    pub(super) fn member(&self, key: &[u8], from: usize) -> Option<(&'static Rule, usize)> {
        // The first byte tells most keys apart, without a call.
        let same = |name: &str| name.as_bytes().first() == key.first() && name.as_bytes() == key;
        let is = |at: usize| self.members.get(at).filter(|(name, _)| same(name));
        let found = |at: usize| is(at).map(|(_, rule)| (rule, at + 1));
        found(from).or_else(|| (0..self.members.len()).find_map(found))
    }

    /// Adds a rule for the elements if the value is an array.
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

/// Looks for these members of an object, best in the order in which documents have them.
pub const fn members(list: &'static [(&'static str, Rule)]) -> Rule {
    Rule {
        members: list,
        ..Rule::SKIP
    }
}

/// Looks for these members of an object, and reports its begin and end.
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
