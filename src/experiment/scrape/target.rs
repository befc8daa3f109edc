//! A page that is asked for once a second.

use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::families::{of_dcgm, of_server};
use super::{Asking, EVERY};
use crate::report::files::SeriesRow;
use crate::report::series::{GPU, METRICS};

/// Longest wait for a page: less than until the next is asked for.
const PATIENCE: Duration = Duration::from_millis(900);
/// Pages of SGLang are some hundred kilobytes.
const LARGEST: usize = 16 << 20;

const NOT_FOUND: &str = "404";

/// Who is asked.
#[derive(Debug)]
pub(super) struct Target {
    /// As notes name it.
    name: String,
    url: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Server,
    Dcgm,
}

/// How asking went.
#[derive(Debug, Default)]
struct Tally {
    asked: u64,
    failed: u64,
    /// Pages that told nothing.
    empty: u64,
    last: String,
}

impl Target {
    pub(super) fn server(name: String, url: String) -> Target {
        Target {
            name,
            url,
            kind: Kind::Server,
        }
    }

    pub(super) fn dcgm(url: String) -> Target {
        Target {
            name: "GPUs".to_owned(),
            url,
            kind: Kind::Dcgm,
        }
    }

    /// Asks every second until it is stopped: what there is to say of it. A server that does not answer leaves a gap.
    pub(super) async fn ask(self, mut asking: Asking) -> Option<String> {
        let uri: Uri = match self.url.parse() {
            Ok(uri) => uri,
            Err(error) => return Some(format!("{}: {}: {error}", self.name, self.url)),
        };
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut tally = Tally::default();
        loop {
            let page = async {
                ticks.tick().await;
                let page = timeout(PATIENCE, page(&client, uri.clone())).await;
                page.unwrap_or_else(|_| {
                    Err(format!("no answer within {} ms", PATIENCE.as_millis()))
                })
            };
            let page = tokio::select! {
                biased;
                _ = asking.stop.changed() => break,
                page = page => page,
            };
            let time = asking.clock.now().since(asking.began);
            let rows = page.map(|page| self.rows(&page, time));
            tally.count(&rows);
            // Whoever writes them ends last.
            let _ = asking.rows.send(rows.unwrap_or_default());
        }
        tally.note(&self)
    }

    fn rows(&self, page: &str, time: f64) -> Vec<SeriesRow> {
        let row = |source: &str, server: String, metric: &str, value: f64| SeriesRow {
            time,
            source: source.to_owned(),
            server,
            metric: metric.to_owned(),
            value,
        };
        match self.kind {
            Kind::Server => {
                let told = of_server(page).into_iter();
                told.map(|(metric, value)| row(METRICS, self.name.clone(), metric, value))
                    .collect()
            }
            Kind::Dcgm => {
                let told = of_dcgm(page).into_iter();
                told.map(|(gpu, metric, value)| row(GPU, gpu, metric, value))
                    .collect()
            }
        }
    }
}

impl Tally {
    fn count(&mut self, told: &Result<Vec<SeriesRow>, String>) {
        self.asked += 1;
        match told {
            Ok(rows) => self.empty += u64::from(rows.is_empty()),
            Err(why) => {
                self.failed += 1;
                self.last.clone_from(why);
            }
        }
    }

    fn note(self, target: &Target) -> Option<String> {
        let Target { name, url, kind } = target;
        let remedy = match kind {
            Kind::Server => "start the server with --enable-metrics",
            Kind::Dcgm => "it has to tell DCGM_FI_DEV_GPU_UTIL and DCGM_FI_DEV_FB_USED",
        };
        if self.failed > 0 {
            // What a server answers whose metrics are off.
            let is_missing = self.last.starts_with(NOT_FOUND);
            let remedy = if is_missing {
                format!(": {remedy}")
            } else {
                String::new()
            };
            return Some(format!(
                "{name}: {} of {} scrapes of {url} failed, which leaves gaps (the last: {}{remedy})",
                self.failed, self.asked, self.last
            ));
        }
        (self.empty > 0).then(|| {
            format!(
                "{name}: {} of {} pages of {url} told nothing of it: {remedy}",
                self.empty, self.asked
            )
        })
    }
}

async fn page(client: &Client<HttpConnector, Empty<Bytes>>, uri: Uri) -> Result<String, String> {
    let response = client.get(uri).await.map_err(|error| causes(&error))?;
    let status = response.status();
    if !status.is_success() {
        return Err(status.to_string());
    }
    let body = Limited::new(response.into_body(), LARGEST).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    String::from_utf8(body.into()).map_err(|error| error.to_string())
}

/// The innermost cause says it: hyper's own words alone are `client error (Connect)`.
fn causes(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), causes)
}
