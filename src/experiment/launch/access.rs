//! HTTP requests to servers, routers and the proxy, and polling until they are ready.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::clock::Clock;
use crate::traffic::client::{Client, ClientOptions, TLS_HINT, Target, TlsArgs, UpstreamKind};

/// How requests to servers and routers are sent: with the same TLS options, key and headers as the load.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// How `https://` servers are verified.
    pub tls: TlsArgs,
    /// The header `Authorization`.
    pub api_key: Option<HeaderValue>,
    /// Headers of every request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// The result of one poll: ready, or why not yet or why never.
#[derive(Debug)]
pub(super) enum Poll {
    Ready,
    NotYet(String),
    Never(String),
}

/// A path, and the statuses with which a ready server responds to it.
pub(super) type ReadyPath = (&'static str, RangeInclusive<u16>);

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Long, as SGLang's `/health` generates a token.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

impl Access {
    /// Makes a client of the server at `url`.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub(in crate::experiment) async fn client(&self, url: &str) -> Result<Client, String> {
        let target = Target::parse(url)?;
        let tls = match target.is_tls() {
            true => self.tls.tls(&target)?,
            false => None,
        };
        let options = ClientOptions {
            target,
            upstream: UpstreamKind::Server,
            tls,
            api_key: self.api_key.clone(),
            headers: self.headers.clone(),
            reuse: false,
            connect_timeout: REQUEST_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
        };
        let client = Client::new(options, Clock::system()).await;
        client.map_err(|error| format!("{url}: {error}"))
    }

    /// Sends a request to the server at `url`. Returns status and body of the response.
    ///
    /// # Errors
    /// Why there is no response.
    pub(in crate::experiment) async fn request(
        &self,
        url: &str,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), String> {
        self.client(url).await?.fetch(method, path, body).await
    }

    /// Sends a GET request. Returns the status of the response.
    ///
    /// # Errors
    /// Why there is no response.
    pub async fn get(&self, url: &str, path: &str) -> Result<u16, String> {
        let response = self.request(url, Method::GET, path, Bytes::new()).await;
        response.map(|(status, _)| status)
    }

    /// Whether the server at `url` responds to each of the paths with one of its statuses.
    pub(super) async fn responds(&self, url: &str, paths: &[ReadyPath]) -> Poll {
        for (path, statuses) in paths {
            match self.get(url, path).await {
                Ok(status) if statuses.contains(&status) => {}
                Ok(status) => return Poll::NotYet(format!("{path} answers {status}")),
                Err(error) => return Poll::NotYet(error),
            }
        }
        Poll::Ready
    }

    /// Whether the router at `url` has `count` healthy workers.
    pub(super) async fn has_workers(&self, url: &str, count: usize) -> Poll {
        let response = self.request(url, Method::GET, "/workers", Bytes::new());
        let workers = match response.await {
            Ok((200, body)) => serde_json::from_slice(&body).unwrap_or_default(),
            _ => Value::Null,
        };
        match count_healthy(&workers) {
            found if found == count => Poll::Ready,
            found => Poll::NotYet(format!("{found} of {count} workers are healthy")),
        }
    }
}

/// Polls until it is ready.
///
/// # Errors
/// The last reason, once `limit` has passed or it can never be ready.
pub(super) async fn poll(limit: Duration, check: impl AsyncFn() -> Poll) -> Result<(), String> {
    let mut last = "no answer".to_owned();
    let polled = async {
        loop {
            match check().await {
                Poll::Ready => return Ok(()),
                Poll::NotYet(reason) => last = reason,
                Poll::Never(reason) => return Err(reason),
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    match timeout(limit, polled).await {
        Ok(result) => result,
        Err(_) => Err(format!("asked for {} s: {last}", limit.as_secs_f64())),
    }
}

/// What to do about a `server` that gave no answer, unless the reason says it already.
pub(super) fn remedy(reason: &str, server: &str) -> String {
    match reason.contains(TLS_HINT) {
        true => String::new(),
        false => format!("; start the {server}, or give its URL"),
    }
}

/// Counts the healthy workers in a router's response, wherever they stand in it.
fn count_healthy(json: &Value) -> usize {
    match json {
        Value::Array(all) => all.iter().map(count_healthy).sum(),
        Value::Object(members) => {
            let is_healthy = members.get("is_healthy") == Some(&Value::Bool(true));
            usize::from(is_healthy) + members.values().map(count_healthy).sum::<usize>()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;

    #[test]
    fn healthy_workers_are_counted_however_the_response_is_formatted() {
        let workers =
            json!({"workers": [{"is_healthy": true}, {"is_healthy": false}, {"is_healthy": true}]});
        let pretty = serde_json::to_string_pretty(&workers).unwrap();
        assert_eq!(count_healthy(&serde_json::from_str(&pretty).unwrap()), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn polling_ends_when_ready_or_with_the_last_reason() {
        for (states, expected, polls) in [
            (&["", "", "yes"][..], Ok(()), 3..4),
            (&["busy"], Err("asked for 30 s: busy".to_owned()), 300..700),
            (&["", "never", "yes"], Err("never".to_owned()), 2..3),
        ] {
            let count = Cell::new(0);
            let result = poll(Duration::from_secs(30), async || {
                let n = count.replace(count.get() + 1);
                match states[n.min(states.len() - 1)] {
                    "yes" => Poll::Ready,
                    "never" => Poll::Never("never".to_owned()),
                    reason => Poll::NotYet(reason.to_owned()),
                }
            });
            assert_eq!(result.await, expected);
            assert!(polls.contains(&count.get()), "{count:?}");
        }
    }
}
