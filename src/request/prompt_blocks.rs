//! The beginning of a prompt, as hashes of its blocks: enough to find prompts with the same beginning.

use std::hash::{DefaultHasher, Hasher};

use super::field::Field;
use super::request_body::CONTENT;
use super::scalar::Scalar;
use super::scan::rule::{Rule, members, text};
use super::scan::{Progress, Scanner, Sink};

/// Reads a request body in pieces and keeps the hashes of its prompt's first blocks, but no text.
#[derive(Debug)]
pub struct PromptBlocks {
    scanner: Scanner,
    hashes: BlockHashes,
}

/// The hashes: that of a block covers the prompt from its start to the end of the block.
#[derive(Debug, Default)]
struct BlockHashes {
    hasher: DefaultHasher,
    /// The number of bytes of the last, incomplete block.
    partial_bytes: usize,
    blocks: Vec<u64>,
}

/// The size of a block, bytes: of text as it stands in the JSON, with escapes, or of token ids in digits.
pub const BLOCK: usize = 128;
/// The maximum number of blocks; what follows in the prompt is not read.
pub const MAX_BLOCKS: usize = 128;

/// Text or token ids, or a list of these.
const fn texts() -> Rule {
    Rule {
        scalar: Some(Field::Prompt),
        ..text(Field::Prompt).or_elements(&TEXTS)
    }
}
static TEXTS: Rule = texts();

static MESSAGE: Rule = Rule {
    members: members(&[("content", CONTENT)]).members,
    ..texts()
};
const MESSAGES: Rule = text(Field::Prompt).or_elements(&MESSAGE);

/// The members of all endpoints' requests: no name has two meanings.
static BODY: Rule = members(&[
    ("text", texts()),
    ("input_ids", texts()),
    ("messages", MESSAGES),
    ("prompt", texts()),
    ("input", MESSAGES),
    ("instructions", text(Field::Prompt)),
    ("system", CONTENT),
]);

impl Default for PromptBlocks {
    /// Makes a reader of a request body.
    fn default() -> PromptBlocks {
        PromptBlocks {
            scanner: Scanner::new(&BODY),
            hashes: BlockHashes::default(),
        }
    }
}

impl PromptBlocks {
    /// Reads the next piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.scanner.feed(bytes, &mut self.hashes);
    }

    /// Whether the rest of the body cannot change the result.
    pub fn is_known(&self) -> bool {
        let is_over = matches!(self.scanner.progress(), Progress::Whole | Progress::Broken);
        is_over || self.hashes.blocks.len() == MAX_BLOCKS
    }

    /// Returns the hashes so far. If two prompts have the same hash at an index, they are equal up to the end of that block.
    pub fn into_blocks(self) -> Vec<u64> {
        self.hashes.blocks
    }
}

impl BlockHashes {
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.blocks.len() < MAX_BLOCKS {
            let room = BLOCK - self.partial_bytes;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.hasher.write(now);
            self.partial_bytes += now.len();
            if self.partial_bytes == BLOCK {
                self.partial_bytes = 0;
                self.blocks.push(self.hasher.finish());
            }
            bytes = later;
        }
    }
}

impl Sink for BlockHashes {
    fn scalar(&mut self, _field: Field, value: Scalar<'_>) {
        if let Scalar::Bare(digits) = value {
            self.add(digits);
            self.add(b",");
        }
    }

    fn text(&mut self, _field: Field, piece: &[u8]) {
        self.add(piece);
    }

    fn text_end(&mut self, _field: Field) {
        // Separates texts: no JSON string contains an unescaped quote.
        self.add(b"\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn blocks(pieces: &[&[u8]]) -> Vec<u64> {
        let mut prompt = PromptBlocks::default();
        pieces.iter().for_each(|piece| prompt.feed(piece));
        prompt.into_blocks()
    }

    fn of(body: &str) -> Vec<u64> {
        blocks(&[body.as_bytes()])
    }

    fn alike(a: &[u64], b: &[u64]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    proptest! {
        #[test]
        fn the_same_at_any_split(text in "[a-z\\\\\"\n]{0,700}", cuts in [0usize..1500, 0usize..1500]) {
            let body = json!({"stream": true, "text": [text, "b"]}).to_string();
            let mut cuts = cuts.map(|cut| cut.min(body.len()));
            cuts.sort_unstable();
            let (start, rest) = body.as_bytes().split_at(cuts[0]);
            let (middle, end) = rest.split_at(cuts[1] - cuts[0]);
            let whole = of(&body);
            prop_assert!(whole.len() >= text.len() / BLOCK);
            prop_assert_eq!(blocks(&[start, middle, end]), whole);
        }

        #[test]
        fn prompts_are_alike_for_as_many_blocks_as_their_text_is(
            same in 0usize..2000, own in 1usize..400,
        ) {
            let text = |last: &str| "x".repeat(same) + &last.repeat(own);
            let body = |last| format!(r#"{{"text":"{}"}}"#, text(last));
            let (a, b) = (of(&body("a")), of(&body("b")));
            prop_assert_eq!(alike(&a, &b), same / BLOCK);
            prop_assert_eq!(a.len(), (same + own + 1) / BLOCK);
        }
    }

    #[test]
    fn every_endpoints_prompt_is_read_and_nothing_else() {
        // OTHER is not read, IDS are token ids whose last differs, LONG is a text.
        let bodies = [
            r#"{"rid":"OTHER","text":"LONG"}"#,
            r#"{"rid":"OTHER","input_ids":[[IDS]]}"#,
            r#"{"user":"OTHER","prompt":["LONG"]}"#,
            r#"{"prompt":[IDS]}"#,
            r#"{"model":"OTHER","messages":[{"role":"system","content":"LONG"},{"content":[
                {"type":"image_url","image_url":{"url":"OTHER"}},{"type":"text","text":"LONG"}]}]}"#,
            r#"{"user":"OTHER","input":"LONG","text":{"format":{"type":"OTHER"}}}"#,
            r#"{"instructions":"LONG","input":[{"id":"OTHER","content":"LONG"}]}"#,
            r#"{"system":[{"text":"LONG"}],"metadata":{"u":"OTHER"},"messages":[]}"#,
        ];
        let (long, ids) = ("word ".repeat(60), "7,".repeat(200));
        let body = |text: &str, other: &str| {
            let text = text.replace("IDS", &(ids.clone() + other));
            text.replace("LONG", &long).replace("OTHER", other)
        };
        for text in bodies {
            let (a, b) = (body(text, "1"), body(text, "2"));
            let blocks = of(&a);
            assert!(blocks.len() >= 2, "{a}");
            assert_eq!(blocks, of(&b), "{text}");
            let changed = a.replacen("word", "WORD", 1).replacen("7,7", "8,7", 1);
            assert_eq!(alike(&of(&changed), &blocks), 0, "{text}");
        }
    }

    #[test]
    fn where_a_message_ends_is_part_of_it() {
        let rest = "x".repeat(300);
        let [here, there] = [("a", "bc"), ("ab", "c")].map(|(first, second)| {
            let second = second.to_owned() + &rest;
            of(&json!({"messages": [{"content": first}, {"content": second}]}).to_string())
        });
        assert_ne!(here, there);
    }

    #[test]
    fn a_long_prompt_is_known_before_its_end() {
        let mut prompt = PromptBlocks::default();
        prompt.feed(br#"{"text":""#);
        assert!(!prompt.is_known());
        prompt.feed(&vec![b'x'; BLOCK * MAX_BLOCKS - 1]);
        assert!(!prompt.is_known());
        prompt.feed(b"xyz");
        assert!(prompt.is_known());
        prompt.feed(&vec![b'z'; 10 * BLOCK]);
        assert_eq!(prompt.into_blocks().len(), MAX_BLOCKS);
    }

    #[test]
    fn a_body_without_a_prompt_has_no_blocks() {
        let short = r#"{"text":"too short"}"#;
        for body in ["", "{}", "not JSON at all", short, "\x1f\u{8b}zip"] {
            assert_eq!(of(body), [0; 0], "{body}");
        }
        let mut broken = PromptBlocks::default();
        broken.feed(b"<prompt>");
        assert!(broken.is_known());
    }
}
