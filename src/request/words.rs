//! Counts the words of JSON strings as they pass, in pieces of any size.

/// Counts runs of non-white characters, as Python's and Rust's `split` on white space do. Fed with the
/// inside of a JSON string, escapes and all.
#[derive(Clone, Debug, Default)]
pub struct WordCounter {
    words: u64,
    in_word: bool,
    /// An escape or character that a split cut in two.
    held: [u8; 6],
    held_len: usize,
}

/// Bytes that are looked at together.
const BLOCK: usize = 32;

impl WordCounter {
    /// Words so far.
    pub fn words(&self) -> u64 {
        self.words
    }

    /// The string is over: the next begins a new word.
    pub fn string_end(&mut self) {
        self.in_word = false;
        self.held_len = 0;
    }

    /// Counts on with the next piece of a string.
    pub fn feed(&mut self, piece: &[u8]) {
        for block in piece.chunks(BLOCK) {
            match self.held_len == 0 && block.iter().fold(true, |all, byte| all & is_plain(*byte)) {
                true => self.plain(block),
                false => self.bytes(block),
            }
        }
    }

    /// Counts on with bytes that are characters by themselves. Without branches: all of a prompt comes here.
    fn plain(&mut self, block: &[u8]) {
        let (Some(first), Some(last)) = (block.first(), block.last()) else {
            return;
        };
        self.words += u64::from(is_of_word(*first) & !self.in_word);
        let pairs = block.iter().zip(&block[1..]);
        let begins = pairs.map(|(before, byte)| u8::from(is_of_word(*byte) & !is_of_word(*before)));
        self.words += u64::from(begins.sum::<u8>());
        self.in_word = is_of_word(*last);
    }

    fn bytes(&mut self, block: &[u8]) {
        for &byte in block {
            if self.held_len == 0 && is_plain(byte) {
                self.plain(&[byte]);
                continue;
            }
            self.held[self.held_len] = byte;
            self.held_len += 1;
            if let Some(character) = whole(&self.held[..self.held_len]) {
                self.held_len = 0;
                self.character(character);
            }
        }
    }

    fn character(&mut self, character: char) {
        let in_word = !character.is_whitespace();
        if in_word && !self.in_word {
            self.words += 1;
        }
        self.in_word = in_word;
    }
}

/// Whether a byte is a character by itself.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii() & (byte != b'\\')
}

/// Whether a plain byte is none of white space.
fn is_of_word(byte: u8) -> bool {
    !matches!(byte, b'\t'..=b'\r' | b' ')
}

/// The character that `bytes` spell, once they are complete. Half a surrogate pair and bytes that are not
/// UTF-8 stand for a character that is no space.
fn whole(bytes: &[u8]) -> Option<char> {
    let complete = match bytes {
        [b'\\'] => false,
        [b'\\', b'u', digits @ ..] => digits.len() == 4,
        [b'\\', ..] => true,
        [0xc2..=0xdf, rest @ ..] => rest.len() == 1,
        [0xe0..=0xef, rest @ ..] => rest.len() == 2,
        [0xf0..=0xf4, rest @ ..] => rest.len() == 3,
        _ => true,
    };
    complete.then(|| match bytes {
        [b'\\', b'u', digits @ ..] => std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .and_then(char::from_u32)
            .unwrap_or('x'),
        [b'\\', b'n' | b'r' | b't' | b'f'] => ' ',
        [b'\\', ..] => 'x',
        _ => std::str::from_utf8(bytes)
            .ok()
            .and_then(|s| s.chars().next())
            .unwrap_or('x'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(pieces: &[&[u8]]) -> u64 {
        let mut counter = WordCounter::default();
        for piece in pieces {
            counter.feed(piece);
        }
        counter.words()
    }

    proptest! {
        #[test]
        fn as_split_whitespace_at_any_split(
            text in "([a-z\"\\\\ \n\t]|[a-z ]{0,80}|\u{a0}|\u{3000}|é|🦀|\u{b}){0,30}", cut in 0usize..400,
        ) {
            for json in [
                serde_json::to_string(&text).unwrap(),
                // All escaped, as Python's json.dumps writes it.
                format!("\"{}\"", text.encode_utf16().map(|u| format!("\\u{u:04x}")).collect::<String>()),
            ] {
                let inside = &json.as_bytes()[1..json.len() - 1];
                let cut = cut.min(inside.len());
                let expected = text.split_whitespace().count() as u64;
                prop_assert_eq!(count(&[&inside[..cut], &inside[cut..]]), expected);
            }
        }
    }
}
