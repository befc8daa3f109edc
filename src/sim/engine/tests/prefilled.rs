//! Decode server of a pair: memory first, then the KV cache, then a slot.

use super::*;

#[test]
fn memory_then_arrival_then_a_slot() {
    // One slot, memory for one more; steps of 12 ms. The third waits for memory.
    let mut engine = Engine::new(bare(1), ms(0)).decode_only(1);
    for id in 1..=3 {
        engine.submit(request(id, 10, 3), ms(0));
    }
    assert_eq!(events_until(&mut engine, 50), "1 reserved 0, 2 reserved 0");
    let load = engine.load();
    let counts = (load.unreserved, load.in_transfer, load.used_tokens);
    assert_eq!(counts, (1, 2, 20));
    engine.arrive(2, ms(50));
    engine.arrive(1, ms(55));
    assert_eq!(engine.load().waiting, 1);
    // A second arrival, or one before memory is reserved, is ignored.
    let told = "arrive 1 at 55, arrive 3 at 55, until 200, arrive 3 at 200";
    let all = "2 arrived 50, 2 new 50, 2 token 50, 1 arrived 55, 2 token 62, 2 last 74, 3 reserved 74, 1 new 74, \
               1 token 74, 1 token 86, 1 last 98, 3 arrived 200, 3 new 200, 3 token 200, 3 token 212, 3 last 224";
    assert_eq!(happens(&mut engine, told), all);
    let load = engine.load();
    let counts = (load.running, load.in_transfer, load.used_tokens);
    assert_eq!(counts, (0, 0, 0));
}

#[test]
fn memory_is_reserved_only_while_there_is_enough() {
    let profile = with(4, |profile| profile.max_total_tokens = 100);
    let mut engine = Engine::new(profile, ms(0)).decode_only(8);
    // The client of the first leaves: the other gets the memory at once.
    let told = "1 60+10 at 0, 2 60+10 at 0, until 10, abort 1 at 20";
    let all = "1 reserved 0, 1 aborted 20, 2 reserved 20";
    assert_eq!(happens(&mut engine, told), all);
    assert_eq!(engine.load().used_tokens, 60);
}
