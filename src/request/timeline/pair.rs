//! A request prefilled by one server and decoded by another, on the decode server's clock. The prefill server's clock is another
//! one: of its times only durations are used. They lie, in order, within the decode server's wait for it.

use crate::clock::Stamp;

use super::{ENGINE, Moment, Period, Stage, Timeline};

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
        if !stage.is_in(self.prefill.is_some()) {
            return None;
        }
        match stage.period {
            Period::PREFILL if self.prefill.is_some() => {
                Some(Period::new(Moment::QueueEnd, Moment::PrefillEnd))
            }
            period => self.ends(period),
        }
    }

    /// Returns the ends of a period here; `None` if it cannot be known: unless a hop saw the first token, its whole return path
    /// is `RETURN`. The time in which decode's first step passes on prefill's token is part of that too.
    pub(super) fn ends(&self, period: Period) -> Option<Period> {
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
    pub(super) fn pair_nanos(&self, period: Period, times: PrefillTimes) -> Option<Option<i64>> {
        let leg = Period::new(Moment::QueueEnd, Moment::PrefillEnd);
        Some(match period {
            Period::PREFILL_QUEUE => times.queue,
            Period::PREFILL => times.forward,
            _ if period == leg => times.forward,
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
mod tests {
    use super::*;
    use crate::request::sample::at;
    use crate::request::timeline::Moment::*;
    use crate::request::timeline::{ClockOf, Relation, Side};

    /// The two servers' clocks are a day apart, and neither compares with ours.
    #[test]
    fn each_wait_of_a_pair_is_measured_on_one_clock() {
        const DAY: i64 = 86_400_000;
        let mut prefill = Timeline::new(Side::Hop);
        for (moment, ms) in [(QueueStart, 30), (QueueEnd, 37), (PrefillEnd, 57)] {
            prefill.set(moment, at(ms - DAY));
        }
        let mut decode = Timeline::new(Side::Front);
        for (moment, ms) in [(Arrival, 0), (WorkerArrival, 5), (FirstToken, 200)] {
            decode.set(moment, at(ms));
        }
        let queued = [(ServerCreated, 6), (QueueStart, 10), (KvReserved, 30)];
        for (moment, ms) in queued
            .into_iter()
            .chain([(KvArrived, 90), (DecodeStart, 100)])
        {
            decode.set(moment, at(DAY + ms));
        }
        decode.relate(ClockOf::Engine, Relation::Unknown);
        // A decode server's trace gives the moments of a pair directly.
        decode.prefill = Some(prefill.as_prefill());
        let ms = |period| decode.nanos(period).map(|nanos| nanos / 1_000_000);
        for (period, expected) in [
            (Period::DECODE_MEMORY, Some(20)),
            (Period::PREFILL_QUEUE, Some(7)),
            (Period::PREFILL, Some(20)),
            (Period::KV_TRANSFER, Some(60 - 7 - 20)),
            (Period::DECODE_SLOT, Some(10)),
            (Period::PURE_QUEUE, Some(20 + 7 + 10)),
            (Period::NETWORK, None),
            (Period::RETURN, None),
            (Period::TTFT_ENGINE, None),
        ] {
            assert_eq!(ms(period), expected, "{period:?}");
        }
        // A server may say anything.
        let prefill = decode.prefill.insert(PrefillTimes::default());
        prefill.forward = Some(-2);
        for (queue, period) in [
            (i64::MAX, Period::PURE_QUEUE),
            (i64::MIN, Period::KV_TRANSFER),
        ] {
            decode.prefill.get_or_insert_default().queue = Some(queue);
            assert_eq!(decode.nanos(period), None, "{period:?}");
        }
    }
}
