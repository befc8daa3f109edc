//! The parameters of a request, read from its body as it passes.

use super::scan::rule::{Field, Rule, Scalar, elements, members, scalar};
use super::scan::{Progress, Scanner, Sink};

/// Reads a request body in pieces; keeps no bytes of it.
#[derive(Debug)]
pub struct RequestBody {
    scanner: Scanner,
    /// The parameters read so far.
    pub(super) params: RequestParams,
}

/// The parameters of a request.
#[derive(Clone, Debug, Default)]
pub struct RequestParams {
    /// The model.
    pub model: Option<String>,
    /// Whether a stream is requested.
    pub stream: Option<bool>,
    /// Samples per prompt.
    pub n: Option<u64>,
    /// The maximum number of tokens to generate, by any name but `max_completion_tokens`.
    max_tokens: Option<u64>,
    /// `max_completion_tokens`: SGLang prefers it to `max_tokens`.
    max_completion_tokens: Option<u64>,
    /// `bootstrap_room`, which a router adds: the number by which the two servers of a pair know the request; of a batch, that of
    /// the first sequence. Never 0.
    pub room: Option<u64>,
    /// Whether the prompt has text, not only token ids.
    has_prompt: bool,
    words: WordCounter,
}

/// Counts the words of JSON strings that arrive in pieces of any size: runs of characters other than ASCII white space. It is fed
/// the inside of a JSON string, with escapes: `\n`, `\r`, `\t` and `\f` are white space, `\u` is not.
#[derive(Clone, Debug, Default)]
struct WordCounter {
    words: u64,
    in_word: bool,
    /// The last byte was a backslash that escapes the next.
    is_escaped: bool,
}

/// A prompt, or a batch of prompts.
const fn prompts() -> Rule {
    Rule::TEXT.or_elements(&PROMPT)
}
static PROMPT: Rule = prompts();

const SAMPLING: Rule = members(&[
    ("max_new_tokens", scalar(Field::MaxTokens)),
    ("n", scalar(Field::SamplesPerPrompt)),
]);

/// Of a list, one for each prompt. SGLang refuses one in which `n` differs; the other members may.
static SAMPLINGS: Rule = members(&[("n", scalar(Field::SamplesPerPrompt))]);

const ROOM: Rule = scalar(Field::BootstrapRoom);

/// Text, or a list of parts: `{"type": "text", "text": …}`.
const CONTENT: Rule = Rule::TEXT.or_elements(&PART);
static PART: Rule = Rule {
    is_text: true,
    ..members(&[("text", Rule::TEXT)])
};
static MESSAGE: Rule = Rule {
    is_text: true,
    ..members(&[("content", CONTENT)])
};

/// All parameters, of all endpoints' requests: no name has two meanings.
static PARAMS: Rule = members(&[
    ("model", scalar(Field::Model)),
    ("stream", scalar(Field::Stream)),
    ("n", scalar(Field::SamplesPerPrompt)),
    ("max_tokens", scalar(Field::MaxTokens)),
    ("max_completion_tokens", scalar(Field::MaxCompletionTokens)),
    ("max_output_tokens", scalar(Field::MaxTokens)),
    ("text", prompts()),
    ("sampling_params", SAMPLING.or_elements(&SAMPLINGS)),
    ("prompt", prompts()),
    ("messages", elements(&MESSAGE)),
    ("input", Rule::TEXT.or_elements(&MESSAGE)),
    // The system message of `/v1/responses` and of `/v1/messages`.
    ("instructions", Rule::TEXT),
    ("system", CONTENT),
    // One number, or one per sequence.
    ("bootstrap_room", ROOM.or_elements(&ROOM)),
]);

/// The number of bytes that are checked together.
const BLOCK_BYTES: usize = 32;

impl Default for RequestBody {
    fn default() -> RequestBody {
        RequestBody {
            scanner: Scanner::new(&PARAMS),
            params: RequestParams::default(),
        }
    }
}

impl RequestBody {
    /// Reads the next piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.scanner.feed(bytes, &mut self.params);
    }

    /// Whether a whole JSON document has been read, so that what it lacks has its default.
    pub fn is_whole(&self) -> bool {
        self.scanner.progress() == Progress::Whole
    }
}

impl RequestParams {
    /// Returns the maximum number of tokens to generate.
    pub fn output_length(&self) -> Option<u64> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    /// Returns the number of words of the prompt; `None` if it was given as token ids or is missing.
    pub fn input_length(&self) -> Option<u64> {
        self.has_prompt.then_some(self.words.words)
    }
}

impl Sink for RequestParams {
    fn scalar(&mut self, field: Field, value: Scalar<'_>) {
        match field {
            Field::Model => self.model = value.string(),
            Field::Stream => self.stream = value.flag(),
            Field::SamplesPerPrompt => self.n = value.count(),
            Field::MaxTokens => self.max_tokens = value.count(),
            Field::MaxCompletionTokens => self.max_completion_tokens = value.count(),
            Field::BootstrapRoom => {
                self.room = self.room.or(value.count().filter(|room| *room > 0))
            }
            _ => {}
        }
    }

    fn text(&mut self, piece: &[u8]) {
        self.words.feed(piece);
    }

    fn text_end(&mut self) {
        self.has_prompt = true;
        self.words.string_end();
    }
}

impl WordCounter {
    /// Ends the string: the next begins a new word.
    fn string_end(&mut self) {
        (self.in_word, self.is_escaped) = (false, false);
    }

    /// Counts the words of the next piece of a string.
    fn feed(&mut self, piece: &[u8]) {
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
mod tests;
