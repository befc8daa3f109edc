use std::borrow::Cow;
use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::request::response::rules;
use crate::request::scan::{Field, Progress, Rule, Scalar, Scanner, Sink};

/// The calls of a scan, as text. Of `meta_info`, the fields held when its parent closes.
#[derive(Debug, Default, PartialEq)]
struct Log {
    calls: Vec<String>,
    kept: BTreeMap<String, String>,
    is_content: bool,
}

impl Sink for Log {
    fn wants_optional(&self) -> bool {
        !self.is_content
    }
    fn scalar(&mut self, field: Field, value: Scalar<'_>) {
        match value {
            Scalar::Bare(_) if matches!(field, Field::Meta(_)) => {
                self.kept.insert(format!("{field:?}"), format!("{value:?}"));
            }
            _ => self.calls.push(format!("{field:?} {value:?}")),
        }
    }
    fn text(&mut self, piece: &[u8]) {
        self.calls.push(format!("text {piece:?}"));
    }
    fn text_end(&mut self) {
        self.calls.push("text ends".to_owned());
    }
    fn open(&mut self, field: Field) {
        self.calls.push(format!("{field:?} opens"));
        if field == Field::MetaInfo {
            self.kept.clear();
        }
    }
    fn close(&mut self, field: Field) {
        let kept = match field {
            Field::Item | Field::Choice => std::mem::take(&mut self.kept),
            _ => BTreeMap::new(),
        };
        self.calls.push(format!("{field:?} closes with {kept:?}"));
    }
}

/// Returns documents and the calls for each in one piece, with one more byte in the next.
fn calls_of<'d>(
    mut scanner: Scanner,
    documents: &'d [impl AsRef<[u8]>],
) -> Vec<(Cow<'d, str>, Vec<String>, Progress)> {
    let mut log = Log::default();
    let calls = documents.iter().map(|document| {
        scanner.feed(document.as_ref(), &mut log);
        scanner.feed(b"\n", &mut log);
        let progress = scanner.progress();
        scanner.reset();
        let document = String::from_utf8_lossy(document.as_ref());
        (document, std::mem::take(&mut log.calls), progress)
    });
    calls.collect()
}

fn both_ways(root: &'static Rule, documents: &[impl AsRef<[u8]>]) {
    let by_template = calls_of(Scanner::with_template(root), documents);
    let scanned = calls_of(Scanner::new(root), documents);
    for (by_template, scanned) in by_template.into_iter().zip(scanned) {
        assert_eq!(by_template, scanned);
    }
}

const GENERATE: &str = r#"{"text":"a b","output_ids":[1,[2],"]"],"meta_info":{"id":"x","finish_reason":null,"prompt_tokens":6,
"queue_time":2.5e-4,"reasoning_tokens":0,"completion_tokens":3,"cached_tokens_details":{"device":{"a":"}"}},"dp_rank":null},"index":0}"#;
const FINISHED: &str = r#"{"text":"","meta_info":{"finish_reason":{"type":"length","length":4},"completion_tokens":4}}"#;
const CHAT: &str = r#"{"id":"6c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"reasoning_content":null,
"content":")\""},"logprobs":null,"finish_reason":null},{"index":1,"delta":{"content":""}}],"usage":{"completion_tokens":1}}"#;
const ODD: &str = r#" { "text" : "\"text\":" , "text":"b\\", "te\u0078t":NaN, "error":{"message":"m","code":4}, "meta_info":{}, "a":[{"b":[]}] } "#;
const DONE: &str = "[DONE]";

/// Replacements for values, and pieces that break a document.
const PIECES: &str = r#"|"|\|\"|{|}|[|]|,|:| |
|0|12|-1.5e+3|1.0|true|false|null|NaN|""|"z"|"\u00e9\\"|[]|{}|"text":|"completion_tokens":|,"index":7|{"a":[1,"]"]}|é"#;

/// Replaces bytes at a position.
fn edit(document: &mut Vec<u8>, (at, length, piece): (usize, usize, usize)) {
    let at = at % (document.len() + 1);
    let end = (at + length).min(document.len());
    let pieces: Vec<&str> = PIECES.split('|').collect();
    document.splice(at..end, pieces[piece % pieces.len()].bytes());
}

/// Returns the document with its `n`th value replaced.
fn with_value(document: &str, n: usize, piece: usize) -> Vec<u8> {
    let marks: Vec<usize> = document
        .match_indices([':', '[', ','])
        .map(|(at, _)| at + 1)
        .collect();
    let start = marks[n % marks.len()];
    let rest = &document[start..];
    let length = match rest.strip_prefix('"') {
        Some(inside) => inside.find('"').map_or(0, |end| end + 2),
        None => rest.find([',', '}', ']']).unwrap_or(0),
    };
    let mut changed = document.as_bytes().to_vec();
    edit(&mut changed, (start, length, piece));
    changed
}

#[test]
fn a_replay_makes_the_calls_of_a_scan() {
    let big = |(text, ids): (usize, usize)| {
        let (text, ids) = ("x".repeat(text), "1,".repeat(ids) + "1");
        GENERATE.replace("a b", &text).replace("1,[2]", &ids)
    };
    let id = |n| GENERATE.replace("\"x\"", &format!("\"{}\"", "i".repeat(n)));
    let values = |many: usize| {
        let more = |value| format!("\"index\":{value},").repeat(many);
        let with = |value| {
            format!(
                r#"{{"meta_info":{{"queue_time":{value}}},{}"a":1}}"#,
                more(value)
            )
        };
        [1, 2, 3].map(with).to_vec()
    };
    // Longer than a captured scalar, than a recorded document, and with more values than are recorded.
    let lengths = [(1, 1), (300, 2), (5000, 9), (3, 3000), (70, 0)].into_iter();
    for documents in [
        [GENERATE, FINISHED, ODD, DONE, GENERATE]
            .map(|kind| vec![kind.to_owned(); 2])
            .concat(),
        lengths.chain([(256, 1), (257, 1)]).map(big).collect(),
        [1, 255, 256, 257, 300].map(id).to_vec(),
        // A template has up to 256.
        (250..260).flat_map(values).collect(),
        values(30),
    ] {
        both_ways(&rules::GENERATE, &documents);
    }
    both_ways(&rules::OPENAI, &[CHAT, CHAT, DONE, CHAT]);
}

#[test]
fn a_template_matches_documents_that_differ_in_values_only() {
    let mut scanner = Scanner::with_template(&rules::GENERATE);
    scanner.feed(GENERATE.as_bytes(), &mut Log::default());
    let mut template = std::mem::take(&mut scanner.template);
    let numbers = GENERATE.replace(":3,", ":4,").replace(":0,", ":33,") + "behind";
    for (document, is_like) in [
        (GENERATE.to_owned(), true),
        (GENERATE.replace("a b", "a \\\" b\\\\"), true),
        (GENERATE.replace("[1,", "[1,7,{},"), true),
        (numbers, true),
        (GENERATE.replace("null,\"prompt", "{},\"prompt"), false),
        (GENERATE.replace("\"index\"", "\"indey\""), false),
        (GENERATE.replace("\"text\":\"a b\"", "\"text\":7"), false),
        (GENERATE[..GENERATE.len() - 1].to_owned(), false),
    ] {
        let mut log = Log::default();
        let is_found = template.replay(&rules::GENERATE, document.as_bytes(), &mut log);
        assert_eq!(is_found, is_like, "{document}");
        assert_eq!(log != Log::default(), is_like, "reported once: {document}");
    }
}

#[test]
fn a_stream_uses_the_documents_of_others() {
    let mut log = Log::default();
    Scanner::with_template(&rules::GENERATE).feed(GENERATE.as_bytes(), &mut Log::default());
    let other = GENERATE.replace("a b", "c").replace(":6,", ":7,");
    let mut next = Scanner::with_template(&rules::GENERATE).template;
    assert!(next.replay(&rules::GENERATE, other.as_bytes(), &mut log));
    let mut scanned = Log::default();
    Scanner::new(&rules::GENERATE).feed(other.as_bytes(), &mut scanned);
    assert_eq!(log, scanned);
    // If the sink does not want optional values, all else is reported.
    let mut content = Log {
        is_content: true,
        ..Log::default()
    };
    assert!(next.replay(&rules::GENERATE, other.as_bytes(), &mut content));
    scanned.calls.pop();
    assert_eq!(content.calls.pop().unwrap(), "Item closes with {}");
    assert_eq!(content.calls, scanned.calls);
    let mut of_others = Scanner::with_template(&rules::OPENAI).template;
    assert!(!of_others.replay(&rules::OPENAI, other.as_bytes(), &mut Log::default()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn any_documents_give_the_calls_of_a_scan(
        base in 0..5usize,
        steps in prop::collection::vec((any::<bool>(), any::<usize>(), 0..6usize, any::<usize>()), 1..12),
    ) {
        let base = [GENERATE, FINISHED, CHAT, ODD, DONE][base];
        let mut documents = vec![base.as_bytes().to_vec()];
        for (is_value, at, length, piece) in steps {
            if is_value {
                documents.push(with_value(base, at, piece));
            } else {
                let mut next = documents[at % documents.len()].clone();
                edit(&mut next, (at / 7, length, piece));
                documents.push(next);
            }
            if length == 0 {
                documents.push(base.as_bytes().to_vec());
            }
        }
        both_ways(&rules::GENERATE, &documents);
        both_ways(&rules::OPENAI, &documents);
    }
}
