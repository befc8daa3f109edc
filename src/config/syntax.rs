//! Lines of which TOML makes nothing, told and taken out of the way, so that they hide no other fault.

use std::collections::BTreeMap;

use toml::de::DeTable;

use super::words::{Section, shown};

/// A text that is TOML, and what was taken out of it.
#[derive(Debug)]
pub(super) struct Mended {
    /// The text, line for line.
    pub(super) text: String,
    /// The lines, from 1, that were taken out, and what is wrong with them.
    pub(super) broken: BTreeMap<usize, String>,
    /// A line that begins a section is one of them: nobody knows where the keys after it belong.
    pub(super) is_unclear: bool,
    /// Any key may be meant by one of them.
    pub(super) is_any: bool,
}

/// Lines that are told of a text that is all wrong.
const MOST: usize = 50;
/// What no key takes.
const FILLER: &str = "1979-05-27";

/// Takes out line after line until the rest can be read.
pub(super) fn mend(text: &str) -> Mended {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut mended = Mended {
        text: text.to_owned(),
        broken: BTreeMap::new(),
        is_unclear: false,
        is_any: false,
    };
    for _ in 0..MOST {
        let (_, errors) = DeTable::parse_recoverable(&mended.text);
        // The others may only come of the first.
        let Some(error) = errors.iter().min_by_key(|error| place(error)) else {
            return mended;
        };
        let number = line_of(&mended.text, place(error));
        let Some(line) = lines.get_mut(number - 1) else {
            break;
        };
        let is_twice = error.message().starts_with("duplicate key");
        let (key, rest) = mended.take_out(number, line, is_twice);
        let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let is_key = rest && !key.is_empty() && key.chars().all(is_bare) && *line != filled(&key);
        *line = match is_key && !is_twice {
            true => filled(&key),
            false => String::new(),
        };
        mended.text = lines.join("\n");
    }
    // There is no end of it.
    mended.is_unclear = true;
    mended
}

impl Mended {
    /// Says what is wrong with a line, once. TOML's own words are for those who write parsers. Gives the line's key, and
    /// whether it has a value.
    fn take_out(&mut self, number: usize, line: &str, is_twice: bool) -> (String, bool) {
        let line = line.trim();
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let (key, value) = (key.trim(), value.trim());
        let known = |section: &Section| section.keys().iter().any(|known| known == key);
        let section = Section::ALL.into_iter().find(known);
        let (shown, is_assigned) = (shown(key, value), line.contains('='));
        let wrong = match section {
            _ if is_twice => format!("{key}: stands in the file already; leave one of the two"),
            _ if line.starts_with('[') => {
                self.is_unclear = true;
                format!("{shown}: a section is written `[proxy]` or `[[worker]]`")
            }
            Some(section) if is_assigned => format!("{shown}: {}", section.wanted(key, value)),
            _ => {
                self.is_any = true;
                format!(
                    "{shown}: cannot be read; write KEY = VALUE, as in threads = 2, text in quotes, and commas between \
                     the values of a list"
                )
            }
        };
        self.broken.entry(number).or_insert(wrong);
        (key.to_owned(), is_assigned)
    }
}

fn filled(key: &str) -> String {
    format!("{key} = {FILLER}")
}

fn place(error: &toml::de::Error) -> usize {
    error.span().map_or(0, |span| span.start)
}

/// The line, from 1, of a place in a text.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_out_until_the_rest_can_be_read() {
        let mended = mend("[proxy]\nthreads 2\nlisten = 1.2.3\nadmin = \"a\"\nadmin = \"b\"\n");
        assert_eq!(
            mended.text,
            "[proxy]\n\nlisten = 1979-05-27\nadmin = \"a\"\n"
        );
        assert_eq!(mended.broken.keys().copied().collect::<Vec<_>>(), [2, 3, 5]);
        assert!(mended.is_any && !mended.is_unclear);
        // A section twice is one after its header is gone.
        let mended = mend("[proxy]\nthreads = 2\n[proxy]\nadmin = \"a\"");
        assert_eq!(mended.text, "[proxy]\nthreads = 2\n\nadmin = \"a\"");
        assert!(!mended.is_unclear);
    }

    #[test]
    fn what_is_all_wrong_has_an_end() {
        for text in [
            "<html>\n".repeat(1000),
            "= ".repeat(1000),
            "\"".repeat(7),
            "[[[\n".repeat(99),
            "a = '''\n".repeat(9),
        ] {
            let mended = mend(&text);
            assert!((1..=MOST).contains(&mended.broken.len()), "{text}");
        }
    }
}
