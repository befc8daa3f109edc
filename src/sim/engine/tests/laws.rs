//! Properties that hold for any requests.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// A generated request, and perhaps its abort.
#[derive(Clone, Debug)]
struct Planned {
    at: i64,
    prompt: Vec<u32>,
    output: u32,
    aborted_after: Option<i64>,
}

impl Planned {
    fn request(&self, id: usize) -> Request {
        Request {
            id: id as u64,
            prompt: Prompt::Tokens(self.prompt.clone().into()),
            output_tokens: self.output,
        }
    }
}

/// The events of a request so far.
#[derive(Debug, Default)]
struct Seen {
    kinds: Vec<EventKind>,
    last: Option<Stamp>,
    /// The number of requests queued before it.
    position: usize,
    is_over: bool,
}

/// The events of all requests so far.
#[derive(Default)]
struct All {
    each: HashMap<u64, Seen>,
    queued: usize,
    /// One more than the highest position in the queue that was admitted.
    admitted: usize,
}

fn profiles() -> impl Strategy<Value = Profile> {
    let flags = (any::<bool>(), any::<bool>());
    let sizes = (
        1_usize..6,
        12_u64..120,
        prop::sample::select(vec![-1, 1, 7]),
    );
    (sizes, flags, 0.0..1.5_f64, 0..3_u8).prop_map(
        |((slots, room, chunk), (cache, overlap), conservativeness, extra)| Profile {
            max_running_requests: slots,
            max_queued_requests: (extra == 0).then_some(3),
            max_total_tokens: room,
            max_prefill_tokens: 20,
            chunked_prefill_size: chunk,
            schedule_conservativeness: conservativeness,
            disable_radix_cache: !cache,
            disable_overlap_schedule: !overlap,
            schedule_ms: f64::from(extra),
            step_gap_ms: f64::from(extra),
            ..bare(slots)
        },
    )
}

fn planned() -> impl Strategy<Value = Vec<Planned>> {
    let one = (
        0..60_i64,
        prop::collection::vec(0..2_u32, 1..30),
        0..40_u32,
        prop::option::weighted(0.1, 0..200_i64),
    );
    let one = one.prop_map(|(at, prompt, output, aborted_after)| Planned {
        at,
        prompt,
        output,
        aborted_after,
    });
    prop::collection::vec(one, 1..25)
}

impl All {
    /// Checks and adds an event: its kind may follow the one before, and no request overtakes one that was queued earlier.
    fn add(&mut self, event: &Event) -> Result<(), TestCaseError> {
        let seen = self.each.entry(event.id).or_default();
        prop_assert!(!seen.is_over, "{event:?} after {seen:?}");
        prop_assert!(seen.last <= Some(event.at), "{event:?} after {seen:?}");
        let before = seen.kinds.last().copied();
        let runs = matches!(before, Some(Admitted { .. } | Token { last: false }));
        let is_allowed = match event.kind {
            Queued | Rejected => before.is_none(),
            Admitted { .. } if before == Some(Queued) => seen.position >= self.admitted,
            Admitted { .. } => matches!(before, Some(Arrived | Retracted)),
            Reserved => before == Some(Queued) && seen.position >= self.admitted,
            Arrived => before == Some(Reserved),
            Token { .. } | Retracted => runs,
            EventKind::Aborted => true,
            EventKind::Lost => false,
        };
        prop_assert!(is_allowed, "{event:?} after {seen:?}");
        match event.kind {
            Queued => (seen.position, self.queued) = (self.queued, self.queued + 1),
            Admitted { .. } | Reserved => self.admitted = self.admitted.max(seen.position + 1),
            _ => {}
        }
        seen.last = Some(event.at);
        seen.is_over = event.kind.is_end();
        seen.kinds.push(event.kind);
        Ok(())
    }

    /// Takes all events up to `now`. The KV caches of requests that have memory for them arrive at once.
    fn take(&mut self, engine: &mut Engine, now: Stamp) -> Result<(), TestCaseError> {
        loop {
            let events: Vec<Event> = engine.advance(now).collect();
            prop_assert!(events.is_sorted_by_key(|event| event.at));
            prop_assert!(events.iter().all(|event| event.at <= now));
            if events.is_empty() {
                return Ok(());
            }
            for event in events {
                self.add(&event)?;
                if event.kind == Reserved {
                    engine.arrive(event.id, now);
                }
            }
        }
    }
}

/// Runs the engine from event to event and checks it at each; returns the events of each request. With `extra` it decodes what
/// another server has prefilled.
fn run(
    profile: &Profile,
    planned: &[Planned],
    extra: Option<usize>,
) -> Result<HashMap<u64, Seen>, TestCaseError> {
    let mut engine = Engine::new(profile.clone(), ms(0));
    if let Some(extra) = extra {
        engine = engine.decode_only(extra);
    }
    let mut to_do: Vec<(i64, u64, bool)> = Vec::new();
    for (id, one) in planned.iter().enumerate() {
        to_do.push((one.at, id as u64, false));
        to_do.extend(
            one.aborted_after
                .map(|after| (one.at + after, id as u64, true)),
        );
    }
    to_do.sort_unstable();
    to_do.reverse();
    let mut seen = All::default();
    for round in 0.. {
        prop_assert!(round < 100_000, "it never ends");
        let next = to_do.last().map(|(at, ..)| ms(*at));
        let Some(now) = [next, engine.next_event_at()].into_iter().flatten().min() else {
            break;
        };
        seen.take(&mut engine, now)?;
        while let Some((_, id, is_abort)) = to_do.pop_if(|(at, ..)| ms(*at) <= now) {
            if is_abort {
                seen.take(&mut engine, now)?;
                let was_over = seen.each.get(&id).is_some_and(|seen| seen.is_over);
                let is_here = engine.abort(id, now);
                // On a decode server the only token of a request may be told a little after its end.
                let may_be_untold = extra.is_some() && !is_here;
                prop_assert!(may_be_untold || is_here != was_over);
            } else {
                let id = id as usize;
                engine.submit(planned[id].request(id), now);
            }
        }
        let load = engine.load();
        let held = load.used_tokens + load.evictable_tokens;
        prop_assert!(held <= profile.max_total_tokens, "{load:?}");
        prop_assert!(load.running <= profile.max_running_requests);
    }
    let load = engine.load();
    prop_assert_eq!((load.running, load.waiting, load.used_tokens), (0, 0, 0));
    Ok(seen.each)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_request_ends_once_with_all_its_tokens(
        profile in profiles(),
        planned in planned(),
        extra in prop::option::of(0..9_usize),
    ) {
        let seen = run(&profile, &planned, extra)?;
        for (id, one) in planned.iter().enumerate() {
            let seen = &seen[&(id as u64)];
            prop_assert!(seen.is_over, "{id}: {seen:?}");
            let generated = seen.kinds.iter().filter(|kind| matches!(kind, Token { .. })).count();
            match seen.kinds.last() {
                Some(Token { last: true }) => prop_assert_eq!(generated, one.output.max(1) as usize),
                Some(Rejected) => prop_assert_eq!(generated, 0),
                last => prop_assert_eq!((last, one.aborted_after.is_some()), (Some(&EventKind::Aborted), true)),
            }
        }
    }

    /// However often the caller advances the engine, the same happens at the same times.
    #[test]
    fn advancing_more_often_changes_nothing(profile in profiles(), planned in planned(), step in 1..50_usize) {
        let (mut often, mut once) = (Engine::new(profile.clone(), ms(0)), Engine::new(profile, ms(0)));
        for (id, one) in planned.iter().enumerate() {
            often.submit(one.request(id), ms(one.at));
            once.submit(one.request(id), ms(one.at));
        }
        let times = (0..20_000).step_by(step).chain([1_000_000_000]);
        let seen: Vec<Event> = times.flat_map(|at| often.advance(ms(at)).collect::<Vec<_>>()).collect();
        prop_assert_eq!(seen, once.advance(ms(1_000_000_000)).collect::<Vec<_>>());
    }
}
