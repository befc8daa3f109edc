//! A server that decodes what others prefill: room first, then what comes, then a slot.

use super::EventKind::{Arrived, Reserved};
use super::*;

#[test]
fn room_then_arrival_then_a_slot() {
    // One slot, room for one more; steps of 12 ms.
    let mut engine = Engine::decode_only(bare(1), 1, ms(0));
    for id in 1..=3 {
        engine.submit(request(id, 10, 3), ms(0));
    }
    // The third waits for room, whatever comes.
    assert_eq!(
        happened(&mut engine, 50),
        [(1, 0, Reserved), (2, 0, Reserved)]
    );
    let load = engine.load();
    assert_eq!((load.unreserved, load.coming, load.used_tokens), (1, 2, 20));
    engine.arrive(2, ms(50));
    engine.arrive(1, ms(55));
    // Nothing comes twice, nor before there is room.
    engine.arrive(1, ms(55));
    engine.arrive(3, ms(55));
    assert_eq!(engine.load().waiting, 1);
    let all = [
        (2, 50, Arrived),
        (2, 50, NEW),
        (2, 50, TOKEN),
        (1, 55, Arrived),
        (2, 62, TOKEN),
        (2, 74, LAST),
        (3, 74, Reserved),
        (1, 74, NEW),
        (1, 74, TOKEN),
        (1, 86, TOKEN),
        (1, 98, LAST),
    ];
    assert_eq!(happened(&mut engine, 200), all);
    engine.arrive(3, ms(200));
    let rest = [(3, 200, Arrived), (3, 200, NEW), (3, 200, TOKEN)];
    assert_eq!(happened(&mut engine, 200), rest);
    engine.advance(ms(1_000)).count();
    assert_eq!(
        engine.load(),
        Load {
            decoded: engine.load().decoded,
            ..Load::default()
        }
    );
}

#[test]
fn the_room_is_the_memory_s_too() {
    let profile = Profile {
        max_total_tokens: 100,
        ..bare(4)
    };
    let mut engine = Engine::decode_only(profile, 8, ms(0));
    engine.submit(request(1, 60, 10), ms(0));
    engine.submit(request(2, 60, 10), ms(0));
    assert_eq!(happened(&mut engine, 10), [(1, 0, Reserved)]);
    // Its client leaves: the other has the room at once.
    assert_eq!(engine.abort(1, ms(20)), Some(Aborted::Waiting));
    assert_eq!(happened(&mut engine, 30), [(2, 20, Reserved)]);
    assert_eq!(engine.load().used_tokens, 60);
}

#[test]
fn whatever_runs_out_of_room_ends_all_the_same() {
    let profile = Profile {
        max_total_tokens: 120,
        schedule_conservativeness: 0.0,
        ..bare(4)
    };
    let mut engine = Engine::decode_only(profile, 8, ms(0));
    for id in 1..=6 {
        engine.submit(request(id, 20, 40), ms(0));
    }
    let (mut ended, mut retracted) = (0, 0);
    for at in 0..20_000 {
        let told: Vec<Event> = engine.advance(ms(at)).collect();
        for event in told {
            match event.kind {
                Reserved => engine.arrive(event.id, ms(at)),
                LAST => ended += 1,
                Retracted => retracted += 1,
                _ => {}
            }
        }
    }
    assert_eq!(ended, 6);
    assert!(retracted > 0);
    assert_eq!(engine.load().used_tokens, 0);
}
