//! `queuescope whatif`: what is read, learnt, predicted and shown.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::disk;
use crate::experiment::plan::grid;
use crate::experiment::plan::read::Entry;
use crate::report::grid::Grid;
use crate::report::reader;
use crate::table;

use super::Error;
use super::fit::{COMPARED, Errors, Fit, compared, predict};
use super::load::Load;
use super::replay::Figures;
use super::settings::{deployment, sweeps};

/// What is to be predicted, of what, and from what.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(
    after_help = "Example:\n  queuescope whatif results/node/latest --set max_running_requests=16,32,64 --set rate=1,1.5"
)]
pub struct Args {
    /// Folders of runs, or files of rows (also .gz): what is to be served, and when
    #[arg(value_name = "LOAD", required = true)]
    pub loads: Vec<PathBuf>,
    /// Runs to learn the servers' speed from [default: LOAD]
    #[arg(long, value_name = "ROWS", num_args = 1..)]
    pub fit: Vec<PathBuf>,
    /// What is to be changed; several values, A,B, make a grid. Keys: rate (so many times as many requests a second),
    /// request_rate (requests a second), num_gpus (servers), servers_per_gpu, routing_policy (round_robin, random,
    /// shortest_queue, power_of_two), and flags of queuescope sim: max_running_requests, chunked_prefill_size, …
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// File for what was learnt, as a plan's table of the simulator
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// How it is shown
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

/// How a prediction is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For the terminal
    #[default]
    Text,
    /// For programs
    Json,
}

/// A prediction.
#[derive(Clone, Debug)]
struct Prediction {
    settings: Vec<Entry>,
    figures: Figures,
}

/// More than this error, as a share, is no prediction.
pub const MOST_ERROR: f64 = 0.2;

/// Predicts: what is shown, and why it is not to be used, where it is not.
///
/// # Errors
/// What was given cannot be read, or is wrong.
pub fn run(args: &Args) -> Result<(String, Option<String>), Error> {
    let sweeps = sweeps(&args.set)?;
    let grid = grid::combinations(&sweeps, 1)
        .map_err(|error| Error::Setting(format!("--set: {error}")))?;
    let loads = read(&args.loads)?;
    let load = joined(loads)?;
    let fit = match args.fit.as_slice() {
        [] => Fit::of(&read(&args.loads)?)?,
        given => Fit::of(&read(given)?)?,
    };
    let mut predictions = Vec::new();
    for settings in grid {
        let figures = predict(&deployment(&fit, &load, &settings)?, &load);
        predictions.push(Prediction { settings, figures });
    }
    if let Some(path) = &args.profile {
        let written = disk::replace(path, profile(&fit).as_bytes());
        written.map_err(|cause| table::Error::write(path, cause))?;
    }
    let refused = refused(&fit);
    let shown = match args.format {
        Format::Json => format!(
            "{:#}\n",
            to_json(&fit, &load, &predictions, refused.as_deref())
        ),
        Format::Text => to_text(&fit, &load, &predictions, refused.as_deref()),
    };
    Ok((shown, refused))
}

fn read(given: &[PathBuf]) -> Result<Vec<Load>, Error> {
    let loaded = reader::load(given)?;
    Ok(loaded
        .runs
        .iter()
        .map(Load::of)
        .filter(|load| !load.requests.is_empty())
        .collect())
}

/// Several loads are one after the other: only one can be replayed.
fn joined(mut loads: Vec<Load>) -> Result<Load, Error> {
    match loads.len() {
        0 => Err(Error::Empty),
        1 => Ok(loads.remove(0)),
        count => Err(Error::Setting(format!(
            "LOAD: {count} runs were given: one is replayed at a time; the others can teach by --fit"
        ))),
    }
}

/// Why nothing is to be predicted from this.
fn refused(fit: &Fit) -> Option<String> {
    let error = fit.error();
    (error > MOST_ERROR || error.is_nan()).then(|| {
        let errors = fit.errors();
        let worst = COMPARED.iter().zip(errors).max_by(|a, b| a.1.total_cmp(&b.1));
        let (name, worst) = worst.unwrap_or((&"", error));
        format!(
            "no prediction is to be had: replayed, the rows of --fit are off by {:.0} %, more than {:.0} % ({name} most, by {:.0} %): \
             the engine does not explain what these servers did",
            error * 100.0,
            MOST_ERROR * 100.0,
            worst * 100.0
        )
    })
}

/// What was learnt, as a plan's `[sim]`.
fn profile(fit: &Fit) -> String {
    let model = &fit.model.profile;
    let mut figures: Vec<(&str, f64)> = fit
        .learnt
        .iter()
        .map(|learnt| (learnt.name, learnt.value))
        .collect();
    figures.extend([
        ("prefill_stall_share", model.prefill_stall_share),
        ("tokenize_ms", model.tokenize_ms),
        ("tokenize_token_us", model.tokenize_token_us),
        ("schedule_ms", model.schedule_ms),
        ("step_gap_ms", model.step_gap_ms),
    ]);
    let flags = figures
        .iter()
        .map(|(name, value)| format!(" --{} {value:.6}", name.replace('_', "-")));
    let lines = figures
        .iter()
        .map(|(name, value)| format!("{name} = {value:.6}\n"));
    format!(
        "# queuescope sim{}\n[sim]\n{}",
        flags.collect::<String>(),
        lines.collect::<String>()
    )
}

fn to_json(fit: &Fit, load: &Load, predictions: &[Prediction], refused: Option<&str>) -> Value {
    let learnt = fit.learnt.iter().map(|learnt| {
        (
            learnt.name.to_owned(),
            json!({ "value": learnt.value, "low": learnt.bounds[0], "high": learnt.bounds[1] }),
        )
    });
    let shares: serde_json::Map<String, Value> = fit
        .shares
        .iter()
        .map(|(servers, share)| (servers.to_string(), json!(share)))
        .collect();
    let validation = fit.validation.iter().map(|run| {
        json!({
            "file": run.name,
            "max_running_requests": run.slots,
            "measured": figures(&run.measured),
            "predicted": figures(&run.predicted),
            "error": errors(run.errors()),
        })
    });
    let predicted = predictions.iter().map(|prediction| {
        let mut shown = figures(&prediction.figures);
        shown["settings"] = grid::json(&prediction.settings).into();
        shown["error"] = errors(fit.errors());
        shown
    });
    json!({
        "fit": {
            "requests": fit.requests,
            "parameters": learnt.collect::<serde_json::Map<_, _>>(),
            "gpu_share": shares,
            "error": fit.error(),
        },
        "validation": validation.collect::<Value>(),
        "load": { "requests": load.requests.len(), "servers": load.servers, "max_running_requests": load.slots, "notes": notes(load) },
        "predictions": predicted.collect::<Value>(),
        "no_prediction": refused,
    })
}

fn figures(figures: &Figures) -> Value {
    let three =
        |of: [f64; 3]| json!({ "mean": of[0] * 1e3, "p50": of[1] * 1e3, "p99": of[2] * 1e3 });
    json!({
        "ttft_ms": three(figures.ttft),
        "total_latency_ms": three(figures.total),
        "pure_queue_time_ms": three(figures.queue),
        "request_throughput": figures.throughput,
    })
}

fn errors(errors: Errors) -> Value {
    let named = COMPARED.iter().zip(errors);
    named
        .map(|(name, error)| ((*name).to_owned(), json!(error)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// What the reader must know of the load.
fn notes(load: &Load) -> Vec<String> {
    let mut notes = load.notes.clone();
    if load.slots.iter().all(Option::is_none) {
        notes.push(
            "no request waited for a slot: how many the servers run at once is not known, and no limit is assumed; \
             --set max_running_requests=N says it"
                .to_owned(),
        );
    }
    if load.shares_prefixes() {
        notes.push(
            "cached tokens are taken as measured: rows do not tell which prompts share a beginning, so what more servers or another \
             policy would do to the prefix cache is not predicted"
                .to_owned(),
        );
    }
    notes
}

fn to_text(fit: &Fit, load: &Load, predictions: &[Prediction], refused: Option<&str>) -> String {
    let learnt = fit.learnt.iter().map(|learnt| {
        let [low, high] = learnt.bounds;
        vec![
            learnt.name.to_owned(),
            short(learnt.value),
            format!("{} – {}", short(low), short(high)),
        ]
    });
    let learnt = Grid {
        heads: ["learnt", "value", "95 %"].map(str::to_owned).into(),
        rows: learnt.collect(),
    };
    let heads = [
        "",
        "TTFT p50",
        "TTFT p99",
        "total p50",
        "total p99",
        "queue mean",
        "done a second",
    ];
    let heads = || heads.iter().map(|head| (*head).to_owned());
    let mut replayed = Vec::new();
    for run in &fit.validation {
        replayed.push(line(&run.name, compared(&run.measured)));
        replayed.push(line("  replayed", compared(&run.predicted)));
        replayed.push(shares("  off by", run.errors(), "+"));
    }
    replayed.push(shares("error (root mean square)", fit.errors(), ""));
    let replayed = Grid {
        heads: heads().collect(),
        rows: replayed,
    };
    let mut rows = vec![line(
        &format!("measured: {}", load.name),
        compared(&Figures::measured(&load.requests)),
    )];
    for prediction in predictions {
        rows.push(line(
            &format!("predicted: {}", grid::label(&prediction.settings)),
            compared(&prediction.figures),
        ));
        rows.push(shares("  ±", fit.errors(), ""));
    }
    let predicted = Grid {
        heads: heads().collect(),
        rows,
    };
    let notes: String = notes(load)
        .iter()
        .map(|note| format!("note: {note}\n"))
        .collect();
    let shared: String = fit
        .shares
        .iter()
        .map(|(servers, share)| {
            format!("{servers} servers: each as fast as with {share:.2} of a GPU\n")
        })
        .collect();
    let refused = refused.map_or(String::new(), |why| format!("\n{why}\n"));
    format!(
        "Learnt of {} requests:\n{}{shared}\nReplayed (milliseconds):\n{}\nPredicted (milliseconds):\n{}{notes}{refused}",
        fit.requests,
        learnt.to_text(None),
        replayed.to_text(None),
        predicted.to_text(None),
    )
}

fn line(name: &str, figures: Errors) -> Vec<String> {
    let [times @ .., throughput] = figures;
    let cells = times.map(|time| short(time * 1e3));
    std::iter::once(name.to_owned())
        .chain(cells)
        .chain([format!("{throughput:.2}")])
        .collect()
}

fn shares(name: &str, errors: Errors, sign: &str) -> Vec<String> {
    let cell = |error: f64| match sign {
        "" => format!("{:.1} %", error * 100.0),
        _ => format!("{:+.1} %", error * 100.0),
    };
    std::iter::once(name.to_owned())
        .chain(errors.map(cell))
        .collect()
}

fn short(value: f64) -> String {
    match value {
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
