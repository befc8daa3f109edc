//! Conversations: a turn contains the turns and replies before it, and is sent a think time after the last reply has ended.

use std::time::Duration;

use serde_json::{Value, json};

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

impl FollowUp {
    /// Appends a reply and this turn to a prompt: to the messages of a chat, or to a text.
    pub fn append_to(&self, prompt: &mut Value, reply: &str) {
        match prompt {
            Value::Array(messages) => messages.extend([
                json!({"role": "assistant", "content": reply}),
                json!({"role": "user", "content": self.text}),
            ]),
            Value::String(text) => text.extend([reply, "\n\n", &self.text]),
            _ => {}
        }
    }
}
