//! A server that decodes what others prefill: room first, then what comes, then a slot.

use super::EventKind::Reserved;
use super::*;

#[test]
fn room_then_arrival_then_a_slot() {
    // One slot, room for one more; steps of 12 ms.
    let mut engine = Engine::decode_only(bare(1), 1, ms(0));
    for id in 1..=3 {
        engine.submit(request(id, 10, 3), ms(0));
    }
    // The third waits for room, whatever comes.
    assert_eq!(happened(&mut engine, 50), "1 reserved 0, 2 reserved 0");
    let load = engine.load();
    assert_eq!((load.unreserved, load.coming, load.used_tokens), (1, 2, 20));
    engine.arrive(2, ms(50));
    engine.arrive(1, ms(55));
    // Nothing comes twice, nor before there is room.
    engine.arrive(1, ms(55));
    engine.arrive(3, ms(55));
    assert_eq!(engine.load().waiting, 1);
    let all = "2 arrived 50, 2 new 50, 2 token 50, 1 arrived 55, 2 token 62, 2 last 74, 3 reserved 74, 1 new 74, \
               1 token 74, 1 token 86, 1 last 98";
    assert_eq!(happened(&mut engine, 200), all);
    engine.arrive(3, ms(200));
    let rest = "3 arrived 200, 3 new 200, 3 token 200";
    assert_eq!(happened(&mut engine, 200), rest);
    engine.advance(ms(1_000)).count();
    let load = engine.load();
    assert_eq!((load.running, load.coming, load.used_tokens), (0, 0, 0));
}

#[test]
fn the_room_is_the_memory_s_too() {
    let profile = with(4, |profile| profile.max_total_tokens = 100);
    let mut engine = Engine::decode_only(profile, 8, ms(0));
    engine.submit(request(1, 60, 10), ms(0));
    engine.submit(request(2, 60, 10), ms(0));
    assert_eq!(happened(&mut engine, 10), "1 reserved 0");
    // Its client leaves: the other has the room at once.
    assert!(engine.abort(1, ms(20)));
    assert_eq!(happened(&mut engine, 30), "1 aborted 20, 2 reserved 20");
    assert_eq!(engine.load().used_tokens, 60);
}

#[test]
fn whatever_runs_out_of_room_ends_all_the_same() {
    let profile = with(4, |profile| {
        profile.max_total_tokens = 120;
        profile.schedule_conservativeness = 0.0;
    });
    let mut engine = Engine::decode_only(profile, 8, ms(0));
    for id in 1..=6 {
        engine.submit(request(id, 20, 40), ms(0));
    }
    let mut told = String::new();
    for at in 0..20_000 {
        let events: Vec<Event> = engine.advance(ms(at)).collect();
        let coming = events.iter().filter(|event| event.kind == Reserved);
        coming.for_each(|event| engine.arrive(event.id, ms(at)));
        told += &words(events.into_iter());
    }
    assert_eq!(told.matches("last").count(), 6);
    assert!(told.contains("retracted"));
    assert_eq!(engine.load().used_tokens, 0);
}
