//! Counts the words of JSON strings that arrive in pieces of any size.

/// Counts runs of characters other than Unicode white space, however JSON writes them. It is fed the inside of a JSON string,
/// with escapes.
#[derive(Clone, Debug, Default)]
pub struct WordCounter {
    words: u64,
    in_word: bool,
    /// The last byte was a backslash that escapes the next.
    is_escaped: bool,
    /// The code of an incomplete character, of bytes or of digits of `\u`.
    code: u32,
    /// The number of its bytes or digits that are missing.
    left: u8,
    /// The bits of each byte or digit.
    bits: u8,
}

/// The number of bytes that are checked together.
const BLOCK_BYTES: usize = 32;

impl WordCounter {
    /// Returns the number of words so far.
    pub fn words(&self) -> u64 {
        self.words
    }

    /// Ends the string: the next begins a new word.
    pub fn string_end(&mut self) {
        let words = self.words;
        *self = WordCounter::default();
        self.words = words;
    }

    /// Counts the words of the next piece of a string.
    pub fn feed(&mut self, piece: &[u8]) {
        for block in piece.chunks(BLOCK_BYTES) {
            let is_incomplete = self.is_escaped || self.left > 0;
            let needs_decoding = block.iter().fold(is_incomplete, |needs_decoding, byte| {
                needs_decoding | begins_sequence(*byte)
            });
            match needs_decoding {
                false => self.simple_block(block),
                true => block.iter().for_each(|byte| self.byte(*byte)),
            }
        }
    }

    /// Counts the words of a block in which each byte is a whole character. Without branches: every prompt passes through here.
    fn simple_block(&mut self, block: &[u8]) {
        let (Some(first), Some(last)) = (block.first(), block.last()) else {
            return;
        };
        self.words += u64::from(is_of_word(*first) & !self.in_word);
        let pairs = block.iter().zip(&block[1..]);
        let begins = pairs.map(|(before, byte)| u8::from(is_of_word(*byte) & !is_of_word(*before)));
        self.words += u64::from(begins.sum::<u8>());
        self.in_word = is_of_word(*last);
    }

    fn byte(&mut self, byte: u8) {
        let is_escaped = std::mem::take(&mut self.is_escaped);
        if self.left > 0 {
            let digit = char::from(byte).to_digit(16).unwrap_or_default();
            let part = if self.bits == 4 {
                digit
            } else {
                u32::from(byte & 0x3f)
            };
            self.code = self.code << self.bits | part;
            self.left -= 1;
            if self.left == 0 {
                self.character(char::from_u32(self.code));
            }
            return;
        }
        match (is_escaped, byte) {
            (false, b'\\') => self.is_escaped = true,
            (true, b'u') => (self.code, self.left, self.bits) = (0, 4, 4),
            (true, b'n' | b'r' | b't' | b'f') => self.character(Some(' ')),
            (_, 0xc0..=0xdf) => (self.code, self.left, self.bits) = (u32::from(byte & 0x1f), 1, 6),
            (_, 0xe0..=0xef) => (self.code, self.left, self.bits) = (u32::from(byte & 0xf), 2, 6),
            // Any other byte beyond ASCII belongs to a word: no white space has four bytes, and what may be white space is
            // decoded from its first byte on.
            _ => self.character(byte.is_ascii().then(|| char::from(byte))),
        }
    }

    fn character(&mut self, character: Option<char>) {
        let is_of_word = !character.is_some_and(char::is_whitespace);
        self.words += u64::from(is_of_word & !self.in_word);
        self.in_word = is_of_word;
    }
}

/// Whether a byte is not ASCII white space.
fn is_of_word(byte: u8) -> bool {
    !matches!(byte, b'\t'..=b'\r' | b' ')
}

/// Whether the bytes after this one are needed to tell what it is: an escape, or a character that may be white space.
fn begins_sequence(byte: u8) -> bool {
    matches!(byte, b'\\' | 0xc2 | 0xe1..=0xe3)
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

    /// Escapes a string as a client does that writes only ASCII.
    fn in_ascii(json: &str) -> String {
        let unit = |unit: &u16| match u8::try_from(*unit) {
            Ok(byte) if byte.is_ascii() => char::from(byte).to_string(),
            _ => format!("\\u{unit:04X}"),
        };
        let units: Vec<u16> = json.encode_utf16().collect();
        units.iter().map(unit).collect()
    }

    proptest! {
        #[test]
        fn as_split_whitespace_at_any_split(
            text in "([a-z\"\\\\ \n\r\t\u{b}\u{c}]|[a-z ]{0,80}|é|à|中文|🦀|[\u{85}\u{a0}\u{1680}\u{180e}]|[\u{2000}-\u{2060}]|\u{3000}){0,30}",
            cut in 0usize..400,
        ) {
            let json = serde_json::to_string(&text).unwrap();
            for json in [in_ascii(&json), json] {
                let inside = &json.as_bytes()[1..json.len() - 1];
                let cut = cut.min(inside.len());
                let expected = text.split_whitespace().count() as u64;
                prop_assert_eq!(count(&[&inside[..cut], &inside[cut..]]), expected);
            }
        }
    }
}
