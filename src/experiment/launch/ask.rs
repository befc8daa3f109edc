//! Questions to what runs.

use std::time::Duration;

use bytes::Bytes;
use http::Method;

use crate::clock::Clock;
use crate::traffic::client::{Client, ClientOptions, Target, TlsArgs, UpstreamKind};

/// How long an answer may take: SGLang's `/health` generates a token.
const ANSWER: Duration = Duration::from_secs(20);

/// Asks `path` of the server at `url`; its status and body.
///
/// # Errors
/// Why no answer came.
pub(in crate::experiment) async fn ask(
    url: &str,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<(u16, Bytes), String> {
    let target = Target::parse(url)?;
    let tls = TlsArgs::default().tls(&target)?;
    let options = ClientOptions {
        target,
        upstream: UpstreamKind::Server,
        tls,
        api_key: None,
        headers: Vec::new(),
        reuse: false,
        connect_timeout: ANSWER,
        request_timeout: ANSWER,
        sampled: 1.0,
    };
    let client = Client::new(options, Clock::system())
        .await
        .map_err(|error| format!("{url}: {error}"))?;
    client.ask_with(method, path, body).await
}

/// The status of a plain GET; `None` where no answer came.
pub(super) async fn status(url: &str, path: &str) -> Option<u16> {
    let answer = ask(url, Method::GET, path, Bytes::new()).await;
    answer.ok().map(|(status, _)| status)
}

/// Whether the SGLang (or what pretends to be one) at `url` would generate.
pub(super) async fn serves(url: &str) -> bool {
    // One that wants a key, or is no SGLang, refuses the second.
    status(url, "/health").await == Some(200)
        && status(url, "/model_info")
            .await
            .is_some_and(|status| status < 500)
}

/// How many healthy workers the router at `url` knows.
pub(in crate::experiment) async fn workers(url: &str) -> usize {
    match ask(url, Method::GET, "/workers", Bytes::new()).await {
        Ok((200, body)) => String::from_utf8_lossy(&body)
            .matches("\"is_healthy\":true")
            .count(),
        _ => 0,
    }
}
