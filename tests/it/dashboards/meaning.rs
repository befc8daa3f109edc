//! That a panel tells what is in the records file. That the metrics hold what the rows say: `metrics.rs`.

use std::net::SocketAddr;

use super::live::{ask, ask_of};
use super::queries::{dashboards, filled, panels};
use crate::support::proxy::{Row, number};

/// What Prometheus said at one moment.
pub struct Said {
    /// Seconds since 1970.
    time: f64,
    /// The shares that a recording rule tells, added up.
    shares: f64,
    /// The panel, over the last minute.
    went_well: f64,
}

impl Said {
    pub async fn ask(addr: SocketAddr) -> Said {
        let time = ask(addr, "time()").await[0];
        let at = format!("&time={time}");
        let one = async |query: &str| match ask_of(addr, query, &at).await[..] {
            [value] => value,
            ref values => panic!("{query}: {values:?}"),
        };
        Said {
            time,
            shares: one("sum(stage:queuescope_stage_duration_seconds:share5m)").await,
            went_well: one(&panel("Went well")).await,
        }
    }

    /// What the rows of the front say otherwise.
    pub fn wrong(&self, rows: &[Row]) -> Option<String> {
        let minute = self.time - 60.0..self.time;
        let is_here =
            |row: &&Row| row["seen_by"] == "front" && minute.contains(&number(row, "end_time"));
        let ended: Vec<&Row> = rows.iter().filter(is_here).collect();
        let ok = ended.iter().filter(|row| row["outcome"] == "ok").count();
        let failed = ended.len() - ok;
        let share = ok as f64 / ended.len() as f64;
        // The window of a rate begins and ends with a scrape; asking for the wrong outcomes is further off than this.
        let is_near = (self.went_well - share).abs() < (1.0 - share) / 2.0;
        let is_all = (self.shares - 1.0).abs() < 1e-6;
        let said = format!(
            "{} of 1, {} went well: {share}",
            self.shares, self.went_well
        );
        (failed == 0 || !is_near || !is_all).then_some(said)
    }
}

/// The query of a panel, with everything chosen.
fn panel(title: &str) -> String {
    let boards = dashboards();
    let mut panels = boards.iter().flat_map(|(_, board)| panels(board));
    let panel = panels.find(|panel| panel["title"] == title).unwrap();
    let [query, _] = filled(panel["targets"][0]["expr"].as_str().unwrap());
    query
}
