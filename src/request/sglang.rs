//! The JSON of SGLang's `/generate`; `meta_info.rs` has that of `meta_info`.

use super::field::Field;
use super::meta_info::META_INFO;
use super::scan::rule::{Rule, object, scalar, text};

/// An `error` member: an object with a message, or the message itself.
pub const ERROR: Rule = Rule {
    scalar: Some(Field::ErrorMessage),
    ..object(
        Field::Error,
        &[
            ("message", scalar(Field::ErrorMessage)),
            ("code", scalar(Field::ErrorCode)),
            ("type", scalar(Field::ErrorType)),
        ],
    )
};

/// A sequence's object, or an error in its place.
const ITEM: Rule = object(
    Field::Item,
    &[
        ("text", text(Field::Text)),
        ("output_ids", Rule::SKIP),
        ("meta_info", META_INFO),
        ("index", scalar(Field::Index)),
        ("error", ERROR),
        ("object", scalar(Field::ObjectKind)),
        ("message", scalar(Field::ErrorMessage)),
        ("code", scalar(Field::ErrorCode)),
        ("detail", scalar(Field::ErrorMessage)),
    ],
);

static ELEMENT: Rule = ITEM;

/// One event of a `/generate` stream, or a reply: one sequence, or a list for a batch or `n` > 1.
pub static BODY: Rule = ITEM.or_elements(&ELEMENT);
