//! Keys and values as they are written: in a file, in its order, and on the command line.

use toml::{Table, Value};

use super::error::PlanError;
use super::is_table;
use crate::units;

/// A key with its value. Keys of tables have the table's name before them: `sim.decode_step_ms`.
pub type Entry = (String, Value);

/// Reads a file; entries come in its order.
///
/// # Errors
/// It is no TOML: the line and what is wrong there.
pub fn file(text: &str) -> Result<Vec<Entry>, PlanError> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        PlanError(format!("line {line}: {}", error.message().trim()))
    })?;
    let mut entries = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) if is_table(&key) => {
                let of_table = |(name, value)| (format!("{key}.{name}"), value);
                entries.extend(inner.into_iter().map(of_table));
            }
            value => entries.push((key, value)),
        }
    }
    Ok(entries)
}

/// The value of a flag that was given with these words. Several make a list, which is varied, but where the key takes a list;
/// so do commas between numbers, and between names of a key of our `own`: of the generator's values some have commas in them.
pub fn flag(words: &[&str], is_list: bool, is_own: bool) -> Value {
    if is_list {
        return words.to_vec().into();
    }
    let is_name = |piece: &str| {
        let is_plain = |c: char| c.is_alphanumeric() || "_-./%".contains(c);
        !piece.is_empty() && piece.chars().all(is_plain)
    };
    let is_number = |of: &str| {
        let number = units::per_second(of).or_else(|| units::seconds(of));
        number.or_else(|| units::fraction(of)).is_some()
    };
    let is_piece = |piece: &str| match is_own {
        true => is_name(piece.trim()),
        false => is_number(piece.trim()),
    };
    let pieces = words
        .iter()
        .flat_map(|word| match word.split(',').all(is_piece) {
            true => word.split(',').map(str::trim).collect(),
            false => vec![*word],
        });
    let mut values: Vec<Value> = pieces.map(scalar).collect();
    match values.len() {
        1 => values.remove(0),
        _ => Value::Array(values),
    }
}

/// `KEY=VALUE`, the value as TOML or, where it is none, as a text.
///
/// # Errors
/// There is no `=`.
pub fn assignment(text: &str) -> Result<Entry, String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("must be KEY=VALUE, such as sim.decode_step_ms=8")?;
    let value = value.trim();
    let read = inline(value).unwrap_or_else(|| Value::String(value.to_owned()));
    Ok((key.trim().to_owned(), read))
}

/// A value as TOML has it.
pub fn inline(text: &str) -> Option<Value> {
    text.parse().ok()
}

/// A number, a truth or a table where the word is one, written as it would be again; else a text.
pub(super) fn scalar(word: &str) -> Value {
    match inline(word) {
        Some(value @ (Value::Integer(_) | Value::Boolean(_))) if value.to_string() == word => value,
        Some(value @ (Value::Float(_) | Value::Table(_))) => value,
        _ => Value::String(word.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_flags_are_values_or_lists_of_them() {
        for (words, is_own, read) in [
            (&["32"][..], true, "32"),
            (&["32,64"], true, "[32, 64]"),
            (&["32", "64"], true, "[32, 64]"),
            (
                &["random,round_robin"],
                true,
                "[\"random\", \"round_robin\"]",
            ),
            (&["/a b,c"], true, "\"/a b,c\""),
            (&["{ 3 = [1], 5 = [] }"], true, "{ 3 = [1], 5 = [] }"),
            (&["inf"], false, "inf"),
            (&["5,10.5"], false, "[5, 10.5]"),
            (&["300/min,6"], false, "[\"300/min\", 6]"),
            (&["1min,90"], false, "[\"1min\", 90]"),
            (&["true"], false, "true"),
            // A curve is one value of the generator's, a path another.
            (&["0:5,60:50"], false, "\"0:5,60:50\""),
            (&["a,b"], false, "\"a,b\""),
        ] {
            assert_eq!(flag(words, false, is_own).to_string(), read, "{words:?}");
        }
        assert_eq!(flag(&["a", "b"], true, false).to_string(), "[\"a\", \"b\"]");
        let assigned = |text| assignment(text).unwrap().1;
        assert_eq!(assigned("sim.x = 8"), Value::Integer(8));
        assert_eq!(assigned("a=b c"), Value::String("b c".to_owned()));
    }
}
