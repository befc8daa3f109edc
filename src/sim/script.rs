//! What the simulated model says: the same words for everyone, laid out once.
//!
//! A reply of `n` tokens is the first `n` of one long text, so the cumulative text and ids of any event
//! are prefixes of two strings that are already escaped and rendered.

/// The words, one a token. They hold what streams must carry unharmed: several bytes a character,
/// quotes, backslashes, line breaks.
const WORDS: [&str; 24] = [
    " the", " quick", " queue", " waits", " for", " no", " one", ",", " na", "ï", "ve", " worker",
    " 🙂", " says", " \"", "prefill", "\"", " then", " decode", ".", "\n", " a", "\\", "b",
];

/// The text and ids of the longest possible reply.
#[derive(Debug)]
pub(super) struct Script {
    text: String,
    text_ends: Vec<u32>,
    /// Three digits and a comma each.
    ids: String,
}

impl Script {
    /// Lays out `tokens` tokens.
    pub(super) fn new(tokens: u32) -> Script {
        let words: Vec<String> = WORDS.iter().map(|word| escaped(word)).collect();
        let mut script = Script {
            text: String::new(),
            text_ends: vec![0],
            ids: String::new(),
        };
        for token in 0..tokens as usize {
            // A stride that is prime to the number of words, so that the text does not read as a list.
            let word = (token * 7 + token / WORDS.len()) % WORDS.len();
            script.text.push_str(&words[word]);
            script.text_ends.push(script.text.len() as u32);
            script.ids.push_str(&format!("{},", word + 100));
        }
        script
    }

    /// The JSON-escaped text of the tokens `from..to`, without quotes.
    pub(super) fn text(&self, from: u32, to: u32) -> &str {
        let (from, to) = (self.clamp(from), self.clamp(to));
        &self.text[self.text_ends[from] as usize..self.text_ends[to] as usize]
    }

    /// The ids of the tokens `from..to`, joined by commas.
    pub(super) fn ids(&self, from: u32, to: u32) -> &str {
        let (from, to) = (self.clamp(from), self.clamp(to));
        let piece = &self.ids[from * 4..to * 4];
        piece.strip_suffix(',').unwrap_or(piece)
    }

    fn clamp(&self, token: u32) -> usize {
        (token as usize).min(self.text_ends.len() - 1)
    }
}

/// The word as JSON writes it, without its quotes.
fn escaped(word: &str) -> String {
    let quoted = serde_json::Value::from(word).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
