//! The text that the simulated model generates, the same for every request.
//!
//! An output of `n` tokens is the first `n` tokens of one long text. So the cumulative text and ids of an event are prefixes of
//! two strings, which are escaped and rendered once.

/// The words, one per token, escaped for JSON. They include what needs care in a stream: multi-byte characters, quotes, backslashes, line breaks.
const WORDS: [&str; 24] = [
    " the", " quick", " queue", " waits", " for", " no", " one", ",", " na", "ï", "ve", " worker",
    " 🙂", " says", " \\\"", "prefill", "\\\"", " then", " decode", ".", "\\n", " a", "\\\\", "b",
];

/// The text and token ids of the longest possible output.
#[derive(Debug)]
pub(super) struct CannedText {
    text: String,
    /// Where each token's text ends.
    text_ends: Vec<u32>,
    /// Three digits and a comma per token.
    ids: String,
}

impl CannedText {
    /// Renders `tokens` tokens.
    pub(super) fn new(tokens: u32) -> CannedText {
        let mut canned = CannedText {
            text: String::new(),
            text_ends: vec![0],
            ids: String::new(),
        };
        for token in 0..tokens as usize {
            // A stride coprime to the number of words mixes their order.
            let word = (token * 7 + token / WORDS.len()) % WORDS.len();
            canned.text.push_str(WORDS[word]);
            canned.text_ends.push(canned.text.len() as u32);
            canned.ids.push_str(&format!("{},", word + 100));
        }
        canned
    }

    /// The JSON-escaped text of the tokens `from..to`, without quotes.
    pub(super) fn text(&self, from: u32, to: u32) -> &str {
        let [from, to] = [from, to].map(|token| self.text_ends[token as usize] as usize);
        &self.text[from..to]
    }

    /// The ids of the tokens `from..to`, joined by commas.
    pub(super) fn ids(&self, from: u32, to: u32) -> &str {
        let piece = &self.ids[from as usize * 4..to as usize * 4];
        piece.strip_suffix(',').unwrap_or(piece)
    }
}
