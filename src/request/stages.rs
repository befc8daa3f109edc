//! Where one request's time went: [`STAGES`], joined where nobody saw what lies between.

mod spent;

use crate::request::last_seen::LastSeen;
use crate::request::row::Row;
use crate::request::timeline::{Moment, Period, STAGES, Stage};

pub use spent::{Spent, StageSet, place};

/// A part of a request's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it was spent on.
    pub spent: Spent,
    /// How long, nanoseconds; negative where moments are out of order.
    pub nanos: i64,
}

/// A request's time and its parts, which add up to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breakdown {
    /// From the first moment of its life that was seen to its last byte, or to the end of one that failed, nanoseconds.
    pub total_nanos: i64,
    /// Its parts, in the order of its life.
    pub parts: Vec<Part>,
}

impl Breakdown {
    /// Of one row; `None` while its end or every start is unknown.
    ///
    /// Neighbouring stages without a moment between them form one part. Stages that cannot be placed at
    /// all (the engine's clock is unknown, so both ways to and from it are) share what the others leave. A request
    /// that failed is told to its end, whoever ended it: its last part is where it was last seen.
    pub fn of(row: &Row) -> Option<Breakdown> {
        let timeline = &row.timeline;
        let last_seen = row.last_seen()?;
        let (to, before) = end(row, last_seen)?;
        let to_end = |stage: &Stage| {
            let from = stage.period.from;
            timeline.nanos(Period { from, to })
        };
        let (first, total_nanos) = STAGES
            .iter()
            .enumerate()
            .find_map(|(at, stage)| Some((at, to_end(stage)?)))?;

        let length = |from: usize, to: usize| {
            let (from, to) = (STAGES.get(from)?.period.from, STAGES.get(to)?.period.to);
            timeline.nanos(Period { from, to })
        };
        let mut parts = Vec::new();
        let mut unplaced = StageSet::default();
        let mut at = first;
        while at < before {
            // The shortest stretch of known length; it must not swallow stages that are known by themselves.
            let joined = (at..before).find_map(|last| Some((last, length(at, last)?)));
            let joined = joined.filter(|(last, _)| {
                (at + 1..=*last).all(|inner| length(inner, inner).is_none())
            });
            match joined {
                Some((last, nanos)) => {
                    let spent = Spent::Stages(StageSet::row(at, last + 1));
                    parts.push(Part { spent, nanos });
                    at = last;
                }
                None => unplaced = unplaced.with(StageSet::one(at)),
            }
            at += 1;
        }
        if let Some(spent) = Spent::of(last_seen) {
            match (spent, STAGES.get(before).and_then(to_end)) {
                (Spent::Stages(stages), None) => unplaced = unplaced.with(stages),
                (_, nanos) => parts.push(Part {
                    spent,
                    nanos: nanos?,
                }),
            }
        }
        if unplaced != StageSet::default() {
            let placed: i64 = parts.iter().map(|part| part.nanos).sum();
            parts.push(Part {
                spent: Spent::Stages(unplaced),
                nanos: total_nanos - placed,
            });
            parts.sort_by_key(|part| match part.spent {
                Spent::Stages(_) => part.spent.order(),
                _ => u32::MAX,
            });
        }
        if !timeline.saw_way_back() {
            // Nobody could see it: its time is in the stage before it.
            let without = |part: &mut Part| match &mut part.spent {
                Spent::Stages(stages) => {
                    *stages = stages.without(Period::ROUTER_RETURN);
                    *stages != StageSet::default()
                }
                _ => true,
            };
            parts.retain_mut(without);
        }
        name_what_is_no_router(row, &mut parts);
        // A client that is slow to send its prompt delays the choice of an upstream: that time is no router's.
        let prompt = row.prompt_wait;
        carve_out(Spent::Prompt, prompt, Period::QUEUE_IN_ROUTER, &mut parts);
        // A stalled client delays what is read after it: that time is not the engine's.
        let stall = row.client_stall_until_finish;
        carve_out(Spent::ClientStall, stall, Period::DECODE, &mut parts);
        Some(Breakdown { total_nanos, parts })
    }
}

/// The moment that a request's time ends at, and the stage that it was in by then, or the first that it may have been in; of one
/// that went well, behind the last.
fn end(row: &Row, last_seen: LastSeen) -> Option<(Moment, usize)> {
    let is_router = |stage: &Stage| stage.period == Period::QUEUE_IN_ROUTER;
    let is_seen = |stage: &Stage| row.timeline.raw(stage.period.from).is_some();
    Some(match last_seen {
        LastSeen::Connecting => (Moment::End, STAGES.iter().rposition(is_seen)?),
        LastSeen::Done => (Moment::Finish, STAGES.len()),
        LastSeen::Proxy => (Moment::End, STAGES.iter().position(is_router)?),
        LastSeen::Stages(first, _) => (Moment::End, first),
    })
}

/// Where our own send is the send to the server there is no router, and without a proxy of ours there is
/// nothing at all between: to show a router with an empty queue would be false.
fn name_what_is_no_router(row: &Row, parts: &mut Vec<Part>) {
    let timeline = &row.timeline;
    let alone = |part: &Part, period| {
        part.spent.holds(period)
            && matches!(part.spent, Spent::Stages(set) if set.stages().count() == 1)
    };
    let to_proxy = Period {
        from: Moment::Sent,
        to: Moment::Arrival,
    };
    if timeline.own_arrival().is_none() {
        parts.retain(|part| !alone(part, to_proxy));
    }
    if timeline.raw(Moment::WorkerArrival).is_some() {
        return;
    }
    if timeline.own_arrival().is_none() {
        parts.retain(|part| !alone(part, Period::QUEUE_IN_ROUTER));
    }
    for part in parts
        .iter_mut()
        .filter(|part| alone(part, Period::QUEUE_IN_ROUTER))
    {
        part.spent = Spent::Proxy;
    }
}

/// Takes time that is known apart out of the first part that holds a stage.
fn carve_out(spent: Spent, nanos: Option<i64>, period: Period, parts: &mut Vec<Part>) {
    let at = parts.iter().position(|part| part.spent.holds(period));
    let (Some(nanos @ 1..), Some(at)) = (nanos, at) else {
        return;
    };
    let nanos = nanos.min(parts[at].nanos.max(0));
    parts[at].nanos -= nanos;
    parts.push(Part { spent, nanos });
    if spent == Spent::Prompt {
        parts[at..].rotate_right(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::record::{Outcome, Record};
    use crate::request::sample::{Sample, ms};
    use crate::request::unseen::{Unseen, Unseens};

    fn parts(record: &Row) -> Vec<(String, i64)> {
        let breakdown = Breakdown::of(record).unwrap();
        let parts = breakdown.parts.iter();
        let sum: i64 = parts.clone().map(|part| part.nanos).sum();
        assert_eq!(sum, breakdown.total_nanos, "parts add up");
        parts
            .map(|part| (part.spent.name(), part.nanos / ms(1)))
            .collect()
    }

    fn unseen(row: &Row) -> Vec<Unseen> {
        Unseens::of(row).iter().collect()
    }

    fn named(expected: &[(&str, i64)]) -> Vec<(String, i64)> {
        expected
            .iter()
            .map(|(n, v)| ((*n).to_owned(), *v))
            .collect()
    }

    #[test]
    fn a_whole_request_has_every_stage() {
        let record = Sample::whole().row();
        let expected = [
            ("client lag", 1),
            ("to proxy", 1),
            ("router", 3),
            ("network", 5),
            ("tokenize", 10),
            ("queue", 80),
            ("prefill", 100),
            ("return", 10),
            ("decode", 290),
        ];
        assert_eq!(parts(&record), named(&expected));
        assert_eq!(unseen(&record), []);
    }

    #[test]
    fn the_routers_part_of_the_way_back_is_a_stage_where_a_hop_saw_it() {
        let seen = |sample: Sample| parts(&sample.at(Moment::WorkerFirstToken, 203).row());
        let whole = seen(Sample::whole());
        assert_eq!(
            whole[7..],
            named(&[("return", 3), ("router return", 7), ("decode", 290)])
        );
        // It is known on the proxy's clock, whatever the engine's is.
        let apart = seen(Sample::whole().engine_unknown());
        assert_eq!(apart[3], ("network+return".to_owned(), 8));
        assert_eq!(apart[7], ("router return".to_owned(), 7));
        let silent = seen(Sample::whole().without(&[Moment::ServerFirstToken]));
        assert_eq!(silent[6], ("prefill+return".to_owned(), 103));
        assert_eq!(silent[7], ("router return".to_owned(), 7));
    }

    #[test]
    fn without_a_hop_router_and_network_are_one() {
        let record = Sample::whole().without(&[Moment::WorkerArrival]).row();
        let parts = parts(&record);
        assert_eq!(parts[2], ("router+network".to_owned(), 8));
        assert_eq!(unseen(&record), [Unseen::Router]);
    }

    #[test]
    fn a_stream_without_timings_leaves_one_stretch_in_the_server() {
        let engine = [
            Moment::ServerCreated,
            Moment::QueueStart,
            Moment::QueueEnd,
            Moment::ServerFirstToken,
        ];
        let record = Sample::whole().without(&engine).row();
        let parts = parts(&record);
        assert_eq!(
            parts[3],
            ("network+tokenize+queue+prefill+return".to_owned(), 205)
        );
        let breakdown = Breakdown::of(&record).unwrap();
        assert_eq!(
            breakdown.parts[3].spent.place(),
            "somewhere between router send and first token"
        );
        assert_eq!(unseen(&record), [Unseen::NoMeta]);
    }

    #[test]
    fn an_engine_on_an_unknown_clock_keeps_its_own_durations() {
        let record = Sample::whole().engine_unknown().row();
        let expected = [
            ("client lag", 1),
            ("to proxy", 1),
            ("router", 3),
            ("network+return", 15),
            ("tokenize", 10),
            ("queue", 80),
            ("prefill", 100),
            ("decode", 290),
        ];
        assert_eq!(parts(&record), named(&expected));
        assert_eq!(unseen(&record), [Unseen::EngineClock]);

        let sample = Sample::whole().without(&[Moment::WorkerArrival]);
        let record = sample.engine_unknown().row();
        let unplaced = Breakdown::of(&record).unwrap().parts[2].spent;
        assert_eq!(unplaced.name(), "router+network+return");
        assert_eq!(
            unplaced.place(),
            "in the router, on the way into the server or on the way back"
        );
    }

    #[test]
    fn a_reply_that_is_no_stream_joins_return_and_decode() {
        let tokens = [Moment::FirstToken, Moment::LastToken];
        let record = Sample::whole().without(&tokens).row();
        assert_eq!(
            parts(&record).last(),
            Some(&("return+decode".to_owned(), 300))
        );
        assert_eq!(unseen(&record), [Unseen::FirstToken]);
    }

    #[test]
    fn a_stalled_client_is_taken_out_of_decode() {
        let mut record = Sample::whole().row();
        record.client_stall_until_finish = Some(ms(200));
        // What came after the last byte was read delayed nothing that is in decode.
        record.client_stall = Some(ms(900));
        let parts = parts(&record);
        assert_eq!(parts[8..], named(&[("decode", 90), ("client_stall", 200)]));
    }

    #[test]
    fn the_wait_for_a_prompt_is_taken_out_of_router_or_proxy() {
        let wait = |record: &mut Record| record.facts.prompt_wait_nanos = Some(ms(2));
        let routed = Sample::whole().with(wait);
        let expected = [("to proxy", 1), ("prompt_wait", 2), ("router", 1)];
        assert_eq!(parts(&routed.row())[1..4], named(&expected));
        let no_hop = [Moment::WorkerArrival, Moment::WorkerForwarded];
        let straight = |record: &mut Record| {
            record.timeline.upstream_is_server(true);
            record.facts.prompt_wait_nanos = Some(ms(1) / 4);
        };
        let record = Sample::whole().without(&no_hop).with(straight).row();
        let found = Breakdown::of(&record).unwrap().parts;
        let nanos = |spent| found.iter().find(|part| part.spent == spent).unwrap().nanos;
        assert_eq!(
            (nanos(Spent::Prompt), nanos(Spent::Proxy)),
            (ms(1) / 4, ms(1) * 3 / 4)
        );
    }

    #[test]
    fn the_proxys_own_rows_begin_at_arrival() {
        let record = Sample::whole()
            .without(&[Moment::Scheduled, Moment::Sent])
            .row();
        assert_eq!(parts(&record)[0], ("router".to_owned(), 3));
        assert_eq!(Breakdown::of(&record).unwrap().total_nanos, ms(498));
    }

    #[test]
    fn without_a_router_none_is_shown() {
        let no_hop = [Moment::WorkerArrival, Moment::WorkerForwarded];
        let straight = |record: &mut Record| record.timeline.upstream_is_server(true);
        let record = Sample::whole().without(&no_hop).with(straight).row();
        let expected = [
            ("client lag", 1),
            ("to proxy", 1),
            ("proxy", 1),
            ("network", 7),
        ];
        assert_eq!(parts(&record)[..4], named(&expected));

        let no_proxy = [Moment::Arrival, Moment::Forwarded];
        let sample = Sample::whole().without(&no_hop).without(&no_proxy);
        let record = sample.with(straight).row();
        let expected = [("client lag", 1), ("network", 9), ("tokenize", 10)];
        assert_eq!(parts(&record)[..3], named(&expected));
        assert_eq!(unseen(&record), []);
    }

    #[test]
    fn no_end_no_breakdown() {
        let record = Sample::whole().without(&[Moment::Finish]).row();
        assert_eq!(Breakdown::of(&record), None);
    }

    #[test]
    fn a_request_cut_before_its_last_event_is_told_by_what_is_known() {
        // The server tells when it received a request with its last event.
        let told_last = [
            Moment::ServerCreated,
            Moment::ServerFinish,
            Moment::LastToken,
        ];
        let cut = Sample::whole()
            .at(Moment::Finish, 300)
            .at(Moment::End, 350)
            .without(&told_last)
            .ended(Outcome::ClientAbort, "left");
        let expected = [
            ("client lag", 1),
            ("to proxy", 1),
            ("router", 3),
            ("network+tokenize", 15),
            ("queue", 80),
            ("prefill", 100),
            ("return", 10),
            ("decode", 140),
        ];
        assert_eq!(parts(&cut.clone().row()), named(&expected));
        let unknown = cut.engine_unknown().row();
        assert_eq!(
            parts(&unknown)[3],
            ("network+tokenize+return".to_owned(), 25)
        );
    }

    #[test]
    fn a_request_that_got_no_token_is_told_to_its_end() {
        let engine = [
            Moment::ServerCreated,
            Moment::QueueStart,
            Moment::QueueEnd,
            Moment::PrefillEnd,
            Moment::ServerFirstToken,
            Moment::ServerFinish,
            Moment::FirstEvent,
            Moment::FirstToken,
            Moment::LastToken,
            Moment::Finish,
        ];
        let waited = Sample::whole()
            .without(&engine)
            .at(Moment::End, 905)
            .ended(Outcome::Timeout, "");
        let server = ("network+tokenize+queue+prefill+return", 900);
        let expected = [("client lag", 1), ("to proxy", 1), ("router", 3), server];
        assert_eq!(parts(&waited.clone().row()), named(&expected));
        let hop = [Moment::WorkerArrival, Moment::WorkerForwarded];
        let unseen = waited.without(&hop);
        let either = ("router+network+tokenize+queue+prefill+return", 903);
        let expected = [("client lag", 1), ("to proxy", 1), either];
        assert_eq!(parts(&unseen.clone().row()), named(&expected));
        let held = unseen.without(&[Moment::Forwarded]).row();
        assert_eq!(parts(&held)[2], ("proxy".to_owned(), 903));
        let unsent = [Moment::Sent, Moment::Arrival, Moment::Forwarded];
        let unsent = Sample::whole()
            .without(&engine)
            .without(&hop)
            .without(&unsent);
        let unsent = unsent.at(Moment::End, 7).ended(Outcome::ClientAbort, "");
        assert_eq!(parts(&unsent.clone().row()), named(&[("client lag", 7)]));
        let refused = unsent.ended(Outcome::ConnectError, "refused").row();
        assert_eq!(parts(&refused), named(&[("connecting", 7)]));
        let last_seen = refused.last_seen().unwrap();
        assert_eq!(last_seen.name(), "connecting");
        assert_eq!(place(last_seen), "connecting to the target");
    }
}
