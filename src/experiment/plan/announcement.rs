//! A plan in words, before it is done.

use super::deploy::without_effect;
use super::grid::Sweep;
use super::line::{self, Settings};
use super::shown::shown;
use super::{Plan, Run};
use crate::experiment::launch::EngineName;
use crate::units::count;

/// What a start and an end take beside the load, about, seconds: of the simulator, and of SGLang, which loads a model.
const START_SIM: f64 = 2.0;
const START_SGLANG: f64 = 60.0;
/// The keys that are shown in any case.
const SHOWN: [&str; 10] = [
    "engine",
    "servers",
    "num_gpus",
    "num_prefill",
    "num_decode",
    "router",
    "dataset_name",
    "num_prompts",
    "duration",
    "request_rate",
];

/// What will be done: the runs, what varies, how long it takes.
pub fn announcement(plan: &Plan) -> String {
    let Some(Run { settings, .. }) = plan.runs().first() else {
        return String::new();
    };
    let (runs, keys) = (plan.runs(), &settings.keys);
    let mut text = if plan.is_search() {
        let (share, goodput) = (keys.goodput_share * 100.0, settings.goodput().join(" "));
        format!(
            "search: the highest request rate at which {share} % of the requests keep {goodput}\n"
        )
    } else {
        let each = match keys.repeats {
            1 => String::new(),
            repeats => format!(", each setting {repeats} times with seeds of its own"),
        };
        format!("{}{each}, {}\n", count(runs.len(), "run"), lasts(runs))
    };
    for Sweep { key, values } in plan.sweeps() {
        let values = values.iter().map(|value| line::text(&shown(&key, value)));
        let values: Vec<String> = values.collect();
        text.push_str(&format!("  {key} = {}\n", values.join(", ")));
    }
    let is_shown = |key: &&&str| match **key {
        "num_gpus" => keys.engine != EngineName::External && !keys.has_pairs(),
        "num_prefill" | "num_decode" => keys.has_pairs(),
        _ => true,
    };
    let value = |key: &&str| Some(format!("{key} = {}", settings.text(key)?));
    let pairs: Vec<String> = SHOWN.iter().filter(is_shown).filter_map(value).collect();
    text.push_str(&format!("  {}\n", pairs.join(", ")));
    let notes = plan.notes.iter().cloned();
    for note in notes.chain(without_effect(plan, settings)) {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

/// How long runs take, about, where their rates say so.
fn lasts(runs: &[Run]) -> String {
    let run_s = |run: &Run| {
        let start_s = match run.settings.keys.engine {
            EngineName::Sglang => START_SGLANG,
            _ => START_SIM,
        };
        Some(load_s(&run.settings)? + start_s)
    };
    let seconds = runs.iter().map(run_s).sum::<Option<f64>>();
    seconds.map_or("for as long as the servers take".to_owned(), |seconds| {
        format!("about {}", span(seconds))
    })
}

/// How long a run's load is sent, if its rate or duration says so.
fn load_s(settings: &Settings) -> Option<f64> {
    let load = &settings.load;
    let rate = Some(load.request_rate).filter(|rate| rate.is_finite());
    let count = load.num_prompts.or(load.duration.is_none().then_some(1000));
    let by_rate = rate.zip(count).map(|(rate, count)| count as f64 / rate);
    let duration = load.duration.map(|duration| duration.as_secs_f64());
    by_rate.into_iter().chain(duration).reduce(f64::min)
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
        announcement(&plan)
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
        let text = announced("find_max_rate = true\ngoodput = ['ttft:500']");
        assert!(
            text.starts_with(
                "search: the highest request rate at which 95 % of the requests keep ttft:500\n"
            ),
            "{text}"
        );
    }
}
