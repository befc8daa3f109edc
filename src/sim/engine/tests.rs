mod laws;
mod memory;
mod prefilled;

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

/// What happens in an engine that is told this, step by step and then until the end, but for `Queued`. A request is its id, the
/// lengths of prompt and output, and when it comes, in ms.
fn happens(engine: &mut Engine, told: &str) -> String {
    let mut happened = Vec::new();
    for step in told.split(", ").chain(["until 100000"]) {
        let words: Vec<&str> = step.split([' ', '+']).collect();
        let numbers = words.iter().filter_map(|word| word.parse().ok());
        match (words[0], &numbers.collect::<Vec<i64>>()[..]) {
            ("until", [at]) => happened.push(events_until(engine, *at)),
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

/// Compares with what was computed by hand.
fn assert_happens(profile: Profile, told: &str, all: &str) {
    let mut engine = Engine::new(profile, ms(0));
    assert_eq!(happens(&mut engine, told), all, "{told}");
    assert_eq!(engine.next_event_at(), None, "{told}");
    let load = engine.load();
    assert_eq!((load.running, load.waiting, load.used_tokens), (0, 0, 0));
}

/// How many slots there are, what the engine is told, and what happens.
const BY_HAND: &str = "\
4 | 7 5+3 at 100 | 7 new 100, 7 token 105, 7 token 117, 7 last 129
1 | 1 5+0 at 0 | 1 new 0, 1 last 5
1 | 1 5+1 at 0 | 1 new 0, 1 last 5
4 | 1 5+2 at 0, 2 3+2 at 0 | 1 new 0, 2 new 0, 1 token 8, 2 token 8, 1 last 22, 2 last 22
4 | 1 5+3 at 0, 2 4+1 at 9 | 1 new 0, 1 token 5, 1 token 17, 2 new 17, 2 last 21, 1 last 33
4 | 1 1500+1 at 0, 2 600+1 at 0, 3 400+1 at 0, 4 1+1 at 0 | 1 new 0, 1 last 1500, 2 new 1500, 3 new 1500, \
2 last 2500, 3 last 2500, 4 new 2500, 4 last 2501
2 | until 100, 1 1+1 at 5 | 1 new 100, 1 last 101
1 | 1 5+1 at 0, 2 5+1 at 0, 3 5+1 at 0, abort 2 at 1, abort 2 at 1, until 100, abort 3 at 100 | \
2 over, 1 new 0, 2 aborted 1, 1 last 5, 3 new 5, 3 last 10, 3 over
1 | 1 5+100 at 0, 2 5+1 at 0, abort 1 at 20 | 1 new 0, 1 token 5, 1 token 17, 1 aborted 20, 2 new 29, 2 last 34
1 | 3 10+5 at 2000, abort 3 at 2004, 4 1+1 at 2005 | 3 new 2000, 3 aborted 2004, 4 new 2010, 4 last 2011";

/// A request takes its prefill and a step a further token; one token ends with the prefill. Requests that arrive at the same time are
/// prefilled together and slow each other in decode. A new one is prefilled at the end of the step: that of 1 runs from 5 to 17, 2 arrives
/// at 9. A batch keeps to its limit of tokens; a longer prompt is a batch of its own. Nothing starts earlier than the last advance. An abort
/// in the queue frees the place for the next, one in a step the slot at its end: decode's from 17 to 29, prefill's from 2000 to 2010.
#[test]
fn steps_are_shared_and_slots_freed_as_computed_by_hand() {
    for line in BY_HAND.lines() {
        let [slots, told, all] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        assert_happens(bare(slots.parse().unwrap()), told, all);
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

#[test]
fn a_full_queue_rejects_when_the_scheduler_picks_up() {
    let profile = with(1, |profile| profile.max_queued_requests = Some(2));
    let mut engine = Engine::new(profile, ms(0));
    engine.submit(request(1, 5, 1), ms(0));
    assert_eq!(events_until(&mut engine, 0), "1 new 0");
    for id in 2..=4 {
        engine.submit(request(id, 5, 1), ms(1));
    }
    assert_eq!(events_until(&mut engine, 1), "");
    let load = engine.load();
    assert_eq!((load.running, load.waiting), (1, 3));
    assert_eq!((load.waiting_tokens, load.used_tokens), (15, 5));
    // At 5 the first has ended; of those that arrived meanwhile two may wait.
    let picked_up = "1 last 5, 2 queued 5, 3 queued 5, 4 rejected 5, 2 new 5";
    assert_eq!(shown(engine.advance(ms(5))), picked_up);
    engine.submit(request(5, 5, 1), ms(6));
    assert!(!events_until(&mut engine, 100).contains("rejected"));
}
