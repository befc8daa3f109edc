//! The timeline of a request: its moments, each on the clock that measured it, and the durations between them.
//!
//! A duration within one clock is exact. Between two clocks it needs their offset; without one it is unknown.

mod moment;

pub use moment::{ClockOf, ENGINE, Moment, Period, STAGES, Side, Stage};

use crate::clock::Stamp;
use crate::offset::Offset;

use crate::names::names;

names! {
    /// The clock that the engine's times are on.
    pub enum ClockState {
        /// On that of the row.
        Offset = "offset",
        /// On the engine's, as it gave them.
        Raw = "raw",
    }
}

names! {
    /// The moment that `ttft` ends at.
    pub enum TtftSource {
        /// The engine's own first token.
        Server = "server_first_token",
        /// The first token read.
        Read = "first_token",
    }
}

/// The relation of a clock to the observer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relation {
    /// The same clock: the same process.
    Same,
    /// Another clock, this far away.
    Apart(Offset),
    /// Another clock, at an unknown distance.
    #[default]
    Unknown,
}

/// The moments of a server that only decodes, in the order of a request's life.
pub const ENGINE_OF_PAIR: [Moment; 7] = [
    Moment::ServerCreated,
    Moment::QueueStart,
    Moment::KvReserved,
    Moment::KvArrived,
    Moment::DecodeStart,
    Moment::ServerFirstToken,
    Moment::ServerFinish,
];

/// SGLang's timestamps of one moment differ by up to 0.24 µs between events (0.5.23).
pub const TOLERANCE_NANOS: i64 = 1_000;

/// Times of one sequence at a prefill server, on its own clock, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillTimes {
    /// In its waiting queue.
    pub queue: Option<i64>,
    /// From its first batch to the end of prefill.
    pub forward: Option<i64>,
    /// Sending the KV cache, as the prefill server measured it.
    pub sending: Option<i64>,
}

/// The moments of one request, kept as each clock gave them.
#[derive(Clone, Debug)]
pub struct Timeline {
    side: Side,
    marks: [Option<Stamp>; Moment::COUNT],
    relations: [Relation; 4],
    /// The clock of the hop's moments: the front's own if they share a process.
    hop_clock: ClockOf,
    upstream_is_server: bool,
    /// Times at the prefill server, if prefill and decode were two servers.
    prefill: Option<PrefillTimes>,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::new(Side::Front)
    }
}

impl PrefillTimes {
    /// Computes the times from when the sequence was queued, left the queue, and its prefill ended.
    pub fn between([queued, entered, ended]: [Option<Stamp>; 3]) -> PrefillTimes {
        let nanos = |from: Option<Stamp>, to: Option<Stamp>| Some(to?.nanos_since(from?));
        PrefillTimes {
            queue: nanos(queued, entered),
            forward: nanos(entered, ended),
            sending: None,
        }
    }
}

impl Timeline {
    /// Makes an empty timeline of a request that `side` observes.
    pub fn new(side: Side) -> Timeline {
        let mut relations = [Relation::Unknown; 4];
        relations[side.clock() as usize] = Relation::Same;
        Timeline {
            side,
            marks: [None; Moment::COUNT],
            relations,
            hop_clock: ClockOf::Hop,
            upstream_is_server: false,
            prefill: None,
        }
    }

    /// Sets whether the process that we send to is the server itself, not a router: our send is then the router's.
    pub fn upstream_is_server(&mut self, yes: bool) {
        self.upstream_is_server = yes;
    }

    /// Sets that hop and front are one process, with one clock.
    pub fn hop_shares_front(&mut self) {
        self.hop_clock = ClockOf::Front;
    }

    /// Sets a moment as its clock gave it, replacing an earlier value; `None` changes nothing.
    pub fn set(&mut self, moment: Moment, at: impl Into<Option<Stamp>>) {
        if let Some(at) = at.into() {
            self.marks[moment as usize] = Some(at);
        }
    }

    /// Sets a moment unless it is known already.
    pub fn set_if_unknown(&mut self, moment: Moment, at: Stamp) {
        if self.mark(moment).is_none() {
            self.set(moment, at);
        }
    }

    /// Removes a moment.
    pub fn clear(&mut self, moment: Moment) {
        self.marks[moment as usize] = None;
    }

    /// Sets the relation of `clock` to the observer's.
    pub fn relate(&mut self, clock: ClockOf, relation: Relation) {
        if clock != self.side.clock() {
            self.relations[clock as usize] = relation;
        }
    }

    /// Returns the relation of `clock` to the observer's.
    pub fn relation(&self, clock: ClockOf) -> Relation {
        self.relations[clock as usize]
    }

    /// Returns the offset of `clock`, if it is another clock and that is known.
    pub fn offset(&self, clock: ClockOf) -> Option<Offset> {
        let Relation::Apart(offset) = self.relation(clock) else {
            return None;
        };
        Some(offset)
    }

    /// Returns the other clocks of moments here that compare with ours, with their offsets.
    pub fn other_clocks(&self) -> impl Iterator<Item = (ClockOf, Offset)> {
        ClockOf::ALL.into_iter().filter_map(|clock| {
            let offset = self.offset(clock)?;
            let is_of = |moment: Moment| self.raw(moment).is_some() && self.clock(moment) == clock;
            let mut moments = Moment::ALL.into_iter();
            moments.any(is_of).then_some((clock, offset))
        })
    }

    /// Returns the observer.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Returns the earliest that the last of our processes before the server can have sent the request, on our clock: no moment
    /// of the server can be before it.
    pub fn last_send(&self) -> Option<Stamp> {
        let sends = [Moment::WorkerForwarded, Moment::Forwarded, Moment::Sent];
        sends.into_iter().find_map(|moment| {
            let (at, error) = self.ours(self.resolve(moment)?)?;
            Some(at.plus_nanos(-error))
        })
    }

    /// Returns the moment as its own clock gave it.
    pub fn raw(&self, moment: Moment) -> Option<Stamp> {
        self.resolve(moment).and_then(|moment| self.mark(moment))
    }

    /// Returns the moment on the observer's clock; `None` if unknown or on a clock that does not compare.
    pub fn on_own_clock(&self, moment: Moment) -> Option<Stamp> {
        Some(self.ours(self.resolve(moment)?)?.0)
    }

    /// Returns the moment for a time column: on the observer's clock if the clocks compare, else as its own clock gave it.
    pub fn time(&self, moment: Moment) -> Option<Stamp> {
        self.on_own_clock(moment).or_else(|| self.raw(moment))
    }

    /// Returns the length of a period, nanoseconds; negative if the order is wrong. Exact within one clock, by the offset between
    /// two; `None` if that or a moment is unknown.
    pub fn nanos(&self, period: Period) -> Option<i64> {
        Some(self.measured(period)?.0)
    }

    /// Returns the length of a period and its error, nanoseconds: the errors of the clocks at its ends; 0 within one clock.
    pub fn measured(&self, period: Period) -> Option<(i64, i64)> {
        let of_pair = self.prefill.and_then(|t| self.pair_nanos(period, t));
        if let Some(nanos) = of_pair {
            return Some((nanos?, 0));
        }
        let period = self.ends(period)?;
        let (from, to) = (self.resolve(period.from)?, self.resolve(period.to)?);
        if self.clock(from) == self.clock(to) {
            let (from, to) = (self.mark(from)?, self.mark(to)?);
            return Some((to.nanos_since(from), 0));
        }
        let ((to, error), (from, more)) = (self.ours(to)?, self.ours(from)?);
        Some((to.nanos_since(from), error.saturating_add(more)))
    }

    /// Returns the time to first token, nanoseconds, and its source: the engine's own first token if the clocks compare, else the
    /// one that the observer read.
    pub fn ttft(&self) -> Option<(i64, TtftSource)> {
        let engine = self.nanos(Period::TTFT_ENGINE);
        let engine = engine.map(|nanos| (nanos, TtftSource::Server));
        engine.or_else(|| Some((self.nanos(Period::TTFT_OBSERVED)?, TtftSource::Read)))
    }

    /// Returns the time from arrival to end, whoever ended the request, nanoseconds. A hop's own row begins when the hop read the
    /// head.
    pub fn elapsed(&self) -> Option<i64> {
        let from = match self.side {
            Side::Traffic | Side::Front => Moment::Arrival,
            Side::Hop => Moment::RouterSend,
        };
        self.nanos(Period::new(from, Moment::End))
    }

    /// Returns which clock the engine's times are on; `None` if there are none.
    pub fn clock_state(&self) -> Option<ClockState> {
        // A stream that was cut may have told any of them alone.
        let mut moments = self.engine_moments().iter();
        moments.find_map(|moment| self.raw(*moment))?;
        Some(match self.relation(ClockOf::Engine) {
            Relation::Unknown => ClockState::Raw,
            Relation::Same | Relation::Apart(_) => ClockState::Offset,
        })
    }

    /// Returns the clocks of the ends of a period, if both are known.
    pub fn clocks(&self, period: Period) -> Option<(ClockOf, ClockOf)> {
        let ends = self.resolve(period.from).zip(self.resolve(period.to));
        ends.map(|(a, b)| (self.clock(a), self.clock(b)))
    }

    /// Returns a moment that was itself measured, on its own clock; unlike [`raw`](Self::raw), no other stands in for it: the
    /// arrival that a front reported, the first token that a hop saw.
    pub fn mark(&self, moment: Moment) -> Option<Stamp> {
        self.marks[moment as usize]
    }

    /// Returns a measured moment on our clock, and its error, nanoseconds.
    fn ours(&self, moment: Moment) -> Option<(Stamp, i64)> {
        let at = self.mark(moment)?;
        match self.relation(self.clock(moment)) {
            Relation::Same => Some((at, 0)),
            Relation::Apart(offset) => Some((at.plus_nanos(-offset.nanos), offset.error_nanos)),
            Relation::Unknown => None,
        }
    }

    fn clock(&self, moment: Moment) -> ClockOf {
        match moment.clock(self.side) {
            ClockOf::Hop => self.hop_clock,
            clock => clock,
        }
    }

    /// Returns the measured moment that stands for `moment` here.
    fn resolve(&self, moment: Moment) -> Option<Moment> {
        let marked = |m: Moment| self.mark(m).map(|_| m);
        if self.mark(moment).is_some() && moment != Moment::RouterSend {
            return Some(moment);
        }
        match moment {
            Moment::Arrival => marked(Moment::Sent),
            Moment::WorkerFirstToken => marked(Moment::FirstToken),
            Moment::RouterSend => marked(Moment::WorkerArrival).or_else(|| {
                // Behind a front its forwarding is the one that counts, known or not.
                let has_front = self.mark(Moment::Arrival).is_some();
                let own = marked(Moment::Sent).filter(|_| !has_front);
                let send = marked(Moment::Forwarded).or(own);
                send.filter(|_| self.upstream_is_server)
            }),
            _ => None,
        }
    }
}

// A request prefilled by one server and decoded by another, on the decode server's clock. The prefill server's clock is another
// one: of its times only durations are used. They lie, in order, within the decode server's wait for it.
impl Timeline {
    /// Sets that a pair served the request, and the prefill server's times of it. The queue in a decode server's response is the
    /// wait for a slot of its batch: it begins when the KV cache has arrived, not when the request has.
    pub fn set_pair(&mut self, prefill: PrefillTimes) {
        let is_new = self.prefill.is_none();
        let known = self.prefill.get_or_insert_default();
        known.queue = known.queue.or(prefill.queue);
        known.forward = known.forward.or(prefill.forward);
        known.sending = known.sending.or(prefill.sending);
        if is_new {
            for (reported, meant) in [
                (Moment::QueueStart, Moment::KvArrived),
                (Moment::QueueEnd, Moment::DecodeStart),
            ] {
                self.set(meant, self.mark(reported));
                self.clear(reported);
            }
        }
    }

    /// Returns the prefill server's times; `None` if one server did all.
    pub fn prefill(&self) -> Option<PrefillTimes> {
        self.prefill
    }

    /// Returns the times of a prefill leg from its own server's moments, whether or not it was known to be a leg.
    pub fn as_prefill(&self) -> PrefillTimes {
        let one = |of_one, of_pair| self.raw(of_one).or_else(|| self.raw(of_pair));
        PrefillTimes::between([
            one(Moment::QueueStart, Moment::KvArrived),
            one(Moment::QueueEnd, Moment::DecodeStart),
            self.raw(Moment::PrefillEnd),
        ])
    }

    /// Returns the moments that its server can report.
    pub fn engine_moments(&self) -> &'static [Moment] {
        match self.prefill {
            None => &ENGINE,
            Some(_) => &ENGINE_OF_PAIR,
        }
    }

    /// Removes all that servers reported of their times.
    pub fn forget_engine(&mut self) {
        for moment in ENGINE.into_iter().chain(ENGINE_OF_PAIR) {
            self.clear(moment);
        }
        self.prefill = self.prefill.map(|_| PrefillTimes::default());
    }

    /// Returns the ends of a stage here, if this request has such a stage.
    pub fn period_of(&self, stage: &Stage) -> Option<Period> {
        let is_in = stage.is_in(self.prefill.is_some());
        self.ends(stage.period).filter(|_| is_in)
    }

    /// Returns the ends of a period here; `None` if it cannot be known: unless a hop saw the first token, its whole return path
    /// is `RETURN`. The time in which decode's first step passes on prefill's token is part of that too.
    fn ends(&self, period: Period) -> Option<Period> {
        let is_pair = self.prefill.is_some();
        let is_held = is_pair
            && self.mark(Moment::WorkerFirstToken).is_some()
            && self.mark(Moment::PrefillReplied).is_some();
        Some(match period {
            Period::ROUTER_RETURN if self.mark(Moment::WorkerFirstToken).is_none() => return None,
            Period::ROUTER_HOLD if !is_held => return None,
            Period::ROUTER_RETURN if is_held => {
                Period::new(Moment::PrefillReplied, Moment::FirstToken)
            }
            Period::PREFILL if is_pair => Period::new(Moment::QueueEnd, Moment::PrefillEnd),
            Period::RETURN if is_pair => Period::new(Moment::DecodeStart, Moment::WorkerFirstToken),
            period => period,
        })
    }

    /// Returns the ends of a stage on our clock. Prefill's stages are laid out, in order, from when the decode server was ready
    /// for them.
    pub fn place_of(&self, stage: &Stage) -> Option<(Stamp, Stamp)> {
        let period = self.period_of(stage)?;
        let ready = || self.on_own_clock(Moment::KvReserved);
        let at = |moment| match (moment, self.prefill) {
            (Moment::QueueEnd, Some(times)) => Some(ready()?.plus_nanos(times.queue?)),
            (Moment::PrefillEnd, Some(times)) => {
                Some(ready()?.plus_nanos(times.queue?.checked_add(times.forward?)?))
            }
            _ => self.on_own_clock(moment),
        };
        Some((at(period.from)?, at(period.to)?))
    }

    /// For a pair: returns a period that is not the time between two moments; `Some(None)` if it is unknown.
    fn pair_nanos(&self, period: Period, times: PrefillTimes) -> Option<Option<i64>> {
        let leg = Period::new(Moment::QueueEnd, Moment::PrefillEnd);
        Some(match period {
            Period::PREFILL_QUEUE => times.queue,
            period if [Period::PREFILL, leg].contains(&period) => times.forward,
            Period::KV_TRANSFER => self.kv_transfer(times),
            Period::PURE_QUEUE => self.queue_sum(times),
            _ => return None,
        })
    }

    /// Returns what prefill's queue and forward leave of the decode server's wait.
    fn kv_transfer(&self, times: PrefillTimes) -> Option<i64> {
        let wait = Period::new(Moment::KvReserved, Moment::KvArrived);
        let after_queue = self.nanos(wait)?.checked_sub(times.queue?)?;
        after_queue.checked_sub(times.forward?)
    }

    /// Returns the sum of the three waits: for the decode server's memory, in prefill's queue, for the decode server's batch.
    fn queue_sum(&self, times: PrefillTimes) -> Option<i64> {
        let memory = self.nanos(Period::DECODE_MEMORY)?;
        let of_decode = memory.checked_add(self.nanos(Period::DECODE_SLOT)?)?;
        of_decode.checked_add(times.queue?)
    }
}

#[cfg(test)]
mod tests;
