//! Reads keys and values from a plan's file, in its order, and from flags.

use toml::{Table, Value};

use super::error::PlanError;
use super::is_table;
use crate::units;

/// A key with its value. The key of a table begins with the table's name: `sim.decode_step_ms`.
pub type Entry = (String, Value);

/// Reads a plan's file. Entries keep its order.
///
/// # Errors
/// It is not TOML: names the line and the problem.
pub fn file(text: &str) -> Result<Vec<Entry>, PlanError> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        PlanError(format!("line {line}: {}", syntax_problem(text, &error)))
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

/// Returns why `text` is not TOML, with the place, such as a key that is given twice.
pub fn syntax_problem(text: &str, error: &toml::de::Error) -> String {
    let place = error.span().and_then(|span| text.get(span)?.lines().next());
    let place = place.filter(|place| !place.trim().is_empty());
    let place = place.map(|place| format!(" `{place}`")).unwrap_or_default();
    format!("{}{place}", error.message().trim())
}

/// Returns the value of a flag that was given with these texts. Several make a list, which is varied unless the key itself takes
/// a list. Commas between numbers separate values, too; commas between names only if the key is the experiment's own, since some
/// values of the generator contain commas.
pub fn flag_value(texts: &[&str], is_list: bool, is_own: bool) -> Value {
    if is_list {
        return texts.to_vec().into();
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
    let pieces = texts
        .iter()
        .flat_map(|text| match text.split(',').all(is_piece) {
            true => text.split(',').map(str::trim).collect(),
            false => vec![*text],
        });
    let mut values: Vec<Value> = pieces.map(scalar).collect();
    match values.len() {
        1 => values.remove(0),
        _ => Value::Array(values),
    }
}

/// Reads `KEY=VALUE`. A value that is not TOML is taken as text.
///
/// # Errors
/// There is no `=`.
pub fn assignment(text: &str) -> Result<Entry, String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("must be KEY=VALUE, such as sim.decode_step_ms=8")?;
    let value = value.trim();
    let read = value.parse().unwrap_or_else(|_| value.into());
    Ok((key.trim().to_owned(), read))
}

/// Reads a number, a boolean or a table. Anything else is text, also a number that would be written differently, such as `007`.
pub(super) fn scalar(text: &str) -> Value {
    match text.parse() {
        Ok(value @ (Value::Integer(_) | Value::Boolean(_))) if value.to_string() == text => value,
        Ok(value @ (Value::Float(_) | Value::Table(_))) => value,
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_flags_are_values_or_lists_of_them() {
        for (texts, is_own, read) in [
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
            // A rate curve of the generator is one value, and so is a path.
            (&["0:5,60:50"], false, "\"0:5,60:50\""),
            (&["a,b"], false, "\"a,b\""),
        ] {
            let value = flag_value(texts, false, is_own);
            assert_eq!(value.to_string(), read, "{texts:?}");
        }
        let several = flag_value(&["a", "b"], true, false);
        assert_eq!(several.to_string(), "[\"a\", \"b\"]");
        let assigned = |text| assignment(text).unwrap().1;
        assert_eq!(assigned("sim.x = 8"), Value::Integer(8));
        assert_eq!(assigned("a=b c"), Value::String("b c".to_owned()));
    }
}
