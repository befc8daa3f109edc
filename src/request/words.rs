//! Counts the words of JSON strings as they pass, in pieces of any size.

/// Counts runs of characters that are no white space (spaces, tabs and line ends, as bytes or as JSON escapes them). Fed with the
/// inside of a JSON string, escapes and all.
#[derive(Clone, Debug, Default)]
pub struct WordCounter {
    words: u64,
    in_word: bool,
    /// The last byte was a backslash that escapes the next.
    is_escaped: bool,
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
        self.is_escaped = false;
    }

    /// Counts on with the next piece of a string.
    pub fn feed(&mut self, piece: &[u8]) {
        for block in piece.chunks(BLOCK) {
            let has_escape = block
                .iter()
                .fold(self.is_escaped, |has, byte| has | (*byte == b'\\'));
            match has_escape {
                false => self.plain(block),
                true => block.iter().for_each(|byte| self.escaped(*byte)),
            }
        }
    }

    /// Counts on with bytes of which none escapes another. Without branches: all of a prompt comes here.
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

    fn escaped(&mut self, byte: u8) {
        match (std::mem::take(&mut self.is_escaped), byte) {
            (false, b'\\') => self.is_escaped = true,
            (true, b'n' | b'r' | b't' | b'f') => self.in_word = false,
            (true, _) => self.plain(b"x"),
            (false, byte) => self.plain(&[byte]),
        }
    }
}

/// Whether a byte is none of white space.
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
        fn as_split_whitespace_at_any_split(
            text in "([a-z\"\\\\ \n\r\t\u{c}]|[a-z ]{0,80}|é|🦀){0,30}", cut in 0usize..400,
        ) {
            let json = serde_json::to_string(&text).unwrap();
            let inside = &json.as_bytes()[1..json.len() - 1];
            let cut = cut.min(inside.len());
            let expected = text.split_whitespace().count() as u64;
            prop_assert_eq!(count(&[&inside[..cut], &inside[cut..]]), expected);
        }
    }
}
