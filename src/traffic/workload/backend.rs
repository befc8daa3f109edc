//! The APIs that requests can use.

use crate::request::Endpoint;

/// Which API a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// SGLang's own `/generate`.
    Sglang,
    /// OpenAI's `/v1/completions`.
    SglangOai,
    /// OpenAI's `/v1/chat/completions`.
    SglangOaiChat,
    /// `/v1/chat/completions` of any server that speaks OpenAI's API: nothing of SGLang's own is sent.
    OpenaiChat,
}

impl Backend {
    /// The endpoint that requests are sent to.
    pub const fn endpoint(self) -> Endpoint {
        match self {
            Backend::Sglang => Endpoint::Generate,
            Backend::SglangOai => Endpoint::Completions,
            Backend::SglangOaiChat | Backend::OpenaiChat => Endpoint::Chat,
        }
    }
}
