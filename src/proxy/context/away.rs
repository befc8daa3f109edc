//! How long upstreams had a request, so that what remains of its time is the proxy's own.

use crate::clock::Stamp;

/// The time that a request was away: sent to an upstream, until the last byte of its answer was read or the sending had
/// failed; or not here yet, and waited for. One sending begins after the one before is over.
#[derive(Debug, Default)]
pub(super) struct Away {
    since: Option<Stamp>,
    nanos: i64,
    /// How long writes to the client had been held up when it was last back, nanoseconds.
    stalled: i64,
}

impl Away {
    /// The head is sent.
    pub(super) fn began(&mut self, at: Stamp) {
        self.since.get_or_insert(at);
    }

    /// That sending is over; writes to the client had been held up for `stalled` nanoseconds by then.
    pub(super) fn over(&mut self, at: Stamp, stalled: i64) {
        if let Some(since) = self.since.take() {
            self.nanos = self.nanos.saturating_add(at.nanos_since(since));
            self.stalled = stalled;
        }
    }

    /// The client was waited for, before a sending.
    pub(super) fn client_waited_for(&mut self, nanos: i64) {
        self.nanos = self.nanos.saturating_add(nanos);
    }

    /// Nanoseconds from `arrival` to `end` in which no upstream had it and the client held up nothing. By the end writes to
    /// the client had been held up for `stalled` in all.
    pub(super) fn rest_of(&self, arrival: Stamp, end: Stamp, stalled: i64) -> i64 {
        let stalled = stalled.saturating_sub(self.stalled);
        end.nanos_since(arrival) - self.nanos - stalled
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::{ManualClock, Stamp};
    use crate::proxy::context::Context;
    use crate::proxy::context::tests::shared;
    use crate::proxy::shared::Role;
    use crate::request::endpoint::Endpoint;

    /// A request that came at 1 µs, and what sets the clock to so many microseconds.
    fn request() -> (Context, impl Fn(i64)) {
        let (shared, manual) = shared();
        let mut context = Context::new(shared.clone(), Role::Front, shared.clock.now());
        context.watch(Endpoint::Generate, "id".into());
        (context, at(manual))
    }

    fn at(manual: ManualClock) -> impl Fn(i64) {
        move |micros| manual.set(Stamp::from_nanos(micros * 1_000))
    }

    fn head(context: &mut Context) {
        let now = context.shared.clock.now();
        context.response_head(200, None, false, now);
    }

    fn whole(context: &mut Context) {
        let now = context.shared.clock.now();
        context.response_body(b"{}", true, now);
    }

    /// What the proxy added to a request that ends now, microseconds.
    fn overhead(context: &mut Context) -> i64 {
        let now = context.shared.clock.now();
        let stalled = context.backpressure.pending_at(now);
        context.away.over(now, stalled);
        context.away.rest_of(context.arrival, now, stalled) / 1_000
    }

    #[test]
    fn what_no_upstream_had_is_the_proxys() {
        let (mut context, at) = request();
        at(31);
        let _ = context.attempt_began();
        at(500);
        head(&mut context);
        whole(&mut context);
        at(507);
        assert_eq!(overhead(&mut context), 30 + 7);
    }

    #[test]
    fn the_wait_for_a_prompt_is_not_the_proxys() {
        let (mut context, at) = request();
        at(3);
        let began = context.shared.clock.now();
        at(903);
        context.prompt_waited(began);
        at(910);
        let _ = context.attempt_began();
        at(2_000);
        whole(&mut context);
        assert_eq!(context.prompt_wait, Some(900_000));
        assert_eq!(overhead(&mut context), 2 + 7);
    }

    #[test]
    fn between_two_sendings_it_is_the_proxys() {
        let (mut context, at) = request();
        at(11);
        let _ = context.attempt_began();
        at(111);
        context.sending_failed(true);
        at(151);
        let _ = context.attempt_began();
        at(400);
        head(&mut context);
        whole(&mut context);
        at(405);
        assert_eq!(overhead(&mut context), 10 + 40 + 5);
    }

    #[test]
    fn one_that_reached_no_upstream_was_the_proxys_all_the_time() {
        let (mut context, at) = request();
        at(701);
        assert_eq!(overhead(&mut context), 700);
    }

    #[test]
    fn one_that_ends_while_an_upstream_has_it_adds_nothing_at_the_end() {
        let (mut context, at) = request();
        at(21);
        let _ = context.attempt_began();
        at(9_000);
        assert_eq!(overhead(&mut context), 20);
    }

    #[test]
    fn what_the_client_holds_up_is_not_the_proxys() {
        let (mut context, at) = request();
        let stall = |context: &mut Context, from, to| {
            at(from);
            context.backpressure.began(context.shared.clock.now());
            at(to);
            context.backpressure.over(context.shared.clock.now());
        };
        at(2);
        let _ = context.attempt_began();
        head(&mut context);
        // While the server still sends: nobody's but the client's and the server's.
        stall(&mut context, 10, 60);
        at(100);
        whole(&mut context);
        stall(&mut context, 104, 304);
        at(306);
        assert_eq!(overhead(&mut context), 1 + 4 + 2);
    }
}
