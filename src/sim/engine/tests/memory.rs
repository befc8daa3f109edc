//! Prefix cache, waiting for memory, and stalls.

use super::*;

/// A request whose prompt is a prefix of `shared` tokens, the same for all, and then `own` ones.
fn with_prefix(id: u64, shared: u32, own: u32, output_tokens: u32) -> Request {
    let own = (0..own).map(|n| n << 16 | id as u32);
    Request {
        id,
        prompt: Prompt::Tokens((0..shared).map(|n| n << 16).chain(own).collect()),
        output_tokens,
    }
}

#[test]
fn a_cached_prefix_is_not_prefilled_again() {
    let profile = with(4, |profile| profile.disable_radix_cache = false);
    let mut engine = Engine::new(profile, ms(0));
    engine.submit(with_prefix(1, 100, 20, 1), ms(0));
    engine.submit(with_prefix(2, 100, 30, 1), ms(1_000));
    // The very same prompt: its last token is computed all the same.
    engine.submit(with_prefix(3, 100, 0, 1), ms(2_000));
    let all = "1 new 0, 1 last 120, 2 cached 100 1000, 2 last 1030, 3 cached 99 2000, 3 last 2001";
    assert_eq!(events_until(&mut engine, 3_000), all);
    let load = engine.load();
    assert_eq!((load.used_tokens, load.evictable_tokens), (0, 150));
    assert!((load.cache_hit_rate - 0.99).abs() < 1e-9);

    assert!(engine.flush(ms(3_000)));
    engine.submit(with_prefix(4, 100, 0, 1), ms(3_000));
    assert!(!engine.flush(ms(3_000)), "a request runs");
    assert_eq!(events_until(&mut engine, 3_050), "4 new 3000");
}

#[test]
fn the_least_recently_used_prefix_makes_room() {
    let profile = with(1, |profile| {
        profile.disable_radix_cache = false;
        profile.max_total_tokens = 250;
    });
    let mut engine = Engine::new(profile, ms(0));
    // The third prompt takes the place of the second, since the first was requested again.
    let prompts = [1, 2, 1, 3, 1, 2];
    for (id, prompt) in (0..).zip(prompts) {
        let one = request(prompt, 100, 1);
        engine.submit(Request { id, ..one }, ms(id as i64 * 1_000));
    }
    let admitted = engine
        .advance(ms(10_000))
        .filter_map(|event| match event.kind {
            Admitted { cached } => Some(cached),
            _ => None,
        });
    assert_eq!(admitted.collect::<Vec<_>>(), [0, 0, 99, 0, 99, 0]);
}

#[test]
fn stalls_are_as_many_and_as_long_as_asked_for() {
    let profile = Profile {
        prefill_floor_ms: 20.0,
        prefill_stall_share: 0.25,
        prefill_stall_ms: 8.0,
        ..Profile::bare()
    };
    let launches = (0..10_000).map(|nth| profile.prefill_launch_nanos(nth) - 20 * MS);
    let stalls: Vec<i64> = launches.filter(|stall| *stall > 0).collect();
    let mean = stalls.iter().sum::<i64>() as f64 / stalls.len() as f64 / MS as f64;
    // Four standard deviations.
    assert!(stalls.len().abs_diff(2_500) < 174, "{}", stalls.len());
    assert!((mean - 8.0).abs() < 0.64, "{mean}");
}
