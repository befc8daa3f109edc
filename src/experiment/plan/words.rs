//! A plan in words, before it is done.

use super::deploy::without_effect;
use super::grid::Sweep;
use super::line::{self, text as text_of};
use super::presets;
use super::settings::Settings;
use super::shown::shown;
use super::{Plan, Run};
use crate::experiment::launch::EngineName;

/// What a start and an end take beside the load, about, seconds: of the simulator, and of SGLang, which loads a model.
const START_SIM: f64 = 2.0;
const START_SGLANG: f64 = 60.0;
/// Generator's keys that leave what is sent and when as it is.
const SAME_LOAD: [&str; 9] = [
    "max_concurrency",
    "warmup_requests",
    "request_timeout_s",
    "connect_timeout_s",
    "drain_timeout_s",
    "disable_connection_reuse",
    "flush_cache",
    "goodput",
    "max_failed",
];

/// What will be done: the runs, what varies, how long it takes.
pub fn announcement(plan: &Plan, runs: &[Run]) -> String {
    let sweeps = plan.sweeps();
    let mut text = String::new();
    let Some(first) = runs.first() else {
        return text;
    };
    if plan.is_search() {
        let goodput = first.settings.goodput().join(" ");
        let share = first.settings.line.keys.goodput_share * 100.0;
        text.push_str(&format!(
            "search: the highest request rate at which {share} % of the requests keep {goodput}\n"
        ));
    } else {
        let repeats = runs.iter().map(|run| run.repeat + 1).max().unwrap_or(1);
        let each = match repeats {
            1 => String::new(),
            repeats => format!(", each setting {repeats} times with seeds of its own"),
        };
        let noun = if runs.len() == 1 { "run" } else { "runs" };
        text.push_str(&format!("{} {noun}{each}{}\n", runs.len(), duration(runs)));
    }
    for Sweep { key, values } in &sweeps {
        let values = values.iter().map(|value| text_of(&shown(key, value)));
        let values: Vec<String> = values.collect();
        text.push_str(&format!("  {key} = {}\n", values.join(", ")));
    }
    text.push_str(&format!("  {}\n", deployment(&first.settings)));
    for note in notes(plan, &sweeps, &first.settings) {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

/// What serves and what is sent, of the keys that do not vary.
fn deployment(settings: &Settings) -> String {
    let shown = [
        "engine",
        "num_gpus",
        "router",
        "dataset_name",
        "num_prompts",
        "duration",
        "request_rate",
        "preset",
    ];
    let keys = &settings.line.keys;
    let value = |key: &str| match key {
        "num_gpus" if !keys.servers.is_empty() => Some(format!("servers = {}", keys.servers.len())),
        "num_gpus" if keys.engine == EngineName::External => None,
        key => Some(format!("{key} = {}", settings.text(key)?)),
    };
    let pairs = shown.iter().filter_map(|key| value(key));
    pairs.collect::<Vec<_>>().join(", ")
}

fn notes(plan: &Plan, sweeps: &[Sweep], settings: &Settings) -> Vec<String> {
    let changes_load = |sweep: &&Sweep| {
        line::key(&sweep.key).is_some_and(line::Key::is_of_load)
            && !SAME_LOAD.contains(&sweep.key.as_str())
    };
    let loads = sweeps.iter().filter(changes_load);
    let loads: Vec<&str> = loads.map(|sweep| sweep.key.as_str()).collect();
    let mut notes = plan.notes().to_vec();
    if !loads.is_empty() {
        notes.push(format!(
            "{} changes what is sent or when: runs that differ in it are not compared request by request",
            loads.join(", ")
        ));
    }
    let is_varied = sweeps.iter().any(|sweep| sweep.key == "preset");
    if let Some(preset) = settings.line.keys.preset.as_ref().filter(|_| !is_varied) {
        let given = plan.given_keys();
        let set = presets::of(preset).into_iter();
        let set = set.filter(|(key, _)| !given.iter().any(|given| given == key));
        let set: Vec<String> = set.map(|(key, value)| format!("{key} = {value}")).collect();
        notes.push(format!("preset {preset} sets {}", set.join(", ")));
    }
    notes.extend(without_effect(settings, &plan.given_keys()));
    notes
}

/// How long all runs take, where their rates say so.
fn duration(runs: &[Run]) -> String {
    let start = |run: &Run| match run.settings.line.keys.engine {
        EngineName::Sglang => START_SGLANG,
        _ => START_SIM,
    };
    match loads_s(runs) {
        Some(loads) => format!(
            ", about {}",
            span(loads + runs.iter().map(start).sum::<f64>())
        ),
        None => ", for as long as the servers take".to_owned(),
    }
}

/// How long runs that are left take, by how long the first start took.
pub fn left(runs: &[Run], start_s: f64) -> String {
    let starts = start_s * runs.len() as f64;
    match loads_s(runs) {
        Some(loads) => format!("about {}", span(loads + starts)),
        None => format!("about {} for starts alone", span(starts)),
    }
}

/// How long the loads of runs are sent, if all of them say so.
fn loads_s(runs: &[Run]) -> Option<f64> {
    runs.iter().map(|run| load_s(&run.settings)).sum()
}

/// How long a run's load is sent, if its rate or duration says so.
fn load_s(settings: &Settings) -> Option<f64> {
    let load = &settings.line.load;
    let rate = Some(load.request_rate).filter(|rate| rate.is_finite());
    let by_rate = rate.map(|rate| load.num_prompts.unwrap_or(1000) as f64 / rate);
    match (
        load.duration.map(|duration| duration.as_secs_f64()),
        by_rate,
    ) {
        (Some(duration), Some(by_rate)) if load.num_prompts.is_some() => {
            Some(duration.min(by_rate))
        }
        (Some(duration), _) => Some(duration),
        (None, by_rate) => by_rate,
    }
}

fn span(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 90.0 => format!("{seconds:.0} s"),
        seconds if seconds < 5400.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::keys::Kind;
    use crate::experiment::plan::read;

    fn announced(text: &str) -> String {
        let plan = Plan::new(Kind::Node, Vec::new(), read::file(text).unwrap()).unwrap();
        let runs = plan.runs();
        announcement(&plan, runs)
    }

    #[test]
    fn it_says_how_many_runs_how_long_and_what_varies() {
        let text = announced(
            "max_running_requests = [8, 16]\nrequest_rate = 10\nnum_prompts = 500\nrepeats = 2\ngpu_id = 1",
        );
        assert!(
            text.starts_with("4 runs, each setting 2 times with seeds of its own, about 3 min\n"),
            "{text}"
        );
        assert!(text.contains("  max_running_requests = 8, 16\n"), "{text}");
        assert!(
            text.contains("note: gpu_id means nothing to engine sim\n"),
            "{text}"
        );
        assert!(!text.contains("not compared"), "{text}");
        assert!(!announced("gpu_id = 0\ntp_size = 1").contains("means nothing"));
        let plan = read::file("request_rate = 10\nnum_prompts = 1000").unwrap();
        let plan = Plan::new(Kind::Node, Vec::new(), plan).unwrap();
        assert_eq!(left(plan.runs(), 45.0), "about 2 min");
        let text = announced(
            "engine = 'external'\nservers = ['http://h:1', 'http://h:2']\nrouter = 'builtin'",
        );
        assert!(!text.contains("num_gpus"), "{text}");
        let text = announced("request_rate = [5, inf]");
        assert!(
            text.starts_with("2 runs, for as long as the servers take\n"),
            "{text}"
        );
        assert!(
            text.contains("request_rate changes what is sent or when"),
            "{text}"
        );
        let text = announced("preset = 'low-latency'\nmax_running_requests = 5");
        assert!(
            text.contains("note: preset low-latency sets chunked_prefill_size = 4096\n"),
            "{text}"
        );
        let text = announced("find_max_rate = true\ngoodput = ['ttft:500']");
        assert!(
            text.starts_with(
                "search: the highest request rate at which 95 % of the requests keep ttft:500\n"
            ),
            "{text}"
        );
    }
}
