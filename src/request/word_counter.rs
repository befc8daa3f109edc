//! Counts the words of JSON strings that arrive in pieces of any size.

/// Counts runs of characters other than ASCII white space. It is fed the inside of a JSON string, with escapes: `\n`, `\r`, `\t` and `\f`
/// are white space, `\u` is not.
#[derive(Clone, Debug, Default)]
pub struct WordCounter {
    words: u64,
    in_word: bool,
    /// The last byte was a backslash that escapes the next.
    is_escaped: bool,
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
        (self.in_word, self.is_escaped) = (false, false);
    }

    /// Counts the words of the next piece of a string.
    pub fn feed(&mut self, piece: &[u8]) {
        for block in piece.chunks(BLOCK_BYTES) {
            let is_escape = |found, byte: &u8| found | (*byte == b'\\');
            match block.iter().fold(self.is_escaped, is_escape) {
                false => self.simple_block(block),
                true => block.iter().for_each(|byte| self.byte(*byte)),
            }
        }
    }

    /// Counts the words of a block without escapes. Without branches: every prompt passes through here.
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
        let is_of_word = match (std::mem::take(&mut self.is_escaped), byte) {
            (false, b'\\') => return self.is_escaped = true,
            (true, b'n' | b'r' | b't' | b'f') => false,
            (_, byte) => is_of_word(byte),
        };
        self.words += u64::from(is_of_word & !self.in_word);
        self.in_word = is_of_word;
    }
}

/// Whether a byte is not ASCII white space.
fn is_of_word(byte: u8) -> bool {
    !matches!(byte, b'\t'..=b'\r' | b' ')
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
        fn as_split_ascii_whitespace_at_any_split(
            text in "([a-z\"\\\\ \n\r\t\u{c}]|[a-z ]{0,80}|é|中文|🦀|\u{a0}|\u{3000}){0,30}",
            cut in 0usize..400,
        ) {
            let json = serde_json::to_string(&text).unwrap();
            let inside = &json.as_bytes()[1..json.len() - 1];
            let cut = cut.min(inside.len());
            let expected = text.split_ascii_whitespace().count() as u64;
            prop_assert_eq!(count(&[&inside[..cut], &inside[cut..]]), expected);
        }
    }
}
