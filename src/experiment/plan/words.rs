//! A plan in words, before it is done.

use super::deploy::{self, without_effect};
use super::generator;
use super::grid::Sweep;
use super::presets;
use super::settings::Settings;
use super::shown::shown;
use super::{Plan, Run};

/// What a start and an end take beside the load, about, seconds: of the simulator, and of SGLang, which loads a model.
const START_SIM: f64 = 2.0;
const START_SGLANG: f64 = 60.0;
/// So long servers are to be back before the load is over, seconds.
const SEEN: f64 = 20.0;
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
        let goodput = first.settings.texts("goodput").join(" ");
        let share = first.settings.number("goodput_share").unwrap_or_default() * 100.0;
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
        let values = values
            .iter()
            .map(|value| generator::text(&shown(key, value)));
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
    let external = settings.texts("servers").len();
    let value = |key: &str| match key {
        "num_gpus" if external > 0 => Some(format!("servers = {external}")),
        "num_gpus" if settings.text("engine")? == "external" => None,
        key => Some(format!("{key} = {}", settings.text(key)?)),
    };
    let pairs = shown.iter().filter_map(|key| value(key));
    pairs.collect::<Vec<_>>().join(", ")
}

fn notes(plan: &Plan, sweeps: &[Sweep], settings: &Settings) -> Vec<String> {
    let generator = generator::keys();
    let changes_load = |sweep: &&Sweep| {
        generator.contains_key(&sweep.key) && !SAME_LOAD.contains(&sweep.key.as_str())
    };
    let loads: Vec<&str> = sweeps
        .iter()
        .filter(changes_load)
        .map(|sweep| sweep.key.as_str())
        .collect();
    let mut notes = plan.notes().to_vec();
    if !loads.is_empty() {
        notes.push(format!(
            "{} changes what is sent or when: runs that differ in it are not compared request by request",
            loads.join(", ")
        ));
    }
    if let (Some(preset), None) = (
        settings.text("preset"),
        sweeps.iter().find(|sweep| sweep.key == "preset"),
    ) {
        let given = plan.given_keys();
        let set = presets::of(&preset)
            .into_iter()
            .filter(|(key, _)| !given.iter().any(|given| given == key));
        let set: Vec<String> = set.map(|(key, value)| format!("{key} = {value}")).collect();
        notes.push(format!("preset {preset} sets {}", set.join(", ")));
    }
    notes.extend(without_effect(settings, &plan.given_keys()));
    notes
}

/// How long all runs take, where their rates say so.
fn duration(runs: &[Run]) -> String {
    let loads: Option<f64> = runs.iter().map(|run| load_s(&run.settings)).sum();
    let starts: f64 = runs
        .iter()
        .map(|run| match run.settings.text("engine").as_deref() {
            Some("sglang") => START_SGLANG,
            _ => START_SIM,
        })
        .sum();
    match loads {
        Some(loads) => format!(", about {}", span(loads + starts)),
        None => ", for as long as the servers take".to_owned(),
    }
}

/// How long runs that are left take, by how long the first start took.
pub fn left(runs: &[Run], start_s: f64) -> String {
    let loads: Option<f64> = runs.iter().map(|run| load_s(&run.settings)).sum();
    let starts = start_s * runs.len() as f64;
    match loads {
        Some(loads) => format!("about {}", span(loads + starts)),
        None => format!("about {} for starts alone", span(starts)),
    }
}

/// What is to be known of servers that are killed and started again, where a start takes so long and the load is over before.
pub fn back_too_late(settings: &Settings, start_s: f64) -> Option<String> {
    let (up, load_s) = (
        deploy::faults(settings).ok()??.last_start()?,
        load_s(settings)?,
    );
    let ready = up + start_s;
    (ready + SEEN > load_s).then(|| {
        format!(
            "a start took {start_s:.0} s: a server that is started again at {up} s is ready at about {ready:.0} s, and the \
             load is over at about {load_s:.0} s: let it last {:.0} s for what comes then to be seen (num_prompts, duration)",
            (ready + SEEN).ceil()
        )
    })
}

/// How long a run's load is sent, if its rate or duration says so.
fn load_s(settings: &Settings) -> Option<f64> {
    let rate = settings
        .number("request_rate")
        .filter(|rate| rate.is_finite());
    let count = settings.number("num_prompts");
    let by_rate = rate.map(|rate| count.unwrap_or(1000.0) / rate);
    match (settings.number("duration"), by_rate) {
        (Some(duration), Some(by_rate)) if count.is_some() => Some(duration.min(by_rate)),
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
        let runs = plan.runs().unwrap();
        announcement(&plan, &runs)
    }

    #[test]
    fn servers_that_come_back_too_late_are_told_of() {
        let of = |text: &str| {
            let plan = Plan::new(Kind::Node, Vec::new(), read::file(text).unwrap()).unwrap();
            let runs = plan.runs().unwrap();
            (back_too_late(&runs[0].settings, 45.0), left(&runs, 45.0))
        };
        let kill = "failure_schedule = { 30 = [1], 60 = [] }\nrequest_rate = 10";
        let (late, left) = of(&format!("{kill}\nnum_prompts = 1000"));
        let late = late.unwrap();
        assert!(
            late.contains("ready at about 105 s") && late.contains("let it last 125 s"),
            "{late}"
        );
        assert_eq!(left, "about 2 min");
        assert_eq!(of(&format!("{kill}\nnum_prompts = 1300")).0, None);
        assert_eq!(
            of("failure_schedule = { 30 = [1] }\nrequest_rate = 10").0,
            None
        );
        let stall = format!("{kill}\nnum_prompts = 500\nfailure_kind = 'stall'");
        assert_eq!(of(&stall).0, None);
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
