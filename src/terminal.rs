//! All that goes to the terminal: in lines that fit it, and harmless whoever wrote the text.

use std::borrow::Cow;
use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::termios::tcgetwinsize;
use textwrap::core::display_width as columns;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// Columns of the terminal that shows our output, or what is said beside it where the output goes through a
/// pipe; else those of the variable `COLUMNS`. `None` where nobody knows: then nothing need fit.
pub fn width() -> Option<usize> {
    let shown = std::env::var("COLUMNS").ok();
    let told = || shown.and_then(|columns| columns.parse().ok());
    columns_of(std::io::stdout())
        .or_else(|| columns_of(std::io::stderr()))
        .or_else(told)
        .filter(|width| *width >= NARROWEST)
}

/// Whether standard output is for programs alone.
static IS_FOR_PROGRAMS: AtomicBool = AtomicBool::new(false);

/// Where a command prints its results as JSON (`--json`), what people read goes to standard error from here on.
pub fn begin(is_json: bool) {
    IS_FOR_PROGRAMS.store(is_json, Ordering::Relaxed);
}

/// Prints results, JSON, where that was asked for.
pub fn put_results(json: &str) {
    if IS_FOR_PROGRAMS.load(Ordering::Relaxed) {
        put(json, shown_json);
    }
}

/// No one reads in less; one that says so is no terminal.
const NARROWEST: usize = 20;

/// What stands behind a figure and is not parted from it.
const UNITS: [&str; 4] = ["s", "ms", "µs", "%"];
/// The blank between them, while lines are broken.
const JOINT: char = '\u{a0}';

fn columns_of(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let size = tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns >= NARROWEST)
}

/// Prints to standard output, as [`shown`] and in lines of at most `width` columns if that is given; to standard error where
/// [`begin`] has said so. Where nobody reads it (a closed pipe, a full disk) there is nobody to tell.
pub fn say(text: &str, width: Option<usize>) {
    if IS_FOR_PROGRAMS.load(Ordering::Relaxed) {
        return complain(text);
    }
    let text = fitted(&shown(text), width);
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// The same, in lines that fit the terminal.
pub fn tell(text: &str) {
    say(text, width());
}

/// Prints to standard output what programs read, JSON or CSV: as it stands, or on a terminal as `shown` spells it.
pub fn put(text: &str, shown: fn(&str) -> Cow<'_, str>) {
    let mut out = std::io::stdout();
    let text = match out.is_terminal() {
        true => shown(text),
        false => Cow::Borrowed(text),
    };
    let _ = out.write_all(text.as_bytes());
}

/// Prints to standard error, as [`shown`] and in lines that fit its terminal.
pub fn complain(text: &str) {
    let width = columns_of(std::io::stderr());
    let _ = std::io::stderr().write_all(fitted(&shown(text), width).as_bytes());
}

/// Text as a person sees it, whoever wrote it: what a terminal obeys, and what changes the order of what is read, is
/// spelt out, as in `\x1b` for ESC. Lines stay lines.
pub fn shown(text: &str) -> Cow<'_, str> {
    spelt(text, &['\n'], in_text)
}

/// JSON as [`shown`] shows text, in its own spelling: the same JSON.
pub fn shown_json(json: &str) -> Cow<'_, str> {
    spelt(json, &['\n'], |c| format!("\\u{:04x}", u32::from(c)))
}

/// JSON of which the texts are spelt as [`shown`] spells text: for a page, where they go in as they are.
pub fn shown_in_json(json: &str) -> Cow<'_, str> {
    spelt(json, &['\n'], |c| format!("\\{}", in_text(c)))
}

/// The same of what was to be one line, and is.
pub fn one_line(text: &str) -> Cow<'_, str> {
    spelt(text, &[], in_text)
}

fn in_text(c: char) -> String {
    format!("\\x{:02x}", u32::from(c))
}

fn spelt<'a>(text: &'a str, kept: &[char], spelling: fn(char) -> String) -> Cow<'a, str> {
    let is_spelt = |c: char| is_hidden(c) && !kept.contains(&c);
    if !text.contains(is_spelt) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_spelt(c) {
            true => out.push_str(&spelling(c)),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Control characters, C0 and C1; ends of lines and paragraphs; marks that turn the direction of what follows, or have no width.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn fitted(text: &str, width: Option<usize>) -> String {
    width.map_or_else(|| text.to_owned(), |width| wrap(text, width))
}

/// Breaks the lines that are longer than `width` columns, between words only: a word that is longer stays
/// whole. What goes on stands below what it goes on from: behind the label of its line, if it has one.
pub fn wrap(text: &str, width: usize) -> String {
    let lines = text.split('\n').map(|line| wrapped(line, width));
    lines.collect::<Vec<_>>().join("\n")
}

fn wrapped(line: &str, width: usize) -> String {
    if columns(line) <= width {
        return line.to_owned();
    }
    let (first, others) = (" ".repeat(indent(line)), " ".repeat(hang(line, width)));
    let options = Options::new(width)
        .initial_indent(&first)
        .subsequent_indent(&others)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    let joined = joined(line.trim_start_matches(' '));
    let lines = textwrap::wrap(&joined, options);
    lines.join("\n").replace(JOINT, " ")
}

/// A figure and its unit are one word.
fn joined(line: &str) -> String {
    let (mut is_figure, mut is_in_unit) = (false, false);
    let char = |(at, c): (usize, char)| {
        let rest = line.get(at + 1..).filter(|_| c == ' ');
        let Some(rest) = rest else {
            is_figure = c.is_ascii_digit() && !is_in_unit;
            return c;
        };
        let next = rest.split(' ').next().unwrap_or_default();
        let bare = next.trim_end_matches(|c: char| !c.is_alphabetic() && c != '%');
        is_in_unit = is_figure && UNITS.contains(&bare);
        is_figure = false;
        if is_in_unit { JOINT } else { c }
    };
    line.char_indices().map(char).collect()
}

/// Where lines that go on begin: behind the label, which two blanks end, unless that leaves no room.
fn hang(line: &str, width: usize) -> usize {
    let start = indent(line);
    let body = line.trim_start_matches(' ');
    let label = body.find("  ").map(|label| {
        let rest = body.get(label..).unwrap_or_default();
        columns(line) - columns(rest.trim_start_matches(' '))
    });
    let label = label.filter(|label| *label <= width / 3);
    label.unwrap_or(if start == 0 { 0 } else { start + 2 })
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_break_between_words_and_hang_below_their_text() {
        for (line, width, wrapped) in [
            ("a short line\n\nanother\n", 20, "a short line\n\nanother\n"),
            (
                "one two three four five six\n",
                20,
                "one two three four\nfive six\n",
            ),
            (
                "label     one two three four five six",
                30,
                "label     one two three four\n          five six",
            ),
            (
                "  3 × an error of many words",
                20,
                "  3 × an error of\n    many words",
            ),
            (
                "took 1 s, of which 67 % was queueing (0.52 s), and more",
                21,
                "took 1 s, of which\n67 % was queueing\n(0.52 s), and more",
            ),
            (
                "it took longer (0.52 s) here",
                20,
                "it took longer\n(0.52 s) here",
            ),
            (
                "see https://a.example/a/long/one for it",
                20,
                "see\nhttps://a.example/a/long/one\nfor it",
            ),
        ] {
            assert_eq!(wrap(line, width), wrapped);
        }
    }

    #[test]
    fn what_a_terminal_obeys_is_spelt_out() {
        let wild =
            "a\u{1b}]0;t\u{7}\r\tb\u{9b}2J\u{7f}\u{202e}\u{2066}\u{200f}\u{61c}\u{2028}é🦀\nc";
        let spelt = "a\\x1b]0;t\\x07\\x0d\\x09b\\x9b2J\\x7f\\x202e\\x2066\\x200f\\x61c\\x2028é🦀";
        assert_eq!(shown(wild), format!("{spelt}\nc"));
        assert_eq!(one_line(wild), format!("{spelt}\\x0ac"));
        assert!(matches!(shown("plain\n"), Cow::Borrowed("plain\n")));
        // The same JSON.
        let json = format!("{:#}", serde_json::json!({ "host": wild }));
        let shown = shown_json(&json);
        assert!(!shown.contains(|c| c != '\n' && is_hidden(c)) && shown.contains("b\\u009b2J"));
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["host"], wild);
    }

    proptest! {
        #[test]
        fn no_word_is_lost_or_broken_and_lines_fit(
            words in prop::collection::vec("[a-z0-9µ%]{1,19}", 0..40),
            width in 20_usize..60,
        ) {
            let text = words.join(" ");
            let wrapped = wrap(&text, width);
            let kept: Vec<&str> = wrapped.split_whitespace().collect();
            prop_assert_eq!(kept, words);
            for line in wrapped.lines() {
                let fits = line.chars().count() <= width;
                // A figure and its unit are never parted, however long both are.
                prop_assert!(fits || line.split(' ').count() == 2, "{}", line);
            }
        }
    }
}
