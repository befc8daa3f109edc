//! Conversations: a turn contains the turns and replies before it, and is sent a think time after the last reply has ended.

use std::time::Duration;

use bytes::Bytes;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1};
use serde_json::{Map, Value, json};

use crate::clock::NANOS;
use crate::traffic::args::values;
use crate::units::between;

/// What conversations are like.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Data sets conversations and sharegpt")]
pub struct ConversationArgs {
    /// Turns, at most [default: 4 of conversations, 1 of sharegpt]
    #[arg(long, value_name = "N", value_parser = between(1, MAX_TURNS))]
    pub turns: Option<usize>,
    /// Mean time from the end of a reply to the next turn, exponentially distributed
    #[arg(long, value_name = "SECONDS", default_value = "1",
        value_parser = values::seconds_or_zero)]
    pub think_time_s: Duration,
    /// Words of a later turn, at most
    ///
    /// --random-range-ratio holds for it too.
    #[arg(long, value_name = "N", default_value = "64",
        value_parser = values::length)]
    pub follow_up_len: u64,
}

/// A turn after the first.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowUp {
    /// The think time: nanoseconds from the end of the reply before it.
    pub think_ns: i64,
    /// The user's message.
    pub text: String,
    /// Tokens to ask for.
    pub output_length: u64,
}

/// More turns are taken for a typing error.
pub const MAX_TURNS: usize = 1000;

impl ConversationArgs {
    /// Draws a think time in nanoseconds.
    pub(super) fn think_nanos(&self, rng: &mut ChaCha8Rng) -> i64 {
        let factor: f64 = Exp1.sample(rng);
        (self.think_time_s.as_secs_f64() * factor * NANOS as f64).round() as i64
    }
}

/// Builds the body of the turn after the one whose body was `sent` and whose response was `reply`: appends reply and next message to
/// the messages of a chat, or to the text of another API. `None` if `sent` has neither.
pub fn next_body(sent: &[u8], reply: &str, next: &FollowUp) -> Option<Bytes> {
    let mut body: Map<String, Value> = serde_json::from_slice(sent).ok()?;
    match body.get_mut("messages") {
        Some(messages) => {
            let messages = messages.as_array_mut()?;
            messages.push(json!({"role": "assistant", "content": reply}));
            messages.push(json!({"role": "user", "content": next.text}));
        }
        None => {
            let key = ["text", "prompt"];
            let key = key.into_iter().find(|key| body.contains_key(*key))?;
            let Some(Value::String(text)) = body.get_mut(key) else {
                return None;
            };
            text.push_str(reply);
            text.push_str("\n\n");
            text.push_str(&next.text);
        }
    }
    let max_tokens = match body.get_mut("sampling_params") {
        Some(Value::Object(sampling)) => sampling.get_mut("max_new_tokens"),
        _ => body.get_mut("max_tokens"),
    };
    if let Some(max_tokens) = max_tokens {
        *max_tokens = next.output_length.into();
    }
    Some(Bytes::from(Value::Object(body).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_of_token_ids_has_no_next() {
        let turn = FollowUp {
            think_ns: 0,
            text: "and then?".to_owned(),
            output_length: 7,
        };
        for sent in [
            r#"{"prompt": [1, 2], "max_tokens": 3}"#,
            r#"{"input_ids": [1, 2]}"#,
        ] {
            assert_eq!(next_body(sent.as_bytes(), " a reply", &turn), None);
        }
    }
}
