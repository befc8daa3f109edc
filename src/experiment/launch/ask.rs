//! Questions to what runs.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use serde_json::Value;
use tokio::time::{sleep, timeout};

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

/// What came of a question that is asked until it is so.
#[derive(Debug)]
pub(super) enum Asked {
    Yes,
    NotYet(String),
    Never(String),
}

/// How often something is asked whether it is so.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How long an answer may take: SGLang's `/health` generates a token.
const ANSWER: Duration = Duration::from_secs(20);

impl Access {
    /// Who asks the server at `url`.
    ///
    /// # Errors
    /// Why it cannot be asked.
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

/// Asks until it is so.
///
/// # Errors
/// The last answer, where `limit` is over or it can never be so.
pub(super) async fn until(limit: Duration, ask: impl AsyncFn() -> Asked) -> Result<(), String> {
    let mut last = "no answer".to_owned();
    let asked = async {
        loop {
            match ask().await {
                Asked::Yes => return Ok(()),
                Asked::NotYet(why) => last = why,
                Asked::Never(why) => return Err(why),
            }
            sleep(ASK_EVERY).await;
        }
    };
    match timeout(limit, asked).await {
        Ok(done) => done,
        Err(_) => Err(format!("{last}, for {} s", limit.as_secs_f64())),
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
    use std::cell::Cell;

    use serde_json::json;

    use super::*;

    #[test]
    fn healthy_workers_are_counted_however_the_answer_is_written() {
        let told =
            json!({"workers": [{"is_healthy": true}, {"is_healthy": false}, {"is_healthy": true}]});
        let pretty = serde_json::to_string_pretty(&told).unwrap();
        assert_eq!(healthy(&serde_json::from_str(&pretty).unwrap()), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_yet_so_is_asked_again_and_the_last_answer_is_told() {
        for (answers, told, asks) in [
            (&["", "", "yes"][..], Ok(()), 3..4),
            (&["busy"], Err("busy, for 30 s".to_owned()), 300..700),
            (&["", "never", "yes"], Err("never".to_owned()), 2..3),
        ] {
            let count = Cell::new(0);
            let done = until(Duration::from_secs(30), async || {
                let n = count.replace(count.get() + 1);
                match answers[n.min(answers.len() - 1)] {
                    "yes" => Asked::Yes,
                    "never" => Asked::Never("never".to_owned()),
                    why => Asked::NotYet(why.to_owned()),
                }
            });
            assert_eq!(done.await, told);
            assert!(asks.contains(&count.get()), "{count:?}");
        }
    }
}
