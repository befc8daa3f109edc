//! The headers by which a hop sends its timestamps to the front, and the front sends its own to a client; and how the clocks of other
//! processes and of engines are related to ours by them.
//!
//! Form: a JSON array of the members of [`Stamps`] in their order, timestamps in epoch nanoseconds of the sender's clock. The
//! first member names that clock by a name unique to the process: `["4bf9",1795168579844124001,…,"127.0.0.1:30000",…]`. Members
//! missing at the end are unknown; further ones, of a later version, are ignored: new members are added at the end.

use serde::Deserialize;
use serde_json::Value;
use serde_tuple::Serialize_tuple;

use crate::clock::Stamp;
use crate::offset::{Offset, OffsetBound, OffsetTable};

use super::attempt::{FailedAttempt, MAX_FAILED, SpanId};
use super::columns::Row;
use super::timeline::{ClockOf, Moment, Relation, Side};

/// Request header in which a client asks the front for [`FRONT_HEADER`] (value `1`).
pub const STAMPS_REQUEST_HEADER: &str = "x-queuescope-stamps";
/// Response header with the front's timestamps, only for clients that asked.
pub const FRONT_HEADER: &str = "x-queuescope-stamps";
/// Response header with the hop's timestamps; the front removes it.
pub const HOP_HEADER: &str = "x-queuescope-hop";

/// The timestamps of a request in one process of ours, up to its sending of the response head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize_tuple)]
#[serde(default)]
pub struct Stamps {
    /// The name of the process's clock.
    pub clock: String,
    /// When the header was written.
    pub now: Option<Stamp>,
    /// The request head was read.
    pub arrival: Option<Stamp>,
    /// The last byte of the request body was read.
    pub request_end: Option<Stamp>,
    /// The head was sent upstream.
    pub forwarded: Option<Stamp>,
    /// The server it was sent to, `host:port`.
    pub host: Option<String>,
    /// The number of times it was sent upstream.
    pub attempts: Option<u32>,
    /// Its upstream is the server itself: there is no router between.
    pub is_direct: bool,
    /// The sender joins the traces or logs of servers to its own rows.
    pub joins_engine: bool,
    /// The hop's name.
    pub worker: Option<String>,
    /// The sender's own span, sent upstream as the parent.
    pub span: Option<SpanId>,
    /// `bootstrap_room`: the number by which the servers of a pair know the request.
    pub room: Option<u64>,
    /// Earlier attempts at the request that failed.
    pub failed: Vec<FailedAttempt>,
    /// The hop's timestamps, passed on by the front.
    pub hop: Option<Box<Stamps>>,
}

/// The number of members.
const MEMBER_COUNT: usize = 14;

impl Stamps {
    /// Renders the header's value.
    pub fn render(&self) -> String {
        // Rendering numbers and text cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a header's value; `None` if it is invalid or names no clock, as timestamps of an unknown clock are useless.
    pub fn parse(value: &str) -> Option<Stamps> {
        let later_version = || {
            let mut all: Vec<Value> = serde_json::from_str(value).ok()?;
            all.truncate(MEMBER_COUNT);
            serde_json::from_value(all.into()).ok()
        };
        let mut stamps: Stamps = serde_json::from_str(value).ok().or_else(later_version)?;
        stamps.failed.truncate(MAX_FAILED);
        stamps.hop = stamps.hop.filter(|hop| !hop.clock.is_empty());
        Some(stamps).filter(|stamps| !stamps.clock.is_empty())
    }

    /// Returns the key of the clock of the engine at `host`. It includes the sender's clock, as one address may be different
    /// servers for two senders, such as a server on the sender's machine.
    pub fn engine_clock(&self, host: &str) -> String {
        format!("{} {host}", self.clock)
    }
}

/// Learns from an exchange with another process, if its stamps are known, and relates its clock to ours.
pub fn relate_process(
    rows: &mut [Row],
    clocks: &mut OffsetTable,
    (clock, stamps): (ClockOf, Option<&Stamps>),
) {
    let Some((stamps, first)) = stamps.zip(rows.first()) else {
        return;
    };
    let sent = match first.timeline.side() {
        Side::Traffic => Moment::Sent,
        Side::Front | Side::Hop => Moment::Forwarded,
    };
    let [sent, head] = [sent, Moment::ResponseHead].map(|moment| first.timeline.raw(moment));
    // The observer has related stamps of our own clock.
    let is_own = first.timeline.relation(clock) == Relation::Same;
    let Some(from) = sent.or(head).filter(|_| !is_own) else {
        return;
    };
    let there = sent.zip(stamps.arrival);
    let there = there.map(|(ours, theirs)| OffsetBound::of_sent(ours, theirs));
    let back = head.zip(stamps.now);
    let back = back.map(|(ours, theirs)| OffsetBound::of_received(ours, theirs));
    clocks.add(&stamps.clock, there.into_iter().chain(back));
    // The stamps were taken within this time.
    let window = (from, head.unwrap_or(from));
    relate(rows, clock, clocks.get_over(&stamps.clock, window));
}

/// Puts the name of the engine's clock into the first row: its host as seen by the process nearest to it, which took `nearest`.
pub fn name_engine_clock(rows: &mut [Row], nearest: Option<&Stamps>) {
    if let Some(first) = rows.first_mut() {
        let host = first.host.as_deref();
        let name = |host: &str| nearest.map_or_else(|| host.into(), |by| by.engine_clock(host));
        first.internal.engine_clock = host.map(name);
    }
}

/// Relates the engine's clock to ours; if the request gives bounds on it, learns these before.
pub fn relate_engine(rows: &mut [Row], clocks: &mut OffsetTable, gives_bounds: bool) {
    let first = rows.first();
    let name = first.and_then(|row| row.internal.engine_clock.as_deref());
    let Some((name, window)) = name.zip(engine_window(rows)) else {
        return;
    };
    if gives_bounds {
        clocks.add(name, engine_bounds(rows));
    }
    let offset = clocks.get_over(name, window);
    relate(rows, ClockOf::Engine, offset);
}

fn relate(rows: &mut [Row], clock: ClockOf, offset: Option<Offset>) {
    let Some(offset) = offset else { return };
    for row in rows {
        row.timeline.relate(clock, Relation::Apart(offset));
    }
}

/// Returns the bounds that a request puts on the engine's clock: the engine cannot have received what we sent before we sent it,
/// and we cannot have read what it made before it made it.
pub(super) fn engine_bounds(rows: &[Row]) -> impl Iterator<Item = OffsetBound> {
    let received = rows.iter().filter_map(|row| {
        let created = row.timeline.raw(Moment::ServerCreated)?;
        Some(OffsetBound::of_sent(row.timeline.last_send()?, created))
    });
    let made = rows.iter().filter_map(|row| {
        let raw = |moment| row.timeline.raw(moment);
        let first = || raw(Moment::ServerFirstToken).zip(raw(Moment::FirstToken));
        // No token of a reply was seen: it was read when the engine had finished it.
        let is_whole = row.message_whole == Some(true);
        let last = || raw(Moment::ServerFinish).zip(raw(Moment::Finish).filter(|_| is_whole));
        let (made, read) = row.internal.first_write.or_else(first).or_else(last)?;
        Some(OffsetBound::of_received(read, made))
    });
    received.chain(made)
}

/// Returns when the engine's moments of a request were, on our clock: from our last send to the first token read, or to the end
/// if none was. `None` if nothing is known to have been sent.
fn engine_window(rows: &[Row]) -> Option<(Stamp, Stamp)> {
    let from = rows.iter().filter_map(|row| row.timeline.last_send());
    let from = from.min()?;
    let to = rows.iter().filter_map(|row| {
        let raw = |moment| row.timeline.raw(moment);
        raw(Moment::FirstToken).or_else(|| raw(Moment::Finish))
    });
    let to = to.max().unwrap_or(from);
    Some((from, to.max(from)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::attempt::parse_failed;

    #[test]
    fn invalid_stamps_are_refused() {
        for wrong in [
            "",
            "[]",
            "clock=a;now=1",
            r#"["",5]"#,
            r#"["a","soon"]"#,
            r#"["a",-9223372036854775808]"#,
            r#"["a",-1]"#,
            r#"["a",4611686018427387904]"#,
            r#"["a",1,2,3,4,"h",1,false,false,"w",0]"#,
            r#"["a",1,2,3,4,"h",1,false,false,null,null,7,[],["b",9223372036854775808]]"#,
        ] {
            assert_eq!(Stamps::parse(wrong), None, "{wrong}");
        }
        let short = r#"["a",7,null,null,null,null,null,false,false,null,null,null,[],[""]]"#;
        let stamps = Stamps::parse(short).unwrap();
        assert_eq!((stamps.now, stamps.hop), (Some(Stamp::from_nanos(7)), None));
        let later = r#"["a",null,null,null,null,null,null,false,false,null,null,null,[],null,"of a later version"]"#;
        let last = r#"{"clock":"a","is_direct":false}"#;
        for known in [r#"["a"]"#, later, last] {
            assert_eq!(Stamps::parse(known), Some(stamps_of("a")), "{known}");
        }
        let members: Vec<Value> = serde_json::from_str(&Stamps::default().render()).unwrap();
        assert_eq!(members.len(), MEMBER_COUNT);
        let many = vec!["h timeout 503"; 2 * MAX_FAILED].join("; ");
        let stamps = Stamps {
            failed: parse_failed(&many).collect(),
            ..stamps_of("a")
        };
        let read = Stamps::parse(&stamps.render()).unwrap().failed;
        assert_eq!(read, stamps.failed[..MAX_FAILED]);
    }

    fn stamps_of(clock: &str) -> Stamps {
        Stamps {
            clock: clock.to_owned(),
            ..Stamps::default()
        }
    }
}
