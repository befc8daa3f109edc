//! What `queuescope report` says of fixed rows, in every format: `tests/data/golden/report/`, written anew with `UPDATE=1`. The rows of
//! these runs, and their folders.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use queuescope::clock::Stamp;
use queuescope::offset::Offset;
use queuescope::report::command::{Args, Format, run};
use queuescope::request::{
    ClockOf, Endpoint, Moment, Outcome, Relation, Row, Side, TimingSource, parse_failed,
};
use queuescope::table::cells::RowWriter;
use serde_json::{Value, json};

use crate::support::docs::assert_file;

/// The same numbers every time.
struct Chance(u64);

impl Chance {
    /// Evenly between 0 and 1.
    fn even(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }
}

/// A made run: requests at a steady rate with some chance, to two servers that queue.
#[derive(Clone, Copy)]
struct Made {
    requests: usize,
    /// Seconds that a request keeps one of a server's places.
    serves: f64,
    /// Every so many-th request fails.
    fails: usize,
    /// The servers are down then.
    down: (f64, f64),
    seed: u64,
}

const MADE: Made = Made {
    requests: 120,
    serves: 0.09,
    fails: usize::MAX,
    down: (f64::NAN, f64::NAN),
    seed: 7,
};

impl Made {
    /// Its file of rows.
    fn rows(self) -> String {
        // Arrivals and lengths are the same whatever the servers do.
        let (mut arrivals, mut chance) = (Chance(3), Chance(self.seed));
        let mut free = [0.0_f64; 2];
        let mut rows = RowWriter::new(Vec::new(), Stamp::EPOCH).unwrap();
        let mut scheduled = 0.0;
        for n in 0..self.requests {
            scheduled += -(1.0 - arrivals.even()).ln() / 18.0;
            let sent = scheduled + 0.0002 + 0.0005 * chance.even();
            let (arrival, server) = (sent + 0.0004, n % 2);
            let send = arrival + 0.001 + 0.002 * chance.even();
            let created = send + 0.0007;
            let start = created + 0.003;
            let end = free[server].max(start + 0.0001);
            free[server] = end + self.serves * (0.5 + chance.even());
            let prefill = end + 0.03 + 0.01 * chance.even();
            let first = prefill + 0.002;
            let read = first + 0.0012;
            let tokens = 20 + (arrivals.even() * 20.0) as u32;
            let tpot = 0.006 + 0.002 * chance.even();
            let finish = read + tpot * f64::from(tokens - 1) + 0.0005;
            let mut row = Row::new(Side::Traffic, Endpoint::Generate, format!("g-{n}"));
            let host = format!("127.0.0.1:3000{}", server + 1);
            row.host = Some(host.clone());
            row.worker = Some(format!("server-{}", server + 1));
            row.model = Some("m".to_owned());
            row.stream = Some(true);
            row.input_length = Some(30 + n as u64 % 9);
            let moments = [
                (Moment::Scheduled, scheduled),
                (Moment::Sent, sent),
                (Moment::Arrival, arrival),
                (Moment::Forwarded, arrival),
                (Moment::WorkerArrival, send),
                (Moment::WorkerForwarded, send),
                (Moment::ServerCreated, created),
                (Moment::QueueStart, start),
                (Moment::QueueEnd, end),
                (Moment::PrefillEnd, prefill),
                (Moment::ServerFirstToken, first),
                (Moment::FirstToken, read),
                (Moment::LastToken, finish - 0.0005),
                (Moment::Finish, finish),
            ];
            let is_down = (self.down.0..self.down.1).contains(&arrival) && server == 1;
            // Of one that fails nobody sees what its server did.
            let (seen, over) = if is_down || n % self.fails == self.fails - 1 {
                let (outcome, after) = match is_down {
                    true => (Outcome::UpstreamDied, 0.02),
                    false => (Outcome::Timeout, 0.3),
                };
                row.outcome = Some(outcome);
                row.error = Some(format!("it was {}, alas", outcome.name()));
                row.attempts = Some(2);
                let failed = format!("{host} server_error 500 after 0.010000 s");
                row.failed_attempts = Some(parse_failed(&failed).collect());
                (&moments[..6], send + after)
            } else {
                let tokens = u64::from(tokens);
                let gap = (tpot * 1e9) as i64;
                row.outcome = Some(Outcome::Ok);
                row.status = Some(200);
                row.attempts = Some(1);
                row.actual_prompt_tokens = Some(33 + n as u64 % 9);
                (row.actual_output_tokens, row.token_chunks) = (Some(tokens), Some(tokens));
                row.num_retractions = Some(u64::from(n % 50 == 9));
                row.timing_source = Some(TimingSource::MetaInfo);
                row.first_event_tokens = Some(1);
                (row.itl_mean, row.itl_max) = (Some(gap), Some(2 * gap));
                let offset = Offset {
                    nanos: 0,
                    error_nanos: if n == 20 { 20_000_000 } else { 400_000 },
                };
                row.timeline
                    .relate(ClockOf::Engine, Relation::Apart(offset));
                (&moments[..], finish)
            };
            for clock in [ClockOf::Front, ClockOf::Hop] {
                row.timeline.relate(clock, Relation::Same);
            }
            for (moment, seconds) in seen.iter().chain([&(Moment::End, over)]) {
                let at = Stamp::EPOCH.plus_seconds(*seconds);
                row.timeline.set(*moment, at);
            }
            rows.write(&Row::ended(vec![row])[0]).unwrap();
        }
        String::from_utf8(rows.finish().unwrap()).unwrap()
    }

    /// Its folder, with what the generator and the experiment tell of it.
    fn write(self, dir: &Path, settings: Value, summary: &Value) {
        std::fs::create_dir_all(dir).unwrap();
        put(dir, "requests.csv", &self.rows());
        put(dir, "summary.json", &summary.to_string());
        let servers = [1, 2].map(|n| {
            json!({ "name": format!("server-{n}"), "url": format!("http://127.0.0.1:3000{n}"),
            "host": format!("127.0.0.1:3000{n}"), "engine": "sim", "max_running_requests": 1 })
        });
        let file = json!({ "label": "", "settings": settings, "repeat": 0, "state": "done", "error": null, "began": 1_795_000_000.25,
            "servers": servers, "router": "builtin round_robin", "workload_sha256": "sent", "notes": ["the cache was not emptied"],
            "processes": [{ "name": "server-1", "command": "sim --max-running-requests 1", "log": "logs/server-1" }] });
        put(dir, "run.json", &file.to_string());
    }
}

fn put(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/golden/report");

fn summary() -> Value {
    json!({ "duration": 8.0, "scheduled": 120, "offered_rate": 18.0, "started_at": 1_795_000_000.25,
        "config": { "request_rate": 18.0, "arrival": "poisson", "max_concurrency": null }, "goodput_goals_ms": { "ttft": 400.0, "tpot": 20.0 },
        "verdict": { "grade": "VALID", "reasons": [] }, "warnings": [] })
}

/// What the report says, with the folder's own name out of it; its page goes there, if anywhere.
fn said(folder: &Path, format: Format, dirs: &[&str], html: Option<PathBuf>) -> String {
    let args = Args {
        dirs: dirs.iter().map(|dir| folder.join(dir)).collect(),
        format,
        no_html: html.is_none(),
        html,
        ..Args::default()
    };
    unnamed(folder, &run(&args, None).unwrap())
}

/// A text without the folder's own name.
fn unnamed(folder: &Path, text: &str) -> String {
    text.replace(folder.to_str().unwrap(), "DIR")
}

fn pinned(name: &str, said: &str) {
    assert_file(&format!("{GOLDEN}/{name}"), said);
}

/// The same with long series as their length, sum and first values.
fn squeezed(value: &mut Value) {
    match value {
        Value::Object(members) => members.values_mut().for_each(squeezed),
        Value::Array(all) if all.len() > 12 && all.iter().all(Value::is_number) => {
            let sum: f64 = all.iter().filter_map(Value::as_f64).sum();
            *value = json!([all.len(), format!("{sum:.9}"), all[1], all[2]]);
        }
        Value::Array(all) => all.iter_mut().for_each(squeezed),
        _ => {}
    }
}

/// Some folders in words and as CSV, and their page with its JSON, which `scripts/report-shots.sh` opens in a browser. Returns the JSON.
fn in_words(name: &str, folder: &Path, dirs: &[&str]) -> Value {
    for (format, end) in [
        (Format::Text, "txt"),
        (Format::Markdown, "md"),
        (Format::Csv, "csv"),
    ] {
        let said = said(folder, format, dirs, None);
        pinned(&format!("{name}.{end}"), &said);
    }
    let pages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
    std::fs::create_dir_all(&pages).unwrap();
    let html = pages.join(format!("{name}.html"));
    let json = said(folder, Format::Json, dirs, Some(html));
    put(&pages, &format!("{name}.json"), &json);
    serde_json::from_str(&json).unwrap()
}

/// Some folders in all formats.
fn all_formats(name: &str, folder: &Path, dirs: &[&str]) {
    let mut json = in_words(name, folder, dirs);
    squeezed(&mut json);
    pinned(&format!("{name}.json"), &format!("{json:#}\n"));
}

#[test]
fn a_run_of_real_servers() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    Made { requests: 1, ..MADE }.write(&dir, json!({}), &json!({
        "scheduled": 40, "offered_rate": 12.0, "config": { "request_rate": 12.0 }, "goodput_goals_ms": { "ttft": 300.0 },
        "window": { "from_s": 0.5, "to_s": 3.0, "left_out_first": 4, "left_out_last": 5, "rule": "without the first 0.5 s" },
        "verdict": { "grade": "DEGRADED", "reasons": ["the event loop woke late"] }, "warnings": ["a warning of the run"],
        "time_spent": { "unseen": { "engine_first_token": 4 } } }));
    let rows = std::fs::read_to_string(Path::new(GOLDEN).join("h200.csv")).unwrap();
    put(&dir, "requests.csv", &rows);
    let mut series = "time,source,server,metric,value\n".to_owned();
    for second in 0..4 {
        writeln!(series, "{second},metrics,server-1,running,{}", 3 + second).unwrap();
        writeln!(series, "{second},metrics,server-2,queued,{second}").unwrap();
    }
    put(&dir, "series.csv", &series);
    all_formats("run", folder.path(), &["run"]);
}

#[test]
fn two_runs_against_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let slow = Made {
        requests: 600,
        ..MADE
    };
    let quick = Made {
        serves: 0.05,
        fails: 60,
        seed: 8,
        ..slow
    };
    for (made, name, policy) in [(slow, "slow", "random"), (quick, "quick", "shortest")] {
        let dir = folder.path().join(name);
        made.write(&dir, json!({ "policy": policy }), &summary());
    }
    all_formats("pair", folder.path(), &["slow", "quick"]);
}

#[test]
fn an_experiment_of_a_grid_and_a_search() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("grid");
    let mut runs = Vec::new();
    for (n, serves) in [(1, 0.1), (2, 0.06), (4, 0.02)] {
        for (policy, seed) in [("random", 7), ("shortest", 9)] {
            let label = format!("policy={policy}, max_running_requests={n}");
            let settings = json!({ "policy": policy, "max_running_requests": n });
            let run = format!("runs/{policy}-{n}");
            let made = Made {
                serves,
                seed,
                requests: 80,
                ..MADE
            };
            made.write(&dir.join(&run), settings.clone(), &summary());
            runs.push(json!({ "dir": run, "label": label, "settings": settings, "repeat": 0, "state": "done" }));
        }
    }
    let pinned_experiment = |name: &str, file: &Value| {
        put(&dir, "experiment.json", &file.to_string());
        let made = in_words(name, folder.path(), &["grid"]);
        let written = std::fs::read_to_string(dir.join("comparison.json")).unwrap();
        let written: Value = serde_json::from_str(&unnamed(folder.path(), &written)).unwrap();
        assert_eq!(written, made);
        let parts = json!({ "experiment": made["experiment"], "comparison": made["comparison"], "not_compared": made["not_compared"] });
        pinned(&format!("{name}.json"), &format!("{parts:#}\n"));
    };
    let mut file = json!({ "kind": "routing", "began": 1_795_000_000.0, "keys": ["max_running_requests", "policy"], "runs": runs });
    pinned_experiment("grid", &file);
    // Runs of a search are not compared.
    file["runs"].as_array_mut().unwrap().truncate(2);
    file["max_rate"] = json!({ "goodput": ["ttft:500"], "share": 0.99, "met": 12.0, "missed": null, "invalid": 14.0,
        "trials": [{ "rate": 12.0, "drawn": 11.9, "kept": 0.995, "result": "met" }, { "rate": 14.0, "drawn": 13.1, "kept": 0.99, "result": "invalid" }] });
    pinned_experiment("search", &file);
}

#[test]
fn servers_that_were_disturbed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("faults");
    let disturbed = Made {
        requests: 500,
        down: (10.0, 14.0),
        ..MADE
    };
    disturbed.write(&dir, json!({}), &summary());
    let faults = "time,server,kind,event\n10.0,server-2,kill,down\n12.5,server-2,kill,up\n14.0,server-2,kill,ready\n20.0,server-1,refuse,down\n";
    put(&dir, "faults.csv", faults);
    all_formats("faults", folder.path(), &["faults"]);
}

/// What stands in rows is text on the page, whatever it says.
const HOSTILE: &str =
    "<img src=x onerror=console.error(1)></script><script>console.error(2)</script>";

#[test]
fn a_run_that_was_cut_short_and_rows_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("cut");
    std::fs::create_dir(&dir).unwrap();
    let rows = Made { fails: 3, ..MADE }
        .rows()
        .replacen("g-3,True", "g-3,True,\"more", 1)
        .replace(",seen_by,", ",seen_of,")
        .replace("alas", HOSTILE)
        .replace(",m,", &format!(",{HOSTILE},"));
    put(&dir, "requests.partial.csv", &rows[..rows.len() - 40]);
    let begun = json!({ "scheduled": 500, "config": { "seed": 1 }, "offered_rate": 18.0 });
    put(&dir, "begun.json", &begun.to_string());
    let faults = "time,server,kind,event\nnever,server-2,kill,down\n";
    put(&dir, "faults.csv", faults);
    all_formats("cut", folder.path(), &["cut"]);
}

/// Rows of a proxy, of before there was a column of outcomes; some of several sequences.
#[test]
fn records_of_a_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "req_id,success,host,arrival_time,router_send_time,finish_time,server_latency,total_latency,queue_time_in_router,ttft_observed,first_token_time\n".to_owned();
    for n in 0..40 {
        let at = 1_795_000_000.5 + 0.3 * f64::from(n);
        for index in 0..2 {
            let (host, mark) = (n % 3, if n % 3 == 0 { '#' } else { '-' });
            let id = format!("r{n}{mark}{index}");
            let success = if n % 7 == 6 { "False" } else { "True" };
            writeln!(
                text,
                "{id},{success},10.0.0.{host}:1,{at:.9},{:.9},{:.9},0.900000000,1.000000000,0.100000000,0.5{index}0000000,{:.9}",
                at + 0.1,
                at + 1.0,
                at + 0.5 + 0.01 * f64::from(index)
            )
            .unwrap();
        }
    }
    put(folder.path(), "records.csv", &text);
    all_formats("records", folder.path(), &["records.csv"]);
}
