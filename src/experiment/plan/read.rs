//! Keys and values as they are written: in a file, in its order, and on the command line.

use std::ops::Range;

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::keys::{TABLES, Takes};
use super::usage::Usage;

/// A key with its value. Keys of tables have the table's name before them: `sim.decode_step_ms`.
pub type Entry = (String, Value);

/// Reads a file; entries come in its order.
///
/// # Errors
/// It is no TOML: the line and what is wrong there.
pub fn file(text: &str) -> Result<Vec<Entry>, Usage> {
    let unread = |error: toml::de::Error| {
        let at = error.span().map_or(0, |span: Range<usize>| span.start);
        let line = text
            .get(..at)
            .map_or(1, |before| before.matches('\n').count() + 1);
        Usage(format!("line {line}: {}", error.message().trim()))
    };
    let table: toml::Table = toml::from_str(text).map_err(unread)?;
    let places = DeTable::parse(text).map_err(unread)?;
    let mut entries = Vec::new();
    for (name, value) in places.get_ref() {
        let (key, at) = (name.get_ref().as_ref(), name.span().start);
        let Some(read) = table.get(key) else { continue };
        match (value.get_ref(), read) {
            (DeValue::Table(inner), Value::Table(read)) if TABLES.contains(&key) => {
                entries.extend(inner.iter().filter_map(|(name, _)| {
                    let value = read.get(name.get_ref().as_ref())?;
                    Some((
                        name.span().start,
                        (format!("{key}.{}", name.get_ref()), value.clone()),
                    ))
                }));
            }
            _ => entries.push((at, (key.to_owned(), read.clone()))),
        }
    }
    entries.sort_by_key(|(at, _)| *at);
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

/// The value of a flag that was given with these words. Several make a list, which is varied, but where the key takes a list.
///
/// # Errors
/// Says what would be right.
pub fn flag(takes: Option<Takes>, is_list: bool, words: &[String]) -> Result<Value, String> {
    if let Some(Takes::Schedule) = takes {
        let tables = words.iter().map(|word| inline(word));
        return one_or_list(tables.collect::<Result<_, _>>()?);
    }
    if is_list {
        return Ok(Value::Array(
            words.iter().cloned().map(Value::String).collect(),
        ));
    }
    let mut values = Vec::new();
    for word in words {
        let pieces: Vec<&str> = word.split(',').map(str::trim).collect();
        let splits = match takes {
            Some(takes) => takes.splits(),
            // Of the generator's values some have commas in them.
            None => pieces.iter().all(|piece| piece.parse::<f64>().is_ok()),
        };
        let is_text = matches!(takes, Some(Takes::Text));
        match splits && pieces.len() > 1 {
            true => values.extend(pieces.iter().map(|piece| scalar(piece))),
            false if is_text => values.extend(names(word)),
            false => values.push(scalar(word)),
        }
    }
    one_or_list(values)
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
    let read = inline(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    Ok((key.trim().to_owned(), read))
}

/// Texts that are names alone are several where commas stand between them.
fn names(word: &str) -> Vec<Value> {
    let is_name = |piece: &str| {
        !piece.is_empty()
            && piece
                .chars()
                .all(|c| c.is_alphanumeric() || "_-./".contains(c))
    };
    let texts = match word.split(',').all(is_name) {
        true => word.split(',').collect(),
        false => vec![word],
    };
    texts
        .into_iter()
        .map(|text| Value::String(text.to_owned()))
        .collect()
}

fn one_or_list(mut values: Vec<Value>) -> Result<Value, String> {
    match values.len() {
        1 => values.pop().ok_or_else(String::new),
        _ => Ok(Value::Array(values)),
    }
}

fn inline(text: &str) -> Result<Value, String> {
    let table = toml::from_str::<toml::Table>(&format!("x = {text}"));
    let value = table.ok().and_then(|mut table| table.remove("x"));
    value.ok_or_else(|| "must be TOML, such as { 30 = [1, 2], 60 = [] }".to_owned())
}

/// A number or a truth where the word is one, written as it would be again; else a text.
fn scalar(word: &str) -> Value {
    let text = Value::String(word.to_owned());
    match inline(word) {
        Ok(value @ (Value::Integer(_) | Value::Boolean(_))) if value.to_string() == word => value,
        Ok(value @ Value::Float(_)) => value,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_the_order_of_the_file() {
        let text = "z = [1, 2]\na = 'x'\nsim.late = 1\n[traffic]\nq = true\nb = [inf]\n";
        let entries = file(text).unwrap();
        let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["z", "a", "sim.late", "traffic.q", "traffic.b"]);
        let schedule = file("failure_schedule = { 30 = [1, 2], 60 = [] }").unwrap();
        assert_eq!(schedule.len(), 1);
        assert!(schedule[0].1.is_table());
    }

    #[test]
    fn what_is_no_toml_is_told_by_its_line() {
        let wrong = file("a = 1\n\nb = \n").unwrap_err().to_string();
        assert!(wrong.starts_with("line 3: "), "{wrong}");
        let wrong = file("a = 1\nb = 2\na = 3\n").unwrap_err().to_string();
        assert!(wrong.starts_with("line 3: duplicate key"), "{wrong}");
    }

    #[test]
    fn words_of_flags_are_values_or_lists_of_them() {
        let read = |takes, words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            flag(takes, matches!(takes, Some(Takes::Texts)), &words)
                .unwrap()
                .to_string()
        };
        let whole = Some(Takes::Whole(0, 9));
        assert_eq!(read(whole, &["32"]), "32");
        assert_eq!(read(whole, &["32,64"]), "[32, 64]");
        assert_eq!(read(whole, &["32", "64"]), "[32, 64]");
        assert_eq!(read(None, &["inf"]), "inf");
        assert_eq!(read(None, &["5,10.5"]), "[5, 10.5]");
        // A curve is one value of the generator's.
        assert_eq!(read(None, &["0:5,60:50"]), "\"0:5,60:50\"");
        assert_eq!(read(None, &["true"]), "true");
        assert_eq!(
            read(Some(Takes::Text), &["random,round_robin"]),
            "[\"random\", \"round_robin\"]"
        );
        assert_eq!(read(Some(Takes::Text), &["/a b,c"]), "\"/a b,c\"");
        assert_eq!(read(Some(Takes::Texts), &["a", "b"]), "[\"a\", \"b\"]");
        assert!(flag(Some(Takes::Schedule), false, &["1:2".to_owned()]).is_err());
        let schedule = flag(Some(Takes::Schedule), false, &["{ 3 = [1] }".to_owned()]).unwrap();
        assert!(schedule.is_table());
        assert_eq!(
            assignment("sim.x = 8").unwrap(),
            ("sim.x".to_owned(), Value::Integer(8))
        );
        assert_eq!(
            assignment("a=b c").unwrap().1,
            Value::String("b c".to_owned())
        );
    }
}
