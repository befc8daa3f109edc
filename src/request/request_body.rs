//! The parameters of a request, read from its body as it passes.

use super::field::Field;
use super::scalar::Scalar;
use super::scan::rule::{Rule, elements, members, scalar, text};
use super::scan::{Progress, Scanner, Sink};
use super::word_counter::WordCounter;

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

/// A prompt, or a batch of prompts.
const fn prompts() -> Rule {
    text(Field::Prompt).or_elements(&PROMPT)
}
static PROMPT: Rule = prompts();

const SAMPLING: Rule = members(&[
    ("max_new_tokens", scalar(Field::MaxTokens)),
    ("n", scalar(Field::SamplesPerPrompt)),
]);
/// A batch may have one set of sampling parameters per prompt.
static SAMPLING_ELEMENT: Rule = SAMPLING;

/// One number, or one per sequence.
const BOOTSTRAP_ROOM: Rule = scalar(Field::BootstrapRoom).or_elements(&ROOM_ELEMENT);
static ROOM_ELEMENT: Rule = scalar(Field::BootstrapRoom);
/// Selects the room alone.
pub static ROOM: Rule = members(&[("bootstrap_room", BOOTSTRAP_ROOM)]);

/// Text, or a list of parts: `{"type": "text", "text": …}`.
pub(super) const CONTENT: Rule = text(Field::Prompt).or_elements(&PART);
static PART: Rule = Rule {
    text: Some(Field::Prompt),
    ..members(&[("text", text(Field::Prompt))])
};
static MESSAGE: Rule = Rule {
    text: Some(Field::Prompt),
    ..members(&[("content", CONTENT)])
};

/// All parameters, of all endpoints' requests: no name has two meanings.
pub static PARAMS: Rule = members(&[
    ("model", scalar(Field::Model)),
    ("stream", scalar(Field::Stream)),
    ("n", scalar(Field::SamplesPerPrompt)),
    ("max_tokens", scalar(Field::MaxTokens)),
    ("max_completion_tokens", scalar(Field::MaxCompletionTokens)),
    ("max_output_tokens", scalar(Field::MaxTokens)),
    ("text", prompts()),
    ("sampling_params", SAMPLING.or_elements(&SAMPLING_ELEMENT)),
    ("prompt", prompts()),
    ("messages", elements(&MESSAGE)),
    ("input", text(Field::Prompt).or_elements(&MESSAGE)),
    // The system message of `/v1/responses` and of `/v1/messages`.
    ("instructions", text(Field::Prompt)),
    ("system", CONTENT),
    ("bootstrap_room", BOOTSTRAP_ROOM),
]);

impl RequestBody {
    /// Makes a reader of the parameters that `rule` selects: [`PARAMS`] or [`ROOM`].
    pub fn new(rule: &'static Rule) -> RequestBody {
        RequestBody {
            scanner: Scanner::new(rule),
            params: RequestParams::default(),
        }
    }

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
        self.has_prompt.then(|| self.words.words())
    }
}

impl Sink for RequestParams {
    fn scalar(&mut self, field: Field, value: Scalar<'_>) {
        match field {
            Field::Model => self.model = value.string(),
            Field::Stream => self.stream = value.flag(),
            Field::SamplesPerPrompt => self.n = value.count(),
            // The prompts of a batch may differ: the row shows the largest.
            Field::MaxTokens => self.max_tokens = self.max_tokens.max(value.count()),
            Field::MaxCompletionTokens => self.max_completion_tokens = value.count(),
            Field::BootstrapRoom => {
                self.room = self.room.or(value.count().filter(|room| *room > 0))
            }
            _ => {}
        }
    }

    fn text(&mut self, _field: Field, piece: &[u8]) {
        self.words.feed(piece);
    }

    fn text_end(&mut self, _field: Field) {
        self.has_prompt = true;
        self.words.string_end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(body: &str) -> RequestParams {
        let mut whole = RequestBody::new(&PARAMS);
        whole.feed(body.as_bytes());
        let mut bytewise = RequestBody::new(&PARAMS);
        body.as_bytes()
            .chunks(1)
            .for_each(|byte| bytewise.feed(byte));
        let both = [&whole, &bytewise].map(|body| format!("{:?}", body.params));
        assert_eq!(both[0], both[1]);
        whole.params
    }

    #[test]
    fn generate() {
        let body = r#"{"rid":"a","text": ["one  two\nthree","\tfour "], "logit":[[1,"]"],{"a":"}"}],
            "sampling_params": {"temperature":0, "max_new_tokens": 7,"n": 2}, "stream": true}"#;
        let params = params(body);
        assert_eq!(params.input_length(), Some(4));
        let told = (params.output_length(), params.n, params.stream);
        assert_eq!(told, (Some(7), Some(2), Some(true)));
    }

    #[test]
    fn a_batch_reports_the_largest_of_its_parameters() {
        let each = r#"[{"max_new_tokens":5},{"max_new_tokens":9},{"max_new_tokens":7}]"#;
        let params = params(&format!(r#"{{"text":["a","b"],"sampling_params":{each}}}"#));
        assert_eq!(params.output_length(), Some(9));
    }

    #[test]
    fn token_ids_are_no_words() {
        assert_eq!(params(r#"{"input_ids":[[1,2],[3]]}"#).input_length(), None);
        assert_eq!(params(r#"{"prompt":[[1,2],[3]]}"#).input_length(), None);
    }

    #[test]
    fn chat_counts_the_words_of_all_messages() {
        let body = r#"{"model":"m\u00e9","messages":[{"role":"system","content":"be kind"},
            {"role":"user","content":[{"type":"text","text":"what is this"},
            {"type":"image_url","image_url":{"url":"a b c"}}]}],
            "max_completion_tokens":9,"max_tokens":50,"n":3}"#;
        let params = params(body);
        assert_eq!(params.input_length(), Some(5));
        assert_eq!(params.model.as_deref(), Some("mé"));
        let told = (params.output_length(), params.n, params.stream);
        assert_eq!(told, (Some(9), Some(3), None));
    }

    #[test]
    fn the_room_is_read_at_any_place_and_for_a_batch_the_first() {
        let room = u64::MAX >> 1;
        for text in [
            r#""text":["a","b"],"rid":["x","y"]"#,
            r#""messages":[{"content":"a"}],"n":2"#,
        ] {
            for value in [format!("{room}"), format!("[{room},7]")] {
                let member = format!("\"bootstrap_room\":{value}");
                let host = r#""bootstrap_host":["h","h"],"bootstrap_port":[1,1]"#;
                for body in [
                    format!("{{{text},{host},{member}}}"),
                    format!("{{{member},{host},{text}}}"),
                ] {
                    assert_eq!(params(&body).room, Some(room), "{body}");
                    let mut leg = RequestBody::new(&ROOM);
                    leg.feed(body.as_bytes());
                    assert_eq!(leg.params.room, Some(room), "{body}");
                }
            }
        }
        for none in ["0", "null", "[]", "\"7\"", "-1"] {
            let body = format!("{{\"bootstrap_room\":{none}}}");
            assert_eq!(params(&body).room, None, "{body}");
        }
    }

    #[test]
    fn invalid_json_gives_no_parameters() {
        for body in [
            "",
            "hello",
            "{\"stream\" true}",
            "[1,2",
            "{\"text\":{\"a\":1}}",
            "nul",
            "{]",
        ] {
            let params = params(body);
            let told = (params.stream, params.input_length());
            assert_eq!(told, (None, None), "{body}");
        }
    }
}
