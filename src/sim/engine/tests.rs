mod laws;
mod memory;
mod prefilled;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp};

use super::EventKind::{Admitted, Queued, Rejected, Retracted, Token};
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

#[test]
fn one_request_takes_its_prefill_and_a_step_a_further_token() {
    let mut engine = engine(4);
    assert_eq!(engine.next_event_at(), None);
    engine.submit(request(7, 5, 3), ms(100));
    assert_eq!(engine.next_event_at(), Some(ms(100)));
    assert_eq!(events_until(&mut engine, 104), "7 new 100");
    assert_eq!(engine.next_event_at(), Some(ms(105)));
    let rest = "7 token 105, 7 token 117, 7 last 129";
    assert_eq!(events_until(&mut engine, 1_000), rest);
    assert_eq!(engine.next_event_at(), None);
    let load = engine.load();
    assert_eq!((load.running, load.used_tokens), (0, 0));
    assert_eq!(load.computed_tokens, 5);
}

#[test]
fn throughput_is_that_of_forty_decode_steps_until_it_is_idle() {
    let mut engine = engine(4);
    for id in 0..2 {
        engine.submit(request(id, 5, 60), ms(0));
    }
    // Steps of 14 ms with two tokens each, after the prefill of both at 10 ms: the first ends at 24 ms, the fortieth at 570.
    engine.advance(ms(569)).count();
    assert_eq!(engine.load().gen_throughput(), 0.0);
    engine.advance(ms(570)).count();
    let reported = engine.load().gen_throughput();
    assert!((reported - 80.0 / 0.546).abs() < 1e-9, "{reported}");
    engine.advance(ms(2_000)).count();
    assert_eq!(engine.load().gen_throughput(), 0.0);
}

/// Compares the events of requests (id, prompt tokens, output tokens, arrival) with those computed by hand.
fn assert_events(profile: Profile, requests: &[(u64, u32, u32, i64)], all: &str) {
    let mut engine = Engine::new(profile, ms(0));
    for (id, prompt, output, at) in requests {
        engine.submit(request(*id, *prompt, *output), ms(*at));
    }
    assert_eq!(events_until(&mut engine, 100_000), all);
}

#[test]
fn requests_share_steps_as_computed_by_hand() {
    // One token ends with the prefill.
    for output in [0, 1] {
        assert_events(bare(1), &[(1, 5, output, 0)], "1 new 0, 1 last 5");
    }
    // Requests that arrive at the same time are prefilled together and slow each other in decode.
    let all = "1 new 0, 2 new 0, 1 token 8, 2 token 8, 1 last 22, 2 last 22";
    assert_events(bare(4), &[(1, 5, 2, 0), (2, 3, 2, 0)], all);
    // A new request is prefilled at the end of the step: that of 1 runs from 5 to 17, 2 arrives at 9.
    let all = "1 new 0, 1 token 5, 1 token 17, 2 new 17, 2 last 21, 1 last 33";
    assert_events(bare(4), &[(1, 5, 3, 0), (2, 4, 1, 9)], all);
    // A batch keeps to its limit of tokens; a longer prompt is a batch of its own.
    let all = "1 new 0, 1 last 1500, 2 new 1500, 3 new 1500, 2 last 2500, 3 last 2500, 4 new 2500, 4 last 2501";
    let requests = [
        (1, 1_500, 1, 0),
        (2, 600, 1, 0),
        (3, 400, 1, 0),
        (4, 1, 1, 0),
    ];
    assert_events(bare(4), &requests, all);
}

#[test]
fn late_submissions_start_no_earlier_than_the_last_advance() {
    let mut engine = engine(2);
    assert_eq!(events_until(&mut engine, 100), "");
    engine.submit(request(1, 1, 1), ms(5));
    assert_eq!(events_until(&mut engine, 100), "1 new 100");
}

#[test]
fn an_abort_in_the_queue_frees_its_place_for_the_next() {
    let mut engine = engine(1);
    for id in 1..=3 {
        engine.submit(request(id, 5, 1), ms(0));
    }
    assert!(engine.abort(2, ms(1)));
    assert!(!engine.abort(2, ms(1)));
    let all = "1 new 0, 2 aborted 1, 1 last 5, 3 new 5, 3 last 10";
    assert_eq!(events_until(&mut engine, 100), all);
    assert!(!engine.abort(3, ms(100)));
}

#[test]
fn an_abort_while_running_frees_the_slot_at_the_end_of_the_step() {
    let mut engine = engine(1);
    engine.submit(request(1, 5, 100), ms(0));
    engine.submit(request(2, 5, 1), ms(0));
    // It decodes from 5 on in steps of 12: aborted at 20, within the step that ends at 29.
    assert!(engine.abort(1, ms(20)));
    let all = "1 new 0, 1 token 5, 1 token 17, 1 aborted 20, 2 new 29, 2 last 34";
    assert_eq!(events_until(&mut engine, 1_000), all);
    // The same within a prefill.
    engine.submit(request(3, 10, 5), ms(2_000));
    assert!(engine.abort(3, ms(2_004)));
    assert_eq!(
        events_until(&mut engine, 2_004),
        "3 new 2000, 3 aborted 2004"
    );
    assert_eq!(engine.next_event_at(), Some(ms(2_010)));
    assert_eq!(events_until(&mut engine, 3_000), "");
    assert_eq!(engine.next_event_at(), None);
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

#[test]
fn one_slot_with_constant_service_waits_as_m_d_1_says() {
    // The wait is from arrival to the start of prefill. Service: 10 ms of prefill and five decode steps of 12 ms.
    // Mean wait: rho / (2 (1 - rho)) D.
    let (service, rho) = (0.070, 0.7);
    let theory = rho / (2.0 * (1.0 - rho)) * service;
    let mut engine = engine(1);
    let mut random = ChaCha8Rng::seed_from_u64(20_261_120);
    let gap = Exp::new(rho / service).unwrap();
    let (batches, batch) = (40, 5_000);
    let mut arrivals = vec![ms(0)];
    // The first batch warms up.
    for id in 0..(batches + 1) * batch {
        let at = arrivals[id].plus_seconds(gap.sample(&mut random));
        engine.submit(request(id as u64, 10, 6), at);
        arrivals.push(at);
    }
    let admitted = engine.advance(arrivals[arrivals.len() - 1].plus_seconds(1e6));
    let admitted = admitted.filter(|event| event.kind == NEW);
    let waits = admitted.map(|event| event.at.since(arrivals[event.id as usize + 1]));
    let waits: Vec<f64> = waits.skip(batch).collect();
    let means = waits
        .chunks(batch)
        .map(|all| all.iter().sum::<f64>() / batch as f64);
    let n = batches as f64;
    let mean = means.clone().sum::<f64>() / n;
    let variance = means.map(|m| (m - mean).powi(2)).sum::<f64>() / (n - 1.0);
    // Student's t with 39 degrees of freedom, 99.9 % two-sided: a right model fails for one seed in a
    // thousand; this seed is fixed. A batch of 5,000 is far longer than the queue's memory (some 100).
    let half_width = 3.558 * (variance / n).sqrt();
    assert!(half_width < 0.05 * theory, "too wide to tell: {half_width}");
    let off = (mean - theory).abs();
    assert!(
        off <= half_width,
        "mean wait {mean} s, theory {theory} ± {half_width} s"
    );
}
