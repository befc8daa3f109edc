//! A stored workload: what a run sent and when, to be sent again exactly so. JSON lines: a [`Header`], then a
//! [`Request`] each.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::traffic::error::Error;

use super::Backend;
use super::conversation::{FollowUp, MOST_TURNS};
use super::dataset::{Content, Dataset, Entry, Later};
use super::jsonl::{Named, json, lines};

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`VERSION`].
    pub queuescope_workload: u32,
    /// The API that the bodies are for.
    pub backend: Backend,
    /// Lines that follow.
    pub requests: usize,
    /// Turns of a conversation, at most; 1: there are none. Places in the schedule are counted by it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub turns: usize,
}

/// A request, or the first turn of a conversation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Nanoseconds from the start of the run.
    pub offset_ns: i64,
    /// As in `schedule.csv`.
    pub input_length: u64,
    /// As in `schedule.csv`.
    pub output_length: u64,
    /// As in `schedule.csv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_id: Option<String>,
    /// What is sent.
    pub body: Box<RawValue>,
    /// The turns after the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<FollowUp>,
}

/// What this program writes and reads.
pub const VERSION: u32 = 1;
/// A file of more bytes is not held in memory.
const MOST_BYTES: u64 = 2 << 30;

/// A body with this `model`, if it names none.
pub fn with_model(body: &RawValue, model: Option<&str>) -> Bytes {
    #[derive(Deserialize)]
    struct Named {
        model: Option<serde::de::IgnoredAny>,
    }
    let body = body.get();
    let is_named = || serde_json::from_str::<Named>(body).is_ok_and(|it| it.model.is_some());
    let Some(model) = model.filter(|_| !is_named()) else {
        return Bytes::copy_from_slice(body.as_bytes());
    };
    let rest = body.trim_start_matches('{').trim_start();
    let comma = if rest.starts_with('}') { "" } else { "," };
    let model = serde_json::Value::from(model);
    Bytes::from(format!("{{\"model\":{model}{comma}{rest}"))
}

impl Request {
    /// What no type says: it comes no earlier than the one `before` and has `most_turns` at most.
    fn check(&self, before: i64, most_turns: usize) -> Result<(), String> {
        let (offset, turns) = (self.offset_ns, 1 + self.turns.len());
        if offset < before {
            return Err(format!(
                "`offset_ns`: is {offset}; must be {before} or more, as lines are in order of time"
            ));
        }
        if !self.body.get().starts_with('{') {
            return Err("`body`: must be an object".to_owned());
        }
        if turns > most_turns {
            return Err(format!(
                "`turns`: makes {turns} turns; the first line says {most_turns} at most"
            ));
        }
        match self.turns.iter().position(|turn| turn.think_ns < 0) {
            Some(turn) => Err(format!("`turns[{turn}].think_ns`: must be 0 or more")),
            None => Ok(()),
        }
    }
}

/// Reads a stored workload, and says in words how much it is.
///
/// # Errors
/// [`Error::Usage`] names the file, the line and the field, and what would be right.
pub fn read(file: impl Read, named: Named<'_>) -> Result<(Dataset, String), Error> {
    read_most(file, named, MOST_BYTES)
}

fn read_most(file: impl Read, named: Named<'_>, most: u64) -> Result<(Dataset, String), Error> {
    let mut file = file.take(most + 1);
    let read = read_lines(lines(&mut file, named, u64::MAX), named);
    if file.limit() == 0 {
        return Err(named.wrong(&format!(
            ": holds more than {most} bytes: make it of fewer requests"
        )));
    }
    let dataset = read?;
    let taken = format!("its {} requests", dataset.entries.len());
    Ok((dataset, taken))
}

fn read_lines(
    mut lines: impl Iterator<Item = Result<(usize, String), Error>>,
    named: Named<'_>,
) -> Result<Dataset, Error> {
    let (_, first) = lines.next().transpose()?.unwrap_or_default();
    let header = header(&first).map_err(|what| named.wrong_line(1, &what))?;
    let (mut entries, mut times) = (Vec::new(), Vec::new());
    for line in lines {
        let (number, text) = line?;
        let wrong = |what: String| named.wrong_line(number, &what);
        let request: Request = json(&text).map_err(wrong)?;
        let before = times.last().copied().unwrap_or(0);
        request.check(before, header.turns).map_err(wrong)?;
        times.push(request.offset_ns);
        entries.push(Arc::new(Entry {
            input: Some(request.input_length),
            output: Some(request.output_length),
            data_id: request.data_id,
            content: Content::Body(request.body),
            later: Later::Stored(request.turns),
        }));
    }
    let (held, said) = (entries.len(), header.requests);
    if held != said || held == 0 {
        return Err(named.wrong(&format!(
            ": holds {held} requests, and its first line says {said}: it must be whole, and hold one or more"
        )));
    }
    Ok(Dataset {
        times: Some(times.into()),
        most_turns: Some(header.turns),
        backend: Some(header.backend),
        ..Dataset::of(entries)
    })
}

fn header(line: &str) -> Result<Header, String> {
    let header: Header = json(line).map_err(|what| {
        let right =
            "a stored workload begins with {\"queuescope_workload\": 1, \"backend\", \"requests\"}";
        format!("{what}; {right}")
    })?;
    let (version, turns) = (header.queuescope_workload, header.turns);
    if version != VERSION {
        return Err(format!(
            "`queuescope_workload`: is {version}; this program reads {VERSION}"
        ));
    }
    match (1..=MOST_TURNS).contains(&turns) {
        true => Ok(header),
        false => Err(format!("`turns`: is {turns}; must be 1 to {MOST_TURNS}")),
    }
}

fn one() -> usize {
    1
}

fn is_one(turns: &usize) -> bool {
    *turns == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = r#"{"queuescope_workload":1,"backend":"sglang","requests":2,"turns":2}"#;
    const ONE: &str =
        r#"{"offset_ns":5,"input_length":1,"output_length":2,"data_id":"a","body":{"text" : "b"}}"#;
    const TWO: &str = r#"{"offset_ns":7,"input_length":1,"output_length":2,"body":{},"turns":[{"think_ns":9,"text":"c","output_length":3}]}"#;

    const NAMED: Named<'static> = Named {
        flag: "--workload",
        path: "w.jsonl",
    };

    fn read(lines: &[&str]) -> Result<Dataset, String> {
        let read = super::read(lines.join("\n").as_bytes(), NAMED);
        read.map(|(dataset, _)| dataset)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_body_stays_to_the_byte_but_for_a_model_that_it_does_not_name() {
        let named = ONE.replace("text", "model");
        for (lines, number, model, sent) in [
            ([FIRST, ONE, TWO, ""], 0, None, r#"{"text" : "b"}"#),
            (
                [FIRST, ONE, TWO, ""],
                0,
                Some("m"),
                r#"{"model":"m","text" : "b"}"#,
            ),
            ([FIRST, ONE, TWO, ""], 1, Some("m"), r#"{"model":"m"}"#),
            ([FIRST, &named, TWO, ""], 0, Some("m"), r#"{"model" : "b"}"#),
        ] {
            let dataset = read(&lines).unwrap();
            let Content::Body(body) = &dataset.entry(number).content else {
                panic!("{dataset:?}");
            };
            assert_eq!(with_model(body, model), sent);
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_line_and_field() {
        for (lines, told) in [
            (
                vec![""],
                ", line 1: is not JSON: EOF while parsing a value; a stored workload begins with",
            ),
            (
                vec![ONE],
                ", line 1: `offset_ns`: unknown field `offset_ns`",
            ),
            (
                vec![r#"{"queuescope_workload":2,"backend":"sglang","requests":2}"#],
                ", line 1: `queuescope_workload`: is 2; this program reads 1",
            ),
            (
                vec![r#"{"queuescope_workload":1,"backend":"sglang","requests":2,"turns":0}"#],
                ", line 1: `turns`: is 0; must be 1 to 1000",
            ),
            (
                vec![FIRST, ONE],
                ": holds 1 requests, and its first line says 2",
            ),
            (
                vec![FIRST, TWO, ONE],
                ", line 3: `offset_ns`: is 5; must be 7 or more",
            ),
            (
                vec![FIRST, ONE, "{"],
                ", line 3: is not JSON: EOF while parsing an object",
            ),
            (vec![FIRST, &ONE[..9]], ", line 2: is not JSON"),
            (
                vec![FIRST, r#"{"offset_ns":1.5}"#],
                ", line 2: `offset_ns`: invalid type: floating point",
            ),
            (
                vec![FIRST, r#"{"offset_ns":1}"#],
                ", line 2: missing field `input_length`",
            ),
        ] {
            let error = read(&lines).unwrap_err();
            assert!(
                error.starts_with(&format!("--workload w.jsonl{told}")),
                "{error}"
            );
        }
        for (from, to, told) in [
            ("{}", "[]", "`body`: must be an object"),
            (":9", ":-9", "`turns[0].think_ns`: must be 0 or more"),
            (
                "\"c\"",
                "4",
                "`turns[0].text`: invalid type: integer `4`, expected a string",
            ),
            (
                r#"[{"think_ns":9,"text":"c","output_length":3}]"#,
                r#"[{"think_ns":9,"text":"c","output_length":3},{"think_ns":9,"text":"c","output_length":3}]"#,
                "`turns`: makes 3 turns; the first line says 2 at most",
            ),
            ("}]}", "}]}}", "is not JSON: trailing characters"),
        ] {
            let error = read(&[FIRST, ONE, &TWO.replace(from, to)]).unwrap_err();
            assert_eq!(error, format!("--workload w.jsonl, line 3: {told}"));
        }
        let text = [FIRST, ONE, TWO].join("\n");
        let error = read_most(text.as_bytes(), NAMED, 100).unwrap_err();
        let told = "--workload w.jsonl: holds more than 100 bytes: make it of fewer requests";
        assert_eq!(error.to_string(), told);
    }
}
