//! A streaming JSON scanner that picks named values out of a document and skips the rest.
//!
//! A tree of [`Rule`]s says which values are wanted. Everything else is skipped at the speed of `memchr`, whatever its size:
//! logprob arrays and long texts cost no memory. The scanner's state is a few hundred bytes and survives any split of the input.
//! It does not validate: in input that is not JSON it finds nothing.
//!
//! For many similar documents there is a fast path: one that arrives in one piece is compared with an earlier one, and only
//! changed values are scanned (`template.rs`). The sink gets the same calls.

mod leaf;
pub mod rule;
mod template;

pub use rule::{Field, Rule, Scalar};

use leaf::{Leaf, Skip, StringUse, bare_end, ends_escaped, is_bare, string_end};
use template::Template;

/// The maximum depth of wanted values.
const MAX_DEPTH: usize = 8;

/// The longest scalar that is reported whole, bytes.
pub const MAX_SCALAR_BYTES: usize = 256;

/// Receives what [`Scanner`] finds.
pub trait Sink {
    /// Whether the sink wants the optional values, numbers of `meta_info`, asked before the item or choice that has them closes. On the fast path they are
    /// reported then or not at all; a scan reports them where they stand.
    fn wants_optional(&self) -> bool {
        true
    }
    /// A number, literal or whole string. Strings longer than [`MAX_SCALAR_BYTES`] bytes are cut there.
    fn scalar(&mut self, field: Field, value: Scalar<'_>);
    /// A piece of a string, with escapes. Empty strings give no piece.
    fn text(&mut self, _piece: &[u8]) {}
    /// The string that gave pieces ends.
    fn text_end(&mut self) {}
    /// An object or array begins.
    fn open(&mut self, _field: Field) {}
    /// It ends.
    fn close(&mut self, _field: Field) {}
}

/// How much of a document has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is not complete.
    Part,
    /// It is complete.
    Whole,
    /// The input is not JSON.
    Broken,
}

/// Scans one JSON document at a time.
#[derive(Debug)]
pub struct Scanner {
    root: &'static Rule,
    state: State,
    stack: [Frame; MAX_DEPTH],
    depth: usize,
    /// The start of a key or scalar that is split between pieces.
    partial: [u8; MAX_SCALAR_BYTES],
    partial_len: usize,
    /// The earlier documents that similar ones are compared with.
    template: Template,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    rule: &'static Rule,
    is_object: bool,
    /// The index in the rule's members at which the next key is looked for first.
    next: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// A value is expected, or, in an array, its end.
    Value(&'static Rule),
    /// A key or the end of the object is expected.
    Key,
    /// A colon is expected.
    Colon(&'static Rule),
    /// Within a string; `true` if the last byte was an escaping backslash.
    InString(StringUse, bool),
    /// Within a number or literal.
    Bare(Option<Field>),
    /// Within a container that is skipped.
    Skip(Skip),
    /// After a value; a comma or an end is expected.
    After,
    /// The document is complete.
    Done,
    /// The input is not JSON.
    Broken,
}

static IGNORE: Rule = Rule::SKIP;

impl Scanner {
    /// Makes a scanner for a document with this root rule.
    pub fn new(root: &'static Rule) -> Scanner {
        Scanner {
            root,
            state: State::Value(root),
            stack: [Frame {
                rule: &IGNORE,
                is_object: false,
                next: 0,
            }; MAX_DEPTH],
            depth: 0,
            partial: [0; MAX_SCALAR_BYTES],
            partial_len: 0,
            template: Template::default(),
        }
    }

    /// Makes a scanner for many similar documents, with the fast path.
    pub fn with_template(root: &'static Rule) -> Scanner {
        let mut scanner = Scanner::new(root);
        scanner.template.is_on = true;
        scanner
    }

    /// Forgets the document and begins another.
    pub fn reset(&mut self) {
        self.state = State::Value(self.root);
        self.depth = 0;
        self.partial_len = 0;
    }

    /// Returns how much of the document has been read.
    pub fn progress(&self) -> Progress {
        match self.state {
            State::Done => Progress::Whole,
            State::Broken => Progress::Broken,
            _ => Progress::Part,
        }
    }

    /// Ends the input: a number or literal that is the document ends here.
    pub fn finish(&mut self) {
        if let (State::Bare(_), 0) = (self.state, self.depth) {
            self.state = State::Done;
        }
    }

    /// Scans the next piece of the document.
    pub fn feed(&mut self, bytes: &[u8], sink: &mut impl Sink) {
        if let (State::Value(root), 0) = (self.state, self.depth) {
            if self.template.replay(root, bytes, sink) {
                self.state = State::Done;
                return;
            }
            self.template.begin(root, bytes);
        }
        let rest = self.scan(bytes, sink);
        let is_whole = rest.is_empty() && matches!(self.state, State::Done);
        self.template.end(is_whole);
    }

    /// Scans to the end of the piece or of the document; returns the rest.
    fn scan<'a>(&mut self, mut rest: &'a [u8], sink: &mut impl Sink) -> &'a [u8] {
        while !rest.is_empty() {
            let used = match self.state {
                State::Value(rule) => self.value(rule, rest, sink),
                State::Key => self.key(rest, sink),
                State::Colon(rule) => self.colon(rule, rest),
                State::InString(string_use, escaped) => {
                    self.in_string(string_use, escaped, rest, sink)
                }
                State::Bare(field) => self.bare(field, rest, sink),
                State::Skip(skip) => self.skip(skip, rest),
                State::After => self.after(rest, sink),
                State::Done | State::Broken => return rest,
            };
            rest = &rest[used..];
        }
        rest
    }

    fn value(&mut self, rule: &'static Rule, rest: &[u8], sink: &mut impl Sink) -> usize {
        let start = white_space_len(rest);
        let Some(&byte) = rest.get(start) else {
            return start;
        };
        match byte {
            b'"' => {
                let string_use = match (rule.is_text, rule.scalar) {
                    (true, _) => StringUse::Pieces,
                    (false, Some(field)) => StringUse::Capture(field),
                    (false, None) => StringUse::Ignore,
                };
                self.partial_len = 0;
                // Most strings are short and complete: read on here.
                start + 1 + self.in_string(string_use, false, &rest[start + 1..], sink)
            }
            // An array without elements, or with a trailing comma.
            b']' if self.depth > 0 && !self.stack[self.depth - 1].is_object => {
                self.close(sink);
                start + 1
            }
            b'{' | b'[' => {
                self.open(rule, byte, sink);
                start + 1
            }
            byte if is_bare(byte) => {
                self.partial_len = 0;
                start + self.bare(rule.scalar, &rest[start..], sink)
            }
            _ => self.broken(rest),
        }
    }

    /// Begins a container: enters it if something in it is wanted, else skips it.
    fn open(&mut self, rule: &'static Rule, bracket: u8, sink: &mut impl Sink) {
        let is_object = bracket == b'{';
        let has_wanted = match is_object {
            true => !rule.members.is_empty(),
            false => rule.elements.is_some(),
        };
        if !(has_wanted || rule.container.is_some()) || self.depth == MAX_DEPTH {
            self.state = State::Skip(Skip::new(bracket));
            return;
        }
        if let Some(field) = rule.container {
            sink.open(field);
            self.template.open(field);
        }
        self.stack[self.depth] = Frame {
            rule,
            is_object,
            next: 0,
        };
        self.depth += 1;
        self.state = match is_object {
            true => State::Key,
            false => State::Value(rule.elements.unwrap_or(&IGNORE)),
        };
    }

    fn key(&mut self, rest: &[u8], sink: &mut impl Sink) -> usize {
        let start = white_space_len(rest);
        match rest.get(start) {
            None => start,
            Some(b'"') => {
                self.partial_len = 0;
                start + 1 + self.in_string(StringUse::Key, false, &rest[start + 1..], sink)
            }
            Some(b'}') => {
                self.close(sink);
                start + 1
            }
            Some(_) => self.broken(rest),
        }
    }

    /// Ends a key, at `end`; it began before `rest` if there is a partial.
    fn end_key(&mut self, end: usize, rest: &[u8]) -> usize {
        if self.partial_len > 0 {
            self.append_partial(&rest[..end]);
        }
        let key = match self.partial_len {
            0 => &rest[..end],
            partial => &self.partial[..partial],
        };
        let frame = &mut self.stack[self.depth.saturating_sub(1)];
        let rule = match frame.rule.member(key, frame.next) {
            Some((rule, next)) => {
                frame.next = next;
                rule
            }
            None => &IGNORE,
        };
        self.state = State::Colon(rule);
        end + 1
    }

    fn colon(&mut self, rule: &'static Rule, rest: &[u8]) -> usize {
        let start = white_space_len(rest);
        match rest.get(start) {
            None => start,
            Some(b':') => {
                self.state = State::Value(rule);
                start + 1
            }
            Some(_) => self.broken(rest),
        }
    }

    fn in_string(
        &mut self,
        string_use: StringUse,
        escaped: bool,
        rest: &[u8],
        sink: &mut impl Sink,
    ) -> usize {
        let Some(end) = string_end(escaped, rest) else {
            match string_use {
                StringUse::Pieces if !rest.is_empty() => sink.text(rest),
                StringUse::Capture(_) | StringUse::Key => self.append_partial(rest),
                StringUse::Pieces | StringUse::Ignore => {}
            }
            self.state = State::InString(string_use, ends_escaped(escaped, rest));
            return rest.len();
        };
        match string_use {
            StringUse::Key => return self.end_key(end, rest),
            StringUse::Capture(field) if self.partial_len > 0 => {
                self.append_partial(&rest[..end]);
                sink.scalar(field, Scalar::Quoted(&self.partial[..self.partial_len]));
            }
            _ => {
                let leaf = Leaf::String(string_use);
                leaf.report(&rest[..end], sink);
                self.template.leaf(leaf, rest.len(), rest.len() - end);
            }
        }
        self.end_value();
        end + 1
    }

    fn bare(&mut self, field: Option<Field>, rest: &[u8], sink: &mut impl Sink) -> usize {
        let Some(end) = bare_end(rest) else {
            if field.is_some() {
                self.append_partial(rest);
            }
            self.state = State::Bare(field);
            return rest.len();
        };
        let leaf = Leaf::Bare(field);
        if field.is_some() && self.partial_len > 0 {
            self.append_partial(&rest[..end]);
            leaf.report(&self.partial[..self.partial_len], sink);
        } else {
            leaf.report(&rest[..end], sink);
            self.template.leaf(leaf, rest.len(), rest.len() - end);
        }
        self.end_value();
        end
    }

    fn skip(&mut self, mut skip: Skip, rest: &[u8]) -> usize {
        let Some(end) = skip.end(rest) else {
            self.state = State::Skip(skip);
            return rest.len();
        };
        let leaf = Leaf::Container(skip.open);
        self.template.leaf(leaf, rest.len(), rest.len() - end);
        self.end_value();
        end
    }

    fn after(&mut self, rest: &[u8], sink: &mut impl Sink) -> usize {
        let start = white_space_len(rest);
        match rest.get(start) {
            None => start,
            Some(b',') => {
                let frame = &self.stack[self.depth.saturating_sub(1)];
                if !frame.is_object {
                    self.state = State::Value(frame.rule.elements.unwrap_or(&IGNORE));
                    return start + 1;
                }
                // The next key nearly always follows at once: read on here.
                self.state = State::Key;
                start + 1 + self.key(&rest[start + 1..], sink)
            }
            Some(b'}' | b']') => {
                self.close(sink);
                start + 1
            }
            Some(_) => self.broken(rest),
        }
    }

    fn close(&mut self, sink: &mut impl Sink) {
        self.depth = self.depth.saturating_sub(1);
        if let Some(field) = self.stack[self.depth].rule.container {
            sink.close(field);
            self.template.close(field);
        }
        self.end_value();
    }

    fn end_value(&mut self) {
        self.state = if self.depth == 0 {
            State::Done
        } else {
            State::After
        };
    }

    fn broken(&mut self, rest: &[u8]) -> usize {
        self.state = State::Broken;
        rest.len()
    }

    /// Keeps a piece until the rest arrives; what exceeds [`MAX_SCALAR_BYTES`] is cut off.
    fn append_partial(&mut self, piece: &[u8]) {
        let room = MAX_SCALAR_BYTES - self.partial_len;
        let taken = piece.len().min(room);
        self.partial[self.partial_len..self.partial_len + taken].copy_from_slice(&piece[..taken]);
        self.partial_len += taken;
    }
}

/// Returns the number of white-space bytes at the start of `rest`.
fn white_space_len(rest: &[u8]) -> usize {
    let is_other = |byte: &u8| !matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    rest.iter().position(is_other).unwrap_or(rest.len())
}
