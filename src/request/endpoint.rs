//! The paths whose requests generate text and so get a row.

use super::names::names;

names! {
    path, from_path:
    /// A generation endpoint of SGLang or of the OpenAI and Anthropic APIs it serves.
    pub enum Endpoint {
        /// `/generate`, SGLang's own.
        Generate = "/generate",
        /// `/v1/completions`.
        Completions = "/v1/completions",
        /// `/v1/chat/completions`.
        Chat = "/v1/chat/completions",
        /// `/v1/responses`.
        Responses = "/v1/responses",
        /// `/v1/messages`.
        Messages = "/v1/messages",
    }
}

impl Endpoint {
    /// Returns the operation's name by OpenTelemetry's GenAI conventions.
    pub const fn operation(self) -> &'static str {
        match self {
            Endpoint::Chat | Endpoint::Responses | Endpoint::Messages => "chat",
            Endpoint::Completions | Endpoint::Generate => "text_completion",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_paths_are_generation_requests() {
        assert_eq!(Endpoint::from_path("/generate"), Some(Endpoint::Generate));
        assert_eq!(Endpoint::from_path("/generate/"), None);
        assert_eq!(Endpoint::from_path("/v1/models"), None);
    }
}
