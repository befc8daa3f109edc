//! The source files, and as much of Rust's grammar as the house rules need.

use std::path::Path;

/// A file under `src/`.
pub struct Source {
    /// Its path from the repository's root, `src/…`.
    pub path: String,
    pub text: String,
}

/// A word or a sign of a file's code; comments and literals are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token<'a> {
    /// From 1.
    pub line: usize,
    pub text: &'a str,
}

impl Source {
    /// Every file under `src/`, by path.
    pub fn all() -> Vec<Source> {
        let mut found = Vec::new();
        gather(&super::root().join("src"), "src", &mut found);
        found.sort_by(|a, b| a.path.cmp(&b.path));
        assert!(found.len() > 50, "src/ was not read");
        found
    }

    /// The top-level room: `proxy` of `src/proxy/admin.rs` and of `src/proxy.rs`, `main` of the binaries.
    pub fn room(&self) -> &str {
        match self.modules()[..] {
            [] if self.path == "src/lib.rs" => "lib",
            [] | ["bin", ..] => "main",
            [room, ..] => room,
        }
    }

    /// The module that the file is: `["proxy", "admin"]` of `src/proxy/admin.rs`.
    pub fn modules(&self) -> Vec<&str> {
        let path = self.path.strip_prefix("src/").unwrap();
        match path.strip_suffix(".rs").unwrap() {
            "lib" | "main" => Vec::new(),
            path => path.split('/').collect(),
        }
    }

    /// Its code as words and signs.
    pub fn tokens(&self) -> Vec<Token<'_>> {
        tokens(&self.text)
    }

    /// The lines on which it has the word.
    pub fn lines_with(&self, word: &str) -> Vec<usize> {
        let tokens = self.tokens().into_iter();
        tokens.filter(|t| t.text == word).map(|t| t.line).collect()
    }
}

fn gather(folder: &Path, name: &str, found: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap().path();
        let path = format!("{name}/{}", entry.file_name().unwrap().to_str().unwrap());
        if entry.is_dir() {
            gather(&entry, &path, found);
        } else {
            assert!(path.ends_with(".rs"), "{path} is no Rust file");
            let text = std::fs::read_to_string(&entry).unwrap();
            found.push(Source { path, text });
        }
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let skipped = skipped(rest);
        let length = match skipped {
            0 if first == '_' || first.is_alphanumeric() => {
                let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric());
                end.unwrap_or(rest.len())
            }
            0 if rest.starts_with("::") => 2,
            0 => first.len_utf8(),
            length => length,
        };
        let text = &rest[..length];
        if skipped == 0 && !first.is_whitespace() {
            found.push(Token { line, text });
        }
        line += text.matches('\n').count();
        at += length;
    }
    found
}

/// The length of the comment, literal or lifetime that `rest` begins with; 0 of other things.
fn skipped(rest: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    let raw = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'));
    if let Some(raw) = raw {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if let Some(inner) = raw[hashes..].strip_prefix('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let inner_length = inner.find(&end).expect("a raw string ends");
            return rest.len() - inner.len() + inner_length + end.len();
        }
    }
    let bare = rest.strip_prefix('b').unwrap_or(rest);
    match bare.chars().next() {
        Some('"') => rest.len() - bare.len() + quoted(bare, '"'),
        Some('\'') if is_char(bare) => rest.len() - bare.len() + quoted(bare, '\''),
        // A lifetime or label: the name goes with it.
        Some('\'') => {
            1 + bare[1..]
                .find(|c: char| c != '_' && !c.is_alphanumeric())
                .unwrap()
        }
        _ => 0,
    }
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        let here = &rest[at..];
        let step = match here {
            _ if here.starts_with("/*") => {
                depth += 1;
                2
            }
            _ if here.starts_with("*/") => {
                depth -= 1;
                2
            }
            _ => here.chars().next().expect("a comment ends").len_utf8(),
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
}

/// Whether `'` begins a character and not a lifetime.
fn is_char(rest: &str) -> bool {
    let mut chars = rest.chars().skip(1);
    let first = chars.next();
    first == Some('\\') || chars.next() == Some('\'')
}

/// The length of a literal between two `quote`s.
fn quoted(rest: &str, quote: char) -> usize {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    panic!("a literal has no end: {rest:.40}");
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = r###"
        // crate::a
        /* crate::b /* crate::c */ crate::d */
        let s = "crate::e \" crate::f"; let c = '"'; let d = '\''; let b = b'"';
        let r = r#"crate::g " "#; fn f<'a>(x: &'a str) {} 'outer: loop { break 'outer; }
        let t = b"crate::h"; let u = br"crate::i"; crate::real::Thing
    "###;
    let words: Vec<&str> = tokens(text).iter().map(|t| t.text).collect();
    let end = words.len() - 5;
    assert_eq!(words[end..], ["crate", "::", "real", "::", "Thing"]);
    assert_eq!(words.iter().filter(|word| **word == "crate").count(), 1);
    assert_eq!(tokens(text).last().unwrap().line, 6);
}
