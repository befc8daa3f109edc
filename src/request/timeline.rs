//! The timeline of a request: its moments, each on the clock that measured it, and the durations between them.
//!
//! A duration within one clock is exact. Between two clocks it needs their offset; without one it is unknown.

mod moment;
mod pair;

pub use moment::{ClockOf, ENGINE, Moment, Period, STAGES, Side, Stage};
pub use pair::{ENGINE_OF_PAIR, PrefillTimes};

use crate::clock::Stamp;
use crate::offset::Offset;

use super::names::names;

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

/// SGLang's timestamps of one moment differ by up to 0.24 µs between events (0.5.23).
pub const TOLERANCE_NANOS: i64 = 1_000;

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
        let created = self.raw(Moment::ServerCreated);
        created.or(self.raw(Moment::QueueEnd))?;
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
