//! Output to the terminal: wrapped to its width, with control characters escaped.

use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write as _};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::termios::tcgetwinsize;
use textwrap::core::display_width as columns;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// Returns the columns of standard output's terminal, else of standard error's, else the variable `COLUMNS`; `None` if unknown.
pub fn width() -> Option<usize> {
    let from_variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    columns_of(std::io::stdout())
        .or_else(|| columns_of(std::io::stderr()))
        .or_else(from_variable)
        .filter(|width| *width >= MIN_WIDTH)
}

/// Whether standard output is JSON for programs.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Why standard output could not be written, if so.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Notes the error of a write to standard output, for [`lost_output`]; but not that its reader has gone, as `head` does.
pub fn note_write(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = LOST.set(error);
    }
}

/// Why a part of the results could not be written to standard output; `None` if all was, or nobody reads it.
pub fn lost_output() -> Option<&'static io::Error> {
    LOST.get()
}

fn write_output(text: &str) {
    let mut out = io::stdout();
    // What ends within a line stays in its buffer.
    note_write(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// Sets whether the command prints its results as JSON (`--json`). Text for people then goes to standard error.
pub fn set_json_output(is_json: bool) {
    IS_JSON.store(is_json, Ordering::Relaxed);
}

/// Prints results as JSON, if `--json` was given.
pub fn print_json(json: &str) {
    if IS_JSON.load(Ordering::Relaxed) {
        print_raw(json);
    }
}

/// Prints a file that holds results as JSON, if `--json` was given. Why one is missing has been told before.
pub fn print_json_file(path: &Path) {
    print_json(&std::fs::read_to_string(path).unwrap_or_default());
}

/// Nobody reads in a narrower terminal: a smaller reported width is taken as unknown.
const MIN_WIDTH: usize = 20;

fn columns_of(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let size = tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns >= MIN_WIDTH)
}

/// Prints to standard output (with `--json` to standard error), escaped by [`escaped`] and wrapped to `width` if that is given.
/// An error is kept for [`lost_output`].
pub fn print_within(text: &str, width: Option<usize>) {
    if IS_JSON.load(Ordering::Relaxed) {
        return print_error(text);
    }
    write_output(&fitted(&escaped(text), width));
}

/// Prints as [`print_within`], wrapped to the width of the terminal.
pub fn print(text: &str) {
    print_within(text, width());
}

/// Prints text for programs to standard output: unchanged, or on a terminal escaped by [`escaped`].
pub fn print_raw(text: &str) {
    match io::stdout().is_terminal() {
        true => write_output(&escaped(text)),
        false => write_output(text),
    }
}

/// Prints to standard error, escaped by [`escaped`] and wrapped to the width of its terminal.
pub fn print_error(text: &str) {
    let width = columns_of(std::io::stderr());
    let _ = std::io::stderr().write_all(fitted(&escaped(text), width).as_bytes());
}

/// Escapes control characters, and those that change the direction of text, which a terminal would obey: ESC becomes `\x1b`.
/// Line ends stay.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape(text, &['\n'], hex_escape)
}

/// Escapes the strings of JSON so that they parse to what [`escaped`] returns, for a page that shows them unchanged.
pub fn escaped_in_json(json: &str) -> Cow<'_, str> {
    escape(json, &['\n'], |c| format!("\\{}", hex_escape(c)))
}

/// Escapes as [`escaped`], line ends too.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escape(text, &[], hex_escape)
}

fn hex_escape(c: char) -> String {
    format!("\\x{:02x}", u32::from(c))
}

fn escape<'a>(text: &'a str, kept: &[char], escaped: fn(char) -> String) -> Cow<'a, str> {
    let is_escaped = |c: char| is_hidden(c) && !kept.contains(&c);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_escaped(c) {
            true => out.push_str(&escaped(c)),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Whether a character is a control character (C0 or C1), a line or paragraph separator, a direction mark, or has no width.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn fitted(text: &str, width: Option<usize>) -> String {
    width.map_or_else(|| text.to_owned(), |width| wrap(text, width))
}

/// Wraps lines longer than `width` columns, between words only: a longer word stays whole. Continuation lines are indented to
/// the text after the label of their line, if it has one.
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
    textwrap::wrap(line.trim_start_matches(' '), options).join("\n")
}

/// The indentation of continuation lines: after the label, which two blanks end, unless that leaves no room.
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
    fn lines_break_between_words_and_are_indented_to_their_text() {
        let short = "a short line\n\nanother\n";
        assert_eq!(wrap(short, 20), short);
        for (width, wrapped) in [
            (20, "one two three four\nfive six"),
            (30, "label     one two three four\n          five six"),
            (20, "  3 × an error of\n    many words"),
            (20, "see\nhttps://a.example/a/long/one\nfor it"),
        ] {
            let lines = wrapped.split('\n').map(str::to_owned);
            let line = lines.reduce(|line, more| line + " " + more.trim_start());
            let line = line.unwrap();
            for end in ["", "\n"] {
                let expected = wrapped.to_owned() + end;
                assert_eq!(wrap(&(line.clone() + end), width), expected);
            }
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let wild =
            "a\u{1b}]0;t\u{7}\r\tb\u{9b}2J\u{7f}\u{202e}\u{2066}\u{200f}\u{61c}\u{2028}é🦀\nc";
        let spelt = "a\\x1b]0;t\\x07\\x0d\\x09b\\x9b2J\\x7f\\x202e\\x2066\\x200f\\x61c\\x2028é🦀";
        assert_eq!(escaped(wild), format!("{spelt}\nc"));
        assert_eq!(one_line(wild), format!("{spelt}\\x0ac"));
        assert!(matches!(escaped("plain\n"), Cow::Borrowed("plain\n")));
        let json = serde_json::json!({ "host": wild }).to_string();
        let read: serde_json::Value = serde_json::from_str(&escaped_in_json(&json)).unwrap();
        assert!(!read["host"].as_str().unwrap().contains('\u{9b}'));
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
                prop_assert!(line.chars().count() <= width, "{}", line);
            }
        }
    }
}
