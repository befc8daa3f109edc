//! Where one request's time went: [`STAGES`], joined where nobody saw what lies between.

use crate::request::record::Record;
use crate::request::timeline::{ClockOf, Moment, Relation, STAGES, Span, Stage};

/// A set of stages whose time is known together only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageSet(u16);

/// What a stretch of a request's time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spent {
    /// These stages; one alone, unless a moment between them was not seen.
    Stages(StageSet),
    /// Our own proxy, where no router stands behind it: its send is then the router's.
    Proxy,
    /// Writes to the client were held up while the server decoded.
    ClientStall,
}

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
    /// From the first moment of its life that was seen to its last byte, nanoseconds.
    pub total_nanos: i64,
    /// Its parts, in the order of its life.
    pub parts: Vec<Part>,
}

/// Something of a request that nobody saw, so that stages run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unseen {
    /// When the router forwarded it.
    Router,
    /// The engine's moments, some or all.
    Engine,
    /// How far the engine's clock is from ours.
    EngineClock,
    /// How far the front's or the hop's clock is from ours.
    ProxyClock,
    /// When the first token came: the reply was no stream.
    FirstToken,
}

impl StageSet {
    fn one(index: usize) -> StageSet {
        StageSet(1 << index)
    }

    fn with(self, other: StageSet) -> StageSet {
        StageSet(self.0 | other.0)
    }

    /// Its stages, in order.
    pub fn stages(self) -> impl Iterator<Item = &'static Stage> {
        let held = STAGES.iter().zip(0..);
        held.filter(move |(_, index)| self.0 & (1_u16 << index) != 0)
            .map(|(stage, _)| stage)
    }

    /// The stages' names: `router`, or `router+network` where they are known together only.
    pub fn name(self) -> String {
        let names: Vec<&str> = self.stages().map(|stage| stage.name).collect();
        names.join("+")
    }

    /// The names in little room: `network … return` where there are many in a row.
    pub fn short_name(self) -> String {
        let names: Vec<&str> = self.stages().map(|stage| stage.name).collect();
        match names.as_slice() {
            [first, _, .., last] if self.is_a_row() => format!("{first} … {last}"),
            names => names.join("+"),
        }
    }

    /// What a person reads: "in the router or on the way into the server".
    fn place(self) -> String {
        let stages: Vec<&Stage> = self.stages().collect();
        if let ([first, _, .., last], true) = (stages.as_slice(), self.is_a_row()) {
            let word = |moment: Moment| match moment {
                // Where no hop saw it, it is the first token that we read.
                Moment::WorkerFirstToken => "first token".to_owned(),
                moment => moment.name().replace('_', " "),
            };
            let (from, to) = (word(first.span.from), word(last.span.to));
            return format!("somewhere between {from} and {to}");
        }
        let places: Vec<&str> = stages.iter().map(|stage| stage.place).collect();
        match places.split_last() {
            None => "nowhere".to_owned(),
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
        }
    }

    /// Whether they follow each other without others between.
    fn is_a_row(self) -> bool {
        let shifted = self.0 >> self.0.trailing_zeros().min(15);
        shifted & shifted.wrapping_add(1) == 0
    }
}

impl Spent {
    /// Short name, as in the summary: a stage's, several joined by `+`, or `client_stall`.
    pub fn name(self) -> String {
        match self {
            Spent::Stages(stages) => stages.name(),
            Spent::Proxy => "proxy".to_owned(),
            Spent::ClientStall => "client_stall".to_owned(),
        }
    }

    /// What a person reads after "was spent".
    pub fn place(self) -> String {
        match self {
            Spent::Stages(stages) => stages.place(),
            Spent::Proxy => "in the proxy".to_owned(),
            Spent::ClientStall => "waiting for the client to read".to_owned(),
        }
    }

    /// Whether this stage is what it was spent on, or part of that.
    pub fn holds(self, span: Span) -> bool {
        match self {
            Spent::Stages(stages) => stages.stages().any(|stage| stage.span == span),
            Spent::Proxy => span == Span::QUEUE_IN_ROUTER,
            Spent::ClientStall => false,
        }
    }
}

impl Breakdown {
    /// Of one row; `None` while its end or every start is unknown.
    ///
    /// Neighbouring stages without a moment between them form one part. Stages that cannot be placed at
    /// all (the engine's clock is unknown, so both ways to and from it are) share what the others leave.
    pub fn of(record: &Record) -> Option<Breakdown> {
        let timeline = &record.timeline;
        let first = STAGES.iter().position(|stage| {
            let whole = Span {
                from: stage.span.from,
                to: Moment::Finish,
            };
            timeline.nanos(whole).is_some()
        })?;
        let total_nanos = timeline.nanos(Span {
            from: STAGES.get(first)?.span.from,
            to: Moment::Finish,
        })?;

        let mut parts = Vec::new();
        let mut unplaced = StageSet::default();
        let mut at = first;
        while let Some(stage) = STAGES.get(at) {
            let length = joined(record, at).unwrap_or(0);
            let Some(last) = length.checked_sub(1).and_then(|more| STAGES.get(at + more)) else {
                unplaced = unplaced.with(StageSet::one(at));
                at += 1;
                continue;
            };
            let span = Span {
                from: stage.span.from,
                to: last.span.to,
            };
            let set =
                (at..at + length).fold(StageSet::default(), |set, i| set.with(StageSet::one(i)));
            let nanos = timeline.nanos(span)?;
            parts.push(Part {
                spent: Spent::Stages(set),
                nanos,
            });
            at += length;
        }
        if unplaced != StageSet::default() {
            let placed: i64 = parts.iter().map(|part| part.nanos).sum();
            parts.push(Part {
                spent: Spent::Stages(unplaced),
                nanos: total_nanos - placed,
            });
            parts.sort_by_key(|part| match part.spent {
                Spent::Stages(stages) => stages.0.trailing_zeros(),
                Spent::Proxy | Spent::ClientStall => u32::MAX,
            });
        }
        if !timeline.saw_way_back() {
            leave_out(Span::ROUTER_RETURN, &mut parts);
        }
        name_what_is_no_router(record, &mut parts);
        carve_out_stall(record, &mut parts);
        Some(Breakdown { total_nanos, parts })
    }
}

/// How many stages from the one at `at` on make the shortest stretch of known length.
fn joined(record: &Record, at: usize) -> Option<usize> {
    let from = STAGES.get(at)?.span.from;
    let ends = STAGES.iter().skip(at).map(|stage| stage.span.to);
    let mut known = ends.map(|to| record.timeline.nanos(Span { from, to }).is_some());
    let length = known.position(|known| known)? + 1;
    // A stretch must not swallow stages that are known by themselves.
    let inner = STAGES.iter().skip(at + 1).take(length - 1);
    let swallows = inner
        .clone()
        .any(|stage| record.timeline.nanos(stage.span).is_some());
    (!swallows).then_some(length)
}

/// Takes a stage that nobody could see out of the parts; its time is in the stage before it.
fn leave_out(span: Span, parts: &mut Vec<Part>) {
    let index = STAGES.iter().position(|stage| stage.span == span);
    let unseen = index.map_or(0, |index| StageSet::one(index).0);
    parts.retain_mut(|part| match &mut part.spent {
        Spent::Stages(stages) => {
            stages.0 &= !unseen;
            stages.0 != 0
        }
        Spent::Proxy | Spent::ClientStall => true,
    });
}

/// Where our own send is the send to the server there is no router, and without a proxy of ours there is
/// nothing at all between: to show a router with an empty queue would be false.
fn name_what_is_no_router(record: &Record, parts: &mut Vec<Part>) {
    let timeline = &record.timeline;
    let alone = |part: &Part, span| {
        part.spent.holds(span)
            && matches!(part.spent, Spent::Stages(set) if set.stages().count() == 1)
    };
    let to_proxy = Span {
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
        parts.retain(|part| !alone(part, Span::QUEUE_IN_ROUTER));
    }
    for part in parts
        .iter_mut()
        .filter(|part| alone(part, Span::QUEUE_IN_ROUTER))
    {
        part.spent = Spent::Proxy;
    }
}

/// A stalled client delays what is read after it: that time is not the engine's.
fn carve_out_stall(record: &Record, parts: &mut Vec<Part>) {
    let Some(stall) = record.facts.client_stall_nanos.filter(|stall| *stall > 0) else {
        return;
    };
    let mut parts_mut = parts.iter_mut();
    let Some(decode) = parts_mut.find(|part| part.spent.holds(Span::DECODE)) else {
        return;
    };
    let stall = stall.min(decode.nanos.max(0));
    decode.nanos -= stall;
    parts.push(Part {
        spent: Spent::ClientStall,
        nanos: stall,
    });
}

impl Unseen {
    /// What of a row was not seen.
    pub fn of(record: &Record) -> Vec<Unseen> {
        let timeline = &record.timeline;
        let lacks = |moment| timeline.raw(moment).is_none();
        let unknown = |clock| timeline.relation(clock) == Relation::Unknown;
        let engine = [
            Moment::ServerCreated,
            Moment::QueueStart,
            Moment::QueueEnd,
            Moment::ServerFirstToken,
        ];
        let found = [
            (Unseen::Router, lacks(Moment::RouterSend)),
            (Unseen::Engine, engine.into_iter().any(lacks)),
            (
                Unseen::EngineClock,
                unknown(ClockOf::Engine) && !engine.into_iter().all(lacks),
            ),
            (
                Unseen::ProxyClock,
                [Moment::Arrival, Moment::RouterSend]
                    .into_iter()
                    .any(|moment| !lacks(moment) && timeline.on_own_clock(moment).is_none()),
            ),
            (Unseen::FirstToken, lacks(Moment::FirstToken)),
        ];
        let found = found.into_iter().filter(|(_, is)| *is);
        found.map(|(unseen, _)| unseen).collect()
    }

    /// Short name, as in the summary.
    pub const fn name(self) -> &'static str {
        match self {
            Unseen::Router => "router",
            Unseen::Engine => "engine",
            Unseen::EngineClock => "engine_clock",
            Unseen::ProxyClock => "proxy_clock",
            Unseen::FirstToken => "first_token",
        }
    }

    /// What a person reads.
    pub const fn sentence(self) -> &'static str {
        match self {
            Unseen::Router => {
                "the router could not be seen: no worker hop (`--upstream-kind server` if none stands there)"
            }
            Unseen::Engine => "inside the server not all could be seen: it gave no or few timings",
            Unseen::EngineClock => "the server's clock could not be compared with ours",
            Unseen::ProxyClock => "the proxy's clock could not be compared with ours",
            Unseen::FirstToken => "the first token could not be seen: not streamed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::{Sample, ms};

    fn parts(record: &Record) -> Vec<(String, i64)> {
        let breakdown = Breakdown::of(record).unwrap();
        let parts = breakdown.parts.iter();
        let sum: i64 = parts.clone().map(|part| part.nanos).sum();
        assert_eq!(sum, breakdown.total_nanos, "parts add up");
        parts
            .map(|part| (part.spent.name(), part.nanos / ms(1)))
            .collect()
    }

    fn named(expected: &[(&str, i64)]) -> Vec<(String, i64)> {
        expected
            .iter()
            .map(|(n, v)| ((*n).to_owned(), *v))
            .collect()
    }

    #[test]
    fn a_whole_request_has_every_stage() {
        let record = Sample::whole().record();
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
        assert_eq!(Unseen::of(&record), []);
    }

    #[test]
    fn the_routers_part_of_the_way_back_is_a_stage_where_a_hop_saw_it() {
        let seen = |sample: Sample| parts(&sample.at(Moment::WorkerFirstToken, 203).record());
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
        let record = Sample::whole().without(&[Moment::WorkerArrival]).record();
        let parts = parts(&record);
        assert_eq!(parts[2], ("router+network".to_owned(), 8));
        assert_eq!(Unseen::of(&record), [Unseen::Router]);
    }

    #[test]
    fn a_stream_without_timings_leaves_one_stretch_in_the_server() {
        let engine = [
            Moment::ServerCreated,
            Moment::QueueStart,
            Moment::QueueEnd,
            Moment::ServerFirstToken,
        ];
        let record = Sample::whole().without(&engine).record();
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
        assert_eq!(Unseen::of(&record), [Unseen::Engine]);
    }

    #[test]
    fn an_engine_on_an_unknown_clock_keeps_its_own_durations() {
        let record = Sample::whole().engine_unknown().record();
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
        assert_eq!(Unseen::of(&record), [Unseen::EngineClock]);

        let sample = Sample::whole().without(&[Moment::WorkerArrival]);
        let record = sample.engine_unknown().record();
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
        let record = Sample::whole().without(&tokens).record();
        assert_eq!(
            parts(&record).last(),
            Some(&("return+decode".to_owned(), 300))
        );
        assert_eq!(Unseen::of(&record), [Unseen::FirstToken]);
    }

    #[test]
    fn a_stalled_client_is_taken_out_of_decode() {
        let mut record = Sample::whole().record();
        record.facts.client_stall_nanos = Some(ms(200));
        let parts = parts(&record);
        assert_eq!(parts[8..], named(&[("decode", 90), ("client_stall", 200)]));
    }

    #[test]
    fn the_proxys_own_rows_begin_at_arrival() {
        let record = Sample::whole()
            .without(&[Moment::Scheduled, Moment::Sent])
            .record();
        assert_eq!(parts(&record)[0], ("router".to_owned(), 3));
        assert_eq!(Breakdown::of(&record).unwrap().total_nanos, ms(498));
    }

    #[test]
    fn without_a_router_none_is_shown() {
        let no_hop = [Moment::WorkerArrival, Moment::WorkerForwarded];
        let straight = |record: &mut Record| record.timeline.upstream_is_server(true);
        let record = Sample::whole().without(&no_hop).with(straight).record();
        let expected = [
            ("client lag", 1),
            ("to proxy", 1),
            ("proxy", 1),
            ("network", 7),
        ];
        assert_eq!(parts(&record)[..4], named(&expected));

        let no_proxy = [Moment::Arrival, Moment::Forwarded];
        let sample = Sample::whole().without(&no_hop).without(&no_proxy);
        let record = sample.with(straight).record();
        let expected = [("client lag", 1), ("network", 9), ("tokenize", 10)];
        assert_eq!(parts(&record)[..3], named(&expected));
        assert_eq!(Unseen::of(&record), []);
    }

    #[test]
    fn no_end_no_breakdown() {
        let record = Sample::whole().without(&[Moment::Finish]).record();
        assert_eq!(Breakdown::of(&record), None);
    }
}
