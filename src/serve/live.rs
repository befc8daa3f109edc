//! The live page, and the JSON that it shows.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::clock::{Stamp, seconds};
use crate::proxy::shared::Shared;
use crate::report::page::{BASE, dom, fill, nonce, stage, stages};
use crate::report::timeline::{clock_error, clock_lines, unseen};
use crate::report::why::{sentence, wait_sentence};
use crate::request::stages::place;
use crate::request::{Breakdown, COLUMNS, Moment, Row, TimeSpent, Unit, without_impossible};
use crate::stats::Histogram;
use crate::telemetry::prometheus::RequestPhase;
use crate::telemetry::recent::{Figures, HALF_SECONDS, Recent, RecentRequest};
use crate::telemetry::waits::WaitLog;

const PAGE: &str = include_str!("live/page.html");
/// The phase of requests that were sent on and have no token yet.
const WAITING: &str = RequestPhase::Waiting.name();

/// Returns the page and its content security policy: only the page's own script and style, which have the nonce, are allowed.
pub fn page() -> (String, String) {
    let nonce = nonce();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let parts = [("base", BASE), ("dom", &dom()), ("nonce", &nonce)];
    (fill(PAGE, &parts), policy)
}

/// Returns what is new since the request with the number `after`.
pub fn snapshot(shared: &Shared, after: u64) -> Value {
    let now = shared.clock.now();
    let view = shared.telemetry.recent.view(after, now);
    let all = view.requests.iter();
    json!({
        // Numbers of requests are only valid within one process.
        "process": shared.clock_name,
        "version": env!("CARGO_PKG_VERSION"),
        "now": now.seconds(),
        "last": view.last,
        "present": present(shared),
        "window": window(&view.figures, covered_s(shared, now)),
        "requests": all.filter_map(bar).collect::<Vec<Value>>(),
    })
}

/// The requests in flight.
fn present(shared: &Shared) -> Value {
    let phases = BTreeMap::from(shared.metrics.in_flight_by_phase());
    let mut workers: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
    for (worker, phase, count) in shared.metrics.in_flight_by_worker() {
        workers.entry(worker).or_default().insert(phase, count);
    }
    // Metrics keep the series of workers and servers that a reload has removed.
    let config = shared.config.load();
    let is_configured = |name: &str| {
        config.worker(name).is_some() || config.upstream.iter().any(|to| to.name() == name)
    };
    workers.retain(|name, of| is_configured(name) || of.values().any(|count| *count > 0));
    let at_workers: i64 = workers.values().filter_map(|of| of.get(WAITING)).sum();
    let has_router = shared.joins.has_front && !shared.is_before_servers();
    // An estimate: the counts are not read at the same moment.
    let in_router = (has_router && !workers.is_empty())
        .then(|| (phases.get(WAITING).unwrap_or(&0) - at_workers).max(0));
    let workers = workers.iter();
    let workers = workers.map(|(name, phases)| json!({"name": name, "phases": phases}));
    json!({
        "phases": phases,
        "in_router": in_router,
        "workers": workers.collect::<Vec<Value>>(),
    })
}

/// How many seconds the figures are of: a whole half of the window and a part of the current one.
fn covered_s(shared: &Shared, now: Stamp) -> f64 {
    let half = HALF_SECONDS as f64;
    let window = half + now.seconds() % half;
    window.min(seconds(now.nanos_since(shared.started)))
}

fn window(sum: &Figures, covered_s: f64) -> Value {
    let outcomes = sum.outcomes();
    let outcomes = outcomes.map(|(outcome, count)| json!({"name": outcome.name(), "count": count}));
    let quantile = |values: &Histogram, q| values.quantile(q).map(seconds);
    let quantiles = sum.quantiles().map(|(column, values)| {
        json!({
            "name": column.name,
            "label": column.label,
            "help": column.help,
            "count": values.count(),
            "p50": quantile(values, 0.5),
            "p90": quantile(values, 0.9),
            "p99": quantile(values, 0.99),
        })
    });
    let [all, until_first] = &sum.spent;
    json!({
        "covered_s": covered_s,
        "requests": sum.requests(),
        "output_tokens": sum.output_tokens,
        "outcomes": outcomes.collect::<Vec<Value>>(),
        "unseen": sum.spent[0].unseen_notes(),
        "spent": {
            "all": spent_json(all, "a request took"),
            "until_first_token": spent_json(until_first, "until the first token"),
        },
        "quantiles": quantiles.collect::<Vec<Value>>(),
    })
}

/// The time as a sentence and as parts, which the page sorts.
fn spent_json(spent: &TimeSpent, subject: &str) -> Value {
    let sentence = (spent.requests > 0).then(|| spent.shares(subject));
    json!({"sentence": sentence, "parts": stages(spent)})
}

/// One request as a line of the waterfall.
fn bar(ended: &RecentRequest) -> Option<Value> {
    let plausible = without_impossible(ended.rows.get(..1)?);
    let row = plausible.first()?;
    let timeline = &row.timeline;
    let begin = |moment| timeline.on_own_clock(moment);
    // At a hop the request arrives from the router.
    let arrival = begin(Moment::Arrival).or_else(|| begin(Moment::RouterSend));
    Some(json!({
        "number": ended.number,
        "req_id": row.request_id(),
        "endpoint": row.endpoint().path(),
        "model": row.model,
        "worker": row.worker_or_host(),
        "prefill_host": row.prefill_host,
        "outcome": row.outcome().name(),
        "error": row.error.as_deref().unwrap_or_default(),
        "last_seen": row.last_seen().map(place),
        "sequences": row.sequences,
        "attempts": row.attempts,
        "arrival": arrival.map(|at| at.seconds()),
        "elapsed": row.elapsed.map(seconds),
        "ttft": row.ttft.map(seconds),
        "output_tokens": row.request_output_tokens,
        "parts": parts(row),
    }))
}

/// Returns all that is known of the request with this number, while it is kept. Why it waited follows from all that were at its server;
/// at a pair of servers from those that are kept.
pub fn request(recent: &Recent, waits: &WaitLog, number: u64) -> Option<Value> {
    let all = recent.all();
    let ended = all.iter().find(|ended| ended.number == number)?;
    let row = ended.rows.first()?;
    let others = all.iter().filter(|other| other.number != number);
    let mut others = others.flat_map(|other| other.rows.iter());
    let waited = match waits.judge(row) {
        Some(judged) => {
            let holder = others.find(|row| judged.is_holder(row));
            let by = holder.map(|by| (by.request_id(), by.actual_prompt_tokens));
            let slots = judged.slots.map(|slots| (slots, ""));
            let waited = row.pure_queue_time.map(seconds);
            waited.map(|waited| sentence(waited, &judged.cause.described(slots), by))
        }
        _ => wait_sentence(ended.rows.iter().chain(others)),
    };
    let several = row.sequences > 1;
    let whose = if several { "Its first sequence" } else { "It" };
    Some(json!({
        "bar": bar(ended),
        "trace_id": row.trace_id,
        "unseen": unseen(row),
        "clocks": clock_lines(row),
        "waited": waited.map(|waited| format!("{whose} {waited}.")),
        "columns": columns(&ended.rows),
    }))
}

/// The parts of a request's time with their start and end, seconds after its first moment. Stages that were not measured separately are
/// one part. A client's stalls come last, though they lie within decoding.
fn parts(row: &Row) -> Vec<Value> {
    let Some(breakdown) = Breakdown::of(row) else {
        return Vec::new();
    };
    let mut at = 0_i64;
    let parts = breakdown.parts.iter().map(|part| {
        let mut json = stage(part.spent);
        json["start"] = seconds(at).into();
        at = at.saturating_add(part.nanos);
        json["end"] = seconds(at).into();
        json["error"] = seconds(clock_error(row, part.spent)).into();
        json
    });
    parts.collect()
}

/// The columns that have a value in any of a request's rows.
fn columns(rows: &[Row]) -> Value {
    let columns = COLUMNS.iter().filter_map(|column| {
        let values = rows.iter().map(|row| (column.get)(row).to_json());
        let values: Vec<Value> = values.collect();
        let unit = match column.unit {
            Unit::Latency | Unit::Seconds => "s",
            Unit::Time => "time",
            Unit::Text | Unit::Bool | Unit::Count => "",
        };
        let is_known = !values.iter().all(Value::is_null);
        is_known.then(
            || json!({"name": column.name, "unit": unit, "help": column.help, "values": values}),
        )
    });
    columns.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::{Sample, at};
    use crate::request::ENGINE;
    use crate::telemetry::CountedRequest;

    fn recent(requests: impl IntoIterator<Item = Vec<Row>>) -> Recent {
        let recent = Recent::default();
        for rows in requests {
            let rows = rows.into();
            recent.record(&rows, Some(&CountedRequest::of(&rows)));
        }
        recent
    }

    #[test]
    fn a_stage_is_averaged_over_the_requests_that_measured_it() {
        let unmeasured = [1, 2].map(|start| Sample::starting(start).without(&ENGINE));
        let all = [Sample::whole()].into_iter().chain(unmeasured);
        let recent = recent(all.map(|sample| vec![sample.row()]));
        let json = window(&recent.view(0, at(600)).figures, 300.0);
        let part = |time: &str, name: &str| {
            let parts = json["spent"][time]["parts"].as_array().unwrap();
            parts.iter().find(|part| part["name"] == name).cloned()
        };
        // 80 of 500 ms, of the one request that measured it.
        for (time, share) in [("all", 0.16), ("until_first_token", 80.0 / 210.0)] {
            let queue = part(time, "queue").unwrap();
            assert!((queue["share"].as_f64().unwrap() - share).abs() < 1e-5);
            assert_eq!(queue["of"], ", of 1 of 3 requests");
        }
        assert_eq!(part("all", "decode").unwrap()["of"], "");
        assert_eq!(part("until_first_token", "decode"), None);
        let sentence = &json["spent"]["until_first_token"]["sentence"];
        let begins = "Of 0.21 s until the first token on average, ";
        assert!(sentence.as_str().unwrap().starts_with(begins));
    }

    #[test]
    fn the_dialog_says_whose_wait_it_tells() {
        let mut two = vec![Sample::whole().row(); 2];
        two.iter_mut().for_each(|row| row.sequences = 2);
        let recent = recent([vec![Sample::whole().row()], two]);
        let waits = WaitLog::default();
        for (number, whose) in [(1, "It"), (2, "Its first sequence")] {
            let json = request(&recent, &waits, number).unwrap();
            let (waited, words) = (json["waited"].as_str().unwrap(), " waited 80.0 ms: ");
            assert!(waited.starts_with(&(whose.to_owned() + words)), "{waited}");
            assert!(waited.ends_with('.'), "{waited}");
        }
        assert_eq!(request(&recent, &waits, 3), None);
    }

    /// Those of stages are in their table.
    #[test]
    fn time_that_is_no_stage_has_a_colour() {
        for name in ["proxy", "connecting", "client_stall", "prompt_wait"] {
            assert_eq!(dom().matches(&format!(" {name}: \"#")).count(), 1, "{name}");
        }
    }
}
