//! Where the time of a request ends: at its last byte, or where one that failed was last seen.

use crate::request::last_seen::LastSeen;
use crate::request::row::Row;
use crate::request::timeline::{Moment, Period, STAGES, Stage};

use super::spent::{Spent, StageSet};

/// The end of a breakdown.
pub struct Last {
    /// The moment.
    pub to: Moment,
    /// The stage that it was in by then, or the first that it may have been in; of one that went well, none.
    pub first: usize,
    /// What the time from that stage's start was spent on.
    pub spent: Option<Spent>,
}

impl Last {
    pub fn of(row: &Row) -> Option<Last> {
        let last_seen = row.last_seen()?;
        let router = |stage: &Stage| stage.period == Period::QUEUE_IN_ROUTER;
        let is_seen = |stage: &Stage| row.timeline.raw(stage.period.from).is_some();
        let (to, first) = match last_seen {
            LastSeen::Connecting => (Moment::End, STAGES.iter().rposition(is_seen)?),
            LastSeen::Done => (Moment::Finish, STAGES.len()),
            LastSeen::Proxy => (Moment::End, STAGES.iter().position(router)?),
            LastSeen::Stages(first, _) => (Moment::End, first),
        };
        Some(Last {
            to,
            first,
            spent: Spent::of(last_seen),
        })
    }
}

impl Spent {
    /// Where a request that failed was last seen; `None` of one that went well.
    pub fn of(last_seen: LastSeen) -> Option<Spent> {
        match last_seen {
            LastSeen::Done => None,
            LastSeen::Connecting => Some(Spent::Connecting),
            LastSeen::Proxy => Some(Spent::Proxy),
            LastSeen::Stages(first, last) => {
                // Nobody sees where a token is on the router's way back before it is here.
                let stages = StageSet::row(first, last + 1).without(Period::ROUTER_RETURN);
                Some(Spent::Stages(stages))
            }
        }
    }
}

/// Where a request was last seen, as a person reads it: "last seen in the router".
pub fn place(last_seen: LastSeen) -> String {
    match (last_seen.name().as_ref(), Spent::of(last_seen)) {
        ("server", _) => "in the server, before its first token".to_owned(),
        ("router+server", _) => "in the router or the server, before the first token".to_owned(),
        (_, spent) => spent.map_or("at its end".to_owned(), Spent::place),
    }
}

#[cfg(test)]
mod tests {
    use crate::request::record::Outcome;
    use crate::request::sample::Sample;
    use crate::request::stages::tests::{named, parts};
    use crate::request::timeline::Moment;

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
        assert_eq!(super::place(last_seen), "connecting to the target");
    }
}
