//! Where one request's time went: the stages of [`STAGES`], joined where the moment between them is missing.

mod stage_set;

use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::timeline::{Moment, Period, STAGES, Side, Stage, Timeline};

pub use stage_set::{StageSet, UNSEEN};

/// A part of a request's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it was spent on.
    pub spent: StageSet,
    /// How long, nanoseconds; negative where moments are out of order.
    pub nanos: i64,
}

/// A request's time and its parts, which add up to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breakdown {
    /// From its first known moment to its last byte, or to its end if it failed; nanoseconds.
    pub total_nanos: i64,
    /// Its parts, in order.
    pub parts: Vec<Part>,
}

impl Breakdown {
    /// Breaks down one row's time; `None` if its end or every start is unknown.
    ///
    /// Neighboring stages without a moment between them form one part. Stages that cannot be placed at all (the engine's clock is
    /// unknown, so both ways to and from it are) share what the others leave. The last part of a failed request is where it was
    /// last seen, up to its end.
    pub fn of(row: &Row) -> Option<Breakdown> {
        let timeline = &row.timeline;
        let last_seen = row.last_seen();
        let (to, before) = end(row, last_seen)?;
        let to_end = |stage: &Stage| {
            let from = timeline.period_of(stage)?.from;
            timeline.nanos(Period { from, to })
        };
        let (first, total_nanos) = STAGES
            .iter()
            .enumerate()
            .find_map(|(at, stage)| Some((at, to_end(stage)?)))?;

        let (mut parts, mut unplaced) = measured_parts(timeline, first, before);
        if let Some(spent) = last_seen {
            match STAGES.get(before).and_then(to_end) {
                Some(nanos) => parts.push(Part { spent, nanos }),
                None if spent.stages().next().is_some() => unplaced.0 |= spent.0,
                None => return None,
            }
        }
        if unplaced != StageSet::default() {
            let placed: i64 = parts.iter().map(|part| part.nanos).sum();
            parts.push(Part {
                spent: unplaced,
                nanos: total_nanos - placed,
            });
            parts.sort_by_key(|part| part.spent.0.trailing_zeros());
        }
        correct_router_part(row, &mut parts);
        // A client that is slow to send its prompt delays the choice of an upstream: that is not the router's time.
        let prompt = row.prompt_wait;
        split_off(
            StageSet::PROMPT,
            prompt,
            Period::QUEUE_IN_ROUTER,
            &mut parts,
        );
        // A stalled client delays what is read after it: that is not the engine's time.
        let stall = row.client_stall_until_finish;
        split_off(StageSet::CLIENT_STALL, stall, Period::DECODE, &mut parts);
        Some(Breakdown { total_nanos, parts })
    }

    /// Returns the parts until the first token was read; `None` if it is unknown when that was.
    #[must_use]
    pub fn until_first_token(&self) -> Option<Breakdown> {
        let decode = StageSet::of(Period::DECODE);
        let is_seen = self.parts.iter().any(|part| part.spent == decode);
        let mut parts = self.parts.clone();
        parts.retain(|part| !part.spent.is_after_first_token());
        is_seen.then(|| Breakdown {
            total_nanos: parts.iter().map(|part| part.nanos).sum(),
            parts,
        })
    }
}

/// Measures the stages from index `first` to before `before`: returns the parts of known length, and the stages of unknown
/// length.
fn measured_parts(timeline: &Timeline, first: usize, before: usize) -> (Vec<Part>, StageSet) {
    let stages = STAGES.iter().enumerate().take(before).skip(first);
    let mut own: Vec<(usize, Period)> = Vec::with_capacity(STAGES.len());
    own.extend(stages.filter_map(|(index, stage)| Some((index, timeline.period_of(stage)?))));
    let length = |from: usize, to: usize| {
        let (from, to) = (own.get(from)?.1.from, own.get(to)?.1.to);
        timeline.nanos(Period { from, to })
    };
    let (mut parts, mut unplaced) = (Vec::with_capacity(STAGES.len()), StageSet::default());
    let mut at = 0;
    while at < own.len() {
        // The shortest run of stages of known length; it must not contain stages that are known by themselves.
        let joined = (at..own.len()).find_map(|last| Some((last, length(at, last)?)));
        let joined =
            joined.filter(|(last, _)| (at + 1..=*last).all(|inner| length(inner, inner).is_none()));
        let last = joined.map_or(at, |(last, _)| last);
        let stages = own[at..=last].iter();
        let spent: StageSet = stages.map(|(index, _)| StageSet::one(*index)).collect();
        match joined {
            Some((_, nanos)) => parts.push(Part { spent, nanos }),
            None => unplaced.0 |= spent.0,
        }
        at = last + 1;
    }
    (parts, unplaced)
}

/// Returns the moment at which a request's time ends, and the index of the stage that it was in, or of the first that it may have
/// been in; one past the last if it succeeded.
fn end(row: &Row, last_seen: Option<StageSet>) -> Option<(Moment, usize)> {
    let timeline = &row.timeline;
    let begin = |stage: &Stage| timeline.raw(timeline.period_of(stage)?.from);
    let is_seen = |stage: &Stage| begin(stage).is_some();
    Some(match last_seen {
        None => (row.is_ok().then_some(Moment::Finish)?, STAGES.len()),
        Some(StageSet::CONNECTING) => (Moment::End, STAGES.iter().rposition(is_seen)?),
        Some(place) => (Moment::End, place.order() as usize),
    })
}

/// Renames or removes the router's part if there was no router. Without one, our own send is the send to the server, and without
/// a proxy of ours there is nothing between client and server: to show a router with an empty queue would be false.
fn correct_router_part(row: &Row, parts: &mut Vec<Part>) {
    let timeline = &row.timeline;
    let [to_proxy, router] = [Period::TO_PROXY, Period::QUEUE_IN_ROUTER].map(StageSet::of);
    let is_routed = timeline.raw(Moment::WorkerArrival).is_some();
    if timeline.mark(Moment::Arrival).is_none() {
        parts.retain(|part| part.spent != to_proxy && (is_routed || part.spent != router));
    }
    for part in parts.iter_mut().filter(|_| !is_routed) {
        if part.spent == router {
            part.spent = StageSet::PROXY;
        }
    }
}

/// Splits off time that is known separately from the first part that holds the stage of `period`.
fn split_off(spent: StageSet, nanos: Option<i64>, period: Period, parts: &mut Vec<Part>) {
    let at = parts.iter().position(|part| part.spent.holds(period));
    let (Some(nanos @ 1..), Some(at)) = (nanos, at) else {
        return;
    };
    let nanos = nanos.min(parts[at].nanos.max(0));
    parts[at].nanos -= nanos;
    parts.push(Part { spent, nanos });
    if spent == StageSet::PROMPT {
        parts[at..].rotate_right(1);
    }
}

impl Row {
    /// Returns where a failed request was when it ended: as the row says, else by its moments.
    pub fn last_seen(&self) -> Option<StageSet> {
        let is_pair = self.timeline.prefill().is_some();
        let named = self.ended_in.as_deref();
        let named = named.and_then(|name| StageSet::named(name, is_pair));
        named.or_else(|| self.find_last_seen())
    }

    /// The same by its moments: after the last that is known, and before the next that the observer would have seen. `None` if none
    /// is known.
    pub(super) fn find_last_seen(&self) -> Option<StageSet> {
        if self.is_ok() {
            return None;
        }
        if self.outcome == Some(Outcome::ConnectError) {
            return Some(StageSet::CONNECTING);
        }
        if self.internal.is_routers_error {
            return Some(StageSet::of(Period::QUEUE_IN_ROUTER));
        }
        let (timeline, side) = (&self.timeline, self.timeline.side());
        let lacks = |moment| timeline.raw(moment).is_none();
        let is_held = match side {
            Side::Hop => lacks(Moment::WorkerForwarded),
            Side::Front | Side::Traffic => {
                timeline.mark(Moment::Arrival).is_some() && lacks(Moment::Forwarded)
            }
        };
        if is_held {
            // A proxy without a hop behind it tried a server, which took no connection.
            let is_tried = side != Side::Hop && self.attempts > Some(0);
            return Some(match is_tried {
                true => StageSet::of(Period::NETWORK),
                false => StageSet::PROXY,
            });
        }
        // A body that had not been read whole by then was still on its way to us.
        if side == Side::Front && lacks(Moment::RequestEnd) && lacks(Moment::ResponseHead) {
            return Some(StageSet::of(Period::TO_PROXY));
        }
        // The hop had it and did not send it on: the server refused the connection, or the hop held it.
        if timeline.mark(Moment::WorkerArrival).is_some() && lacks(Moment::WorkerForwarded) {
            return Some(StageSet::of(Period::NETWORK));
        }
        let begun = |stage: &Stage| timeline.period_of(stage).is_some_and(|of| !lacks(of.from));
        let first = STAGES.iter().rposition(begun)?;
        let is_observed = |stage: &&Stage| stage.period.to.clock(side) == side.clock();
        let later = STAGES[first..]
            .iter()
            .take_while(|stage| !is_observed(stage))
            .count();
        let stages = STAGES[first..=first + later].iter();
        let own = stages.filter(|stage| timeline.period_of(stage).is_some());
        Some(own.map(|stage| StageSet::of(stage.period)).collect())
    }
}

/// Returns where a request was last seen, for people: "last seen in the router".
pub fn place(last_seen: StageSet) -> String {
    match last_seen.ended_in(|stage| stage.name).as_str() {
        "server" => "in the server, before its first token".to_owned(),
        "router+server" => "in the router or the server, before the first token".to_owned(),
        _ => last_seen.place(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::request::body_timing::BodyTiming;
    use crate::request::cell::Value;
    use crate::request::columns::COLUMNS;
    use crate::request::sample::{Sample, at, ms};
    use crate::request::timeline::Moment::*;
    use crate::request::timeline::{ClockOf, ENGINE, ENGINE_OF_PAIR, PrefillTimes};
    use crate::request::unseen::Unseens;

    /// A request with the moments of the bits `seen`, each these milliseconds after the one before, and the times of a pair if it
    /// was one.
    fn of_moments(seen: u32, apart: &[i64], pair: Option<PrefillTimes>) -> Row {
        let with_pair = |row: &mut Row| {
            let [mut worker, mut here] = [BodyTiming::default(); 2];
            (worker.first, here.first) = (Some(at(1)), Some(at(9)));
            row.set_body_timings(here, worker);
            if let Some(times) = pair {
                row.timeline.set_pair(times);
            }
        };
        let own = pair.map_or(&ENGINE[..], |_| &ENGINE_OF_PAIR);
        let (mut sample, mut now) = (Sample::whole().without(&Moment::ALL).with(with_pair), 0);
        for (moment, apart) in Moment::ALL.into_iter().zip(apart) {
            now += apart;
            // One server has no moments of a pair, nor a pair those of one server.
            let is_own = match moment {
                Moment::PrefillReplied => pair.is_some(),
                moment => moment.clock(Side::Traffic) != ClockOf::Engine || own.contains(&moment),
            };
            // Every row of a successful request has its send and its end.
            let is_sure = matches!(moment, Moment::Sent | Moment::Finish);
            if is_sure || is_own && seen & 1 << moment as u32 != 0 {
                sample = sample.at(moment, now);
            }
        }
        sample.row()
    }

    proptest! {
        #[test]
        fn the_columns_of_stages_are_parts_of_its_time_and_add_up_to_it(
            seen in prop_oneof![any::<u32>(), (0..32_u32).prop_map(|bit: u32| !(1_u32 << bit)), Just(u32::MAX)],
            apart in proptest::collection::vec(0..50_i64, Moment::COUNT),
            pair in proptest::option::of((proptest::option::of(0..9_i64), proptest::option::of(0..9_i64))),
        ) {
            let pair = pair.map(|(queue, forward)| PrefillTimes { queue: queue.map(ms), forward: forward.map(ms), sending: None });
            let row = of_moments(seen, &apart, pair);
            let Some(Breakdown { total_nanos, parts }) = Breakdown::of(&row) else { return Ok(()) };
            let mut sum = Some(0);
            for stage in &STAGES {
                let column = COLUMNS.iter().find(|column| column.label == stage.label);
                let took = match column.map(|column| (column.get)(&row)) {
                    Some(Value::Nanos(nanos)) => Some(nanos),
                    Some(_) => None,
                    // `to proxy` has no column.
                    None => row.timeline.nanos(stage.period),
                };
                if row.timeline.period_of(stage).is_none() {
                    // For a pair, that column is the sum of its three waits.
                    prop_assert!(took.is_none() || stage.period == Period::PURE_QUEUE, "{}: {took:?}", stage.name);
                    continue;
                }
                let alone = StageSet::of(stage.period);
                let is_it = |part: &&Part| part.spent == alone || part.spent == StageSet::PROXY && alone.holds(Period::QUEUE_IN_ROUTER);
                let part = parts.iter().find(is_it).map(|part| part.nanos);
                // Without a router there is no part, and it took no time; one part may be known only as the remainder.
                let is_nothing = part.is_none() && took == Some(0);
                prop_assert!(took.is_none() || took == part || is_nothing, "{}: {took:?}, not {part:?}", stage.name);
                let is_in_total = parts.iter().any(|part| part.spent.holds(stage.period));
                if took.is_some() || is_in_total {
                    sum = sum.zip(took).map(|(sum, took)| sum + took);
                }
            }
            prop_assert!(sum.is_none_or(|sum| sum == total_nanos), "{sum:?}, not {total_nanos}: {parts:?}");
        }
    }

    const HOP: [Moment; 2] = [WorkerArrival, WorkerForwarded];

    /// The parts of a row, in milliseconds.
    fn parts(row: &Row) -> String {
        let Breakdown { total_nanos, parts } = Breakdown::of(row).unwrap();
        let sum: i64 = parts.iter().map(|part| part.nanos).sum();
        assert_eq!(sum, total_nanos, "parts add up");
        let part = |part: &Part| format!("{} {}", part.spent.name(), part.nanos / ms(1));
        Vec::from_iter(parts.iter().map(part)).join(", ")
    }

    /// Checks that each row has the parts of its line among its own, and that what stands behind `|` was not measured.
    fn assert_parts<const N: usize>(samples: [Sample; N], lines: &str) {
        assert_eq!(lines.lines().count(), N);
        for (sample, line) in samples.into_iter().zip(lines.lines()) {
            let (expected, lacking) = line.split_once(" | ").unwrap_or((line, ""));
            let row = sample.row();
            let shown = parts(&row);
            assert!(shown.contains(expected), "{expected}: {shown}");
            let unseen: Vec<&str> = Unseens::of(&row).iter().map(|one| one.name()).collect();
            assert_eq!(unseen.join(";"), lacking, "{expected}");
        }
    }

    fn straight(sample: Sample) -> Sample {
        let sample = sample.without(&HOP);
        sample.with(|row| row.timeline.upstream_is_server(true))
    }

    #[test]
    fn stages_are_joined_if_the_moment_between_them_is_missing() {
        let seen_back = || Sample::whole().at(WorkerFirstToken, 203);
        let samples = [
            Sample::whole(),
            // The router's part of the return path is known if a hop saw the token, whatever the engine's clock.
            seen_back(),
            seen_back().engine_unknown(),
            seen_back().without(&[ServerFirstToken]),
            Sample::whole().without(&[WorkerArrival]),
            Sample::whole().without(&ENGINE),
            Sample::whole().engine_unknown(),
            Sample::whole().without(&[FirstToken, LastToken]),
        ];
        let expected = "\
client lag 1, to proxy 1, router 3, network 5, tokenize 10, queue 80, prefill 100, return 10, decode 290
prefill 100, return 3, router return 7, decode 290
router 3, network+return 8, tokenize 10, queue 80, prefill 100, router return 7 | engine_clock
queue 80, prefill+return 103, router return 7 | engine_no_meta_info
to proxy 1, router+network 8, tokenize | router
router 3, network+tokenize+queue+prefill+return 205, decode | engine_no_meta_info
client lag 1, to proxy 1, router 3, network+return 15, tokenize 10, queue 80, prefill 100, decode 290 | engine_clock
prefill 100, return+decode 300 | first_token";
        assert_parts(samples, expected);
        let pair = |row: &mut Row| {
            row.timeline.set_pair(PrefillTimes::default());
            row.timeline.forget_engine();
        };
        let no_hop = Sample::whole().without(&[Moment::WorkerArrival]);
        let anywhere = "in the router queue, on the way into the server or on the way back";
        for (sample, at, place) in [
            (Sample::whole().without(&ENGINE), 3, "unseen in the server"),
            (Sample::whole().with(pair), 3, "unseen in the server"),
            (no_hop.engine_unknown(), 2, anywhere),
        ] {
            let breakdown = Breakdown::of(&sample.row()).unwrap();
            assert_eq!(breakdown.parts[at].spent.place(), place);
        }
        let endless = Sample::whole().without(&[Moment::Finish]).row();
        assert_eq!(Breakdown::of(&endless), None);
    }

    #[test]
    fn without_a_router_no_part_is_called_so_and_waits_for_the_client_are_split_off() {
        let no_proxy = Sample::whole().without(&[Moment::Arrival, Moment::Forwarded]);
        let stalled = Sample::whole().with(|row| {
            row.client_stall_until_finish = Some(ms(200));
            // A stall after the last byte was read delayed nothing in decode.
            row.client_stall = Some(ms(900));
        });
        let waited = |sample: Sample| sample.with(|row| row.prompt_wait = Some(ms(2)));
        let whole = Sample::whole;
        let slow = waited(straight(whole().at(Moment::Forwarded, 5)));
        let [whole, split] = [straight(whole()), waited(whole())];
        let samples = [whole, straight(no_proxy), stalled, split, slow];
        let expected = "\
client lag 1, to proxy 1, proxy 1, network 7
client lag 1, network 9, tokenize 10
return 10, decode 90, client_stall 200
to proxy 1, prompt_wait 2, router 1
to proxy 1, prompt_wait 2, proxy 1, network 5";
        assert_parts(samples, expected);
        let own = Sample::whole().without(&[Moment::Scheduled, Moment::Sent]);
        assert!(parts(&own.row()).starts_with("router 3, "));
    }

    #[test]
    fn a_failed_request_is_broken_down_to_its_end() {
        let cut = Sample::whole().at(Finish, 300).at(End, 350);
        // The server reports when it received a request with its last event.
        let cut = cut.without(&[ServerCreated, ServerFinish, LastToken]);
        let cut = cut.ended(Outcome::ClientAbort, "left");
        let waited = Sample::whole().without(&ENGINE);
        let waited = waited.without(&[FirstEvent, FirstToken, LastToken, Finish]);
        let waited = waited.at(End, 905).ended(Outcome::Timeout, "");
        let refused_by_server = waited.clone().without(&[WorkerForwarded]);
        let unseen = waited.clone().without(&HOP);
        let unsent = unseen.clone().without(&[Sent, Arrival, Forwarded]);
        let unsent = unsent.at(End, 7).ended(Outcome::ClientAbort, "");
        let refused = unsent.clone().ended(Outcome::ConnectError, "refused");
        let samples = [
            cut.clone(),
            cut.engine_unknown(),
            waited,
            refused_by_server.clone(),
            unseen.clone(),
            unseen.without(&[Forwarded]),
            unsent,
            refused.clone(),
        ];
        let expected = "\
client lag 1, to proxy 1, router 3, network+tokenize 15, queue 80, prefill 100, return 10, decode 140
client lag 1, to proxy 1, router 3, network+tokenize+return 25, queue 80, prefill 100, decode 140
client lag 1, to proxy 1, router 3, network+tokenize+queue+prefill+return 900
client lag 1, to proxy 1, router 3, network 900
client lag 1, to proxy 1, router+network+tokenize+queue+prefill+return 903
client lag 1, to proxy 1, proxy 903
client lag 7
connecting 7";
        let parts = samples.map(|sample| {
            let row = sample.row();
            // What the row says of it is what its moments say, which a file may lack.
            assert_eq!(row.last_seen(), row.find_last_seen(), "{:?}", row.ended_in);
            parts(&row)
        });
        assert_eq!(parts.join("\n"), expected);
        let last_seen = refused.row().last_seen().unwrap();
        assert_eq!(last_seen, StageSet::CONNECTING);
        assert_eq!(place(last_seen), "connecting to the target");
        assert_eq!(refused_by_server.row().ended_in.unwrap(), "network");
    }
}
