mod laws;
mod memory;

use super::EventKind::{Admitted, Arrived, Queued, Rejected, Reserved, Retracted, Token};
use super::*;

const MS: i64 = 1_000_000;
const NEW: EventKind = Admitted { cached: 0 };
const TOKEN: EventKind = Token { last: false };
const LAST: EventKind = Token { last: true };

/// An engine with a prefill of 1 ms a prompt token and decode steps of 10 ms + 2 ms a request.
fn bare(slots: usize) -> Profile {
    Profile {
        max_running_requests: slots,
        max_prefill_tokens: 1_000,
        prefill_tokens_per_s: 1_000.0,
        decode_step_ms: 10.0,
        decode_step_per_seq_ms: 2.0,
        ..Profile::bare()
    }
}

/// The same with a change.
fn with(slots: usize, change: impl FnOnce(&mut Profile)) -> Profile {
    let mut profile = bare(slots);
    change(&mut profile);
    profile
}

fn engine(slots: usize) -> Engine {
    Engine::new(bare(slots), ms(0))
}

fn ms(at: i64) -> Stamp {
    Stamp::from_nanos(at * MS)
}

fn request(id: u64, prompt_tokens: u32, output_tokens: u32) -> Request {
    Request {
        id,
        // No two prompts share a prefix.
        prompt: Prompt::Tokens((0..prompt_tokens).map(|n| n << 16 | id as u32).collect()),
        output_tokens,
    }
}

/// Formats events as id, kind and milliseconds.
fn shown(events: impl Iterator<Item = Event>) -> String {
    let shown = events.map(|event| {
        let kind = match event.kind {
            NEW => "new".to_owned(),
            TOKEN => "token".to_owned(),
            LAST => "last".to_owned(),
            Admitted { cached } => format!("cached {cached}"),
            other => format!("{other:?}").to_lowercase(),
        };
        format!("{} {kind} {}", event.id, event.at.nanos() / MS)
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// All events up to `until` but `Queued`.
fn events_until(engine: &mut Engine, until: i64) -> String {
    let events = engine.advance(ms(until));
    shown(events.filter(|event| event.kind != Queued))
}

/// What happens in an engine that is told this, step by step and then until the end; with `Queued` if asked. A request is its id, the
/// lengths of prompt and output, and when it comes, in ms.
fn happens(engine: &mut Engine, told: &str, with_queued: bool) -> String {
    let mut happened = Vec::new();
    for step in told.split(", ").chain(["until 100000"]) {
        let words: Vec<&str> = step.split([' ', '+']).collect();
        let numbers = words.iter().filter_map(|word| word.parse().ok());
        match (words[0], &numbers.collect::<Vec<i64>>()[..]) {
            ("until", [at]) if with_queued => happened.push(shown(engine.advance(ms(*at)))),
            ("until", [at]) => happened.push(events_until(engine, *at)),
            ("load", []) => {
                let Load {
                    running,
                    waiting,
                    unreserved,
                    in_transfer,
                    waiting_tokens,
                    used_tokens,
                    ..
                } = engine.load();
                happened.push(format!(
                    "({running} running, {waiting} waiting with {waiting_tokens} tokens, {unreserved} unreserved, \
                     {in_transfer} in transfer, {used_tokens} tokens used)"
                ));
            }
            ("arrive", [id, at]) => engine.arrive(*id as u64, ms(*at)),
            ("abort", [id, at]) => {
                let is_aborted = engine.abort(*id as u64, ms(*at));
                happened.extend((!is_aborted).then(|| format!("{id} over")));
            }
            (_, [id, prompt, output, at]) => {
                let request = request(*id as u64, *prompt as u32, *output as u32);
                engine.submit(request, ms(*at));
            }
            _ => panic!("{step}"),
        }
    }
    happened.retain(|events| !events.is_empty());
    happened.join(", ")
}

/// Sets what a case names of an engine's limits and times.
fn set(profile: &mut Profile, name: &str, value: f64) {
    match name {
        "slots" => profile.max_running_requests = value as usize,
        "queue" => profile.max_queued_requests = Some(value as usize),
        "memory" => profile.max_total_tokens = value as u64,
        "chunk" => profile.chunked_prefill_size = value as i64,
        "overlap" => profile.disable_overlap_schedule = value == 0.0,
        "schedule" => profile.schedule_ms = value,
        "gap" => profile.step_gap_ms = value,
        "floor" => profile.prefill_floor_ms = value,
        "launch" => profile.decode_launch_ms = value,
        "share" => profile.gpu_share = value,
        _ => panic!("{name}"),
    }
}

#[test]
fn what_happens_was_computed_by_hand() {
    let text = std::fs::read_to_string("tests/data/sim/engine.txt").unwrap();
    let mut lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    while let Some(case) = lines.next() {
        let (settings, told) = case.split_once(" | ").unwrap();
        let (mut profile, mut decode_extra, mut with_queued) = (bare(1), None, false);
        for setting in settings.split(' ') {
            let (name, value) = setting.split_once('=').unwrap();
            match name {
                "decode" => decode_extra = value.parse().ok(),
                "queued" => with_queued = value == "shown",
                _ => set(&mut profile, name, value.parse().unwrap()),
            }
        }
        let mut engine = Engine::new(profile, ms(0));
        if let Some(extra) = decode_extra {
            engine = engine.decode_only(extra);
        }
        let all = happens(&mut engine, told, with_queued);
        assert_eq!(
            Some(all.as_str()),
            lines.next().map(str::trim_start),
            "{case}"
        );
        assert_eq!(engine.next_event_at(), None, "{case}");
        let load = engine.load();
        let left = (
            load.running,
            load.waiting,
            load.in_transfer,
            load.used_tokens,
        );
        assert_eq!(left, (0, 0, 0, 0), "{case}");
    }
}

#[test]
fn an_event_is_due_when_it_comes() {
    let mut engine = engine(4);
    assert_eq!(engine.next_event_at(), None);
    engine.submit(request(7, 5, 3), ms(100));
    assert_eq!(engine.next_event_at(), Some(ms(100)));
    assert_eq!(events_until(&mut engine, 104), "7 new 100");
    assert_eq!(engine.next_event_at(), Some(ms(105)));
    events_until(&mut engine, 1_000);
    assert_eq!(engine.next_event_at(), None);
    assert_eq!(engine.load().cache_hit_rate, 0.0);
}

#[test]
fn throughput_is_that_of_the_last_decode_step_until_it_is_idle() {
    let mut engine = engine(4);
    for id in 0..2 {
        engine.submit(request(id, 5, 60), ms(0));
    }
    // Steps of 14 ms with two tokens each, after the prefill of both at 10 ms: the first ends at 24 ms, the second at 38.
    engine.advance(ms(37)).count();
    assert_eq!(engine.load().gen_throughput, 0.0);
    engine.advance(ms(38)).count();
    let reported = engine.load().gen_throughput;
    assert!((reported - 2.0 / 0.014).abs() < 1e-9, "{reported}");
    engine.advance(ms(2_000)).count();
    assert_eq!(engine.load().gen_throughput, 0.0);
}
