//! Lines of which TOML makes nothing, told and taken out of the way, so that they hide no other fault.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::de::DeTable;

use super::words::{Section, shown};

/// A text that is TOML, and what was taken out of it.
#[derive(Debug)]
pub(super) struct Mended {
    /// The text, line for line.
    pub(super) text: String,
    /// The lines, from 1, that were taken out, and what is wrong with them.
    pub(super) broken: BTreeMap<usize, String>,
    /// There is no end of them.
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
        let is_twice = error.message().starts_with("duplicate key");
        let is_at_end = error.message().starts_with("unclosed array,");
        let at = line_of(&mended.text, place(error)) - 1;
        let list = open_list(&lines, if is_at_end { lines.len() } else { at });
        let at = at.min(lines.len().saturating_sub(1));
        let Some(line) = lines.get_mut(at) else {
            break;
        };
        if let Some(list) = list {
            mended.close_list(&mut lines, list);
        } else if let Some(name) = header(line) {
            let name = name.to_owned();
            mended.header(&mut lines, at, &name, is_twice);
        } else {
            let (key, rest) = mended.take_out(at + 1, line, is_twice);
            let is_key = rest && is_bare(&key) && *line != filled(&key);
            *line = match is_key && !is_twice {
                true => filled(&key),
                false => String::new(),
            };
        }
        mended.text = lines.join("\n");
    }
    mended.is_unclear = true;
    mended
}

impl Mended {
    fn tell(&mut self, at: usize, wrong: String) {
        self.broken.entry(at + 1).or_insert(wrong);
    }

    /// A list without its end would take in every line below it: those of `list` go, and what comes behind them stays.
    fn close_list(&mut self, lines: &mut [String], list: Range<usize>) {
        let start = list.start;
        let all = lines.get_mut(list).into_iter().flatten();
        for (line, is_first) in all.zip(std::iter::once(true).chain(std::iter::repeat(false))) {
            let (key, value) = key_and_value(line);
            let wrong = format!(
                "{}: this list has no end; write `]` behind its last value",
                shown(key, value)
            );
            let filled = filled(key);
            *line = String::new();
            if is_first {
                *line = filled;
                self.tell(start, wrong);
            }
        }
    }

    /// A header that cannot be read is read as that of the section it nearly is, so that the keys below it stay in it.
    fn header(&mut self, lines: &mut [String], at: usize, name: &str, is_twice: bool) {
        let section = Section::near(name);
        let right = section.map(|section| section.written().trim_matches('`'));
        let Some(line) = lines.get_mut(at) else {
            return;
        };
        let (key, value) = key_and_value(line);
        let written = shown(key, value);
        if !is_twice {
            let Some(right) = right else {
                self.is_any = true;
                let wrong = format!("{written}: a section is written `[proxy]` or `[[worker]]`");
                *line = format!("[{name}]");
                return self.tell(at, wrong);
            };
            let is_more = line.contains('=');
            // What stands behind it is lost.
            self.is_any |= is_more;
            let alone = if is_more { " on a line of its own" } else { "" };
            *line = right.to_owned();
            return self.tell(at, format!("{written}: write `{right}`{alone}"));
        }
        if section == Some(Section::Worker) && !line.trim_start().starts_with("[[worker]]") {
            // Each of them was meant as one more.
            for (at, line) in lines.iter_mut().enumerate() {
                let is_worker = header(line).and_then(Section::near) == section;
                if is_worker && !line.trim_start().starts_with("[[worker]]") {
                    self.tell(at, format!("{}: write `[[worker]]`", line.trim()));
                    *line = "[[worker]]".to_owned();
                }
            }
            return;
        }
        // Under a name of its own its keys are not those of the section above it.
        let again = format!("[{name}.again-{at}]");
        let again = if *line == again { String::new() } else { again };
        *line = again;
        let wrong = format!("{written}: stands in the file already; leave one of the two");
        self.tell(at, wrong);
    }

    /// Says what is wrong with a line, once. TOML's own words are for those who write parsers. Gives the line's key, and
    /// whether it has a value.
    fn take_out(&mut self, number: usize, line: &str, is_twice: bool) -> (String, bool) {
        let line = line.trim();
        let (key, value) = key_and_value(line);
        let section_of = |key: &str| {
            let has_it = |section: &Section| section.keys().iter().any(|known| known == key);
            Section::ALL.into_iter().find(has_it)
        };
        let section = section_of(key);
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
                // Any of it may be a secret, but for a key's name.
                let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let key = words.next().filter(|word| section_of(word).is_some());
                let shown = key.unwrap_or("this line");
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

/// The name in a line that begins a section, or nearly does.
fn header(line: &str) -> Option<&str> {
    let line = line.trim();
    let name = line.trim_start_matches(['[', ' ']);
    let end = name.find(|c| !is_bare_char(c)).unwrap_or(name.len());
    let (name, rest) = name.split_at(end);
    let is_header = line.starts_with('[')
        || (rest.trim_start().starts_with(']') && Section::near(name).is_some());
    (is_header && !name.is_empty()).then_some(name)
}

/// The lines of a list that has not ended where line `at`, from 0, shows that it should have: with a key, a section or the
/// end of the file.
fn open_list(lines: &[String], at: usize) -> Option<Range<usize>> {
    let is_behind = lines.get(at).is_none_or(|line| {
        let (key, _) = key_and_value(line);
        let is_section = || header(line).and_then(Section::near).is_some();
        (is_bare(key) && line.contains('=')) || is_section()
    });
    let (mut start, mut open) = (0, 0);
    for (number, line) in lines.iter().enumerate().take(at) {
        let (key, value) = key_and_value(line);
        if open == 0 && is_bare(key) && value.starts_with('[') {
            start = number;
            open = brackets(value).max(0);
        } else if open > 0 {
            open = (open + brackets(line)).max(0);
        }
    }
    (is_behind && open > 0).then_some(start..at.min(lines.len()))
}

/// How many more brackets a line opens than it closes, but for those in texts and comments.
fn brackets(line: &str) -> i32 {
    let (mut open, mut quote, mut is_escaped) = (0, None, false);
    for c in line.chars() {
        match (quote, c) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some('"'), '\\') => is_escaped = true,
            (Some(begun), _) if begun == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '#') => break,
            (None, '[') => open += 1,
            (None, ']') => open -= 1,
            (None, _) => {}
        }
    }
    open
}

fn key_and_value(line: &str) -> (&str, &str) {
    let (key, value) = line.split_once('=').unwrap_or((line, ""));
    (key.trim(), value.trim())
}

/// Whether a key needs no quotes.
fn is_bare(key: &str) -> bool {
    !key.is_empty() && key.chars().all(is_bare_char)
}

fn is_bare_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
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
        // A section twice is one with a part below it.
        let mended = mend("[proxy]\nthreads = 2\n[proxy]\nadmin = \"a\"");
        assert_eq!(
            mended.text,
            "[proxy]\nthreads = 2\n[proxy.again-2]\nadmin = \"a\""
        );
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
