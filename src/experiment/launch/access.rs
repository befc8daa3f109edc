//! HTTP requests to servers, routers and the proxy, and polling until they are ready.

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
    /// Headers of every request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

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
        let tls = match target.address.is_tls {
            true => self.tls.tls(&target)?,
            false => None,
        };
        let options = ClientOptions {
            target,
            upstream: UpstreamKind::Server,
            tls,
            headers: self.headers.clone(),
            reuse: false,
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

    /// Sends a GET request. Returns status and body of the response.
    ///
    /// # Errors
    /// Why there is no response.
    pub async fn get(&self, url: &str, path: &str) -> Result<(u16, Bytes), String> {
        self.request(url, Method::GET, path, Bytes::new()).await
    }

    /// The most requests that each data-parallel rank of the server at `url` runs at once; `None` if it does not say so.
    pub async fn max_running_requests(&self, url: &str) -> Option<u32> {
        let (_, body) = self.get(url, "/get_server_info").await.ok()?;
        read_max_running_requests(&body)
    }

    /// Checks that the server at `url` responds to the path with status 200.
    ///
    /// # Errors
    /// Why it is not ready.
    pub(super) async fn is_ready(&self, url: &str, path: &str) -> Result<(), String> {
        match self.get(url, path).await? {
            (200, _) => Ok(()),
            (status, _) => Err(format!("{path} answers {status}")),
        }
    }

    /// Checks that the router at `url` has `count` healthy workers.
    ///
    /// # Errors
    /// How many it has.
    pub(super) async fn has_workers(&self, url: &str, count: usize) -> Result<(), String> {
        let workers = self.get(url, "/workers").await;
        let found = workers.map_or(0, |(_, body)| count_healthy(&body));
        match found == count {
            true => Ok(()),
            false => Err(format!("{found} of {count} workers are healthy")),
        }
    }
}

/// Repeats a check until it succeeds.
///
/// # Errors
/// Why it failed last, once `limit` has passed.
pub(super) async fn poll<T>(
    limit: Duration,
    check: impl AsyncFn() -> Result<T, String>,
) -> Result<T, String> {
    let mut last = "no answer".to_owned();
    let polled = async {
        loop {
            match check().await {
                Ok(result) => return Ok(result),
                // It stays wrong.
                Err(reason) if reason.contains(TLS_HINT) => return Err(reason),
                Err(reason) => last = reason,
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    let polled = timeout(limit, polled).await;
    polled.unwrap_or_else(|_| Err(format!("asked for {} s: {last}", limit.as_secs_f64())))
}

/// Reads it in a response of SGLang's `/get_server_info`.
fn read_max_running_requests(body: &[u8]) -> Option<u32> {
    let info: Value = serde_json::from_slice(body).ok()?;
    let slots = info.pointer("/internal_states/0/effective_max_running_requests_per_dp")?;
    slots.as_u64()?.try_into().ok()
}

/// Counts the healthy workers in a router's response.
fn count_healthy(body: &[u8]) -> usize {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let workers = json["workers"].as_array().into_iter().flatten();
    workers
        .filter(|worker| worker["is_healthy"] == true)
        .count()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn healthy_workers_are_counted() {
        let body =
            br#"{"workers": [{"is_healthy": true}, {"is_healthy": false}, {"is_healthy": true}]}"#;
        assert_eq!(count_healthy(body), 2);
        assert_eq!(count_healthy(b"starting"), 0);
    }

    #[test]
    fn the_slots_of_a_server_are_read() {
        let info = include_bytes!("../../../tests/data/sglang-0.5.23/info_server_info.body");
        assert_eq!(read_max_running_requests(info), Some(4));
        assert_eq!(
            read_max_running_requests(b"{\"internal_states\": []}"),
            None
        );
    }

    #[tokio::test(start_paused = true)]
    async fn polling_ends_when_ready_or_with_the_last_reason() {
        for (states, expected, polls) in [
            (&["", "", "yes"][..], Ok(()), 3..4),
            (&["busy"], Err("asked for 30 s: busy".to_owned()), 300..700),
        ] {
            let count = Cell::new(0);
            let result = poll(Duration::from_secs(30), async || {
                let n = count.replace(count.get() + 1);
                match states[n.min(states.len() - 1)] {
                    "yes" => Ok(()),
                    reason => Err(reason.to_owned()),
                }
            });
            assert_eq!(result.await, expected);
            assert!(polls.contains(&count.get()), "{count:?}");
        }
    }
}
