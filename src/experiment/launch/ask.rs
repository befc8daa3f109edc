//! Questions to what runs.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use serde_json::Value;

use super::process::Asked;
use crate::clock::Clock;
use crate::traffic::client::{Client, ClientOptions, Target, TlsArgs, UpstreamKind};

/// How servers and routers are asked, as the load is sent to them: whose certificates are taken, who asks.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Of `https://` ones.
    pub tls: TlsArgs,
    /// `Authorization`.
    pub api_key: Option<HeaderValue>,
    /// Sent with every question.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// How long an answer may take: SGLang's `/health` generates a token.
const ANSWER: Duration = Duration::from_secs(20);

impl Access {
    /// Who asks the server at `url`.
    ///
    /// # Errors
    /// Why it cannot be asked.
    async fn client(&self, url: &str) -> Result<Client, String> {
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
            connect_timeout: ANSWER,
            request_timeout: ANSWER,
            sampled: 1.0,
        };
        let client = Client::new(options, Clock::system()).await;
        client.map_err(|error| format!("{url}: {error}"))
    }

    /// Asks `path` of the server at `url`; its status and body.
    ///
    /// # Errors
    /// Why no answer came.
    pub(in crate::experiment) async fn ask(
        &self,
        url: &str,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), String> {
        self.client(url).await?.ask(method, path, body).await
    }

    /// The status of a plain GET.
    ///
    /// # Errors
    /// Why no answer came.
    pub async fn get(&self, url: &str, path: &str) -> Result<u16, String> {
        let answer = self.ask(url, Method::GET, path, Bytes::new()).await;
        answer.map(|(status, _)| status)
    }

    /// Whether what is at `url` answers each of these paths by a status such as these.
    pub(super) async fn answers(&self, url: &str, paths: &[(&str, RangeInclusive<u16>)]) -> Asked {
        for (path, right) in paths {
            match self.get(url, path).await {
                Ok(status) if right.contains(&status) => {}
                Ok(status) => return Asked::NotYet(format!("{path} answers {status}")),
                Err(why) => return Asked::NotYet(why),
            }
        }
        Asked::Yes
    }

    /// Whether the router at `url` knows so many healthy workers.
    pub(super) async fn knows(&self, url: &str, count: usize) -> Asked {
        let told = match self.ask(url, Method::GET, "/workers", Bytes::new()).await {
            Ok((200, body)) => serde_json::from_slice(&body).unwrap_or_default(),
            _ => Value::Null,
        };
        match healthy(&told) {
            found if found == count => Asked::Yes,
            found => Asked::NotYet(format!("{found} of {count} workers are healthy")),
        }
    }
}

/// Workers that are healthy, wherever in the answer they stand.
fn healthy(told: &Value) -> usize {
    match told {
        Value::Array(all) => all.iter().map(healthy).sum(),
        Value::Object(members) => {
            let is_healthy = members.get("is_healthy") == Some(&Value::Bool(true));
            usize::from(is_healthy) + members.values().map(healthy).sum::<usize>()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn healthy_workers_are_counted_however_the_answer_is_written() {
        let told =
            json!({"workers": [{"is_healthy": true}, {"is_healthy": false}, {"is_healthy": true}]});
        let pretty = serde_json::to_string_pretty(&told).unwrap();
        assert_eq!(healthy(&serde_json::from_str(&pretty).unwrap()), 2);
    }
}
