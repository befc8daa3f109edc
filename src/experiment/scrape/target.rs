//! A page that is asked for once a second.

use std::time::Duration;

use http::Method;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::families::{of_dcgm, of_server};
use super::{EVERY, Log};
use crate::experiment::launch::Access;
use crate::report::files::SeriesRow;
use crate::report::series::{GPU, METRICS};
use crate::traffic::client::Client;

/// Longest wait for a page: less than until the next is asked for.
const PATIENCE: Duration = Duration::from_millis(900);

/// Who is asked, and how that went.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// As notes name it.
    name: String,
    url: String,
    /// It tells of GPUs, not of a server.
    is_dcgm: bool,
    asked: u64,
    failed: u64,
    /// Pages that told nothing.
    empty: u64,
    /// Why the last that failed did.
    last: String,
}

impl Target {
    /// A server by its name and URL.
    pub(super) fn server((name, url): (String, String)) -> Target {
        Target {
            name,
            url: format!("{url}/metrics"),
            ..Target::default()
        }
    }

    /// A DCGM exporter by the URL of its page.
    pub(super) fn dcgm(url: &str) -> Target {
        Target {
            name: "GPUs".to_owned(),
            url: url.to_owned(),
            is_dcgm: true,
            ..Target::default()
        }
    }

    /// Asks every second, until it is dropped. A server that does not answer leaves a gap.
    pub(super) async fn ask(&mut self, access: &Access, log: &Log) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut client = None;
        loop {
            ticks.tick().await;
            let page = timeout(PATIENCE, self.page(access, &mut client)).await;
            let late = |_| Err(format!("no answer within {} ms", PATIENCE.as_millis()));
            let page = page.unwrap_or_else(late);
            let rows = page.map(|page| self.rows(&page, log.now()));
            self.asked += 1;
            match rows {
                Ok(rows) => {
                    self.empty += u64::from(rows.is_empty());
                    log.write(&rows);
                }
                Err(why) => {
                    self.failed += 1;
                    self.last = why;
                }
            }
        }
    }

    async fn page(&self, access: &Access, client: &mut Option<Client>) -> Result<String, String> {
        let client = match client {
            Some(client) => client,
            none => none.insert(access.client(&self.url).await?),
        };
        match client.ask(Method::GET, "", bytes::Bytes::new()).await? {
            (200, body) => String::from_utf8(body.into()).map_err(|error| error.to_string()),
            (404, _) => Err(format!("404 Not Found: {}", self.remedy())),
            (status, _) => Err(format!("status {status}")),
        }
    }

    fn rows(&self, page: &str, time: f64) -> Vec<SeriesRow> {
        let row = |source: &str, server: String, metric: &str, value: f64| SeriesRow {
            time,
            source: source.to_owned(),
            server,
            metric: metric.to_owned(),
            value,
        };
        if self.is_dcgm {
            let told = of_dcgm(page).into_iter();
            let rows = told.map(|(gpu, metric, value)| row(GPU, gpu, metric, value));
            return rows.collect();
        }
        let told = of_server(page).into_iter();
        told.map(|(metric, value)| row(METRICS, self.name.clone(), metric, value))
            .collect()
    }

    /// What a page that tells nothing wants.
    fn remedy(&self) -> &'static str {
        match self.is_dcgm {
            false => "start the server with --enable-metrics",
            true => "it has to tell DCGM_FI_DEV_GPU_UTIL and DCGM_FI_DEV_FB_USED",
        }
    }

    /// What there is to say of it.
    pub(super) fn note(&self) -> Option<String> {
        let Target {
            name,
            url,
            asked,
            failed,
            empty,
            last,
            ..
        } = self;
        if *failed > 0 {
            return Some(format!(
                "{name}: {failed} of {asked} scrapes of {url} failed, which leaves gaps (the last: {last})"
            ));
        }
        let remedy = self.remedy();
        (*empty > 0).then(|| {
            format!("{name}: {empty} of {asked} pages of {url} told nothing of it: {remedy}")
        })
    }
}
