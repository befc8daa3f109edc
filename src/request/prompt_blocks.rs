//! The beginning of a prompt, as hashes of its blocks: enough to find prompts with the same beginning.

use std::hash::{DefaultHasher, Hasher};

use memchr::memmem;

/// The size of a block, bytes: of the body as it is, with JSON's quotes, keys and escapes.
const BLOCK: usize = 128;
/// The maximum size of the blocks; what follows in the prompt is not read.
pub const MAX_BYTES: usize = 128 * BLOCK;

/// The keys of prompts in the requests of all endpoints. None stands in a JSON string, which would escape its quotes.
const KEYS: [&str; 7] = [
    "\"text\":",
    "\"input_ids\":",
    "\"messages\":",
    "\"prompt\":",
    "\"input\":",
    "\"instructions\":",
    "\"system\":",
];

/// Keys of large values that clients write after the prompt.
const ENDS: [&str; 3] = ["\"tools\":", "\"response_format\":", "\"sampling_params\":"];
/// The length of the longest of [`KEYS`].
const MAX_KEY: usize = "\"instructions\":".len();

/// Returns where the prompt begins in a body, of which so many bytes were searched before.
pub fn start(body: &[u8], searched: usize) -> Option<usize> {
    let from = searched.saturating_sub(MAX_KEY);
    let keys = KEYS.iter();
    let found = keys.filter_map(|key| memmem::find(&body[from..], key.as_bytes()));
    found.min().map(|start| from + start)
}

/// Returns a hash for each block of a body from its prompt on, of all up to the end of the block. If those of two prompts are the same
/// at an index, they are equal up to there.
pub fn hashes(prompt: &[u8]) -> Vec<u64> {
    // What follows the messages would be a part of every prompt that the next turn of a conversation does not begin with.
    let messages = memmem::find(prompt, b"\"messages\":").unwrap_or(0);
    let ends = ENDS.iter();
    let ends = ends.filter_map(|key| memmem::find(&prompt[messages..], key.as_bytes()));
    let end = ends.min().map_or(prompt.len(), |end| messages + end);
    let mut hasher = DefaultHasher::new();
    let hash = |block| {
        hasher.write(block);
        hasher.finish()
    };
    let blocks = prompt[..end.min(MAX_BYTES)].chunks_exact(BLOCK);
    blocks.map(hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(body: &str) -> Vec<u64> {
        let start = start(body.as_bytes(), 0);
        start.map_or_else(Vec::new, |start| hashes(&body.as_bytes()[start..]))
    }

    fn alike(a: &[u64], b: &[u64]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    proptest! {
        #[test]
        fn prompts_are_alike_for_as_many_blocks_as_their_text_is(
            same in 0usize..20_000, own in 1usize..400,
        ) {
            let text = |last: &str| "x".repeat(same) + &last.repeat(own);
            let body = |last| format!(r#"{{"text":"{}"}}"#, text(last));
            let (a, b) = (of(&body("a")), of(&body("b")));
            let begin = r#""text":""#.len();
            prop_assert_eq!(alike(&a, &b), ((begin + same) / BLOCK).min(128));
            prop_assert_eq!(a.len(), ((begin + same + own + 2) / BLOCK).min(128));
        }
    }

    #[test]
    fn every_endpoints_prompt_is_read_and_nothing_before_it() {
        // OTHER is not read, or in no whole block; IDS are token ids whose last differs, LONG is a text.
        let bodies = [
            r#"{"rid":"OTHER","text":"LONG"}"#,
            r#"{"rid":"OTHER","input_ids":[[IDS]]}"#,
            r#"{"user":"OTHER","prompt":["LONG"]}"#,
            r#"{"prompt": [IDS]}"#,
            r#"{"model":"OTHER \"text\": ","messages":[{"role":"system","content":"LONG"}]}"#,
            r#"{"user":"OTHER","input":"LONG","text":{"format":{"type":"OTHER"}}}"#,
            r#"{"metadata":"OTHER","instructions":"LONG","input":[]}"#,
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
    fn tools_after_the_messages_are_not_read_and_those_before_are() {
        let (first, rest, tools) = ("a".repeat(300), "b".repeat(300), "c".repeat(3_000));
        let turn = |messages: &str, tools: &str| {
            of(&format!(r#"{{"messages":[{messages}],"tools":[{tools}]}}"#))
        };
        let before = |messages: &str| {
            of(&format!(
                r#"{{"system":"","tools":[{tools}],"messages":[{messages}]}}"#
            ))
        };
        assert_eq!(turn(&first, &tools), turn(&first, ""));
        assert_eq!(
            alike(
                &turn(&first, &tools),
                &turn(&(first.clone() + &rest), &tools)
            ),
            2
        );
        for end in ["response_format", "sampling_params"] {
            let own = |value: &str| of(&format!(r#"{{"text":"{first}","{end}":"{value}"}}"#));
            assert_eq!(own(&rest), own(&tools), "{end}");
        }
        assert!(before(&first).len() > 3_300 / BLOCK);
        assert_ne!(before(&first), before(&rest));
    }

    #[test]
    fn a_body_without_a_prompt_has_no_blocks() {
        let short = r#"{"text":"too short"}"#;
        for body in ["", "{}", "not JSON at all", short, "\x1f\u{8b}zip"] {
            assert_eq!(of(body), [0; 0], "{body}");
        }
    }

    #[test]
    fn a_key_is_found_wherever_it_is_cut() {
        for key in KEYS {
            let body = format!("{{\"a\":1,{key}\"b\"}}");
            for cut in 0..body.len() {
                let before = start(&body.as_bytes()[..cut], 0);
                let found = before.or_else(|| start(body.as_bytes(), cut));
                assert_eq!(found, Some(7), "{key} cut at {cut}");
            }
        }
    }
}
