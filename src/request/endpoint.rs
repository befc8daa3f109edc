//! The paths whose requests generate text and so get a row, and those that pass without one.

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

/// Paths without rows that a metric counts by name; all others are counted as `other`.
pub const PASSED: [&str; 22] = [
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
    "/v1/audio/transcriptions",
    "/v1/messages/count_tokens",
    "/v1/tokenize",
    "/v1/detokenize",
    "/tokenize",
    "/detokenize",
    "/encode",
    "/classify",
    "/v1/models",
    "/v1/loads",
    "/health",
    "/health_generate",
    "/server_info",
    "/model_info",
    "/metrics",
    "/flush_cache",
    "/abort_request",
    OTHER,
];
const OTHER: &str = "other";

/// Returns the name in [`PASSED`] under which a path without rows is counted.
pub fn passed(path: &str) -> &'static str {
    let known = PASSED.into_iter().find(|known| *known == path);
    known.unwrap_or(OTHER)
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
        assert_eq!(passed("/v1/models"), "/v1/models");
        assert_eq!(passed("/v1/models/a"), OTHER);
    }
}
