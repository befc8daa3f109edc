//! That queries tell what is in the records file.

use std::net::SocketAddr;

use super::live::{ask, ask_at};
use super::queries::{dashboards, panels};
use crate::support::proxy::Row;

/// Between a request's end and the scrape that has it, and between a moment and the last scrape before it, at most.
const LATE_S: f64 = 2.0;

/// What Prometheus said at one moment.
pub struct Said {
    /// Seconds since 1970.
    time: f64,
    requests: f64,
    ttft_count: f64,
    ttft_sum: f64,
    stages_sum: f64,
    /// The shares that a recording rule tells, added up.
    shares: f64,
    /// The panel, over the last minute.
    went_well: f64,
}

impl Said {
    pub async fn ask(addr: SocketAddr) -> Said {
        let time = ask(addr, "time()").await[0];
        let one = async |query: &str| match ask_at(addr, query, time).await[..] {
            [value] => value,
            ref values => panic!("{query}: {values:?}"),
        };
        Said {
            time,
            requests: one("sum(queuescope_requests_total)").await,
            ttft_count: one("sum(gen_ai_server_time_to_first_token_seconds_count)").await,
            ttft_sum: one("sum(gen_ai_server_time_to_first_token_seconds_sum)").await,
            stages_sum: one("sum(queuescope_stage_duration_seconds_sum)").await,
            shares: one("sum(stage:queuescope_stage_duration_seconds:share5m)").await,
            went_well: one(&panel("Went well")).await,
        }
    }

    /// What the rows of the front say otherwise.
    pub fn wrong(&self, rows: &[Row]) -> Vec<String> {
        let front: Vec<&Row> = rows
            .iter()
            .filter(|row| row["seen_by"] == "front")
            .collect();
        let is_ok = |row: &Row| row["outcome"] == "ok";
        let sum = |name: &'static str| {
            let value = move |row: &Row| row[name].parse::<f64>().unwrap_or(0.0);
            move |row: &Row| if is_ok(row) { value(row) } else { 0.0 }
        };
        let has_ttft = |row: &Row| f64::from(is_ok(row) && !row["ttft"].is_empty());
        let minute = self.time - 60.0..self.time;
        let ended = front.iter().filter(|row| minute.contains(&end(row)));
        let (ok, failed): (Vec<&&Row>, Vec<&&Row>) = ended.partition(|row| is_ok(row));
        let share = ok.len() as f64 / (ok.len() + failed.len()) as f64;
        // The window of a rate begins and ends with a scrape; asking for the wrong outcomes is further off than this.
        let off = (self.went_well - share).abs();
        let found = [
            self.between("requests", self.requests, &front, |_| 1.0),
            self.between("requests with a TTFT", self.ttft_count, &front, has_ttft),
            self.between("TTFT", self.ttft_sum, &front, sum("ttft")),
            self.between("stages", self.stages_sum, &front, sum("elapsed")),
            ((self.shares - 1.0).abs() >= 1e-6).then(|| format!("shares: {}", self.shares)),
            failed
                .is_empty()
                .then(|| "all went well: the comparison says nothing".to_owned()),
            (off >= (1.0 - share) / 2.0)
                .then(|| format!("went well: {}, but {share}", self.went_well)),
        ];
        found.into_iter().flatten().collect()
    }

    /// The sum is that of the rows that had ended, whether or not the last moments' are in it.
    fn between(
        &self,
        what: &str,
        said: f64,
        rows: &[&Row],
        of: impl Fn(&Row) -> f64,
    ) -> Option<String> {
        let until = |time: f64| -> f64 {
            let ended = rows.iter().filter(|row| end(row) < time);
            ended.map(|row| of(row)).sum()
        };
        let (least, most) = (until(self.time - LATE_S), until(self.time + LATE_S));
        // Stages round, and leave out what lies between an upstream's last byte and the end.
        let near = least * 0.99 - 0.01..=most * 1.01 + 0.01;
        let is_told = least > 0.0 && most < 1.5 * least;
        (!is_told || !near.contains(&said))
            .then(|| format!("{what}: {said}, but {least} to {most}"))
    }
}

fn end(row: &Row) -> f64 {
    row["end_time"].parse().unwrap()
}

/// The query of a panel, with everything chosen.
fn panel(title: &str) -> String {
    let boards = dashboards();
    let mut panels = boards.iter().flat_map(|(_, board)| panels(board));
    let panel = panels.find(|panel| panel["title"] == title).unwrap();
    let query = panel["targets"][0]["expr"].as_str().unwrap();
    let query = query.replace("$__rate_interval", "1m");
    ["$model", "$worker", "$endpoint", "$front"]
        .iter()
        .fold(query, |query, variable| query.replace(variable, ".*"))
}
