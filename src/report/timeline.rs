//! One request as a person reads it.
